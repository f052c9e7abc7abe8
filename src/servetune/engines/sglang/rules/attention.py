"""Attention backends: automatic choice, what each one needs, page sizes that a backend forces."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Fill, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State
from servetune.engines.sglang.rules.graphs import graphs_off

SOURCE = (
    "server_args.py:_handle_attention_backend_compatibility; "
    "0.5.15+: arg_groups/overrides.py and attention_hook.py:handle_attention_backend_compatibility"
)
_FLAGS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")


@rule("attention.split_equals_whole", Stage.ATTENTION, source=SOURCE)
def split_equals_whole(s: State) -> Effects:
    """Equal prefill and decode backends count as the attention backend."""
    prefill = s.prefill_attention_backend
    if prefill is not None and prefill == s.decode_attention_backend and s.attention_backend != prefill:
        yield Fill("attention_backend", prefill)


@rule("attention.default", Stage.ATTENTION, source=SOURCE)
def default(s: State) -> Effects:
    """The fastest backend for the attention kind and the GPU."""
    if s.attention_backend is None and s.gpu.known and s.model.known:
        yield Fill("attention_backend", _latent_default(s) if s.model.mla else grouped_default(s))


def _latent_default(s: State) -> str:
    return "fa3" if s.gpu.hopper else "flashinfer" if s.gpu.sm100 else "triton"


def grouped_default(s: State) -> str:
    """The automatic backend for grouped attention."""
    topk = s.speculative_eagle_topk
    single = topk is None or (topk == 1 and s.page_size in (1, None))
    if s.gpu.hopper and single:
        return "fa3"
    block = s.version >= (0, 5, 23) and str(s.speculative_algorithm).upper() == "DFLASH"  # its top-k will be 1
    if s.gpu.sm100 and single and (s.speculative_algorithm is None or topk is not None or block):
        asymmetric = s.version >= (0, 5, 20) and s.model.head_dim != s.model.v_head_dim
        return "fa4" if asymmetric else "trtllm_mha"
    return "triton" if s.model.attention_sinks and s.version >= (0, 5, 10) else "flashinfer"


@rule("attention.without_graphs", Stage.ATTENTION, source=SOURCE)
def without_graphs(s: State) -> Effects:
    """torch_native and flex_attention run without CUDA graphs; flex_attention without speculation."""
    backend = s.attention_backend
    if backend not in ("torch_native", "flex_attention"):
        return
    yield from graphs_off(s, f"--attention-backend {backend} cannot be captured")
    if backend == "flex_attention" and s.speculative_algorithm is not None:
        yield Refuse(
            "flex_attention and speculative decoding exclude each other", ("attention_backend", "speculative_algorithm")
        )


def _either(s: State, name: str) -> bool:
    return bool(s.attention_backend == name or s.decode_attention_backend == name)


def _any_phase(s: State, name: str) -> bool:
    return _either(s, name) or bool(s.prefill_attention_backend == name)


def _pages(s: State, allowed: tuple[int, ...], to: int, backend: str) -> Effects:
    if s.page_size is None:
        yield Fill("page_size", to)
    elif s.page_size not in allowed:
        yield Assign(
            "page_size", to, f"attention backend {backend} takes pages of {' or '.join(map(str, allowed))} tokens"
        )


@rule("attention.flashmla_pages", Stage.ATTENTION, source=SOURCE)
def flashmla_pages(s: State) -> Effects:
    """Flashmla works on pages of 64 tokens."""
    if _either(s, "flashmla"):
        yield from _pages(s, (64,), 64, "flashmla")


@rule("attention.cutlass_mla_pages", Stage.ATTENTION, until="0.5.22", source=SOURCE)
def cutlass_mla_pages(s: State) -> Effects:
    """cutlass_mla works on pages of 128 tokens."""
    if _either(s, "cutlass_mla"):
        yield from _pages(s, (128,), 128, "cutlass_mla")


@rule("attention.trtllm_mla", Stage.ATTENTION, source=SOURCE)
def trtllm_mla(s: State) -> Effects:
    """trtllm_mla needs Blackwell, pages of 32 or 64 tokens and a cache type it knows."""
    if not _either(s, "trtllm_mla"):
        return
    here = s.gpu.blackwell if s.version >= (0, 5, 5) else s.gpu.sm100
    if s.gpu.known and not here:
        text = "attention backend trtllm_mla needs a Blackwell GPU (compute capability 10 to 12)"
        yield Refuse(text, _FLAGS, ("flashmla", "fa3") if s.gpu.hopper else ("triton", "flashinfer"))
    yield from _pages(s, (32, 64), 64, "trtllm_mla")
    allowed = ("fp8_e4m3", "bf16", "auto") + (("fp4_e2m1",) if s.version < (0, 5, 19) else ())
    if s.kv_cache_dtype not in allowed:
        yield Refuse(
            f"attention backend trtllm_mla does not take --kv-cache-dtype {s.kv_cache_dtype}",
            ("attention_backend", "kv_cache_dtype"),
            allowed,
        )


@rule("attention.tokenspeed_mla", Stage.ATTENTION, since="0.5.12", until="0.5.20", source=SOURCE)
def tokenspeed_mla(s: State) -> Effects:
    """tokenspeed_mla needs Blackwell, pages of 32 or 64 tokens and an FP8 cache."""
    if not _either(s, "tokenspeed_mla"):
        return
    if s.gpu.known and not s.gpu.blackwell:
        yield Refuse("attention backend tokenspeed_mla needs a Blackwell GPU", _FLAGS)
    yield from _pages(s, (32, 64), 64, "tokenspeed_mla")
    if s.kv_cache_dtype != "fp8_e4m3":
        yield Refuse(
            "attention backend tokenspeed_mla needs --kv-cache-dtype fp8_e4m3",
            ("attention_backend", "kv_cache_dtype"),
            ("fp8_e4m3",),
        )


@rule("attention.cutedsl_mla_pages", Stage.ATTENTION, since="0.5.13", source=SOURCE)
def cutedsl_mla_pages(s: State) -> Effects:
    """cutedsl_mla works on pages of 32 or 64 tokens."""
    if _any_phase(s, "cutedsl_mla"):
        yield from _pages(s, (32, 64), 64, "cutedsl_mla")


@rule("attention.cutedsl_mla", Stage.ATTENTION, since="0.5.13", source=SOURCE)
def cutedsl_mla(s: State) -> Effects:
    """cutedsl_mla serves decode only, on compute capability 10; prefill then runs on trtllm_mla."""
    if not _any_phase(s, "cutedsl_mla"):
        return
    if s.prefill_attention_backend == "cutedsl_mla":
        yield Refuse(
            "attention backend cutedsl_mla serves decode only", ("prefill_attention_backend",), ("trtllm_mla",)
        )
    if s.gpu.known and not s.gpu.sm100:
        yield Refuse("attention backend cutedsl_mla needs compute capability 10", _FLAGS, ("triton", "flashinfer"))
    allowed = ("fp8_e4m3", "bf16", "bfloat16", "auto")
    if s.kv_cache_dtype not in allowed:
        yield Refuse(
            f"attention backend cutedsl_mla does not take --kv-cache-dtype {s.kv_cache_dtype}",
            ("attention_backend", "kv_cache_dtype"),
            allowed,
        )
    if s.prefill_attention_backend is None:
        yield Fill("prefill_attention_backend", "trtllm_mla")


@rule("attention.trtllm_mha", Stage.ATTENTION, source=SOURCE)
def trtllm_mha(s: State) -> Effects:
    """trtllm_mha needs a GPU with its kernels, per phase, and pages of 16, 32 or 64 tokens."""
    drafts = s.version >= (0, 5, 15) and s.speculative_draft_attention_backend == "trtllm_mha"
    if not _any_phase(s, "trtllm_mha") and not drafts:
        return
    prefill, decode = s.attention_backends
    gpu = s.gpu
    if gpu.known and s.version < (0, 5, 10):
        if not gpu.sm100:
            yield Refuse("attention backend trtllm_mha needs compute capability 10", _FLAGS)
    elif gpu.known:
        wide = gpu.sm90 or gpu.sm100 or gpu.sm120
        if prefill == "trtllm_mha" and not (wide if s.version >= (0, 5, 19) else gpu.sm100):
            yield Refuse("prefill on trtllm_mha needs compute capability 10", _FLAGS)
        if decode == "trtllm_mha" and not wide:
            yield Refuse("decode on trtllm_mha needs compute capability 9, 10 or 12", _FLAGS)
    yield from _pages(s, (16, 32, 64, 128) if s.version >= (0, 5, 18) else (16, 32, 64), 64, "trtllm_mha")
    on_sm120 = s.version >= (0, 5, 19) and gpu.sm120 and prefill == "trtllm_mha"
    if on_sm120 and s.kv_cache_dtype == "fp8_e4m3":
        yield Refuse(
            "trtllm_mha prefill on compute capability 12 takes no FP8 cache",
            ("attention_backend", "kv_cache_dtype"),
            ("auto", "bf16"),
        )


@rule("attention.hpc_ops_pages", Stage.ATTENTION, since="0.5.18", source=SOURCE)
def hpc_ops_pages(s: State) -> Effects:
    """hpc_ops works on pages of 64 tokens."""
    if _any_phase(s, "hpc_ops"):
        yield from _pages(s, (64,), 64, "hpc_ops")


@rule("attention.fa3_without_e5m2", Stage.ATTENTION, source=SOURCE)
def fa3_without_e5m2(s: State) -> Effects:
    """fa3 knows one FP8 format; with the other the engine turns to triton."""
    if s.attention_backend == "fa3" and s.kv_cache_dtype == "fp8_e5m2":
        yield Assign("attention_backend", "triton", "fa3 takes fp8_e4m3 only")


@rule("attention.fa4_pages", Stage.ATTENTION, since="0.5.7", source=SOURCE)
def fa4_pages(s: State) -> Effects:
    """fa4 works on pages of 128 tokens for grouped attention."""
    if s.model.mla or not s.model.known:
        return
    named = s.prefill_attention_backend == "fa4"
    if s.version >= (0, 5, 15):
        named = _any_phase(s, "fa4")
        if s.version >= (0, 5, 20) and (s.speculative_eagle_topk or 0) > 1:
            return
    if named and (s.gpu.sm100 or s.version < (0, 5, 10)):
        yield from _pages(s, (128,), 128, "fa4")


@rule("attention.intel_xpu", Stage.ATTENTION, source=SOURCE)
def intel_xpu(s: State) -> Effects:
    """intel_xpu takes large pages, and for latent attention serves decode only; the checks accept it on a CUDA host."""
    prefill, decode = s.attention_backends
    old, new = s.version < (0, 5, 10), s.version >= (0, 5, 19)
    if s.model.mla and prefill == "intel_xpu" and not old and not new:
        yield Refuse("intel_xpu serves decode only for latent attention", _FLAGS)
    used = s.attention_backend if old else decode
    if used == "intel_xpu" or (new and prefill == "intel_xpu"):
        pages = (32, 64, 128) if old else (16, 32, 64, 128) if s.model.mla else (64, 128)
        yield from _pages(s, pages, 128, "intel_xpu")


@rule("attention.aiter_fraction", Stage.ATTENTION, source=SOURCE)
def aiter_fraction(s: State) -> Effects:
    """Aiter with a long context takes 15 % off the memory fraction."""
    context = s.context_length or s.model.context_tokens
    if s.attention_backend == "aiter" and context > 8192 and s.mem_fraction_static is not None and s.model.known:
        yield Assign("mem_fraction_static", s.mem_fraction_static * 0.85, "the workspace of aiter")


@rule("attention.dual_chunk", Stage.ATTENTION, until="0.5.22", source=SOURCE)
def dual_chunk(s: State) -> Effects:
    """dual_chunk_flash_attn runs without mixed chunks and without the radix cache."""
    if s.attention_backend == "dual_chunk_flash_attn":
        reason = "dual-chunk attention"
        yield Assign("enable_mixed_chunk", False, reason)
        yield Assign("disable_radix_cache", True, reason)


@rule(
    "attention.linear_flashinfer",
    Stage.LINEAR_ATTENTION,
    since="0.5.10",
    source="server_args.py:_handle_linear_attn_backend",
)
def linear_flashinfer(s: State) -> Effects:
    """On compute capability 10 and above flashinfer linear attention needs a bfloat16 state."""
    if not s.gpu.known:
        return
    decode = s.linear_attn_decode_backend
    if decode is None and s.gpu.sm100 and s.mamba_ssm_dtype == "bfloat16":
        yield Fill("linear_attn_decode_backend", "flashinfer")
    decode = s.linear_attn_decode_backend or s.linear_attn_backend
    if decode == "flashinfer" and s.mamba_ssm_dtype != "bfloat16" and s.gpu.major >= 10:
        yield Refuse(
            "flashinfer linear attention on this GPU needs --mamba-ssm-dtype bfloat16",
            ("linear_attn_decode_backend", "linear_attn_backend", "mamba_ssm_dtype"),
        )
