"""Accepted, and without effect: flags that leave the server as it is. They are dropped from the key for duplicates."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Effects, Idle, Stage, rule
from servetune.engines.sglang.rules._state import State

ALLREDUCE = "distributed/device_communicators/"
_ALLREDUCE_FLAGS = (
    "disable_custom_all_reduce",
    "enable_mscclpp",
    "enable_torch_symm_mem",
    "enable_nccl_nvls",
    "enable_flashinfer_allreduce_fusion",
)


def idle(s: State, field: str, reason: str, like: object = None) -> Effects:
    """Yield `Idle` when the assignment names the flag with a value other than the one it acts as."""
    if field in s.user and s.user[field] != like:
        yield Idle(field, reason, like)


@rule(
    "idle.one_rank",
    Stage.IDLE,
    layer="runtime",
    source="distributed/parallel_state.py: a group of one rank reduces nothing",
)
def one_rank(s: State) -> Effects:
    """A single rank reduces nothing: all-reduce options do nothing."""
    if s.tp_size == 1:
        for field in _ALLREDUCE_FLAGS:
            yield from idle(s, field, "with one rank there is no all-reduce", False)


@rule(
    "idle.custom_all_reduce_on_pcie",
    Stage.IDLE,
    layer="runtime",
    source=f"{ALLREDUCE}custom_all_reduce.py: not supported on more than two PCIe-only GPUs",
)
def custom_all_reduce_on_pcie(s: State) -> Effects:
    """On more than two PCIe GPUs the custom all-reduce is off anyway."""
    if s.tp_size > 2 and s.gpu.nvlink is False:
        yield from idle(
            s, "disable_custom_all_reduce", "the custom all-reduce is off on more than two PCIe GPUs", False
        )


@rule(
    "idle.torch_symmetric_memory",
    Stage.IDLE,
    layer="runtime",
    source=f"{ALLREDUCE}all_reduce_utils.py:TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES",
)
def torch_symmetric_memory(s: State) -> Effects:
    """Torch symmetric memory knows compute capability 9 and 10 and 2, 4, 6 or 8 ranks; elsewhere it steps aside."""
    if s.tp_size > 1 and ((s.gpu.known and s.gpu.major not in (9, 10)) or s.tp_size not in (2, 4, 6, 8)):
        yield from idle(s, "enable_torch_symm_mem", "its table has no entry for this GPU and group size", False)


@rule("idle.mscclpp_group_size", Stage.IDLE, layer="runtime", source=f"{ALLREDUCE}pymscclpp.py: supported world sizes")
def mscclpp_group_size(s: State) -> Effects:
    """MSCCL++ serves few group sizes."""
    sizes = (8, 16) if s.version < (0, 5, 15) else (8, 16, 32) if s.version < (0, 5, 21) else (4, 8, 16, 32, 64)
    if s.tp_size > 1 and s.tp_size not in sizes:
        yield from idle(s, "enable_mscclpp", f"MSCCL++ serves groups of {', '.join(map(str, sizes))} ranks", False)


@rule(
    "idle.mscclpp_behind_custom",
    Stage.IDLE,
    layer="runtime",
    until="0.5.12",
    source="distributed/parallel_state.py: up to 0.5.12 the custom all-reduce is asked first and takes up to 8 MB",
)
def mscclpp_behind_custom(s: State) -> Effects:
    """Up to 0.5.12 the custom all-reduce takes every message that MSCCL++ could."""
    if s.gpu.nvlink and s.tp_size in (8, 16) and not s.disable_custom_all_reduce:
        yield from idle(
            s, "enable_mscclpp", "the custom all-reduce takes its messages; add --disable-custom-all-reduce", False
        )


@rule("idle.nvls_without_nvlink", Stage.IDLE, layer="runtime", source="NCCL: NVLS needs NVLink switches")
def nvls_without_nvlink(s: State) -> Effects:
    """NVLS needs NVLink."""
    if s.tp_size > 1 and s.gpu.nvlink is False:
        yield from idle(s, "enable_nccl_nvls", "NVLS needs NVLink switches", False)


@rule(
    "idle.single_batch_overlap",
    Stage.IDLE,
    layer="runtime",
    source="batch_overlap/single_batch_overlap.py: DeepEP paths only",
)
def single_batch_overlap(s: State) -> Effects:
    """Single-batch overlap works on DeepEP's paths only."""
    if s.moe_a2a_backend not in ("deepep", "mooncake", "nixl"):
        yield from idle(s, "enable_single_batch_overlap", "single-batch overlap works on DeepEP's paths only", False)


@rule("idle.deepep_mode", Stage.IDLE, layer="runtime", source="layers/moe/token_dispatcher/deepep.py")
def deepep_mode(s: State) -> Effects:
    """The DeepEP mode concerns backends of DeepEP's kind."""
    if s.moe_a2a_backend not in ("deepep", "mooncake", "mori", "nixl", "pplx"):
        yield from idle(s, "deepep_mode", f"--moe-a2a-backend {s.moe_a2a_backend} has no DeepEP mode", "auto")


@rule("idle.dense_model", Stage.IDLE, layer="runtime", source="models/*.py: no MoE layer reads these flags")
def dense_model(s: State) -> Effects:
    """MoE flags do nothing on a dense model."""
    if s.model.known and not s.model.moe:
        yield from idle(s, "moe_runner_backend", "the model has no experts", "auto")
        yield from idle(s, "ep_num_redundant_experts", "the model has no experts", 0)
        for field in ("disable_shared_experts_fusion", "enforce_shared_experts_fusion", "enable_single_batch_overlap"):
            yield from idle(s, field, "the model has no experts", False)


#: Runners that unquantized experts do not know; they run on Triton instead.
_BF16_FALLBACK = frozenset({"cutlass", "marlin"})


@rule(
    "idle.bf16_runner",
    Stage.IDLE,
    layer="runtime",
    source="layers/quantization/unquant.py; launch logs: marlin and cutlass with bf16 weights start and run on Triton",
)
def bf16_runner(s: State) -> Effects:
    """Unquantized experts run on Triton when the named runner does not know them."""
    plain = (
        s.model.moe and s.model.quantization.method is None and s.quantization is None and s.moe_a2a_backend == "none"
    )
    if plain and s.moe_runner_backend in _BF16_FALLBACK:
        yield from idle(s, "moe_runner_backend", "unquantized experts run on Triton instead", "triton")


@rule("idle.speculative_flags", Stage.IDLE, layer="runtime", source="arg_groups/speculative_hook.py")
def speculative_flags(s: State) -> Effects:
    """Speculative parameters do nothing without an algorithm."""
    if s.speculative_algorithm is None:
        for field in s.user:
            if field.startswith("speculative_") and field != "speculative_algorithm":
                yield from idle(s, field, "no --speculative-algorithm is given")
        yield Idle("speculative_moe_runner_backend", "no --speculative-algorithm is given")


@rule("idle.hierarchical_cache_flags", Stage.IDLE, layer="runtime", source="server_args.py:_handle_hicache")
def hierarchical_cache_flags(s: State) -> Effects:
    """Parameters of the hierarchical cache do nothing without it."""
    if not s.enable_hierarchical_cache:
        for field in s.user:
            if field.startswith("hicache_"):
                yield from idle(s, field, "--enable-hierarchical-cache is not given")
        for field in ("hicache_io_backend", "hicache_mem_layout"):
            yield Idle(field, "--enable-hierarchical-cache is not given")


@rule("idle.graph_sizes_without_graphs", Stage.IDLE, layer="runtime", source="model_executor: no graph is captured")
def graph_sizes_without_graphs(s: State) -> Effects:
    """Graph sizes do nothing where no graph is captured."""
    if s.version < (0, 5, 14):
        if s.disable_cuda_graph:
            for field in ("cuda_graph_max_bs", "cuda_graph_bs", "disable_cuda_graph_padding"):
                yield Idle(field, "CUDA graphs are disabled", False if field.endswith("padding") else None)
        return
    for phase in ("decode", "prefill"):
        if getattr(s, f"cuda_graph_backend_{phase}") == "disabled":
            yield Idle(f"cuda_graph_max_bs_{phase}", f"{phase} CUDA graphs are disabled")
            yield Idle(f"cuda_graph_bs_{phase}", f"{phase} CUDA graphs are disabled")


@rule(
    "idle.graphs_above_running_requests",
    Stage.IDLE,
    layer="runtime",
    source="cuda_graph_runner.py:get_batch_sizes_to_capture drops sizes above req_to_token_pool.size",
)
def graphs_above_running_requests(s: State) -> Effects:
    """Graphs larger than the running requests (per DP group) are not captured."""
    if s.max_running_requests is None:
        return
    limit = max(1, s.max_running_requests // s.attention_dp)
    field = "cuda_graph_max_bs_decode" if s.version >= (0, 5, 14) else "cuda_graph_max_bs"
    if (getattr(s, field) or 0) > limit:
        yield Idle(field, f"no graph above {limit} running requests (per DP group) is captured", limit)


@rule("idle.torch_compile_sizes", Stage.IDLE, layer="runtime", source="cuda_graph_runner.py: compile_bs")
def torch_compile_sizes(s: State) -> Effects:
    """The largest batch that is compiled says nothing where nothing is."""
    if not s.enable_torch_compile:
        yield from idle(s, "torch_compile_max_bs", "--enable-torch-compile is not given")


@rule(
    "idle.piecewise_deprecated",
    Stage.IDLE,
    layer="runtime",
    since="0.5.10",
    until="0.5.13",
    source="server_args.py: deprecated action",
)
def piecewise_deprecated(s: State) -> Effects:
    """Piecewise graphs are on by default from 0.5.10 on; the old switch is ignored."""
    yield from idle(s, "enable_piecewise_cuda_graph", "piecewise CUDA graphs are on by default in this version", False)


@rule("idle.split_backend", Stage.IDLE, layer="runtime", source="server_args.py:get_attention_backends")
def split_backend(s: State) -> Effects:
    """A phase's attention backend that equals the common one says nothing new."""
    for phase in ("prefill", "decode"):
        field = f"{phase}_attention_backend"
        if getattr(s, field) is not None and getattr(s, field) == s.attention_backend:
            yield Idle(field, "it equals --attention-backend")


@rule(
    "idle.fusion_enforced_off", Stage.IDLE, layer="runtime", source="server_args.py:_handle_model_specific_adjustments"
)
def fusion_enforced_off(s: State) -> Effects:
    """An enforced-off all-reduce fusion that would be off anyway says nothing new."""
    off = not s.enable_flashinfer_allreduce_fusion and s.flashinfer_allreduce_fusion_backend is None
    on_by_default = s.gpu.major in (9, 10) or not s.gpu.known
    if off and not on_by_default:
        yield from idle(s, "enforce_disable_flashinfer_allreduce_fusion", "the fusion is off on this GPU anyway", False)
