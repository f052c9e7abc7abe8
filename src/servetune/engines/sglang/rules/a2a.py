"""All-to-all backends of expert parallelism: what they rewrite and what they need."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State
from servetune.engines.sglang.rules.graphs import graphs_off

SOURCE = "server_args.py:_handle_a2a_moe; 0.5.20+: arg_groups/moe_hook.py:handle_a2a_moe"
MEGAMOE = "arg_groups/mega_moe_hook.py:handle_mega_moe"
#: Backends that spread experts over all tensor-parallel ranks.
SPANNING = frozenset(
    {
        "deepep",
        "deepep_v2",
        "mooncake",
        "mori",
        "nixl",
        "ascend_fuseep",
        "flashinfer",
        "flashinfer_megamoe",
        "megamoe",
        "pplx",
    }
)
_RUNNER = ("moe_a2a_backend", "moe_runner_backend")


@rule("a2a.waterfill_needs_deepep", Stage.A2A, since="0.5.10", source=SOURCE)
def waterfill_needs_deepep(s: State) -> Effects:
    """Waterfill balancing moves the all-to-all backend to deepep."""
    allowed = ("deepep", "megamoe") if s.version >= (0, 5, 15) else ("deepep",)
    if s.enable_waterfill and s.moe_a2a_backend not in allowed:
        yield Assign("moe_a2a_backend", "deepep", "waterfill needs the DeepEP backend")


@rule("a2a.flashinfer_needs_dp_attention", Stage.A2A, since="0.5.13", source=SOURCE)
def flashinfer_needs_dp_attention(s: State) -> Effects:
    """From 0.5.13 on the flashinfer all-to-all needs DP attention over all tensor-parallel ranks."""
    if s.moe_a2a_backend != "flashinfer":
        return
    if s.version >= (0, 5, 22):
        fits = s.attn_dp_size > 1 and s.attn_dp_size == s.tp_size
    else:
        fits = s.enable_dp_attention and s.dp_size == s.tp_size
    if not fits:
        yield Refuse(
            f"--moe-a2a-backend flashinfer needs DP attention with as many groups as --tp-size {s.tp_size}",
            ("moe_a2a_backend", "enable_dp_attention", "dp_size", "tp_size"),
            (f"--dp-size {s.tp_size} --enable-dp-attention", "--moe-a2a-backend none"),
        )


@rule("a2a.spans_tensor_parallel", Stage.A2A, source=SOURCE + "; overrides.py:_a2a_ep_size")
def spans_tensor_parallel(s: State) -> Effects:
    """An all-to-all backend sets the expert-parallel size to the tensor-parallel size."""
    if s.moe_a2a_backend in SPANNING and s.ep_size != s.tp_size:
        yield Assign(
            "ep_size",
            s.tp_size,
            f"--moe-a2a-backend {s.moe_a2a_backend} spreads experts over all tensor-parallel ranks",
        )


@rule("a2a.fusion", Stage.A2A, source=SOURCE + "; overrides.py:_a2a_fusion_adjustments")
def fusion(s: State) -> Effects:
    """Which all-to-all backends run without fused shared experts."""
    backend = s.moe_a2a_backend
    if backend in ("deepep", "megamoe") and s.enable_waterfill:
        yield Assign("disable_shared_experts_fusion", False, "waterfill dispatches the shared experts")
        yield Assign("enforce_shared_experts_fusion", True, "waterfill dispatches the shared experts")
    elif backend in ("flashinfer", "flashinfer_megamoe", "deepep_v2"):
        yield Assign(
            "disable_shared_experts_fusion", True, f"--moe-a2a-backend {backend} runs without fused shared experts"
        )


@rule("a2a.flashinfer_runner", Stage.A2A, since="0.5.7", source=SOURCE)
def flashinfer_runner(s: State) -> Effects:
    """The flashinfer all-to-all runs with few MoE runners; `auto` is not one of them."""
    if s.moe_a2a_backend != "flashinfer":
        return
    allowed = ["flashinfer_cutlass"]
    if s.version >= (0, 5, 13):
        allowed.append("flashinfer_cutedsl")
    if s.version >= (0, 5, 15):
        allowed.append("flashinfer_trtllm_routed")
    if s.version >= (0, 5, 20):
        allowed += ["flashinfer_trtllm", "deep_gemm"]
        if s.moe_runner_backend == "flashinfer_trtllm" and s.flashinfer_a2a_dispatch_type is not None:
            yield Assign("moe_runner_backend", "flashinfer_trtllm_routed", "a dispatch type needs the routed runner")
    if s.moe_runner_backend not in allowed:
        yield Refuse(
            f"--moe-a2a-backend flashinfer does not run with --moe-runner-backend {s.moe_runner_backend}",
            _RUNNER,
            tuple(f"--moe-runner-backend {name}" for name in allowed),
        )


@rule(
    "a2a.flashinfer_dispatch_type", Stage.A2A, since="0.5.20", source="moe_hook.py:handle_flashinfer_a2a_dispatch_type"
)
def flashinfer_dispatch_type(s: State) -> Effects:
    """A dispatch type belongs to the flashinfer all-to-all and to a matching quantization."""
    kind = s.flashinfer_a2a_dispatch_type
    flags = ("flashinfer_a2a_dispatch_type", "moe_a2a_backend", "quantization")
    if s.moe_a2a_backend != "flashinfer":
        if kind not in (None, "auto"):
            yield Refuse("--flashinfer-a2a-dispatch-type needs --moe-a2a-backend flashinfer", flags[:2])
        return
    if kind is None:
        return
    if "SGLANG_MOE_NVFP4_DISPATCH" in s.env:
        yield Refuse("SGLANG_MOE_NVFP4_DISPATCH and --flashinfer-a2a-dispatch-type exclude each other", flags[:1])
    nvfp4 = s.quantization == "modelopt_fp4"
    if kind == "auto":
        kind = "mxfp8" if s.quantization == "mxfp8" else "nvfp4" if nvfp4 else "bf16"
        yield Assign("flashinfer_a2a_dispatch_type", kind, "follows the quantization")
    if kind == "mxfp8" and s.quantization != "mxfp8":
        yield Refuse("--flashinfer-a2a-dispatch-type mxfp8 needs --quantization mxfp8", flags)
    elif kind == "mxfp8" and s.moe_runner_backend != "flashinfer_trtllm_routed":
        yield Refuse("--flashinfer-a2a-dispatch-type mxfp8 needs --moe-runner-backend flashinfer_trtllm_routed", flags)
    elif kind == "nvfp4" and not nvfp4:
        yield Refuse("--flashinfer-a2a-dispatch-type nvfp4 needs an NVFP4 model", flags)


@rule("a2a.deepep_cutedsl_mode", Stage.A2A, since="0.5.18", source=SOURCE)
def deepep_cutedsl_mode(s: State) -> Effects:
    """flashinfer_cutedsl has no handler for DeepEP's normal dispatch."""
    if s.moe_a2a_backend != "deepep" or s.moe_runner_backend != "flashinfer_cutedsl":
        return
    if s.deepep_mode == "auto":
        yield Assign("deepep_mode", "low_latency", "flashinfer_cutedsl has no handler for DeepEP's normal dispatch")
    elif s.deepep_mode == "normal":
        yield Refuse(
            "--deepep-mode normal does not run with --moe-runner-backend flashinfer_cutedsl",
            ("deepep_mode", "moe_runner_backend"),
            ("--deepep-mode low_latency", "--deepep-mode auto"),
        )


@rule("a2a.deepep_normal_without_graphs", Stage.A2A, source=SOURCE)
def deepep_normal_without_graphs(s: State) -> Effects:
    """DeepEP's normal mode runs without CUDA graphs."""
    if s.moe_a2a_backend == "deepep" and s.deepep_mode == "normal":
        yield from graphs_off(s, "--deepep-mode normal cannot be captured")


@rule("a2a.deepep_v2", Stage.A2A, since="0.5.20", source=SOURCE)
def deepep_v2(s: State) -> Effects:
    """DeepEP v2 runs on deep_gemm, on registered models, without overlap and without prefill graphs."""
    if s.moe_a2a_backend != "deepep_v2":
        return
    if s.model.known and s.model.architecture not in _DEEPEP_V2_ARCHITECTURES:
        yield Refuse(
            f"--moe-a2a-backend deepep_v2 is not validated for {s.model.architecture}",
            ("moe_a2a_backend",),
            ("deepep",),
        )
    if s.moe_runner_backend == "auto":
        yield Assign("moe_runner_backend", "deep_gemm", "the runner of deepep_v2")
    elif s.moe_runner_backend != "deep_gemm":
        yield Refuse("--moe-a2a-backend deepep_v2 runs with --moe-runner-backend deep_gemm", _RUNNER, ("deep_gemm",))
    for field in ("enable_two_batch_overlap", "enable_single_batch_overlap", "enforce_shared_experts_fusion"):
        if getattr(s, field):
            yield Refuse(
                f"--moe-a2a-backend deepep_v2 excludes --{field.replace('_', '-')}", ("moe_a2a_backend", field)
            )
    if s.deepep_v2_mode == "direct" and s.nnodes > 1:
        yield Refuse("--deepep-v2-mode direct runs on one node", ("deepep_v2_mode", "nnodes"), ("hybrid",))
    yield Assign("cuda_graph_backend_prefill", "disabled", "deepep_v2 prefill cannot be captured")


#: `configs/moe_model_registry.py`
_DEEPEP_V2_ARCHITECTURES = frozenset(
    {
        "DeepseekV3ForCausalLM",
        "DeepseekV4ForCausalLM",
        "Qwen3MoeForCausalLM",
        "GlmMoeDsaForCausalLM",
        "Glm5NextForConditionalGeneration",
        "MiMoV2ForCausalLM",
        "MiMoV2FlashForCausalLM",
    }
)


@rule("a2a.mori", Stage.A2A, since="0.5.8", source=SOURCE)
def mori(s: State) -> Effects:
    """MoRI dispatches in normal mode, and a chunk must fit its token budget."""
    if s.moe_a2a_backend != "mori":
        return
    if s.deepep_mode == "auto" or s.version <= (0, 5, 9):
        yield Assign("deepep_mode", "normal", "the mode of MoRI")
    chunk, budget = s.chunked_prefill_size, s.env_int("SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 4096)
    if chunk is not None and chunk > budget and s.disaggregation_mode != "decode":
        yield Refuse(
            f"--moe-a2a-backend mori dispatches at most {budget} tokens per rank, the prefill chunk is {chunk}",
            ("moe_a2a_backend", "chunked_prefill_size"),
            (f"--chunked-prefill-size {budget}",),
        )


@rule("a2a.pplx", Stage.A2A, since="0.5.16", source=SOURCE)
def pplx(s: State) -> Effects:
    """Pplx needs DP attention, deep_gemm and a prefill chunk within its token budget."""
    if s.moe_a2a_backend != "pplx":
        return
    if s.deepep_mode == "normal":
        yield Refuse(
            "--moe-a2a-backend pplx has no normal mode", ("moe_a2a_backend", "deepep_mode"), ("low_latency", "auto")
        )
    elif s.deepep_mode == "auto":
        yield Assign("deepep_mode", "low_latency", "the mode of pplx")
    if s.attention_dp < 2:
        yield Refuse("--moe-a2a-backend pplx needs DP attention with at least 2 groups", ("moe_a2a_backend", "dp_size"))
    if s.moe_runner_backend == "auto":
        yield Assign("moe_runner_backend", "deep_gemm", "the runner of pplx")
    elif s.moe_runner_backend != "deep_gemm":
        yield Refuse("--moe-a2a-backend pplx runs with --moe-runner-backend deep_gemm", _RUNNER, ("deep_gemm", "auto"))
    chunk, budget = s.chunked_prefill_size, s.env_int("SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 128)
    if chunk is None or chunk <= 0 or s.disaggregation_mode == "decode":
        return
    tokens = max(chunk, s.user.get("cuda_graph_max_bs_decode") or 0)
    if tokens > budget:
        yield Refuse(
            f"--moe-a2a-backend pplx dispatches at most {budget} tokens per rank, {tokens} may occur",
            ("moe_a2a_backend", "chunked_prefill_size", "cuda_graph_max_bs_decode"),
            (f"env.SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK {tokens}",),
        )


@rule("a2a.ascend_tp", Stage.A2A, since="0.5.18", source=SOURCE)
def ascend_tp(s: State) -> Effects:
    """ascend_tp means no all-to-all."""
    if s.moe_a2a_backend == "ascend_tp":
        yield Assign("moe_a2a_backend", "none", "ascend_tp is a name for no all-to-all")
