"""MegaMoE: dispatch, experts and combine in one kernel, chosen by the all-to-all backend."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

SOURCE = "arg_groups/mega_moe_hook.py:handle_mega_moe"
FLASHINFER = "arg_groups/moe_hook.py:handle_a2a_moe, validate_flashinfer_megamoe_model"
_FLASHINFER_ARCHITECTURES = frozenset(
    {
        "BeamForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV4ForCausalLM",
        "Glm4MoeForCausalLM",
        "GlmMoeDsaForCausalLM",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "KimiK3ForConditionalGeneration",
        "KimiK3LinearForCausalLM",
    }
)


@rule("megamoe.alias", Stage.EARLY, since="0.5.18", source=SOURCE)
def alias(s: State) -> Effects:
    """The runner megamoe is another name for the all-to-all backend megamoe."""
    if s.moe_runner_backend == "megamoe":
        yield Assign("moe_runner_backend", "auto", "megamoe is chosen by --moe-a2a-backend")
        yield Assign("moe_a2a_backend", "megamoe", "--moe-runner-backend megamoe is another name for it")


@rule("megamoe.compatible", Stage.EARLY, since="0.5.18", source=SOURCE)
def compatible(s: State) -> Effects:
    """Megamoe has no overlap."""
    if s.moe_a2a_backend != "megamoe":
        return
    for field in ("enable_two_batch_overlap", "enable_single_batch_overlap"):
        if getattr(s, field):
            yield Refuse(f"--moe-a2a-backend megamoe excludes --{field.replace('_', '-')}", ("moe_a2a_backend", field))


@rule("megamoe.gpu", Stage.EARLY, since="0.5.21", source=SOURCE)
def gpu(s: State) -> Effects:
    """Megamoe has kernels for compute capability 9 and 10 only."""
    if s.moe_a2a_backend == "megamoe" and s.gpu.known and not (s.gpu.sm90 or s.gpu.sm100):
        yield Refuse("--moe-a2a-backend megamoe needs compute capability 9 or 10", ("moe_a2a_backend",), ("none",))


@rule("megamoe.flashinfer", Stage.A2A, since="0.5.20", source=FLASHINFER)
def flashinfer(s: State) -> Effects:
    """flashinfer_megamoe needs a validated model, MXFP8 or NVFP4, DP attention and compute capability 10."""
    if s.moe_a2a_backend != "flashinfer_megamoe":
        return
    flags = ("moe_a2a_backend",)
    if s.model.known and s.model.architecture not in _FLASHINFER_ARCHITECTURES:
        yield Refuse(f"flashinfer_megamoe is not validated for {s.model.architecture}", flags, ("none",))
    if s.quantization not in ("mxfp8", "modelopt_fp4"):
        yield Refuse(
            f"flashinfer_megamoe takes mxfp8 and modelopt_fp4, got quantization {s.quantization!r}",
            ("moe_a2a_backend", "quantization"),
        )
    if s.attn_dp_size != s.tp_size or s.attn_dp_size < 2:
        yield Refuse(
            "flashinfer_megamoe needs --attn-dp-size equal to --tp-size", ("moe_a2a_backend", "attn_dp_size", "tp_size")
        )
    if s.moe_runner_backend == "auto":
        yield Assign("moe_runner_backend", "flashinfer_megamoe", "the runner of flashinfer_megamoe")
    elif s.moe_runner_backend != "flashinfer_megamoe":
        yield Refuse(
            "flashinfer_megamoe runs on its own runner",
            ("moe_a2a_backend", "moe_runner_backend"),
            ("flashinfer_megamoe",),
        )
    if s.gpu.known and not s.gpu.sm100:
        yield Refuse("flashinfer_megamoe needs compute capability 10", flags)
