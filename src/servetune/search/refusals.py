"""What the engine refuses, learned from its own reasons, so that it need not be asked about every point.

A reason names flags. When random points that share their values with a refused one are refused as well, these values
are taken to be enough, and no point that has them is considered any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from servetune.core.space import Point, SearchSpace, flags_of
from servetune.search._grid import Codes, Grid

#: So many random points must be refused alike before a reason is believed to hold for all of them.
TRIED = 8

Reasons = Callable[[Point], Sequence[Collection[str]]]
"""A point to the flags named by each reason to refuse it; empty for a point that is not refused."""


class Refusals:
    """Of one study; kept between the sampler's questions. The answers do not depend on the order of questions."""

    def __init__(self, space: SearchSpace, reasons: Reasons) -> None:
        self._grid, self._reasons = Grid(space), reasons
        self._flags = [frozenset(flags_of(axis.parameter)) for axis in self._grid.axes]
        self._tried: set[tuple[tuple[int, ...], int]] = set()
        self._refused: dict[tuple[int, ...], list[int]] = {}  # axes → what is refused on them, each as one number

    def learn(self, row: Codes) -> bool:
        """Take the reasons against a refused point; whether one of them was found to hold for other points too.

        A reason whose flags lead nowhere (it may name others than it depends on) may still hold for a single value.
        """
        named = self._named(row)
        if any([self._try(axes, row, (axes,)) for axes in named]):  # a list: every reason is tried
            return True
        single = [(p,) for p, axis in enumerate(self._grid.axes) if axis.place is None and row[p] >= 0]
        return any([self._try(axes, row, named) for axes in single])

    def _named(self, row: Codes) -> tuple[tuple[int, ...], ...]:
        """For each reason against a point: the axes that it names."""
        reasons = [set(flags) for flags in self._reasons(self._grid.decode(row))]
        found = (tuple(p for p, own in enumerate(self._flags) if own & flags and row[p] >= 0) for flags in reasons)
        return tuple(dict.fromkeys(found))

    def _try(self, axes: tuple[int, ...], row: Codes, reasons: tuple[tuple[int, ...], ...]) -> bool:
        """Whether the row's values on some axes are newly found to be enough for a refusal for one of `reasons`."""
        if not axes or len(axes) == len(row):
            return False
        number = int(self._numbers(axes, row[None, :])[0])
        if (axes, number) in self._tried:
            return False
        self._tried.add((axes, number))
        others = self._others(row)
        others[:, list(axes)] = row[list(axes)]
        holds = all(set(reasons) & set(self._named(other)) for other in others)
        if holds and (reasons == (axes,) or self._matters(axes, row)):
            self._refused.setdefault(axes, []).append(number)
            return True
        return False

    def _matters(self, axes: tuple[int, ...], row: Codes) -> bool:
        """Whether points with other values are accepted: else these values say nothing."""
        others = self._others(row)
        differs = (others[:, list(axes)] != row[list(axes)]).any(axis=1)
        return any(not self._named(other) for other in others[differs])

    def _others(self, row: Codes) -> Codes:
        """Random points, the same ones for the same row."""
        rng = np.random.default_rng([int(value) + 1 for value in row])
        return self._grid.settle(self._grid.random(TRIED, rng), rng)

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
