"""Data-parallel attention, context parallelism and the sizes that must divide one another."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import MOST_RANKS, State

DP = "server_args.py:_handle_data_parallelism; 0.5.20+: arg_groups/parallel_hook.py:handle_data_parallelism"
CP = "server_args.py:_handle_context_parallelism; 0.5.20+: arg_groups/parallel_hook.py:handle_context_parallelism"
CHECK = "server_args.py:check_server_args; 0.5.20+: arg_groups/validation_hook.py:check_server_args"


@rule("dp.deprecated_spelling", Stage.EARLY, since="0.5.22", source="parallel_hook.py:handle_deprecated_dp_attention")
def deprecated_spelling(s: State) -> Effects:
    """--dp-size N --enable-dp-attention means --attn-dp-size N; --dp-size alone now means replicas."""
    if not s.enable_dp_attention:
        return
    reason = "the old spelling of DP attention becomes --attn-dp-size"
    if s.attn_dp_size == 1:
        yield Assign("attn_dp_size", s.dp_size, reason)
        yield Assign("dp_size", 1, reason)
    yield Assign("enable_dp_attention", False, reason)


@rule("dp.size_positive", Stage.DATA_PARALLEL, since="0.5.22", source=DP)
def size_positive(s: State) -> Effects:
    """The attention data-parallel size is at least 1 and excludes replicas."""
    if s.attn_dp_size < 1:
        yield Refuse(f"--attn-dp-size must be positive, got {s.attn_dp_size}", ("attn_dp_size",), ("1",))
    if s.attn_dp_size > 1 and s.dp_size > 1:
        yield Refuse(
            f"--dp-size {s.dp_size} (replicas) and --attn-dp-size {s.attn_dp_size} exclude each other",
            ("dp_size", "attn_dp_size"),
            ("--dp-size 1", "--attn-dp-size 1"),
        )


@rule("dp.single_group", Stage.DATA_PARALLEL, until="0.5.21", source=DP)
def single_group(s: State) -> Effects:
    """With one data-parallel group DP attention and the DP LM head are switched off."""
    if s.dp_size == 1:
        for field in ("enable_dp_attention", "enable_dp_lm_head"):
            if getattr(s, field):
                yield Assign(field, False, "--dp-size is 1")


@rule("dp.single_rank", Stage.DATA_PARALLEL, since="0.5.22", source="overrides.py:_data_parallelism_defaults")
def single_rank(s: State) -> Effects:
    """With one data-parallel rank the DP LM head is switched off."""
    if s.enable_dp_lm_head and max(s.attn_dp_size, s.dp_size) == 1:
        yield Assign("enable_dp_lm_head", False, "there is one data-parallel rank")


@rule("dp.divides_tp", Stage.DATA_PARALLEL, source=DP)
def divides_tp(s: State) -> Effects:
    """The number of DP-attention groups divides the tensor-parallel size; chunk and admission shrink with it."""
    groups = s.attention_dp
    if groups < 2:
        return
    name = "attn_dp_size" if "attn_dp_size" in s.user else "dp_size"
    if s.tp_size % groups:
        allowed = tuple(str(n) for n in range(1, min(s.tp_size, MOST_RANKS) + 1) if s.tp_size % n == 0)
        yield Refuse(
            f"--tp-size {s.tp_size} is not a multiple of the {groups} DP-attention groups", ("tp_size", name), allowed
        )
    yield Assign("schedule_conservativeness", s.schedule_conservativeness * 0.3, "DP attention admits requests earlier")
    if s.chunked_prefill_size is not None:
        chunk = s.chunked_prefill_size // groups
        yield Assign("chunked_prefill_size", chunk, f"DP attention divides the prefill chunk by {groups} groups")
        largest = s.cuda_graph_max_bs_prefill
        free = s.version >= (0, 5, 18) and "cuda_graph_max_bs_prefill" not in s.user
        if free and s.cuda_graph_backend_prefill != "disabled" and largest is not None and largest > chunk:
            yield Assign("cuda_graph_max_bs_prefill", chunk, "prefill graphs are no larger than the prefill chunk")


@rule("dp.lm_head_needs_dp_attention", Stage.DATA_PARALLEL, source=DP)
def lm_head_needs_dp_attention(s: State) -> Effects:
    """--enable-dp-lm-head needs DP attention."""
    on = s.attn_dp_size > 1 if s.version >= (0, 5, 22) else s.enable_dp_attention
    if s.enable_dp_lm_head and not on:
        yield Refuse(
            "--enable-dp-lm-head needs DP attention",
            ("enable_dp_lm_head", "dp_size", "enable_dp_attention"),
            ("add --enable-dp-attention", "drop --enable-dp-lm-head"),
        )


@rule("cp.attention", Stage.CONTEXT_PARALLEL, since="0.5.9", source=CP)
def context_parallel_attention(s: State) -> Effects:
    """Attention context parallelism divides the tensor-parallel size, together with the DP groups."""
    cp, groups = s.attn_cp_size, s.attn_dp_size if s.version >= (0, 5, 22) else s.dp_size
    if cp <= 1:
        return
    if s.tp_size % cp:
        yield Refuse(f"--tp-size {s.tp_size} is not a multiple of --attn-cp-size {cp}", ("tp_size", "attn_cp_size"))
    elif s.tp_size % (groups * cp):
        yield Refuse(
            f"--tp-size {s.tp_size} is not a multiple of dp-size x attn-cp-size = {groups * cp}",
            ("tp_size", "attn_cp_size", "dp_size"),
        )
    if s.pp_size != 1 and s.version <= (0, 5, 12):
        yield Refuse("context parallelism and pipeline parallelism exclude each other", ("attn_cp_size", "pp_size"))


@rule("cp.moe_dp", Stage.CONTEXT_PARALLEL, since="0.5.9", source=CP)
def moe_data_parallel(s: State) -> Effects:
    """MoE data parallelism and expert parallelism share the tensor-parallel ranks."""
    n = s.moe_dp_size
    if n <= 1:
        return
    flags = ("moe_dp_size", "tp_size", "ep_size")
    if s.tp_size % n:
        yield Refuse(f"--tp-size {s.tp_size} is not a multiple of --moe-dp-size {n}", flags)
    if s.ep_size * n > s.tp_size:
        yield Refuse(f"--ep-size {s.ep_size} x --moe-dp-size {n} is above --tp-size {s.tp_size}", flags)
    elif s.ep_size > 1 and s.ep_size * n != s.tp_size:
        yield Refuse(f"--ep-size {s.ep_size} x --moe-dp-size {n} is not --tp-size {s.tp_size}", flags)
    if s.pp_size != 1:
        yield Refuse("--moe-dp-size and pipeline parallelism exclude each other", ("moe_dp_size", "pp_size"))


@rule("cp.sizes_match", Stage.CONTEXT_PARALLEL, since="0.5.10", source=CP)
def cp_sizes_match(s: State) -> Effects:
    """MoE data parallelism needs the same size as attention context parallelism."""
    if s.moe_dp_size != 1 and s.attn_cp_size != s.moe_dp_size:
        yield Refuse(
            f"--moe-dp-size {s.moe_dp_size} needs --attn-cp-size {s.moe_dp_size}, got {s.attn_cp_size}",
            ("moe_dp_size", "attn_cp_size"),
            ("--moe-dp-size 1",),
        )


@rule("dense.moe_dense_tp_size", Stage.CHECK, source=CHECK)
def moe_dense_tp_size(s: State) -> Effects:
    """Dense layers are sharded over all ranks or over none."""
    allowed = (None, 1, s.tp_size) if s.version >= (0, 5, 13) else (None, 1)
    if s.moe_dense_tp_size not in allowed:
        alternatives = tuple("leave it out" if value is None else str(value) for value in allowed)
        yield Refuse(
            f"--moe-dense-tp-size {s.moe_dense_tp_size} is not supported", ("moe_dense_tp_size",), alternatives
        )


@rule("parallel.nodes_divide_ranks", Stage.CHECK, source=CHECK)
def nodes_divide_ranks(s: State) -> Effects:
    """The ranks spread evenly over the nodes."""
    if s.tp_size * s.pp_size % s.nnodes:
        yield Refuse(
            f"--tp-size {s.tp_size} x --pp-size {s.pp_size} is not a multiple of --nnodes {s.nnodes}",
            ("tp_size", "pp_size", "nnodes"),
        )


@rule("parallel.replicas_on_several_nodes", Stage.CHECK, source=CHECK)
def replicas_on_several_nodes(s: State) -> Effects:
    """Replicas over several nodes are not supported."""
    if s.dp_size > 1 and s.nnodes != 1 and not (s.version < (0, 5, 22) and s.enable_dp_attention):
        yield Refuse(
            "data-parallel replicas over several nodes are not supported", ("dp_size", "nnodes"), ("use DP attention",)
        )


@rule("parallel.gpu_ids", Stage.CHECK, source=CHECK)
def gpu_ids(s: State) -> Effects:
    """GPU numbering starts at 0 or above and steps forward."""
    if s.base_gpu_id < 0:
        yield Refuse(f"--base-gpu-id must not be negative, got {s.base_gpu_id}", ("base_gpu_id",), ("0",))
    if s.gpu_id_step < 1:
        yield Refuse(f"--gpu-id-step must be positive, got {s.gpu_id_step}", ("gpu_id_step",), ("1",))


@rule("pp.overlap_off", Stage.PIPELINE_PARALLEL, source="server_args.py:_handle_pipeline_parallelism")
def pipeline_overlap_off(s: State) -> Effects:
    """Pipeline parallelism runs without the overlap scheduler."""
    if s.pp_size > 1:
        yield Assign(
            "disable_overlap_schedule", True, "pipeline parallelism is incompatible with the overlap scheduler"
        )


@rule("pp.excludes", Stage.CHECK, source=CHECK)
def pipeline_excludes(s: State) -> Effects:
    """Pipeline parallelism excludes speculative decoding, and mixed chunks up to 0.5.9."""
    if s.pp_size <= 1:
        return
    if s.speculative_algorithm is not None:
        yield Refuse(
            "--pp-size above 1 and speculative decoding exclude each other",
            ("pp_size", "speculative_algorithm"),
            ("--pp-size 1",),
        )
    if s.enable_mixed_chunk and s.version <= (0, 5, 9):
        yield Refuse(
            "--pp-size above 1 and --enable-mixed-chunk exclude each other",
            ("pp_size", "enable_mixed_chunk"),
            ("--pp-size 1",),
        )
