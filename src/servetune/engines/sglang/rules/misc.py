"""Checks that belong to no other topic: scheduling, caches, tokenizer, the model's own config."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Fill, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

CHECK = "server_args.py:check_server_args; 0.5.20+: arg_groups/validation_hook.py:check_server_args"


@rule("misc.sampling_default", Stage.SAMPLING, source="server_args.py:_handle_sampling_backend")
def sampling_default(s: State) -> Effects:
    """Sampling runs on flashinfer."""
    if s.sampling_backend is None:
        yield Fill("sampling_backend", "flashinfer")
    elif s.sampling_backend == "intel_xpu":
        yield Refuse(
            "--sampling-backend intel_xpu needs an Intel GPU", ("sampling_backend",), ("flashinfer", "pytorch")
        )


@rule("misc.tool_call_parser_names", Stage.EARLY, since="0.5.4", source="server_args.py:_handle_deprecated_args")
def tool_call_parser_names(s: State) -> Effects:
    """Old names of tool-call parsers mean the new ones."""
    name = {"qwen25": "qwen", "glm45": "glm"}.get(str(s.user.get("tool_call_parser")))
    if name is not None:
        yield Fill("tool_call_parser", name)


@rule("misc.context_length", Stage.MODEL_CONFIG, source="configs/model_config.py:_derive_context_length")
def context_length(s: State) -> Effects:
    """A context longer than the model's needs SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1."""
    allowed = str(s.env.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "0")).lower() in ("1", "true")
    if s.context_length is not None and s.model.known and s.context_length > s.model.context_tokens and not allowed:
        yield Refuse(
            f"--context-length {s.context_length} is above the model's {s.model.context_tokens}",
            ("context_length",),
            (str(s.model.context_tokens), "env.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN 1"),
        )


#: CLI quantization → methods of a checkpoint that it may be used on (`_verify_quantization`).
_COMPATIBLE = {
    "modelopt_fp8": ("modelopt",),
    "modelopt_fp4": ("modelopt",),
    "modelopt_mixed": ("modelopt",),
    "petit_nvfp4": ("modelopt",),
    "w8a8_int8": ("compressed-tensors",),
    "w8a8_fp8": ("compressed-tensors",),
    "auto-round-int8": ("compressed-tensors",),
    "marlin": ("awq", "gptq"),
    "awq_marlin": ("awq",),
    "gptq_marlin": ("gptq",),
    "moe_wna16": ("awq", "gptq"),
}
_COMPATIBLE_0_5_16 = {
    "modelopt_fp4": ("modelopt", "fp8"),
    "nvfp4_online": ("fp8", "modelopt_fp8"),
    "minimax_m3_nvfp4": ("mxfp8",),
}
#: Named methods that convert whatever the checkpoint holds.
_CONVERTING = ("quark_mxfp4",)


@rule("misc.quantization_known", Stage.MODEL_CONFIG, source="layers/quantization/__init__.py:QUANTIZATION_METHODS")
def quantization_known(s: State) -> Effects:
    """Some quantizations that the parser offers are not registered on NVIDIA GPUs."""
    unknown = ("marlin", "mlx_q4", "mlx_q8") + (("gptq",) if s.version >= (0, 5, 19) else ())
    if s.quantization in unknown and s.model.known and s.model.quantization.method is None:
        yield Refuse(
            f"--quantization {s.quantization} is not known on NVIDIA GPUs", ("quantization",), ("fp8", "leave it out")
        )


@rule("misc.quantization_matches_checkpoint", Stage.MODEL_CONFIG, source="configs/model_config.py:_verify_quantization")
def quantization_matches_checkpoint(s: State) -> Effects:
    """A named quantization must be the checkpoint's own, or one that may be used on it."""
    asked, found = s.quantization, _checkpoint_method(s)
    if asked is None or found is None or asked == found or _overridden(s, asked, found):
        return
    compatible = _COMPATIBLE.get(asked, ())
    if s.version >= (0, 5, 16):  # between 0.5.15 and 0.5.18
        compatible = _COMPATIBLE_0_5_16.get(asked, compatible)
    elif asked == "nvfp4_online":
        compatible = ("fp8",)
    if found not in compatible:
        yield Refuse(
            f"--quantization {asked} does not match the checkpoint's quantization {found}",
            ("quantization",),
            (f"--quantization {found}", "leave it out"),
        )


def _checkpoint_method(s: State) -> str | None:
    found = s.model.quantization
    return found.declared if found.declared is not None and s.version < (0, 5, 10) else found.method


def _overridden(s: State, asked: str, found: str) -> bool:
    """Whether the checkpoint's method silently replaces the one asked for (`override_quantization_method`)."""
    if asked == "modelopt" and found.startswith("modelopt"):
        return True
    if s.version >= (0, 5, 18) and (asked in _CONVERTING or (asked == "humming" and found != "mxfp4")):
        return True
    return found in ("modelopt_fp4", "modelopt_fp8", "modelopt_mixed") and asked != "nvfp4_online"


@rule("misc.priority_policy", Stage.CHECK, source=CHECK)
def priority_policy(s: State) -> Effects:
    """Priority scheduling works with fcfs and lof."""
    if s.enable_priority_scheduling and s.schedule_policy not in ("fcfs", "lof"):
        yield Refuse(
            f"--enable-priority-scheduling does not work with --schedule-policy {s.schedule_policy}",
            ("enable_priority_scheduling", "schedule_policy"),
            ("fcfs", "lof"),
        )
    if s.retraction_policy == "priority" and not s.enable_priority_scheduling:
        yield Refuse(
            "--retraction-policy priority needs --enable-priority-scheduling",
            ("retraction_policy", "enable_priority_scheduling"),
        )


@rule("misc.conservativeness", Stage.CHECK, source=CHECK)
def conservativeness(s: State) -> Effects:
    """Schedule conservativeness is not negative."""
    if s.schedule_conservativeness < 0:
        yield Refuse(
            f"--schedule-conservativeness must not be negative, got {s.schedule_conservativeness}",
            ("schedule_conservativeness",),
        )


@rule("misc.served_name", Stage.CHECK, source=CHECK)
def served_name(s: State) -> Effects:
    """A served model name holds no colon."""
    if s.served_model_name and ":" in str(s.served_model_name):
        yield Refuse("--served-model-name must not contain a colon", ("served_model_name",))


@rule("misc.hierarchical_cache_needs_radix", Stage.CACHE, source="server_args.py:_handle_cache_compatibility")
def hierarchical_cache_needs_radix(s: State) -> Effects:
    """The hierarchical cache extends the radix cache."""
    if s.enable_hierarchical_cache and s.disable_radix_cache:
        decode = s.disaggregation_mode == "decode" and not s.user.get("disable_radix_cache")
        cause = "disaggregation_mode" if decode else "disable_radix_cache"
        yield Refuse(
            "--enable-hierarchical-cache extends the radix cache, which --disaggregation-mode decode switches off"
            if decode
            else "--enable-hierarchical-cache and --disable-radix-cache exclude each other",
            ("enable_hierarchical_cache", cause),
        )
    if s.version >= (0, 5, 21) and s.enable_hierarchical_cache and s.user.get("enable_lmcache"):
        yield Refuse(
            "--enable-lmcache and --enable-hierarchical-cache exclude each other",
            ("enable_hierarchical_cache", "enable_lmcache"),
        )


@rule("misc.sliding_window_ratio", Stage.CACHE, source="server_args.py:_handle_cache_compatibility")
def sliding_window_ratio(s: State) -> Effects:
    """The share of full tokens in a sliding-window pool lies in (0, 1]."""
    if not 0 < s.swa_full_tokens_ratio <= 1:
        yield Refuse(
            f"--swa-full-tokens-ratio must lie in (0, 1], got {s.swa_full_tokens_ratio}", ("swa_full_tokens_ratio",)
        )


@rule("misc.tokenizer_batching", Stage.CACHE, source="server_args.py:_handle_tokenizer_batching")
def tokenizer_batching(s: State) -> Effects:
    """Two ways of batching the tokenizer exclude each other."""
    if s.enable_tokenizer_batch_encode and s.enable_dynamic_batch_tokenizer:
        yield Refuse(
            "--enable-tokenizer-batch-encode and --enable-dynamic-batch-tokenizer exclude each other",
            ("enable_tokenizer_batch_encode", "enable_dynamic_batch_tokenizer"),
        )
    if s.skip_tokenizer_init:
        workers = 1 if s.version < (0, 5, 17) else s.tokenizer_worker_num  # 0.5.18 keeps them
        for field, value in (
            ("tokenizer_worker_num", workers),
            ("enable_tokenizer_batch_encode", False),
            ("enable_dynamic_batch_tokenizer", False),
        ):
            yield Assign(field, value, "--skip-tokenizer-init leaves nothing to tokenize")
    if s.tokenizer_worker_num < 1:
        yield Refuse("--tokenizer-worker-num must be at least 1", ("tokenizer_worker_num",))


def _offloads(s: State) -> bool:
    """Whether the cache's host tier is in use, so that its layout is settled."""
    if s.enable_hierarchical_cache or s.user.get("disaggregation_decode_enable_offload_kvcache"):
        return True
    backup = s.user.get("disaggregation_decode_retraction_backup")
    return s.version >= (0, 5, 18) and s.disaggregation_mode == "decode" and backup in (None, "host_pool")


@rule("misc.hierarchical_cache_decode", Stage.HIERARCHICAL_CACHE, source="server_args.py:_handle_hicache")
def hierarchical_cache_decode(s: State) -> Effects:
    """Up to 0.5.18 the hierarchical cache's kernel transfer does not work with fa3 decode."""
    layout, io = s.hicache_mem_layout, s.hicache_io_backend
    if s.version >= (0, 5, 10) and not _offloads(s):
        return
    if layout == "page_first_direct" and io == "kernel":
        io = "direct"
        yield Assign("hicache_io_backend", io, "the page_first_direct layout needs direct transfers")
    if layout == "page_first" and io == "direct" and s.version >= (0, 5, 10):
        yield Assign("hicache_mem_layout", "page_first_direct", "direct transfers need the page_first_direct layout")
    stores = ("mooncake", "npu_memcache") if s.version >= (0, 5, 20) else ("mooncake",)
    wide = s.version >= (0, 5, 20) and s.dcp_size > 1
    if s.hicache_storage_backend in stores and layout == "layer_first" and not wide:
        paged = {"direct": "page_first_direct", "kernel": "page_first"}.get(io, layout)
        yield Assign("hicache_mem_layout", paged, f"storage on {s.hicache_storage_backend} takes no layer_first layout")
    if s.version >= (0, 5, 14) or not _offloads(s) or io != "kernel" or s.attention_backends[1] != "fa3":
        return
    if s.decode_attention_backend is not None:
        yield Assign("hicache_io_backend", "direct", "fa3 decode does not work with kernel transfers")
        return
    sinks = s.model.attention_sinks and s.version >= (0, 5, 10)
    grouped = "triton" if sinks else "flashinfer"
    latent = "flashinfer" if s.gpu.sm100 else "triton"
    yield Assign(
        "decode_attention_backend", latent if s.model.mla else grouped, "fa3 decode does not work with kernel transfers"
    )


@rule("eplb.defaults", Stage.EPLB, source="server_args.py:_handle_eplb_and_dispatch; 0.5.20+: parallel_hook.py")
def eplb_defaults(s: State) -> Effects:
    """Expert load balancing records expert use and picks how replicas are dispatched."""
    recorded = s.enable_eplb or s.user.get("enable_expert_distribution_metrics")
    if recorded and s.expert_distribution_recorder_mode is None:
        yield Fill("expert_distribution_recorder_mode", "stat")
    shared = s.version >= (0, 5, 16) and s.moe_a2a_backend == "none"
    if (s.enable_eplb or s.init_expert_location != "trivial") and s.ep_dispatch_algorithm is None:
        yield Fill("ep_dispatch_algorithm", "dynamic" if shared else "static")
    if shared and s.ep_dispatch_algorithm in ("static", "lp"):
        yield Refuse(
            f"--ep-dispatch-algorithm {s.ep_dispatch_algorithm} needs an all-to-all backend",
            ("ep_dispatch_algorithm", "moe_a2a_backend"),
            ("--ep-dispatch-algorithm dynamic",),
        )


@rule(
    "eplb.needs_expert_parallelism",
    Stage.EPLB,
    source="server_args.py:_handle_eplb_and_dispatch; 0.5.20+: parallel_hook.py",
)
def eplb_needs_expert_parallelism(s: State) -> Effects:
    """Expert load balancing needs an expert-parallel size above 1."""
    if s.enable_eplb and s.ep_size <= 1:
        yield Refuse(
            "--enable-eplb needs --ep-size above 1 or an all-to-all backend",
            ("enable_eplb", "ep_size"),
            ("--ep-size 8",),
        )
