"""Architectures with a choice or two of their own; the large families stand in `models.py` and `hybrid.py`."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Fill, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State
from servetune.engines.sglang.rules.hybrid import NEMOTRON_H

SOURCE = "server_args.py:_handle_model_specific_adjustments; 0.5.20+: arg_groups/model_hook.py and model_overrides/"
_MODELOPT = ("modelopt", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed")
_BACKENDS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")


def _method(s: State) -> str | None:
    """The quantization named, else the checkpoint's, as `ModelConfig` has it when a model's adjustments read it."""
    found = s.model.quantization.method
    return found if found in _MODELOPT else s.quantization or found


def _expert_remap(s: State) -> bool:
    redundant = int(s.ep_num_redundant_experts or 0) > 0
    return bool(s.enable_eplb) or redundant or s.init_expert_location != "trivial"


@rule("model.nemotron_h_runner", Stage.MODEL, since="0.5.9", architectures=NEMOTRON_H, source=f"{SOURCE}nemotron_h.py")
def nemotron_h_runner(s: State) -> Effects:
    """Nemotron-H reads its quantization; its experts, if it has any, run on FlashInfer's kernels or on marlin."""
    method = _method(s)
    modelopt = method in _MODELOPT
    if modelopt and s.quantization != method:
        yield Assign("quantization", method, "read from the checkpoint")
    if s.version < (0, 5, 10):
        if modelopt:
            yield Assign("moe_runner_backend", "flashinfer_cutlass", "the only runner of quantized Nemotron-H")
        return
    remap = s.version >= (0, 5, 23) and _expert_remap(s)
    if remap and s.moe_runner_backend == "flashinfer_trtllm":
        yield Refuse(
            "flashinfer_trtllm routes inside its kernel: no expert balancing or redundant experts on Nemotron-H",
            ("moe_runner_backend", "enable_eplb", "ep_num_redundant_experts"),
            ("--moe-runner-backend flashinfer_trtllm_routed",),
        )
    if s.moe_runner_backend != "auto":
        return
    wide = s.gpu.sm100 and s.moe_a2a_backend == "none"
    reason = "the default for Nemotron-H on this GPU"
    if remap and wide:
        yield Assign("moe_runner_backend", "flashinfer_trtllm_routed", reason)
    elif modelopt or method is None:
        fp4 = method in ("modelopt_fp4", "modelopt_mixed") and s.gpu.major in (8, 9)
        runner = "flashinfer_trtllm" if wide else "marlin" if fp4 else "flashinfer_cutlass"
        yield Assign("moe_runner_backend", runner, reason)


@rule(
    "model.nemotron_h_attention",
    Stage.MODEL,
    since="0.5.14",
    architectures=NEMOTRON_H,
    source="arg_groups/model_overrides/nemotron_h.py",
)
def nemotron_h_attention(s: State) -> Effects:
    """On Blackwell Nemotron-H attends by trtllm_mha, and drafts on triton where that cannot."""
    if not s.gpu.blackwell or not s.attention_unset:
        return
    if s.speculative_algorithm is None:
        if s.gpu.sm100:
            yield Fill("attention_backend", "trtllm_mha")
        return
    algorithm = str(s.speculative_algorithm).upper()
    chain = s.gpu.sm100 and s.speculative_eagle_topk in (None, 1)
    yield Fill("attention_backend", "trtllm_mha" if chain else "triton")
    drafts = ("EAGLE", "NEXTN", "DSPARK") if chain else ("EAGLE", "NEXTN", "DFLASH", "DSPARK")
    if s.speculative_draft_attention_backend is None and algorithm in drafts:
        yield Fill("speculative_draft_attention_backend", "trtllm_mha" if chain else "flashinfer")
    if chain:
        if s.page_size is None:
            yield Fill("page_size", 64)
        if s.mamba_radix_cache_strategy == "auto":
            yield Fill("mamba_radix_cache_strategy", "extra_buffer")


@rule(
    "model.gemma4",
    Stage.MODEL,
    since="0.5.13",
    architectures=frozenset(
        {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"}
    ),
    source=SOURCE,
)
def gemma4(s: State) -> Effects:
    """Gemma 4 runs on few attention backends, in both phases."""
    if not s.gpu.known:
        return
    fp4 = _method(s) == "modelopt_fp4"
    if s.attention_backend is None:
        slow = s.version < (0, 5, 14) and fp4 and s.model.moe
        yield Fill("attention_backend", "trtllm_mha" if s.gpu.sm100 and not slow else "triton")
    allowed: tuple[str, ...] = ("trtllm_mha", "triton", "intel_xpu")
    if s.version >= (0, 5, 14):
        allowed += ("fa4", "ascend", "intel_amx", "aiter")
    wrong = [name for name in s.attention_backends if name not in allowed]
    if wrong:
        yield Refuse(f"Gemma 4 does not run on attention backend {wrong[0]}", _BACKENDS, ("triton", "trtllm_mha"))
    if s.gpu.sm100 and s.moe_runner_backend == "auto" and fp4:
        yield Fill("quantization", "modelopt_fp4")
        yield Fill("moe_runner_backend", "flashinfer_trtllm")


def _by_generation(s: State) -> str:
    return "trtllm_mha" if s.gpu.sm100 else "fa3" if s.gpu.sm >= 80 else "triton"


@rule("model.olmo", Stage.MODEL, since="0.5.9", architectures=frozenset({"Olmo2ForCausalLM"}), source=SOURCE)
def olmo(s: State) -> Effects:
    """OLMo is not served on flashinfer."""
    if s.attention_backend is None and s.gpu.known:
        yield Fill("attention_backend", _by_generation(s))
    if s.attention_backend == "flashinfer":
        yield Refuse("OLMo does not run on attention backend flashinfer", ("attention_backend",), ("fa3", "triton"))


@rule(
    "model.exaone",
    Stage.MODEL,
    since="0.5.9",
    architectures=frozenset({"Exaone4ForCausalLM", "ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"}),
    source=SOURCE,
)
def exaone(s: State) -> Effects:
    """EXAONE with sliding windows runs on three attention backends; up to 0.5.13 one has to be named."""
    if not s.model.sliding_pattern or not s.gpu.known:
        return
    if s.attention_backend is None and s.version >= (0, 5, 14):
        yield Fill("attention_backend", _by_generation(s))
    allowed = ("fa3", "triton", "trtllm_mha")
    if s.attention_backend not in allowed:
        yield Refuse(
            f"EXAONE with sliding windows needs --attention-backend {', '.join(allowed)}, got {s.attention_backend}",
            ("attention_backend",),
            tuple(f"--attention-backend {name}" for name in allowed),
        )


@rule(
    "model.step_3_5",
    Stage.MODEL,
    since="0.5.13",
    architectures=frozenset({"Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"}),
    source=SOURCE,
)
def step_3_5(s: State) -> Effects:
    """Step 3.5 attends by fa4 on Blackwell and by fa3 on Hopper."""
    if s.attention_unset and (s.gpu.blackwell or s.gpu.sm90):
        yield Fill("attention_backend", "fa4" if s.gpu.blackwell else "fa3")


@rule(
    "model.mimo_v2",
    Stage.MODEL,
    since="0.5.23",
    architectures=frozenset({"MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM"}),
    source="arg_groups/model_overrides/mimo_v2.py",
)
def mimo_v2(s: State) -> Effects:
    """On compute capability 10 MiMo-V2 attends by fa4, and its FP8 experts run on flashinfer_trtllm."""
    if not s.gpu.sm100:
        return
    if s.attention_unset:
        yield Fill("attention_backend", "fa4")
    fp8 = s.model.quantization.declared == "fp8"
    if s.moe_runner_backend == "auto" and s.moe_a2a_backend == "none" and fp8:
        yield Assign("moe_runner_backend", "flashinfer_trtllm", "the default for this model on compute capability 10")


@rule(
    "model.minimax_m2",
    Stage.MODEL,
    since="0.5.23",
    majors=(10,),
    architectures=frozenset({"MiniMaxM2ForCausalLM"}),
    source="arg_groups/model_overrides/minimax_m2.py",
)
def minimax_m2(s: State) -> Effects:
    """On compute capability 10 NVFP4 experts of MiniMax-M2 run on flashinfer_trtllm_routed."""
    if s.gpu.sm100 and s.moe_runner_backend == "auto" and _method(s) == "modelopt_fp4":
        reason = "the default for this model on compute capability 10"
        yield Assign("moe_runner_backend", "flashinfer_trtllm_routed", reason)


@rule(
    "model.ernie_vl",
    Stage.MODEL,
    since="0.5.23",
    architectures=frozenset({"Ernie4_5_VLMoeForConditionalGeneration"}),
    source="arg_groups/model_overrides/ernie45_vl.py",
)
def ernie_vl(s: State) -> Effects:
    """ERNIE 4.5 VL splits its attention heads over all ranks."""
    if s.attention_dp > 1:
        yield Refuse(
            "ERNIE 4.5 VL does not work with attention data parallelism", ("attn_dp_size",), ("--attn-dp-size 1",)
        )


@rule(
    "model.qwen3_vl_hopper",
    Stage.MODEL,
    since="0.5.23",
    majors=(9,),
    architectures=frozenset({"Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"}),
    source="arg_groups/model_overrides/qwen3_vl.py",
)
def qwen3_vl_hopper(s: State) -> Effects:
    """On large Hopper GPUs Qwen3-VL decodes by flashinfer unless told otherwise."""
    large = s.gpu.sm90 and (s.gpu.memory_mib or 0) >= 60 * 1024 and s.model.multimodal
    if large and s.attention_backend is None and s.decode_attention_backend is None:
        yield Fill("decode_attention_backend", "flashinfer")


@rule(
    "model.whole_prompts",
    Stage.DIFFUSION,
    since="0.5.23",
    architectures=frozenset(
        {
            "Grok1VForCausalLM",
            "LlavaLlamaForCausalLM",
            "MllamaForConditionalGeneration",
            "MossVLForConditionalGeneration",
        }
    ),
    source="arg_groups/model_hook.py:handle_model_capability_adjustments",
)
def whole_prompts(s: State) -> Effects:
    """Some models that see take a prompt in one piece only."""
    if s.model.multimodal:
        yield Assign("chunked_prefill_size", -1, "this model takes a prompt in one piece")
