"""Memory and launch times of a scenario from what logs said of measured launches."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from effects import Launch

MIB_PER_GIB = 1024
STEPS = 8  # the model counts captured sizes by eights


def memory_of(launch: Launch, name: str) -> float | None:
    """A number of the log; the sum of all that begin with `name.`, where it ends with a dot."""
    told = launch.row.memory
    if not name.endswith("."):
        return told.get(name)
    found = [value for key, value in told.items() if key.startswith(name) and value is not None]
    return sum(found) if found else None


def graph_gib(launch: Launch, phase: str) -> float | None:
    found = [v for k, v in launch.row.memory.items() if k.startswith("graph_gib.") and phase in k and v is not None]
    return sum(found) if found else None


def chunk(launch: Launch, default: float) -> float:
    value = launch.row.in_effect.get("chunked-prefill-size")
    told = value if value is not None else launch.row.flags.get("chunked-prefill-size", default)
    return float(told)  # type: ignore[arg-type]


def fraction(launch: Launch) -> float:
    value = launch.row.in_effect.get("mem-fraction-static", launch.row.flags.get("mem-fraction-static"))
    return float(value)  # type: ignore[arg-type]


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares, not falling: base and slope."""
    if len({x for x, _ in points}) < 2:
        return statistics.fmean(y for _, y in points), 0.0
    slope, base = statistics.linear_regression(*zip(*points, strict=True))
    return (base, slope) if slope > 0 and base >= 0 else (statistics.fmean(y for _, y in points), 0.0)


def robust_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Median of the slopes between all pairs (Theil and Sen), not falling: one launch that compiles does not count."""
    slopes = [(b - a) / (q - p) for (p, a), (q, b) in combinations(points, 2) if p != q]
    slope = max(0.0, statistics.median(slopes)) if slopes else 0.0
    return max(0.0, statistics.median(y - slope * x for x, y in points)), slope


def memory_sheet(launches: Sequence[Launch], default_chunk: float) -> tuple[dict[str, float], float]:
    """`memory_gib` and `kv_tokens_per_gib`. What prefill graphs take grows with the chunk, as activations do."""
    pre = statistics.median(_known(memory_of(x, "before_load_gib") for x in launches))
    weights = pre - statistics.median(_known(memory_of(x, "after_load_gib") for x in launches))
    base, each = line([(x.graph, used) for x in launches if (used := graph_gib(x, "decode")) is not None])
    prefill = [
        (chunk(x, default_chunk) / 1024, used) for x in launches if (used := graph_gib(x, "prefill")) is not None
    ]
    constant, per_chunk = line(prefill) if prefill else (0.0, 0.0)
    beside = [pre * (1 - fraction(x)) - end for x in launches if (end := memory_of(x, "pool_end_gib")) is not None]
    tokens = [
        count / (pre * fraction(x) - weights) for x in launches if (count := memory_of(x, "kv_tokens")) is not None
    ]
    sheet = {
        "free_before_weights": round(pre, 2),
        "weights": round(weights, 2),
        "activation": round(max(0.0, constant + statistics.fmean(beside or [0.0])), 3),
        "activation_per_1k_chunk": round(per_chunk, 4),
        "graph_base": round(base, 3),
        "graph_per_batch_size": round(each, 6),
    }
    return sheet, round(statistics.median(tokens), 1)


def startup_sheet(launches: Sequence[Launch]) -> dict[str, float]:
    """`startup_s`: medians of the logs' phases; `init` is what the process took beside them until it was ready."""
    told = [x for x in launches if x.row.startup_s]
    named = ("load", "kv_alloc", "graph_capture", "warmup")
    init = [x.row.phase_s["ready"] - sum(x.row.startup_s.get(name, 0.0) for name in named) for x in told]
    base, each = robust_line([(math.ceil(x.graph / STEPS), x.row.startup_s.get("graph_capture", 0.0)) for x in told])
    medians = {name: statistics.median(x.row.startup_s.get(name, 0.0) for x in told) for name in named}
    return {
        "init": round(statistics.median(init), 1),
        "load_weights": medians["load"],
        "kv_pool": medians["kv_alloc"],
        "graph_base": round(base, 1),
        "graph_per_batch_size": round(each, 3),
        "warmup": medians["warmup"],
    }


def _known(values: Iterable[Any]) -> list[float]:
    return [float(value) for value in values if value is not None]
