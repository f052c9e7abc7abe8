"""All-reduce options that the engine switches on or off by itself."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Fill, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

SOURCE = (
    "server_args.py:_handle_model_specific_adjustments; 0.5.15+: overrides.py:_flashinfer_allreduce_fusion_auto_enable"
)
_ARCHITECTURES_0_5_9 = frozenset(
    {
        "DeepseekV3ForCausalLM",
        "GptOssForCausalLM",
        "Glm4MoeForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "Qwen3MoeForCausalLM",
        "KimiK25ForConditionalGeneration",
    }
)
_ARCHITECTURES_0_5_12 = _ARCHITECTURES_0_5_9 | {
    "DeepseekV32ForCausalLM",
    "GlmMoeDsaForCausalLM",
    "MistralLarge3ForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
}
_ARCHITECTURES_0_5_23 = _ARCHITECTURES_0_5_12 | {
    "DeepseekV4ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration",
    "NemotronHForCausalLM",
    "NemotronHPuzzleForCausalLM",
    "InternS2PreviewForConditionalGeneration",
    "MiMoV2ForCausalLM",
    "MiMoV2FlashForCausalLM",
}
_MIMO = frozenset({"MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM"})
_CUTEDSL_RANKS = (2, 4, 8, 16)


def _architectures(s: State) -> frozenset[str]:
    if s.version < (0, 5, 10):
        return _ARCHITECTURES_0_5_9
    return _ARCHITECTURES_0_5_12 if s.version < (0, 5, 20) else _ARCHITECTURES_0_5_23


@rule("allreduce.fusion_spelling", Stage.EARLY, since="0.5.14", source="server_args.py:_handle_deprecated_args")
def fusion_spelling(s: State) -> Effects:
    """The old switch of the all-reduce fusion names the backend auto."""
    if s.enable_flashinfer_allreduce_fusion and s.flashinfer_allreduce_fusion_backend is None:
        yield Fill("flashinfer_allreduce_fusion_backend", "auto")


@rule("allreduce.fusion_default", Stage.ALLREDUCE, since="0.5.7", majors=(9, 10), source=SOURCE)
def fusion_default(s: State) -> Effects:
    """FlashInfer's all-reduce fusion is on by default on compute capability 9 and 10 for listed models."""
    new = s.version >= (0, 5, 14)
    given = s.flashinfer_allreduce_fusion_backend is not None if new else s.enable_flashinfer_allreduce_fusion
    if given or s.model.architecture not in _architectures(s) or not (s.gpu.sm90 or s.gpu.sm100):
        return
    h20 = "H20" in s.gpu.name and "H200" not in s.gpu.name and s.version < (0, 5, 13)
    several = s.tp_size > 1 or s.version < (0, 5, 10)
    mimo = s.model.architecture in _MIMO
    if mimo and not _cutedsl(s):
        return
    one_node = s.nnodes == 1 or (s.gpu.sm100 and s.version >= (0, 5, 18))
    attention_dp = s.attn_dp_size > 1 if s.version >= (0, 5, 22) else s.enable_dp_attention
    if several and one_node and not attention_dp and not h20 and s.moe_a2a_backend == "none":
        yield (
            Fill("flashinfer_allreduce_fusion_backend", "cutedsl" if mimo else "auto")
            if new
            else Fill("enable_flashinfer_allreduce_fusion", True)
        )


def _cutedsl(s: State) -> bool:
    """Whether MiMo-V2's kernels can fuse the all-reduce (0.5.23)."""
    bf16 = s.model.dtype_bytes == 2 and s.dtype in ("auto", "bfloat16")
    alone = s.attn_cp_size == 1 and not s.user.get("encoder_only") and not s.enable_pdmux
    return bool(s.gpu.sm100 and bf16 and alone and s.tp_size in _CUTEDSL_RANKS and s.version >= (0, 5, 23))


@rule("allreduce.fusion_enforced_off", Stage.ALLREDUCE, since="0.5.12", source=SOURCE)
def fusion_enforced_off(s: State) -> Effects:
    """--enforce-disable-flashinfer-allreduce-fusion wins over everything."""
    if not s.enforce_disable_flashinfer_allreduce_fusion and not s.enable_deterministic_inference:
        return
    reason = "--enforce-disable-flashinfer-allreduce-fusion or deterministic inference"
    if s.enable_flashinfer_allreduce_fusion and s.version < (0, 5, 14):
        yield Assign("enable_flashinfer_allreduce_fusion", False, reason)
    if s.flashinfer_allreduce_fusion_backend is not None:
        yield Assign("flashinfer_allreduce_fusion_backend", None, reason)


@rule("allreduce.quantized_communication", Stage.CHECK, since="0.5.12", source="server_args.py:check_server_args")
def quantized_communication(s: State) -> Effects:
    """Quantized communication exists on Ascend only."""
    if s.enable_quant_communications:
        yield Refuse("--enable-quant-communications runs on Ascend only", ("enable_quant_communications",))
