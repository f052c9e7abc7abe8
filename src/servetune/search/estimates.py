"""What complete trials are worth by all that was measured: a lucky value is pulled back to what others say of it.

The best of many noisy values is biased upwards; what the model expects of a configuration is less so, since every
measurement of a value or pair of values in it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from servetune.core.space import Point, SearchSpace
from servetune.search._grid import Grid
from servetune.search._history import Context, seen_of
from servetune.search._model import Model


class Told(NamedTuple):
    """A launched trial. `result`: what the sampler is told of it; `value` None: it is not complete."""

    number: int
    point: Point
    result: Mapping[str, Any]
    value: float | None
    baseline: bool
    assignment: Mapping[str, Any]


def expected_gains(
    space: SearchSpace, context: Mapping[str, Any], trials: Iterable[Told], seed: int
) -> dict[int, float]:
    """Trial number → expected logarithm of the objective over the baseline's; empty when too little is known."""
    grid = Grid(space)
    seen = [seen_of(t.number, t.point, t.result, t.value, t.baseline, grid, t.assignment) for t in trials]
    if sum(t.complete for t in seen) < 2:
        return {}
    nothing = np.empty((0, len(grid.axes)), dtype=np.int64)
    return Model(grid, seen, Context.of({"context": context}), seed, nothing).gains()
