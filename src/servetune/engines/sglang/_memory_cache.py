"""Bytes of KV cache per token, and of the tables that grow with requests.

Sources: `model_executor/model_runner_kv_cache_mixin.py` (`get_cell_size_per_token`, from 0.5.20 on
`pool_configurator.py`), `mem_cache/memory_pool.py`.
"""

from __future__ import annotations

from servetune.engines.sglang.model_config import ModelFacts

_ELEMENT_BYTES = {
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp4_e2m1": 0.5 + 1 / 16,
    "nvfp4": 0.5 + 1 / 16,
    "fp4_mx_block16": 0.5 + 1 / 16,
    "mxfp8": 1 + 1 / 32,
    "bf16": 2.0,
    "bfloat16": 2.0,
}
#: Sparse attention in FP8 stores the latent with one float scale per 128 elements and the rotary part in bfloat16.
_SPARSE_SCALE_GROUP = 128


def element_bytes(kv_cache_dtype: str, model: ModelFacts) -> float:
    """Bytes of one cached element; `auto` keeps the model's dtype."""
    return _ELEMENT_BYTES.get(kv_cache_dtype, float(model.dtype_bytes))


def bytes_per_token(
    model: ModelFacts,
    attention_ranks: int,
    pipeline: int,
    kv_cache_dtype: str,
    drafts: bool,
    scaled_rows: bool = True,
) -> float:
    """KV bytes that the engine reckons for one token on one GPU. `drafts`: a draft keeps one more layer of cache.

    `scaled_rows`: an FP8 cache of sparse attention is reckoned with its scales (see `scaled_rows`).

    Latent attention is not divided by ranks: every rank of an attention group keeps the whole latent. Layers with
    linear attention keep no cache; windows with a pool of their own: `_memory_pools.py`.
    """
    if not model.known or not model.layers:
        return 0.0
    layers = (model.layers if model.recurrent is None else model.recurrent.attention_layers) / pipeline
    if model.mla:
        one_layer = _latent(model, kv_cache_dtype, scaled_rows)
    else:
        kv_heads = max(1, model.kv_heads // attention_ranks)
        one_layer = kv_heads * (model.head_dim + model.v_head_dim) * element_bytes(kv_cache_dtype, model)
    return one_layer * (layers + (1 if drafts else 0))


def scaled_rows(version: tuple[int, int, int], backends: tuple[str | None, str | None]) -> bool:
    """Whether the engine reckons with scales in an FP8 cache of sparse attention, given its (prefill, decode) backends.

    trtllm keeps plain rows, and from 0.5.20 on tilelang does. Up to 0.5.17 the pool has scales but is sized without
    them: it takes up to 14 % more memory than the fraction says. Source: `calculate_mla_kv_cache_dim`, used by
    `pool_configurator.py:_compute_cell_size` from 0.5.18 on.
    """
    plain = "trtllm" in backends or (version >= (0, 5, 20) and backends == ("tilelang", "tilelang"))
    return version >= (0, 5, 18) and not plain


def _latent(model: ModelFacts, kv_cache_dtype: str, scaled: bool) -> float:
    element = element_bytes(kv_cache_dtype, model)
    if not model.dsa:
        return (model.kv_lora_rank + model.qk_rope) * element
    groups = model.index_head_dim // _SPARSE_SCALE_GROUP
    index = model.index_head_dim + 4 * groups
    if element == 1.0 and scaled:
        scales = 4 * (model.kv_lora_rank // _SPARSE_SCALE_GROUP)
        return model.kv_lora_rank + scales + model.qk_rope * model.dtype_bytes + index
    return (model.kv_lora_rank + model.qk_rope) * element + index


def running_requests(named: int | None, attention_dp: int, kv_tokens: int, context_tokens: int) -> int:
    """Largest number of running requests on one attention group (`resolve_max_num_reqs`)."""
    if named is not None:
        return max(1, named // attention_dp)
    by_context = int(kv_tokens / max(1, context_tokens) * 512)
    return max(1, min(max(by_context, 2048), 4096))


def table_bytes(requests: int, context_tokens: int) -> int:
    """The request-to-token table: four bytes for each position of each running request."""
    return requests * (context_tokens + 4) * 4
