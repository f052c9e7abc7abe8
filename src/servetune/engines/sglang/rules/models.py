"""What a model's architecture makes the engine choose: attention backend, quantization, MoE runner, page size."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Fill, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State
from servetune.engines.sglang.rules.graphs import asks_dsa_context_parallel

SOURCE = "server_args.py:_handle_model_specific_adjustments; 0.5.20+: arg_groups/model_hook.py and model_overrides/"
DEEPSEEK_FAMILY = frozenset(
    {
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "MistralLarge3ForCausalLM",
        "PixtralForConditionalGeneration",
        "GlmMoeDsaForCausalLM",
    }
)
QWEN_MOE_FAMILY = frozenset(
    {
        "Qwen3MoeForCausalLM",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3NextForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
    }
)
LLAMA_4 = frozenset({"Llama4ForConditionalGeneration", "Llama4ForCausalLM"})
GPT_OSS = frozenset({"GptOssForCausalLM"})
GLM4_MOE = frozenset({"Glm4MoeForCausalLM"})


@rule(
    "model.attention_alias",
    Stage.EARLY,
    since="0.5.12",
    source="server_args.py:_handle_deprecated_args; 0.5.20+: arg_groups/serving_hook.py",
)
def attention_alias(s: State) -> Effects:
    """Old names of attention backends: compressed is dsv4; newest, tokenspeed_mla is cutedsl_mla with an FP8 cache."""
    for field in ("attention_backend", "prefill_attention_backend", "decode_attention_backend"):
        name = getattr(s, field)
        if name == "compressed":
            yield Fill(field, "dsv4")
        elif name == "tokenspeed_mla" and s.version >= (0, 5, 21):
            yield Fill(field, "trtllm_mla" if field.startswith("prefill") else "cutedsl_mla")
            if not field.startswith("prefill"):
                yield Assign("kv_cache_dtype", "fp8_e4m3", "tokenspeed_mla keeps an FP8 cache")


@rule("model.unquantized", Stage.EARLY, since="0.5.12", source="server_args.py:__post_init__")
def unquantized(s: State) -> Effects:
    """--quantization unquant means none, and keeps the engine from reading one out of the checkpoint."""
    if s.quantization == "unquant":
        yield Fill("quantization", None)


@rule("model.dsa_attention", Stage.MODEL, since="0.5.9", architectures=DEEPSEEK_FAMILY, source=SOURCE)
def dsa_attention(s: State) -> Effects:
    """Models with a sparse-attention indexer run on its own backend, with pages of 64 tokens."""
    if not s.model.dsa:
        return
    if s.attention_unset:
        yield Fill("attention_backend", "dsa" if s.version >= (0, 5, 13) else "nsa")
    if s.page_size is None:
        yield Fill("page_size", 64)
    elif s.page_size != 64:
        yield Assign("page_size", 64, "sparse attention works on pages of 64 tokens")


@rule(
    "model.dsa_context_parallel",
    Stage.MODEL,
    since="0.5.9",
    until="0.5.13",
    architectures=DEEPSEEK_FAMILY,
    source=SOURCE,
)
def dsa_context_parallel(s: State) -> Effects:
    """Context parallelism of sparse attention spreads the prefill over the ranks of one attention group."""
    if not s.model.dsa or not asks_dsa_context_parallel(s):
        return
    if s.tp_size > 8 or (s.version < (0, 5, 12) and s.tp_size != 8):
        yield Refuse("context parallelism of sparse attention takes --tp-size 8", ("tp_size",), ("--tp-size 8",))
    reason = "--enable-nsa-prefill-context-parallel"
    yield Assign("enable_dp_attention", True, reason)
    yield Assign("moe_dense_tp_size", 1, reason)
    mode = s.user.get("dsa_prefill_cp_mode") or s.user.get("nsa_prefill_cp_mode")
    if mode == "in-seq-split":
        yield Assign("moe_a2a_backend", "deepep", reason)
        yield Assign("ep_size", s.tp_size, reason)
        if s.version < (0, 5, 10):
            yield Assign("kv_cache_dtype", "bf16", reason)
    elif s.dp_size != 1:
        yield Refuse("context parallelism by round-robin split takes --dp-size 1", ("dp_size",), ("--dp-size 1",))
    if s.version >= (0, 5, 10):
        yield Assign("attn_cp_size", s.tp_size // max(1, s.dp_size), reason)


@rule("model.latent_context_parallel", Stage.MODEL, since="0.5.13", architectures=DEEPSEEK_FAMILY, source=SOURCE)
def latent_context_parallel(s: State) -> Effects:
    """Context parallelism of latent attention brings attention groups, deepep and expert parallelism with it."""
    asked = s.user.get("enable_prefill_context_parallel") or s.user.get("enable_prefill_cp")
    if s.model.dsa or not s.model.mla or not asked:
        return
    new = s.version >= (0, 5, 22)
    groups = max(1, s.attn_dp_size if new else s.dp_size)
    values: dict[str, object] = {"attn_dp_size": groups, "dp_size": 1} if new else {"enable_dp_attention": True}
    values |= {"moe_dense_tp_size": 1, "ep_size": s.tp_size, "attn_cp_size": s.tp_size // groups}
    values |= (
        {"disable_piecewise_cuda_graph": True} if s.version < (0, 5, 14) else {"cuda_graph_backend_prefill": "disabled"}
    )
    reason = "context parallelism of a model with latent attention"
    yield Assign("moe_a2a_backend", "deepep", reason)
    for field, value in values.items():
        yield Assign(field, value, reason)


@rule("model.dsa_kv_cache_dtype", Stage.MODEL, since="0.5.9", architectures=DEEPSEEK_FAMILY, source=SOURCE)
def dsa_kv_cache_dtype(s: State) -> Effects:
    """Sparse attention keeps its cache in bfloat16 or fp8_e4m3."""
    if not s.model.dsa or not s.gpu.known:
        return
    dtype = s.kv_cache_dtype
    if dtype == "auto":
        dtype = "fp8_e4m3" if s.gpu.major >= 10 else "bfloat16"
        yield Fill("kv_cache_dtype", dtype)
    elif dtype == "bf16":
        dtype = "bfloat16"
        yield Fill("kv_cache_dtype", dtype)
    if dtype not in ("bfloat16", "fp8_e4m3"):
        yield Refuse(
            f"--kv-cache-dtype {dtype} does not work with sparse attention",
            ("kv_cache_dtype",),
            ("bfloat16", "fp8_e4m3"),
        )


@rule("model.dsa_backends", Stage.MODEL, since="0.5.9", architectures=DEEPSEEK_FAMILY, source=SOURCE)
def dsa_backends(s: State) -> Effects:
    """Prefill and decode kernels of sparse attention follow the cache type and the GPU."""
    if not s.model.dsa or not s.gpu.known:
        return
    prefill, decode = _dsa_defaults(s)
    if s.dsa_prefill_backend is None:
        yield Fill("dsa_prefill_backend", prefill)
    if s.dsa_decode_backend is None:
        yield Fill("dsa_decode_backend", decode)
    chosen = (s.dsa_prefill_backend, s.dsa_decode_backend)
    if s.version >= (0, 5, 20) and not _glm_on_sm12(s):
        flags = ("dsa_prefill_backend", "dsa_decode_backend")
        if "triton" in chosen:
            yield Refuse("the triton backend of sparse attention runs on ROCm only", flags, (prefill, decode))
        elif s.kv_cache_dtype == "fp8_e4m3" and "tilelang" in chosen and chosen != ("tilelang", "tilelang"):
            yield Refuse("tilelang with an FP8 cache must serve both prefill and decode", flags)


def _glm_on_sm12(s: State) -> bool:
    glm = s.model.architecture == "GlmMoeDsaForCausalLM" and s.gpu.major == 12
    return glm and bool(s.kv_cache_dtype == "fp8_e4m3") and s.version >= (0, 5, 16)


def _dsa_defaults(s: State) -> tuple[str, str]:
    new = s.gpu.major >= 10
    if _glm_on_sm12(s):
        return "flashinfer_sparse_mla", "flashinfer_sparse_mla"
    if s.kv_cache_dtype != "fp8_e4m3":
        return "flashmla_sparse", "trtllm" if new else "fa3"
    if s.version < (0, 5, 10):
        return "flashmla_auto", "flashmla_kv"
    return ("trtllm", "trtllm") if new else ("flashmla_kv", "flashmla_kv")


@rule("model.dsa_shared_index_excludes_tbo", Stage.MODEL, since="0.5.13", architectures=DEEPSEEK_FAMILY, source=SOURCE)
def dsa_shared_index_excludes_tbo(s: State) -> Effects:
    """Two-batch overlap does not carry the index choices that some layers share."""
    if s.model.dsa and s.model.index_shared and s.enable_two_batch_overlap:
        yield Refuse(
            "--enable-two-batch-overlap does not work where layers share index choices", ("enable_two_batch_overlap",)
        )


@rule("model.deepseek_attention_sm100", Stage.MODEL, majors=(10,), architectures=DEEPSEEK_FAMILY, source=SOURCE)
def deepseek_attention_sm100(s: State) -> Effects:
    """On compute capability 10 latent attention without an indexer runs on trtllm_mla."""
    if s.gpu.sm100 and not s.model.dsa and s.attention_unset:
        yield Fill("attention_backend", "trtllm_mla")


@rule("model.deepseek_moe_sm100", Stage.MODEL, majors=(10,), architectures=DEEPSEEK_FAMILY, source=SOURCE)
def deepseek_moe_sm100(s: State) -> Effects:
    """On compute capability 10 the quantization is read from the checkpoint and MoE runs on flashinfer_trtllm."""
    if not s.gpu.sm100:
        return
    method = s.model.quantization.method
    unset = s.quantization is None and s.user.get("quantization") != "unquant"
    if unset:
        # Up to 0.5.9 a DeepSeek-V3 without quantization_config counts as FP8; later the weights themselves are read.
        native = s.model.architecture == "DeepseekV3ForCausalLM" and method is None and s.version <= (0, 5, 9)
        found = "fp8" if native else _declared(s)
        if found is not None:
            yield Assign("quantization", found, "read from the checkpoint")
    methods: tuple[str | None, ...] = ("fp8", "modelopt_fp8", "modelopt_fp4")
    newer = s.version >= (0, 5, 12)
    if newer:
        methods += ("modelopt_mixed", None)
    fits = s.quantization in methods or (newer and s.model.quantization.int4_groups_of_32)
    if fits and s.moe_a2a_backend == "none" and s.moe_runner_backend == "auto":
        yield Assign("moe_runner_backend", "flashinfer_trtllm", "the default for this model on compute capability 10")


def _declared(s: State) -> str | None:
    """`quant_method` as the engine reads it: up to 0.5.9 it does not look behind the name `modelopt`."""
    found = s.model.quantization
    return found.declared if found.declared is not None and s.version < (0, 5, 10) else found.method


@rule(
    "model.deepseek_draft_moe_sm100",
    Stage.MODEL,
    until="0.5.9",
    majors=(10,),
    architectures=DEEPSEEK_FAMILY,
    source=SOURCE,
)
def deepseek_draft_moe_sm100(s: State) -> Effects:
    """The bf16 draft layer of an NVFP4 checkpoint runs on the triton runner."""
    open_draft = s.speculative_moe_runner_backend is None or s.speculative_moe_a2a_backend is None
    if s.gpu.sm100 and s.quantization == "modelopt_fp4" and s.speculative_algorithm == "EAGLE" and open_draft:
        reason = "the draft layer of an NVFP4 checkpoint is bf16"
        yield Assign("speculative_moe_runner_backend", "triton", reason)
        yield Assign("speculative_moe_a2a_backend", "none", reason)


@rule("model.qwen_moe_sm100", Stage.MODEL, majors=(10,), architectures=QWEN_MOE_FAMILY, source=SOURCE)
def qwen_moe_sm100(s: State) -> Effects:
    """On compute capability 10 Qwen MoE models read their quantization and run on flashinfer_trtllm."""
    if not s.gpu.sm100:
        return
    if s.quantization is None and _declared(s) is not None and s.user.get("quantization") != "unquant":
        yield Assign("quantization", _declared(s), "read from the checkpoint")
    methods: tuple[str | None, ...] = ("fp8", "modelopt_fp4", None)
    if s.version >= (0, 5, 15):
        methods += ("modelopt_mixed",)
    if s.quantization in methods and s.moe_a2a_backend == "none" and s.moe_runner_backend == "auto":
        yield Assign("moe_runner_backend", "flashinfer_trtllm", "the default for this model on compute capability 10")


@rule("model.glm4_moe_sm100", Stage.MODEL, majors=(10,), architectures=GLM4_MOE, source=SOURCE)
def glm4_moe_sm100(s: State) -> Effects:
    """On compute capability 10 GLM-4 MoE reads its quantization; NVFP4 runs on flashinfer_trtllm."""
    if not s.gpu.sm100:
        return
    if s.quantization is None and _declared(s) is not None and s.user.get("quantization") != "unquant":
        yield Assign("quantization", _declared(s), "read from the checkpoint")
    methods: tuple[str | None, ...] = ("modelopt_fp4", None) if s.version >= (0, 5, 15) else ("modelopt_fp4",)
    if s.quantization in methods and s.moe_a2a_backend == "none" and s.moe_runner_backend == "auto":
        yield Assign("moe_runner_backend", "flashinfer_trtllm", "the default for this model on compute capability 10")


@rule("model.gpt_oss_attention", Stage.MODEL, architectures=GPT_OSS, source=SOURCE)
def gpt_oss_attention(s: State) -> Effects:
    """GPT-OSS needs an attention backend that knows attention sinks."""
    if s.attention_unset and s.gpu.known:
        yield Fill("attention_backend", "trtllm_mha" if s.gpu.sm100 else "fa3" if s.gpu.sm90 else "triton")
    allowed = ["triton", "trtllm_mha", "fa3", "fa4", "ascend"]
    if s.version >= (0, 5, 10):
        allowed += ["intel_amx", "intel_xpu", "aiter"]
    wrong = [name for name in s.attention_backends if name not in allowed]
    if wrong and (s.gpu.known or not s.attention_unset):
        shown = wrong[0] if wrong[0] is not None else "left to the engine for one phase"
        yield Refuse(
            f"GPT-OSS does not run on attention backend {shown} (both phases must be named, or neither)",
            ("attention_backend", "prefill_attention_backend", "decode_attention_backend"),
            tuple(allowed[:4]),
        )


@rule("model.gpt_oss_dtype", Stage.MODEL, architectures=GPT_OSS, source=SOURCE)
def gpt_oss_dtype(s: State) -> Effects:
    """MXFP4 GPT-OSS computes in bfloat16."""
    if s.model.quantization.method == "mxfp4" and s.dtype != "bfloat16":
        yield Assign("dtype", "bfloat16", "the MXFP4 kernels compute in bfloat16")


def _mxfp4_runner(s: State) -> str | None:
    if s.gpu.sm100 or (s.gpu.blackwell and s.version < (0, 5, 10)):
        return "flashinfer_mxfp4"
    if not s.gpu.sm120:
        return None
    if s.version < (0, 5, 14):
        return "triton_kernel"
    return "marlin" if s.version < (0, 5, 16) else "flashinfer_mxfp4"  # changed between 0.5.15 and 0.5.18


@rule("model.gpt_oss_runner", Stage.MODEL, architectures=GPT_OSS, source=SOURCE)
def gpt_oss_runner(s: State) -> Effects:
    """The MoE runner of MXFP4 GPT-OSS on new GPUs; triton_kernel takes an expert-parallel size of 1."""
    if s.moe_runner_backend == "auto" and s.model.quantization.method == "mxfp4":
        runner = _mxfp4_runner(s)
        if runner is not None:
            yield Assign("moe_runner_backend", runner, "the default for MXFP4 on this GPU")
    if s.moe_runner_backend == "triton_kernel" and s.ep_size != 1:
        yield Refuse(
            f"GPT-OSS on --moe-runner-backend triton_kernel takes --ep-size 1, got {s.ep_size}",
            ("moe_runner_backend", "ep_size"),
            ("--ep-size 1",),
        )


@rule("model.llama4", Stage.MODEL, architectures=LLAMA_4, source=SOURCE)
def llama4(s: State) -> Effects:
    """Llama 4 attends in chunks, which few backends do."""
    if s.device == "cpu" or not s.gpu.known:
        return
    if s.attention_backend is None:
        yield Fill("attention_backend", "trtllm_mha" if s.gpu.sm100 else "fa3" if s.gpu.sm90 else "triton")
    allowed = ["fa3", "triton", "trtllm_mha", "aiter", "intel_xpu"]
    allowed += ["ascend"] if s.version >= (0, 5, 10) else []
    if s.attention_backend not in allowed:
        yield Refuse(
            f"Llama 4 does not run on attention backend {s.attention_backend}",
            ("attention_backend",),
            tuple(allowed[:3]),
        )
    if s.gpu.sm100 and s.moe_runner_backend == "auto" and s.quantization in ("fp8", "modelopt_fp8"):
        yield Fill("moe_runner_backend", "flashinfer_trtllm")
