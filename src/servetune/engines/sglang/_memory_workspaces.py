"""Memory that is neither weights nor KV cache: all-to-all workspaces, CUDA graphs, activations, the CUDA context.

Graph and activation sizes are estimates, fitted to launches on H200; one log of the class replaces them.
"""

from __future__ import annotations

from collections.abc import Iterable

from servetune.engines.sglang.model_config import ModelFacts
from servetune.engines.sglang.rules._state import MOST_GRAPH_TOKENS, State

GIB = 2**30
#: Taken before weights on an H200: the CUDA context (one rank), and NCCL with the all-reduce buffers (two ranks).
CONTEXT_BYTES = int(1.25 * GIB)
COMMUNICATION_BYTES = int(0.85 * GIB)
#: Over PCIe NCCL takes part of it only while weights are loaded: of 95.6 GiB a launch on 8 GPUs had 94.0 free before,
#: and 21.7 and 16.3 after two models of known shapes.
COMMUNICATION_BEFORE_OVER_PCIE_BYTES = int(0.34 * GIB)
COMMUNICATION_LATER_OVER_PCIE_BYTES = COMMUNICATION_BYTES - COMMUNICATION_BEFORE_OVER_PCIE_BYTES
#: Attention workspaces, sampling, cuBLAS: what an H200 launch without graphs kept beside weights, cache and tables.
MISCELLANEOUS_BYTES = int(0.25 * GIB)
_DEEPEP_BYTES = 2 * GIB
_GRAPH_BASE_BYTES = int(0.1 * GIB)
_DECODE_GRAPH_LAYER_BYTES = int(1.0e-4 * GIB)
_PREFILL_GRAPH_LAYER_BYTES = int(2.0e-4 * GIB)


def a2a_bytes(state: State) -> int:
    """Workspace of the all-to-all backend on one GPU, allocated while the model is built.

    flashinfer: ranks x tokens x (dispatch + combine bytes per token), `token_dispatcher/flashinfer.py`. DeepEP's
    buffers are taken when they are first used; the engine itself reserves 2 GiB for them.
    """
    model, ranks = state.model, state.ep_size
    if not model.moe or state.moe_a2a_backend == "none":
        return 0
    if state.moe_a2a_backend != "flashinfer":
        return _DEEPEP_BYTES
    per_rank = state.env_int("SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK", _default_tokens(state))
    tokens = per_rank if state.version >= (0, 5, 20) else per_rank * ranks
    routing = 8 * model.experts_per_token
    packed = model.hidden // 2 + model.hidden // 16
    dispatch = routing + (packed if _nvfp4_dispatch(state) else 2 * model.hidden)
    return int(ranks * tokens * (dispatch + 2 * model.hidden))


def _default_tokens(state: State) -> int:
    return max(state.chunked_prefill_size or 0, 4096) if state.version >= (0, 5, 20) else 1024


def _nvfp4_dispatch(state: State) -> bool:
    """Up to 0.5.12 any model is dispatched as NVFP4 unless EAGLE drafts; later NVFP4 models only."""
    if state.version <= (0, 5, 12):
        named = str(state.env.get("SGLANG_MOE_NVFP4_DISPATCH", "1")).lower()
        return named in ("1", "true") and state.speculative_algorithm not in ("EAGLE", "EAGLE3", "NEXTN")
    return "modelopt_fp4" in (state.quantization, state.model.quantization.method)


def communication_bytes(state: State) -> tuple[int, int]:
    """Taken by NCCL and all-reduce buffers (before weights are loaded, while they are)."""
    if state.tp_size * state.pp_size <= 1:
        return 0, 0
    if state.gpu.nvlink is False:
        return COMMUNICATION_BEFORE_OVER_PCIE_BYTES, COMMUNICATION_LATER_OVER_PCIE_BYTES
    return COMMUNICATION_BYTES, 0


def symmetric_memory_bytes(state: State) -> int:
    """--enable-symm-mem allocates a pool in advance, 4 GiB unless told otherwise."""
    return (
        state.env_int("SGLANG_SYMM_MEM_PREALLOC_GB_SIZE", 4) * GIB if state.enable_symm_mem and state.tp_size > 1 else 0
    )


def activation_bytes(model: ModelFacts, tensor: int, tokens: int) -> int:
    """Largest working set of one forward over `tokens` tokens: routed experts' intermediates and hidden states."""
    if not model.known:
        return int(1.5 * 2**20 * tokens)
    hidden = 6 * model.hidden
    inner = 3 * model.intermediate / tensor
    if model.moe:
        inner = max(inner, model.experts_per_token * (3 * model.moe_intermediate / tensor + model.hidden))
    return int(tokens * 2 * (hidden + inner))


def decode_graph_bytes(model: ModelFacts, sizes: int) -> int:
    """Graphs of `sizes` batch sizes."""
    return _GRAPH_BASE_BYTES + sizes * max(1, model.layers) * _DECODE_GRAPH_LAYER_BYTES if sizes else 0


def prefill_graph_bytes(model: ModelFacts, sizes: int) -> int:
    """Graphs of `sizes` token counts, beside the activations of the largest."""
    return _GRAPH_BASE_BYTES + sizes * max(1, model.layers) * _PREFILL_GRAPH_LAYER_BYTES if sizes else 0


def decode_graph_sizes(largest: int, drafts: bool, padding: bool) -> int:
    """How many batch sizes up to `largest` are captured (`_generate_cuda_graph_batch_sizes`)."""
    if not padding:
        return largest
    most = min(largest, MOST_GRAPH_TOKENS)
    steps: tuple[Iterable[int], ...]
    if drafts:
        steps = (range(1, 9), range(10, 33, 2), range(40, 65, 4), range(72, 257, 8), range(272, most + 1, 16))
    else:
        steps = ((1, 2, 4, 8, 12), range(16, 257, 8), range(272, 512, 16), range(512, most + 1, 32))
    return sum(1 for step in steps for size in step if size <= largest)
