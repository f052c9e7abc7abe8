"""KV cache: page size, cache types, and the attention backends that can read each type."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Effects, Fill, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

NVFP4 = "arg_groups/kv_cache_hook.py:handle_nvfp4_prefill_kv_dequant_dtype, handle_kv4_compatibility"
_TYPE_AND_BACKEND = ("kv_cache_dtype", "attention_backend", "prefill_attention_backend", "decode_attention_backend")


@rule("kv_cache.page_default", Stage.PAGE, source="server_args.py:_handle_page_size")
def page_default(s: State) -> Effects:
    """Pages hold one token unless a backend or a flag says otherwise."""
    if s.page_size is None:
        yield Fill("page_size", 1)


_FP4_LATENT = ("cutlass_mla", "flashinfer", "trtllm_mla", "flashmla")
_FP4_LATENT_0_5_20 = ("flashinfer", "trtllm_mla")
_FP4_GROUPED = ("triton", "torch_native", "flex_attention", "trtllm_mha")


@rule(
    "kv_cache.fp4",
    Stage.KV_CACHE,
    since="0.5.9",
    source="server_args.py:_handle_kv4_compatibility; 0.5.20+: kv_cache_hook.py",
)
def fp4_cache(s: State) -> Effects:
    """An FP4 cache works on few attention backends."""
    new = s.version >= (0, 5, 16)
    if s.kv_cache_dtype not in (("nvfp4", "fp4_mx_block16") if new else ("fp4_e2m1",)):
        return
    if not s.model.known or not s.gpu.known:
        return
    latent = _FP4_LATENT_0_5_20 if s.version >= (0, 5, 20) else _FP4_LATENT[: 3 if new else 4]
    allowed: tuple[str, ...]
    prefill, decode = s.attention_backends
    if prefill == "fa4":
        allowed = latent[:3] if s.model.mla else _FP4_GROUPED[:3]
        wrong = decode not in allowed
    else:
        allowed = latent if s.model.mla else _FP4_GROUPED
        wrong = prefill == decode and s.attention_backend not in allowed
    if wrong:
        yield Refuse(
            f"--kv-cache-dtype {s.kv_cache_dtype} does not work on attention backend {s.attention_backend}",
            _TYPE_AND_BACKEND,
            allowed,
        )


@rule("kv_cache.nvfp4_backends", Stage.DETERMINISTIC, since="0.5.21", source=NVFP4)
def nvfp4_backends(s: State) -> Effects:
    """An NVFP4 cache is read by trtllm_mha in decode, and by trtllm_mha or flashinfer in prefill."""
    if s.kv_cache_dtype != "nvfp4":
        return
    if not s.gpu.known:
        return
    named = s.prefill_attention_backend or s.attention_backend
    if named not in (None, "trtllm_mha", "flashinfer"):
        yield Refuse(
            f"an NVFP4 cache cannot be read by prefill on {named}", _TYPE_AND_BACKEND, ("trtllm_mha", "flashinfer")
        )
        return
    prefill = named or ("trtllm_mha" if s.gpu.sm100 else "flashinfer")
    if prefill == "trtllm_mha" and not s.gpu.sm100:
        yield Refuse("NVFP4 prefill on trtllm_mha needs compute capability 10", _TYPE_AND_BACKEND, ("flashinfer",))
    if s.prefill_attention_backend not in (None, prefill):
        yield Refuse(f"an NVFP4 cache needs prefill on {prefill}", _TYPE_AND_BACKEND, (prefill,))
    if s.decode_attention_backend not in (None, "trtllm_mha"):
        yield Refuse("an NVFP4 cache needs decode on trtllm_mha", _TYPE_AND_BACKEND, ("trtllm_mha",))
    yield Fill("prefill_attention_backend", prefill)
    yield Fill("decode_attention_backend", "trtllm_mha")


@rule("kv_cache.nvfp4", Stage.KV_CACHE, since="0.5.16", source=NVFP4)
def nvfp4(s: State) -> Effects:
    """An NVFP4 cache needs compute capability 10 or 12."""
    if s.kv_cache_dtype != "nvfp4" or not s.gpu.known:
        return
    if not (s.gpu.sm100 or s.gpu.sm120):
        yield Refuse(
            "--kv-cache-dtype nvfp4 needs compute capability 10 or 12", ("kv_cache_dtype",), ("fp4_mx_block16",)
        )


@rule("kv_cache.nvfp4_readers", Stage.KV_CACHE, since="0.5.21", majors=(10,), source=NVFP4)
def nvfp4_readers(s: State) -> Effects:
    """On compute capability 10 few drafts and no host tier can read an NVFP4 cache."""
    if s.kv_cache_dtype != "nvfp4" or not s.gpu.sm100 or "trtllm_mha" not in s.attention_backends:
        return
    algorithm = s.speculative_algorithm.upper() if s.speculative_algorithm else None
    if algorithm not in (None, "EAGLE", "EAGLE3", "NEXTN", "NGRAM"):
        yield Refuse(f"an NVFP4 cache does not work with {algorithm}", ("kv_cache_dtype", "speculative_algorithm"))
    if algorithm == "NGRAM" and s.speculative_ngram_max_bfs_breadth != 1:
        yield Refuse(
            "an NVFP4 cache takes NGRAM drafts of breadth 1",
            ("kv_cache_dtype", "speculative_algorithm", "speculative_ngram_max_bfs_breadth"),
        )
    if algorithm not in (None, "NGRAM"):
        if s.speculative_draft_attention_backend is None:
            yield Fill("speculative_draft_attention_backend", "trtllm_mha")
        elif s.speculative_draft_attention_backend != "trtllm_mha":
            yield Refuse(
                "an NVFP4 cache needs the draft on trtllm_mha",
                ("kv_cache_dtype", "speculative_draft_attention_backend"),
            )
    if s.enable_hierarchical_cache:
        yield Refuse("an NVFP4 cache has no host tier", ("kv_cache_dtype", "enable_hierarchical_cache"))


@rule(
    "kv_cache.mxfp8",
    Stage.KV_CACHE,
    since="0.5.18",
    source="arg_groups/kv_cache_hook.py:handle_mxfp8_kv_cache_compatibility",
)
def mxfp8(s: State) -> Effects:
    """An MXFP8 cache needs a Blackwell GPU."""
    if s.kv_cache_dtype == "mxfp8" and s.gpu.known and not s.gpu.blackwell:
        yield Refuse("--kv-cache-dtype mxfp8 needs a Blackwell GPU", ("kv_cache_dtype",))


@rule("kv_cache.page_divided_by", Stage.CHECK, source="server_args.py:check_server_args")
def page_divided_by(s: State) -> Effects:
    """The prefill chunk is divided by the page size that is left once attention backends have set theirs."""
    if s.page_size == 0 and (s.chunked_prefill_size or 0) > 0 and s.disaggregation_mode != "decode":
        yield Refuse("--page-size is 0: SGLang divides the prefill chunk by it", ("page_size",), ("1",))


@rule("kv_cache.page_at_least_one", Stage.RUNTIME, layer="runtime", source="the checks accept it; mem_cache/allocator")
def page_at_least_one(s: State) -> Effects:
    """No cache has pages of less than one token."""
    if isinstance(s.page_size, int | float) and s.page_size < 1:
        yield Refuse(f"--page-size is {s.page_size}; it is at least 1", ("page_size",), ("1",))


@rule("kv_cache.prefill_chunk_in_pages", Stage.CHECK, source="server_args.py:check_server_args")
def prefill_chunk_in_pages(s: State) -> Effects:
    """A prefill chunk (per DP group) is a whole number of pages."""
    chunk, page = s.chunked_prefill_size, s.page_size
    if chunk is None or not page or chunk <= 0 or s.disaggregation_mode == "decode" or chunk % page == 0:
        return
    step = page * s.attention_dp
    yield Refuse(
        f"the prefill chunk of {chunk} tokens (per DP group) is not a multiple of the page size {page}",
        ("chunked_prefill_size", "page_size", "dp_size"),
        (f"--chunked-prefill-size a multiple of {step}",),
    )
