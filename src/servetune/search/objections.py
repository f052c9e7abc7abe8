"""What learned rules say of many points at once: which of them, if any, is against each row of a grid.

A rule looks at some flags only, so points that agree on the parameters behind these are asked about once, and the
answer is kept for as long as the study runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servetune.core.space import Choice, Point, SearchSpace, flags_of
from servetune.search._grid import Codes, Grid

View = Callable[[Point], Mapping[str, Choice]]
"""A point to every flag in effect, as rules speak of them."""


@dataclass(frozen=True)
class Rule:
    """Something against configurations. `name`: what a proposal that it stops is counted under; `key`: what it says.

    `holds` depends on `flags` alone.
    """

    name: str
    key: Hashable
    flags: frozenset[str]
    holds: Callable[[Mapping[str, Choice]], bool]


class Objections:
    """Of one study; kept between the sampler's questions, `rules` as they are for the next one."""

    def __init__(self, space: SearchSpace, view: View) -> None:
        self._grid, self._view = Grid(space), view
        self._flags = [frozenset(flags_of(axis.parameter)) for axis in self._grid.axes]
        self._answers: dict[Hashable, dict[int, bool]] = {}
        self.rules: Sequence[Rule] = ()

    def first(self, codes: Codes) -> NDArray[np.int64]:
        """Row by row: the place in `rules` of the first one that holds, −1 where none does."""
        found = np.full(len(codes), -1, dtype=np.int64)
        for place, rule in enumerate(self.rules):
            left = np.flatnonzero(found < 0)
            found[left[self._holds(rule, codes[left])]] = place
        return found

    def _holds(self, rule: Rule, codes: Codes) -> NDArray[np.bool_]:
        """Rows that agree on the parameters behind the rule's flags share one answer."""
        axes = [p for p, own in enumerate(self._flags) if own & rule.flags]
        weights = np.cumprod([1, *(self._grid.sizes[p] + 1 for p in axes[:-1])], dtype=np.int64)
        numbers = (codes[:, axes] + 1) @ weights if axes else np.zeros(len(codes), dtype=np.int64)
        different, first, which = np.unique(numbers, return_index=True, return_inverse=True)
        known = self._answers.setdefault(rule.key, {})
        for number, row in zip(different.tolist(), first.tolist(), strict=True):
            if number not in known:
                known[number] = rule.holds(self._view(self._grid.decode(codes[row])))
        answers = np.array([known[number] for number in different.tolist()], dtype=bool)
        return np.asarray(answers[which.ravel()])
