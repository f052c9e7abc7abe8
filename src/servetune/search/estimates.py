"""What complete trials are worth by all that was measured: a lucky value is pulled back to what others say of it.

The best of many noisy values is biased upwards; what the model expects of a configuration is less so, since every
measurement of a value or pair of values in it counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servetune.search._grid import Grid
from servetune.search._history import Context, Seen
from servetune.search._values import values_of


def expected_gains(grid: Grid, context: Mapping[str, Any], seen: Sequence[Seen]) -> dict[int, float]:
    """Trial number → expected logarithm of the objective over the baseline's; empty when too little is known."""
    if sum(t.complete for t in seen) < 2:
        return {}
    return values_of(grid, seen, Context.of({"context": context})).gains()
