"""Everything that is known of a study's points: expected value, its uncertainty, and the chance that they work."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr

from servetune.search._grid import Codes, Grid
from servetune.search._history import Context, Seen
from servetune.search._room import Room
from servetune.search._values import Values, values_of
from servetune.search.feasibility import Feasibility

Floats = NDArray[np.float64]

#: Chance that two values which nobody has launched together interact, and the spread of such an effect.
PAIR_CHANCE, PAIR_SPREAD = 0.02, 0.15


class Model:
    """Built from a study's history for one proposal. Values are logarithms, relative to the baseline's."""

    def __init__(self, grid: Grid, seen: Sequence[Seen], context: Context, seed: int, pending: Codes) -> None:
        self._grid = grid
        self._seen = seen
        self.values: Values = values_of(grid, seen, context)
        self.room = Room(self.values.memory, seen, seed)
        self.known = self.values.base is not None
        if not self.known:
            return
        if len(pending):
            self.values = self.values.believing(pending)
        self._untried = self._untried_pairs(self.values.complete)

    @cached_property
    def feasibility(self) -> Feasibility:
        """What crashes taught; made only where it is asked for."""
        return Feasibility(self._grid, self._seen)

    def _untried_pairs(self, whole: Codes) -> Floats:
        """Values × values: 1 for two values of different parameters that no complete launch had together."""
        ones = self._grid.categories(whole)
        untried = (ones.T @ ones == 0).astype(float)
        sizes = [self._grid.sizes[p] for p, axis in enumerate(self._grid.axes) if axis.place is None]
        for low, high in pairwise([0, *accumulate(sizes)]):
            untried[low:high, low:high] = 0.0
        return np.asarray(untried)

    def log_improvement(self, codes: Codes, least: float) -> Floats:
        """Log of what a launch is expected to gain above the best expected value plus `least`.

        Few pairs of values interact, but those strongly: each untried one has a small chance of a large effect.
        """
        mean, spread = self.values.predict(codes)
        above = mean - self.values.incumbent - least
        ones = self._grid.categories(codes)
        surprise = 1 - (1 - PAIR_CHANCE) ** (0.5 * ((ones @ self._untried) * ones).sum(1))
        wide = np.hypot(spread, PAIR_SPREAD)
        usual = log_improvement(above / spread) + np.log(spread) + np.log1p(-surprise)
        lucky = log_improvement(above / wide) + np.log(wide) + np.log(np.maximum(surprise, 1e-300))
        return np.asarray(np.logaddexp(usual, lucky))

    def log_feasible(self, codes: Codes) -> Floats:
        """Log probability that a launch works to its end."""
        return self.feasibility.log_probability(codes) + self.room.log_probability(codes)


def log_improvement(z: Floats) -> Floats:
    """log(φ(z) + z Φ(z)), accurate for very negative z too."""
    near = np.maximum(z, -1.0)
    direct = np.log(np.exp(-0.5 * near**2) / np.sqrt(2 * np.pi) + near * np.exp(log_ndtr(near)))
    far = np.minimum(z, -1.0)
    tail = -0.5 * far**2 - 0.5 * np.log(2 * np.pi)
    tail = tail + np.log1p(-np.minimum(1 - 1e-12, -far * np.sqrt(np.pi / 2) * erfcx(-far / np.sqrt(2))))
    return np.asarray(np.where(z > -1, direct, tail))
