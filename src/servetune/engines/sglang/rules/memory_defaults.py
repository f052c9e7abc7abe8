"""Defaults that the engine takes from the GPU's memory: prefill chunk, graph batch sizes, memory fraction.

Source: `server_args.py:_handle_gpu_memory_settings`, from 0.5.19 on `arg_groups/memory_hook.py`.
"""

from __future__ import annotations

from typing import Any

from servetune.engines.sglang.rules._registry import Effects, Fill, Stage, rule
from servetune.engines.sglang.rules._state import MOST_GRAPH_TOKENS, State

SOURCE = "server_args.py:_handle_gpu_memory_settings; 0.5.20+: arg_groups/memory_hook.py:handle_gpu_memory_settings"
_GIB_MIB = 1024
#: GPU memory below (GiB) → (prefill chunk, largest decode graph below TP 4, at TP 4 and above).
_TIERS = ((20, 2048, 8, 8), (35, 2048, 24, 80), (60, 4096, 32, 160), (90, 8192, 256, 512), (160, 8192, 256, 512))
_TIERS_0_5_19 = (_TIERS[0], (35, 4096, 48, 160), *_TIERS[2:])
_LARGEST = (0, 16384, 512, 512)
_TRUE = ("1", "true", "yes", "y", "on")


def _tier(state: State) -> tuple[int, int]:
    tiers = _TIERS_0_5_19 if state.version >= (0, 5, 19) else _TIERS
    memory = state.gpu.memory_mib or 0.0
    _, chunk, small, large = next((tier for tier in tiers if memory < tier[0] * _GIB_MIB), _LARGEST)
    return chunk, (small if state.tp_size < 4 else large)


@rule("memory.defaults_from_gpu", Stage.MEMORY, source=SOURCE)
def defaults_from_gpu(s: State) -> Effects:
    """Prefill chunk and largest decode graph follow from the smallest GPU's memory and the tensor-parallel size."""
    if s.gpu.memory_mib is None:
        return
    chunk, max_bs = _tier(s)
    if s.chunked_prefill_size is None:
        yield Fill("chunked_prefill_size", chunk)
    field = "cuda_graph_max_bs_decode" if s.version >= (0, 5, 14) else "cuda_graph_max_bs"
    if getattr(s, field) is None:
        if s.version >= (0, 5, 21) and s.max_running_requests is not None:
            max_bs = min(max_bs, s.max_running_requests)
        yield Fill(field, max_bs)
    listed = s.cuda_graph_bs_decode if s.version >= (0, 5, 14) else s.cuda_graph_bs
    if listed:
        yield Fill(field, max(batch_sizes(listed)))


@rule("memory.prefill_graph_tokens", Stage.MEMORY, source=SOURCE)
def prefill_graph_tokens(s: State) -> Effects:
    """The largest prefill graph follows the prefill chunk; latent attention has its own cap."""
    field = "cuda_graph_max_bs_prefill" if s.version >= (0, 5, 14) else "piecewise_cuda_graph_max_tokens"
    if s.chunked_prefill_size is None:
        return
    if getattr(s, field) is None:
        tokens = _largest_prefill_graph(s)
        if s.version >= (0, 5, 10) and s.max_total_tokens is not None:
            tokens = min(tokens, s.max_total_tokens)
        yield Fill(field, tokens)
    if (0, 5, 13) <= s.version <= (0, 5, 17) and s.context_length is not None:
        yield Fill(field, min(getattr(s, field), s.context_length))


def _largest_prefill_graph(s: State) -> int:
    if not s.model.mla:
        return int(s.chunked_prefill_size)
    return min(8192, s.chunked_prefill_size) if s.version >= (0, 5, 21) else 2048


@rule("memory.automatic_fraction", Stage.MEMORY, since="0.5.3", source=SOURCE)
def automatic_fraction(s: State) -> Effects:
    """Without --mem-fraction-static the engine reserves for activations and graphs and takes the rest."""
    memory = s.gpu.memory_mib
    if s.mem_fraction_static is not None or memory is None:
        return
    if post_capture_sizing(s):
        plain = round((memory - 1536 - s.tp_size * s.pp_size / 8 * 1024) / memory, 3)
        vision = _sees(s) and s.version >= (0, 5, 20)
        yield Fill("mem_fraction_static", plain - 8192 / memory if vision else plain * _vision_factor(s))
        return
    reserved = _reserved_mib(s) if s.version >= (0, 5, 14) else _reserved_mib_to_0_5_13(s)
    yield Fill("mem_fraction_static", round((memory - reserved) / memory, 3) * _vision_factor(s))


def post_capture_sizing(s: State) -> bool:
    """Whether the KV cache is sized after graphs are captured (`post_capture_kv_sizing_planned`)."""
    if s.version < (0, 5, 18) or str(s.env.get("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "0")).lower() not in _TRUE:
        return False
    if s.dcp_size != 1 or s.model.mla or s.enable_memory_saver or s.kv_cache_dtype == "fp4_e2m1":
        return False
    if "disabled" in (s.cuda_graph_backend_decode, s.cuda_graph_backend_prefill) or (s.chunked_prefill_size or 0) <= 0:
        return False
    return prefill_buffer_tokens(s) <= max(_prefill_sizes(s), default=0)


def prefill_buffer_tokens(s: State) -> int:
    """`max_prefill_buffer_tokens`: the chunk, which dynamic chunking with pipeline parallelism may exceed."""
    chunk = max(0, s.chunked_prefill_size or 0)
    if s.enable_dynamic_chunking and s.pp_size > 1 and chunk:
        return int(max(chunk, s.max_prefill_tokens or 0, -(-chunk * 5 // 4)))
    return int(chunk)


@rule("memory.automatic_fraction_0_5_2", Stage.MEMORY, until="0.5.2", source=SOURCE)
def automatic_fraction_0_5_2(s: State) -> Effects:
    """0.5.2 reserves a fixed amount per class of GPU."""
    memory = s.gpu.memory_mib
    if s.mem_fraction_static is not None or memory is None:
        return
    parallel = s.tp_size * s.pp_size
    classes = ((35, 2.8 + parallel / 10), (90, 9.5 + parallel / 2), (160, 12 + parallel / 2))
    reserved = next((gib for limit, gib in classes if memory < limit * _GIB_MIB), 32.0) * _GIB_MIB
    if s.speculative_algorithm is not None:
        reserved += 6144 if s.speculative_algorithm == "STANDALONE" else 2048
    reserved += 4096 if s.enable_dp_attention else 0
    yield Fill("mem_fraction_static", round((memory - reserved) / memory, 3) * _vision_factor(s))


def _role(s: State) -> str:
    """`prefill` or `decode` where the reserve differs by role (0.5.15 on), else `null`."""
    return str(s.disaggregation_mode) if s.version >= (0, 5, 15) else "null"


def _activation_mib(s: State) -> float:
    chunk = s.chunked_prefill_size
    if _role(s) == "decode":  # no prefill: sized for the largest decode batch
        requests = s.max_running_requests or s.cuda_graph_max_bs_decode or 1
        return 1.5 * max(requests * (s.speculative_num_draft_tokens or 1), 2048)
    return float(1.5 * max(chunk if chunk > 0 else s.max_prefill_tokens, 2048))


def _attention_dp_mib(s: State, max_bs: int, groups: int) -> float:
    return float(max_bs * groups * (4.5 if max_bs > 300 else 3.0))


def _reserved_mib_to_0_5_13(s: State) -> float:
    # The graph term stands even when graphs are disabled, and the DP term uses the flag before it is normalised.
    max_bs = s.cuda_graph_max_bs
    reserved = 512 + _activation_mib(s) + 2 * max_bs + s.tp_size * s.pp_size / 8 * 1024
    if s.enable_dp_attention:
        reserved += _attention_dp_mib(s, max_bs, s.dp_size)
    if s.version >= (0, 5, 10):
        if not s.disable_piecewise_cuda_graph:
            reserved += 1536 if s.model.mla else 8 * len(_prefill_sizes(s))
    elif s.enable_piecewise_cuda_graph and s.version >= (0, 5, 7):
        reserved += 8 * len(_prefill_sizes(s))
    if (s.gpu.memory_mib or 0.0) > 60 * _GIB_MIB:
        reserved = max(reserved, 10 * _GIB_MIB)
    if s.speculative_algorithm == "STANDALONE":
        reserved += 6144
    elif s.speculative_algorithm not in (None, "NGRAM"):
        reserved += 4096 if s.version >= (0, 5, 10) else 2048
    if s.enable_piecewise_cuda_graph and s.version < (0, 5, 7):
        reserved += (s.piecewise_cuda_graph_max_tokens or 4096) // 4
    return float(reserved)


def _reserved_mib(s: State) -> float:
    max_bs, role = s.cuda_graph_max_bs_decode, _role(s)
    decode = role != "prefill" and s.cuda_graph_backend_decode != "disabled"
    reserved = 512 + _activation_mib(s) + s.tp_size * s.pp_size / 8 * 1024
    reserved += 2 * max_bs if decode else 0
    old_dp = s.enable_dp_attention and s.version < (0, 5, 22)
    if role != "prefill" and (old_dp or (s.version >= (0, 5, 22) and s.attn_dp_size > 1)):
        reserved += _attention_dp_mib(s, max_bs, s.dp_size if old_dp else s.attn_dp_size)
    if role != "decode" and s.cuda_graph_backend_prefill != "disabled":
        reserved += 1536 if s.model.mla else 8 * len(_prefill_sizes(s))
        if s.moe_a2a_backend == "deepep" and s.cuda_graph_backend_prefill == "breakable" and s.version >= (0, 5, 16):
            reserved += 1024
    if (s.gpu.memory_mib or 0.0) > 60 * _GIB_MIB:
        reserved = max(reserved, 10 * _GIB_MIB)
    return float(reserved + (2048 if decode and s.moe_a2a_backend == "deepep" else 0))


def _prefill_sizes(s: State) -> list[int]:
    new = s.version >= (0, 5, 14)
    listed = s.cuda_graph_bs_prefill if new else s.piecewise_cuda_graph_tokens
    if listed:
        return batch_sizes(listed)
    return prefill_graph_sizes(s.cuda_graph_max_bs_prefill if new else s.piecewise_cuda_graph_max_tokens)


def prefill_graph_sizes(largest: int) -> list[int]:
    """Token counts that prefill graphs are captured for (`generate_prefill_cuda_graph_batch_sizes`)."""
    steps = (range(4, 33, 4), range(48, 257, 16), range(288, 513, 32), range(576, 1025, 64), range(1280, 4097, 256))
    sizes = [size for step in steps for size in step] + list(range(4608, min(largest, MOST_GRAPH_TOKENS) + 1, 512))
    return [size for size in sizes if size <= largest]


def batch_sizes(listed: Any) -> list[int]:
    """`"1 2 4"` or one number → list of batch sizes."""
    return [int(word) for word in str(listed).replace(",", " ").split()]


def _sees(s: State) -> bool:
    if s.disaggregation_mode == "decode" and s.version >= (0, 5, 18):
        return False
    return s.model.multimodal and not s.language_only and not s.language_model_only


def _vision_factor(s: State) -> float:
    """Multimodal models leave room for the vision tower, by its size (`adjust_mem_fraction_for_vlm`)."""
    model = s.model
    if not _sees(s) or (model.vision_layers is None and model.vision_hidden is None):
        return 1.0
    complexity = (model.vision_layers_named or 24) * (model.vision_hidden or 1024) ** 2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (complexity - 1.0)))
