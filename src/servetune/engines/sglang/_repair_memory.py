"""Repairs of memory: computed from the log's numbers, never bisected.

The fraction's lower bound is `1 - available_after_load / available_before_load`; what it leaves out,
`before_load * (1 - fraction)`, must hold graphs, activations and workspaces. When the bounds cross, the window is empty
and another flag is turned.
"""

from __future__ import annotations

import math

from servetune.core.failure import Phase, Repair
from servetune.engines.sglang._log_args import spelled
from servetune.engines.sglang._log_flags import usable
from servetune.engines.sglang._repair_numbers import Draft, Numbers

#: Added to the computed minimum, so that the pool holds more than nothing.
MARGIN = 0.01
#: Above, nothing is left beside the pool on any GPU that we know of.
HIGHEST_FRACTION = 0.97
#: GPUs of the largest usual host; a log does not say how many there are.
HOST_GPUS = 8
#: Of the memory that the weights leave, what a pool may take where the rest has to hold graphs and activations.
POOL_SHARE = 0.5
#: Beside the pool, GiB, below which graphs and activations hardly fit.
LEAST_BESIDE = 4.0
SMALLEST_GRAPH_BATCH = 8
#: So few running requests are no reason why a prefill needs much.
FEW_RUNNING = 8
SMALLEST_CHUNK = 1024


def raise_fraction(draft: Draft) -> None:
    low, now = draft.numbers.window_low, draft.numbers.fraction
    if draft.drafted and draft.numbers.minimum is None:
        _empty_window(draft, "the target's pool had taken its share before the draft model's was sized")
        return
    if low is None:
        if now is not None and now < 0.9:
            draft.add("mem-fraction-static", round(min(now + 0.05, 0.95), 3), _no_numbers(now))
        return
    value = round(math.ceil(round(low * 1000, 6)) / 1000 + MARGIN, 3)
    if value > HIGHEST_FRACTION:
        _empty_window(draft, f"the fraction would have to be {value}, which leaves nothing for graphs and activations")
        return
    if now is not None and value <= now:
        value = round(min(now + 0.02, HIGHEST_FRACTION), 3)
    draft.add("mem-fraction-static", value, _minimum_reason(draft.numbers, low) + _pool_of(draft.numbers, value, low))
    _roomy_fraction(draft, value, low)


def _pool_of(numbers: Numbers, value: float, low: float) -> str:
    """How much of the memory a fraction gives to the pool, as the end of a sentence."""
    if not numbers.before:
        return ""
    return f"; {value:g} gives a pool of about {(value - low) * numbers.before:.1f} GB, {value - low:.0%} of the memory"


def _roomy_fraction(draft: Draft, least: float, low: float) -> None:
    """Beside the minimum a fraction that shares what the weights leave between the pool and the rest."""
    before = draft.numbers.before
    value = math.floor(round((low + POOL_SHARE * (1 - low)) * 1000, 6)) / 1000
    if not before or value < least + 2 * MARGIN or (1 - value) * before < LEAST_BESIDE:
        return
    pool, beside = (value - low) * before, (1 - value) * before
    reason = f"with room: a pool of about {pool:.1f} GB, and {beside:.1f} GB beside it for graphs and activations"
    draft.repairs.append(Repair(flag="mem-fraction-static", value=value, reason=reason))


def _no_numbers(now: float) -> str:
    return f"the log does not show the memory around the weights; {now:g} leaves no KV pool, so more is needed"


def _minimum_reason(numbers: Numbers, low: float) -> str:
    least = math.ceil(round(low * 1000, 6)) / 1000
    if numbers.before and numbers.after is not None:
        return (
            f"at least {least:.3f} (1 - {numbers.after:g}/{numbers.before:g}): "
            f"{numbers.after:.1f} of {numbers.before:.1f} GB were left after the weights"
        )
    return f"at least {least:.3f}: the engine's own minimum"


def _empty_window(draft: Draft, why: str) -> None:
    """No fraction works: free memory elsewhere."""
    shrink_graphs(draft, f"{why}; smaller graphs free memory")
    for flag in ("speculative-algorithm", "moe-a2a-backend", "enable-eplb"):
        if draft.flags.on(flag):
            draft.add(flag, None, f"{why}; {spelled(flag)} costs memory beside the pool")
    _more_parallel(draft, why)


def _more_parallel(draft: Draft, why: str) -> None:
    tp = draft.current("tp-size") or 1
    if tp * 2 * (draft.current("pp-size") or 1) > HOST_GPUS * (draft.current("nnodes") or 1):
        return
    draft.add("tp-size", int(tp) * 2, f"{why}; twice the GPUs halve the weights on each")


def lower_fraction(draft: Draft) -> None:
    numbers = draft.numbers
    now = numbers.fraction
    if now is None:
        now = _fraction_from_pool(draft)
    if now is None:
        return
    total = numbers.before or numbers.capacity
    deficit = max(0.0, (numbers.tried or 0.0) - (numbers.free or 0.0))
    step = max(0.02, (deficit + 0.5) / total if total else 0.03)
    value = math.floor(round((now - step) * 1000, 6)) / 1000
    low = numbers.window_low
    if low is not None and not draft.drafted and value < low + 0.002:
        highest = math.floor(round((now - 0.01) * 1000, 6)) / 1000
        if highest < low + 0.002:
            _empty_window(draft, f"the fraction cannot go below {low:.3f} and {now:g} is too high")
            return
        value = highest
    if value > 0:
        draft.add("mem-fraction-static", value, _lower_reason(numbers, now) + _still_to_capture(draft))


def _still_to_capture(draft: Draft) -> str:
    """Of a capture that ended early: what is missing is for the first graphs only, as the end of a sentence."""
    captured = draft.run.progress.captured if draft.phase is Phase.GRAPH_CAPTURE else None
    if captured is None or captured[0] >= captured[1]:
        return ""
    done, total = captured
    return f" with {done} of {total} graphs captured; the others come on top"


def _fraction_from_pool(draft: Draft) -> float | None:
    """The automatic fraction, from what the pool left: `1 - pool_end / before_load`."""
    memory = draft.run.progress.memory
    before, end = memory.get("before_load_gib"), memory.get("pool_end_gib")
    return round(1 - end / before, 3) if before and end is not None and before > end else None


def _lower_reason(numbers: Numbers, now: float) -> str:
    if numbers.tried is not None and numbers.free is not None:
        missing = max(0.0, round(numbers.tried, 2) - round(numbers.free, 2))  # of the numbers that are shown
        return (
            f"{numbers.tried:.2f} GiB were wanted and {numbers.free:.2f} free: "
            f"at least {missing:.2f} GiB missing beside {now:g}"
        )
    return f"{now:g} leaves too little beside the pool"


def _graph_flag(draft: Draft) -> str:
    if draft.flags.value("cuda-graph-max-bs-decode") is not None:
        return "cuda-graph-max-bs-decode"
    return "cuda-graph-max-bs"


def shrink_graphs(draft: Draft, why: str = "graphs of large batches take most of the memory") -> None:
    flag = _graph_flag(draft)
    sizes = [size for what, found in draft.run.progress.sizes.items() if "prefill" not in what for size in found]
    largest = draft.current(flag) or usable(max(sizes, default=None))
    if largest is None or largest <= SMALLEST_GRAPH_BATCH:
        return
    draft.add(flag, max(SMALLEST_GRAPH_BATCH, int(largest) // 2), f"{why} (now up to {largest:g})")


def shrink_prefill_graphs(draft: Draft) -> None:
    progress = draft.run.progress.capture_progress
    flag = "cuda-graph-max-bs-prefill" if _has_prefill_limit(draft) else "piecewise-cuda-graph-max-tokens"
    largest = draft.current(flag) or (progress[1] if progress else None)
    if largest and largest > 256:
        value = max(256, 2 ** (int(largest).bit_length() - 2))
        draft.add(flag, value, f"prefill graphs of up to {largest:g} tokens do not fit")
    no_prefill_graph(draft)


def _has_prefill_limit(draft: Draft) -> bool:
    """Whether this version names the prefill graphs by backend and batch (0.5.14 and later)."""
    named = {"cuda-graph-max-bs-prefill", "cuda-graph-backend-prefill", "cuda-graph-max-bs-decode"}
    return bool(named & {*draft.flags.asked, *draft.flags.effective}) or "--cuda-graph-max-bs-prefill" in draft.text


def no_prefill_graph(draft: Draft) -> None:
    if draft.flags.on("enable-piecewise-cuda-graph"):
        draft.add("enable-piecewise-cuda-graph", None, "it captures graphs of prefills, which cost memory")
    elif draft.flags.on("cuda-graph-backend-prefill") or _has_prefill_limit(draft):
        draft.add("cuda-graph-backend-prefill", "disabled", "switch the prefill graph off")
    else:
        draft.add("disable-piecewise-cuda-graph", True, "the prefill graph is on by default in this version")


def shrink_chunk(draft: Draft) -> None:
    chunk = draft.current("chunked-prefill-size")
    if chunk and chunk > SMALLEST_CHUNK:
        draft.add("chunked-prefill-size", int(chunk) // 2, f"half of {chunk:g}: a smaller prefill needs less at once")
    elif chunk is None:
        draft.add("chunked-prefill-size", 4096, "a smaller prefill needs less at once")


def shrink_running(draft: Draft) -> None:
    """Half of the requests that ran at once, on all data-parallel ranks together, or that may run."""
    seen = draft.run.throughput.most_running * draft.attention_ranks
    limit = draft.running_limit
    value = int(min(limit, seen) if limit and seen else (limit or seen))
    if value >= 2:
        what = "that ran at once" if seen and value == seen else "that are allowed at once"
        draft.add("max-running-requests", value // 2, f"half of the {value} requests {what}")


def shrink_running_if_many(draft: Draft) -> None:
    """As `shrink_running`, where so many ran that their number matters."""
    if not 0 < draft.run.throughput.most_running < FEW_RUNNING:
        shrink_running(draft)


def less_weight_memory(draft: Draft) -> None:
    for flag in ("moe-a2a-backend", "speculative-algorithm", "enable-eplb", "ep-num-redundant-experts"):
        if draft.flags.on(flag):
            draft.add(flag, None, f"{spelled(flag)} adds weights on each GPU")
    _more_parallel(draft, "the weights do not fit (the memory fraction does not matter here)")


def lower_host_memory(draft: Draft) -> None:
    if draft.numbers.fraction is not None:
        value = math.floor(min(draft.numbers.fraction, 1.0) * 0.85 * 1000) / 1000
        draft.add("mem-fraction-static", value, "on a CPU the KV pool is host memory")
