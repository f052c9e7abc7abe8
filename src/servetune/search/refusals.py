"""What the engine refuses, learned from its own reasons, so that it need not be asked about every point.

A reason names flags. When random points that share their values with a refused one are refused for the same reason,
these values are taken to be enough, and no point that has them is considered any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from servetune.core.space import Point, SearchSpace, flags_of
from servetune.search._grid import Codes, Grid

#: So many random points must be refused alike before a reason is believed to hold for all of them.
TRIED = 6

Reasons = Callable[[Point], Sequence[Collection[str]]]
"""A point to the flags named by each reason to refuse it; empty for a point that is not refused."""


class Refusals:
    """Of one study; kept between the sampler's questions. The answers do not depend on the order of questions."""

    def __init__(self, space: SearchSpace, reasons: Reasons) -> None:
        self._grid, self._reasons = Grid(space), reasons
        self._flags = [flags_of(axis.parameter) for axis in self._grid.axes]
        self._tried: set[tuple[tuple[int, ...], int]] = set()
        self._refused: dict[tuple[int, ...], list[int]] = {}  # axes → what is refused on them, each as one number

    def learn(self, row: Codes) -> bool:
        """Take the reasons against a refused point; whether one of them was found to hold for other points too."""
        learned = False
        for flags in {frozenset(reason) for reason in self._reasons(self._grid.decode(row))}:
            axes = tuple(p for p, own in enumerate(self._flags) if own & flags and row[p] >= 0)
            if not axes or len(axes) == len(row):
                continue
            number = int(self._numbers(axes, row[None, :])[0])
            if (axes, number) not in self._tried:
                self._tried.add((axes, number))
                if self._holds(axes, row, flags):
                    self._refused.setdefault(axes, []).append(number)
                    learned = True
        return learned

    def _holds(self, axes: tuple[int, ...], row: Codes, flags: frozenset[str]) -> bool:
        rng = np.random.default_rng(list(row + 1))
        others = self._grid.random(TRIED, rng)
        others[:, list(axes)] = row[list(axes)]
        return all(
            flags in {frozenset(reason) for reason in self._reasons(self._grid.decode(other))}
            for other in self._grid.settle(others, rng)
        )

    def _numbers(self, axes: tuple[int, ...], codes: Codes) -> Codes:
        """The values on some axes, as one number for each row; huge spaces wrap round."""
        weights = np.cumprod([1, *(self._grid.sizes[p] + 1 for p in axes[:-1])], dtype=np.int64)
        numbers: Codes = (codes[:, list(axes)] + 1) @ weights
        return numbers

    def refused(self, codes: Codes) -> NDArray[np.bool_]:
        """Row by row: whether a reason that was learned is enough to refuse it."""
        found = np.zeros(len(codes), dtype=bool)
        for axes, numbers in self._refused.items():
            found |= np.isin(self._numbers(axes, codes), numbers)
        return found
