"""What shares the memory that is left for caches: KV of full layers, KV of sliding windows, recurrent states.

Sources: `model_executor/model_runner_kv_cache_mixin.py` (`set_num_tokens_hybrid_swa`, `handle_max_mamba_cache`), from
0.5.13 on `pool_configurator.py`, from 0.5.20 on `mem_cache/kv_cache_configurator.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from servetune.engines.sglang import _memory_cache
from servetune.engines.sglang._sliding_pool import SlidingPool
from servetune.engines.sglang.rules._state import State

_STATES_TO_CACHE = 0.9  # the default of --mamba-full-memory-ratio
_EVICTION_INTERVAL = 128  # SGLANG_SWA_EVICTION_INTERVAL
_SLOTS_PER_REQUEST = 3
#: Quantized to four bits, yet reckoned as a byte: the split pool knows no such cache (`HybridSWAPoolConfigurator`).
_FOUR_BITS = ("fp4_e2m1", "nvfp4", "fp4_mx_block16")


@dataclass(frozen=True, slots=True)
class CachePools:
    """`rest` bytes hold `(rest * (1 - state_share) - fixed_bytes) / bytes_per_token` tokens.

    The share of recurrent states holds a whole number of them, of `state_bytes` each.
    """

    bytes_per_token: float
    state_share: float = 0.0
    fixed_bytes: int = 0
    state_bytes: int = 1

    def tokens(self, rest_bytes: float) -> int:
        """KV tokens of the full layers; 0 where nothing is left."""
        states = rest_bytes * self.state_share // self.state_bytes * self.state_bytes
        kept = rest_bytes - states - self.fixed_bytes
        return max(0, int(kept / self.bytes_per_token)) if self.bytes_per_token else 0

    def rest_bytes(self, tokens: int) -> float:
        """What has to be left so that `tokens` fit."""
        return (tokens * self.bytes_per_token + self.fixed_bytes) / (1 - self.state_share)


def cache_pools(s: State) -> CachePools:
    """The pools of the configuration, to which the rules have been applied."""
    drafts = s.speculative_algorithm not in (None, "NGRAM")
    pool = _split_pool(s)
    if pool is not None:
        return _with_windows(s, pool, drafts)
    scaled = _memory_cache.scaled_rows(s.version, (s.dsa_prefill_backend, s.dsa_decode_backend))
    per_token = _memory_cache.bytes_per_token(s.model, s.attention_tp, s.pp_size, s.kv_cache_dtype, drafts, scaled)
    if s.model.recurrent is None:
        return CachePools(per_token)
    one = max(1, s.model.recurrent.bytes_per_request(s.attention_tp, s.mamba_ssm_dtype) // s.pp_size)
    share, fixed = _states(s, one)
    return CachePools(per_token, share, fixed, one)


def _split_pool(s: State) -> SlidingPool | None:
    pool = s.model.sliding_pool
    if pool is None or s.version < pool.since or s.user.get("disable_hybrid_swa_memory"):
        return None
    old = s.version < (0, 5, 10)
    if old and s.model.architecture == "GptOssForCausalLM" and "trtllm_mha" in s.attention_backends:
        return None  # its kernels cannot translate the windows' indices yet
    step_or_mimo = s.model.architecture.startswith(("Step3p", "MiMoV2" if s.version < (0, 5, 14) else "Step3p"))
    return None if step_or_mimo and s.enable_hierarchical_cache else pool


def _with_windows(s: State, pool: SlidingPool, drafts: bool) -> CachePools:
    """A full layer's token takes `--swa-full-tokens-ratio` tokens of each layer with a window along."""
    model, ranks = s.model, s.attention_tp
    size = 1.0 if s.kv_cache_dtype in _FOUR_BITS else _memory_cache.element_bytes(s.kv_cache_dtype, model)
    stages = s.pp_size if s.version >= (0, 5, 20) else 1
    full = max(1, pool.full_kv_heads // ranks) * pool.full_widths * size
    window = max(1, pool.kv_heads // ranks) * (pool.head_dim + pool.v_head_dim) * size
    full_bytes = full * (model.layers - pool.layers) / stages
    window_bytes = window * pool.layers / stages
    if full_bytes == 0:
        return CachePools(window_bytes + (full if drafts else 0))
    if pool.window is not None and _capped_by_requests(s):
        tokens = -(-_window_tokens(s, pool.window) // int(s.page_size or 1)) * int(s.page_size or 1)
        return CachePools(full_bytes + (full if drafts else 0), 0.0, int(tokens * window_bytes))
    per_token = full_bytes + s.swa_full_tokens_ratio * window_bytes + (full if drafts else 0)
    if s.version < (0, 5, 10) and s.kv_cache_dtype in _FOUR_BITS:
        whole = max(1, model.kv_heads // ranks) * model.head_dim * model.layers * 2
        per_token *= ((full_bytes + window_bytes) / 2 + whole / 16) / (full_bytes + window_bytes)
    return CachePools(per_token)


def _capped_by_requests(s: State) -> bool:
    """Without a radix cache the windows of --max-running-requests requests are all that is kept (0.5.23)."""
    known = s.speculative_algorithm is None
    chunked = s.disaggregation_mode == "decode" or (s.chunked_prefill_size or 0) > 0
    return bool(s.version >= (0, 5, 23) and known and chunked and s.disable_radix_cache and s.max_running_requests)


def _window_tokens(s: State, window: int) -> int:
    """`compute_swa_request_cap` without drafts."""
    page = int(s.page_size or 1)
    interval = max(1, s.env_int("SGLANG_SWA_EVICTION_INTERVAL", _EVICTION_INTERVAL))
    requests = max(1, int(s.max_running_requests) // s.attention_dp)
    each = window + interval + 2 * page
    if s.disaggregation_mode == "decode":
        return each * requests + (window + page) * int(s.user.get("disaggregation_decode_extra_slots") or 0)
    chunks = 1 if s.disable_overlap_schedule else 2
    return each * requests + chunks * int(s.chunked_prefill_size) + page


def _states(s: State, one: int) -> tuple[float, int]:
    """(share of the rest, fixed bytes) that recurrent states of `one` bytes each take."""
    spare = 1 if s.version >= (0, 5, 20) else 0  # a slot for padding
    named = s.user.get("max_mamba_cache_size")
    requests = s.max_running_requests
    drafted = int(s.speculative_num_draft_tokens or 0) if s.speculative_algorithm is not None else 0
    of_requests = max(1, int(requests) // s.attention_dp) if requests is not None else 0
    if isinstance(named, int):
        slots = named // s.attention_dp
        reserved = min(of_requests, slots // _slots_per_request(s)) if s.version >= (0, 5, 13) else of_requests
        return 0.0, one * (slots + spare + (reserved + spare) * drafted)
    if s.disable_radix_cache and requests is not None:
        return 0.0, one * (of_requests + spare + (of_requests + spare) * drafted)
    ratio = float(s.user.get("mamba_full_memory_ratio") or _STATES_TO_CACHE)
    if drafted and s.version < (0, 5, 13):
        # the drafts' states come off first, and the rest is shared
        return ratio / (1 + ratio), int(one * of_requests * drafted / (1 + ratio))
    return ratio / (1 + ratio), 0


def _slots_per_request(s: State) -> int:
    if s.disable_radix_cache:
        return 1
    if s.mamba_radix_cache_strategy not in ("extra_buffer", "extra_buffer_lazy"):
        return _SLOTS_PER_REQUEST
    lazy = s.mamba_radix_cache_strategy == "extra_buffer_lazy"
    return _SLOTS_PER_REQUEST + (1 if s.disable_overlap_schedule or lazy else 2)
