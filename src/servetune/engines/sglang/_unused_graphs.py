"""Batches that run without CUDA graphs although graphs of their size were captured.

A batch above the largest captured size runs so by design. With data-parallel attention the ranks' batches may count
together, so one rank's number is within what was captured and their sum is not.
"""

from __future__ import annotations

from dataclasses import dataclass

from servetune.core.failure import Phase
from servetune.engines.sglang._log_args import is_set
from servetune.engines.sglang._log_flags import LaunchFlags
from servetune.engines.sglang._log_run import Run
from servetune.engines.sglang._log_throughput import Decode
from servetune.engines.sglang._repair_numbers import Draft

#: So many such batches, and this share of all that fit into a graph, are no accident.
LEAST, SHARE = 4, 0.5
#: Limits of the captured sizes, newest last.
LIMITS = ("cuda-graph-max-bs", "cuda-graph-max-bs-decode")


@dataclass(frozen=True, slots=True)
class UnusedGraphs:
    """The largest such batch, the largest captured size, and a decode line that shows one."""

    running: int
    captured: int
    line: tuple[int, str]


def unused_graphs(run: Run, flags: LaunchFlags) -> UnusedGraphs | None:
    """What the decode lines show; None where graphs are off, unknown or used as they should be."""
    captured = _largest(flags)
    line = run.throughput.first_eager
    switched_off = any(is_set(flags.value(flag)) for flag in ("disable-cuda-graph", "disable-decode-cuda-graph"))
    begun = any(step.phase is Phase.GRAPH_CAPTURE for step in run.progress.steps)
    if captured is None or line is None or switched_off or not begun:
        return None
    fitting = [decode for decode in run.throughput.sample if 0 < decode.running <= captured]
    eager = [decode for decode in fitting if decode.eager]
    if len(eager) < LEAST or len(eager) < SHARE * len(fitting):
        return None
    text = line[1].decode("utf-8", "replace").strip()
    return UnusedGraphs(max(map(_running, eager)), captured, (line[0], text))


def graphs_for_all_ranks(draft: Draft) -> None:
    """Graphs for the batches of all data-parallel ranks together, where their sum is above what was captured."""
    found = unused_graphs(draft.run, draft.flags)
    ranks = draft.current("dp-size") if draft.flags.on("enable-dp-attention") else 1
    if found is not None and (ranks or 1) * found.running > found.captured:
        flag = next((one for one in reversed(LIMITS) if draft.flags.number(one)), LIMITS[0])
        draft.add(flag, int((ranks or 1) * found.running), f"the batches of {ranks:g} ranks count together")


def _running(decode: Decode) -> int:
    return decode.running


def _largest(flags: LaunchFlags) -> int | None:
    """The largest size that was captured, as far as the flags tell."""
    for name in ("cuda-graph-bs", "cuda-graph-bs-decode"):
        sizes = flags.value(name)
        if isinstance(sizes, list | tuple) and sizes and all(isinstance(size, int) for size in sizes):
            return int(max(sizes))
    limits = [number for flag in LIMITS if (number := flags.number(flag))]
    return int(limits[-1]) if limits else None
