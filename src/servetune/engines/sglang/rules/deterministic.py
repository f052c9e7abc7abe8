"""Deterministic inference: what it picks, restricts and switches off."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Fill, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

SOURCE = "server_args.py:_handle_deterministic_inference; 0.5.20+: attention_hook.py:handle_deterministic_inference"
_FLAGS = ("enable_deterministic_inference", "attention_backend")
_LATENT = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "MistralLarge3ForCausalLM",
        "PixtralForConditionalGeneration",
        "GlmMoeDsaForCausalLM",
    }
)


def _with_radix_cache(s: State) -> tuple[str, ...]:
    """Attention backends on which the radix cache is deterministic too."""
    names: tuple[str, ...] = ("fa3", "triton")
    if s.version >= (0, 5, 13):
        names += ("ascend",)
    return (*names, "fa4") if s.version >= (0, 5, 18) else names


@rule("deterministic.on_policy", Stage.DETERMINISTIC, since="0.5.3", source=SOURCE)
def on_policy(s: State) -> Effects:
    """--rl-on-policy-target makes inference deterministic."""
    if s.rl_on_policy_target is not None and not s.enable_deterministic_inference:
        yield Assign("enable_deterministic_inference", True, "--rl-on-policy-target")


@rule("deterministic.attention", Stage.DETERMINISTIC, since="0.5.3", source=SOURCE)
def attention(s: State) -> Effects:
    """Deterministic inference picks and restricts the attention backend."""
    if not s.enable_deterministic_inference:
        return
    lite = s.model.architecture == "Glm4MoeLiteForCausalLM"
    latent = s.model.architecture in _LATENT or (lite and s.version >= (0, 5, 16))  # between 0.5.15 and 0.5.18
    if s.attention_backend is None and s.gpu.known:
        new = s.gpu.sm100 or s.gpu.sm120
        yield Fill("attention_backend", ("triton" if latent else "flashinfer") if new else "fa3")
    backend, radix = s.attention_backend, _with_radix_cache(s)
    allowed = (*radix, "flashinfer") + (("intel_xpu",) if s.version >= (0, 5, 20) else ())
    absorbed = latent or (lite and s.version >= (0, 5, 15))
    if backend is not None and backend not in allowed:
        yield Refuse(f"deterministic inference does not run on attention backend {backend}", _FLAGS, allowed)
    elif absorbed and backend not in radix:
        yield Refuse(f"deterministic inference of this model does not run on {backend}", _FLAGS, radix)
    elif absorbed and backend == "fa4" and s.gpu.known and s.gpu.major not in (10, 11):
        yield Refuse("deterministic latent attention on fa4 needs compute capability 10 or 11", _FLAGS, radix)
    if backend is not None and backend not in radix:
        yield Assign("disable_radix_cache", True, "the radix cache is not deterministic on this backend")


@rule("deterministic.others", Stage.DETERMINISTIC, since="0.5.3", source=SOURCE)
def others(s: State) -> Effects:
    """Sampling in PyTorch, NCCL's tree algorithm, and no all-reduce that depends on the batch."""
    if not s.enable_deterministic_inference:
        return
    reason = "deterministic inference"
    if s.sampling_backend != "pytorch" and not (s.sampling_backend == "ascend" and s.version >= (0, 5, 13)):
        yield Assign("sampling_backend", "pytorch", reason)
    if s.version >= (0, 5, 10) and s.enable_flashinfer_allreduce_fusion:
        yield Assign("enable_flashinfer_allreduce_fusion", False, reason)
    if s.flashinfer_allreduce_fusion_backend is not None:
        yield Assign("flashinfer_allreduce_fusion_backend", None, reason)
    if s.tp_size > 1:
        if not s.disable_custom_all_reduce:
            yield Assign("disable_custom_all_reduce", True, "NCCL's tree algorithm is deterministic")
        if s.enable_torch_symm_mem and s.version >= (0, 5, 18):
            yield Assign("enable_torch_symm_mem", False, "its use depends on the message size")
