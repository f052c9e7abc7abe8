"""Everything that is known of a study's points: expected value, its uncertainty, and the chance that they work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servetune.search._gp import AMPLITUDE, EXPLAINED_AMPLITUDE, ORDERED_AMPLITUDE, AdditiveGp, tables_of
from servetune.search._grid import Codes, Grid
from servetune.search._history import Context, Seen
from servetune.search._memory import FRACTION, GRAPH, Memory
from servetune.search.feasibility import Feasibility

Floats = NDArray[np.float64]

#: Decoding beyond the captured batch sizes: expected effect on a level's log throughput, and its spread.
EAGER, EAGER_SPREAD = -0.3, 0.35
#: How far the effect of a small KV pool may be off, as a share of what is expected.
POOL_SPREAD = 0.25
#: Spread of a parameter's effect between levels: what a trial says that measured only some of them.
BETWEEN_LEVELS = 0.1
#: Values that the model looks at: the best and the newest half each.
MOST_VALUES = 200


class Model:
    """Built from a study's history for one proposal. Values are logarithms, relative to the baseline's."""

    def __init__(self, grid: Grid, seen: Sequence[Seen], context: Context, seed: int, pending: Codes) -> None:
        self._grid = grid
        self.feasibility = Feasibility(grid, seen)
        self.memory = Memory(grid, seen, context, seed)
        told = [t for t in seen if t.log_levels and t.slug is None]
        self.base = next((t for t in told if t.baseline and t.complete), next((t for t in told if t.complete), None))
        if self.base is None:
            return
        self.levels = sorted(self.base.log_levels)
        weights = np.array([context.weights.get(level, 0.0 if context.weights else 1.0) for level in self.levels])
        self.weights = weights / weights.sum()
        told = _limited(told, self.base, self.levels)
        self.values = told
        codes = np.array([t.codes for t in told])
        shares = np.array(
            [[w if lv in t.log_levels else 0.0 for lv, w in zip(self.levels, self.weights, strict=True)] for t in told]
        )
        share = shares.sum(1)
        shares = shares / share[:, None]
        change = np.array([[t.log_levels.get(lv, 0.0) - self.base.log_levels[lv] for lv in self.levels] for t in told])
        noise = np.array([[t.sd.get(lv, 0.0) for lv in self.levels] for t in told])
        variance = (shares**2 * noise**2).sum(1) + BETWEEN_LEVELS**2 * (1 - share)
        mean, features = self._physics(codes, shares)
        self._tables = tables_of(grid)
        self._amplitudes = self._expected_amplitudes()
        self.gp = AdditiveGp(self._tables, self._amplitudes, codes, (shares * change).sum(1) - mean, variance, features)
        if len(pending):
            self._believe(codes, shares, change, variance, mean, features, pending)
        whole = codes[[t.complete for t in told]]
        expected, _ = self.predict(whole)
        self.incumbent = float(expected.max())

    def _expected_amplitudes(self) -> Floats:
        """How large each parameter's own effect is before anything is known of it."""
        explained = (*FRACTION, *GRAPH) if self.memory.known else ()
        plain = [AMPLITUDE if axis.place is None else ORDERED_AMPLITUDE for axis in self._grid.axes]
        return np.array(
            [EXPLAINED_AMPLITUDE if a.name in explained else p for a, p in zip(self._grid.axes, plain, strict=True)]
        )

    def _believe(
        self,
        codes: Codes,
        shares: Floats,
        change: Floats,
        variance: Floats,
        mean: Floats,
        features: Floats,
        pending: Codes,
    ) -> None:
        """Points that other workers measure count as measured, with what is expected of them."""
        _, own_features = self._physics(pending, np.tile(self.weights, (len(pending), 1)))
        expected, _ = self.gp.predict(pending, own_features)
        self.gp = AdditiveGp(
            self._tables,
            self._amplitudes,
            np.concatenate([codes, pending]),
            np.concatenate([(shares * change).sum(1) - mean, expected]),
            np.concatenate([variance, np.full(len(pending), 1e-4)]),
            np.concatenate([features, own_features]),
        )

    def predict(self, codes: Codes) -> tuple[Floats, Floats]:
        """Expected log value over the baseline's, and its standard deviation."""
        mean, features = self._physics(codes, np.tile(self.weights, (len(codes), 1)))
        expected, spread = self.gp.predict(codes, features)
        return expected + mean, spread

    def log_feasible(self, codes: Codes) -> Floats:
        """Log probability that a launch works to its end."""
        result = self.feasibility.log_probability(codes)
        return result + self.memory.log_probability(codes) if self.memory.known else result

    def _physics(self, codes: Codes, shares: Floats) -> tuple[Floats, Floats]:
        """Prior mean and linear features: how many requests run at each level, and whether as captured graphs."""
        features = np.zeros((len(codes), len(self.levels) + 1))
        mean = np.zeros(len(codes))
        if not self.memory.known or self.base is None:
            return mean, features
        held, own_held = self.memory.requests(codes), self.memory.requests(self.base.codes[None, :])
        batch, own_batch = self.memory.batch(codes), self.memory.batch(self.base.codes[None, :])
        logs = np.log(np.array(self.levels, dtype=float))
        rates = np.array([self.base.log_levels[lv] for lv in self.levels])
        for i, level in enumerate(self.levels):
            running, own = np.minimum(level, held), np.minimum(level, own_held)
            pool = np.interp(np.log(running), logs, rates) - np.interp(np.log(own), logs, rates)
            eager = (running > batch).astype(float) - float((own > own_batch)[0])
            mean += shares[:, i] * (pool + EAGER * eager)
            features[:, i] = EAGER_SPREAD * shares[:, i] * eager
            features[:, -1] += POOL_SPREAD * shares[:, i] * pool
        return mean, features


def _limited(told: Sequence[Seen], base: Seen, levels: Sequence[int]) -> list[Seen]:
    """At most MOST_VALUES trials that share a level with the baseline; the best and the newest stay."""
    usable = [t for t in told if any(level in t.log_levels for level in levels)]
    if len(usable) <= MOST_VALUES:
        return usable

    def gain(trial: Seen) -> float:
        shared = [level for level in levels if level in trial.log_levels]
        return float(np.mean([trial.log_levels[level] - base.log_levels[level] for level in shared]))

    best = sorted(usable, key=lambda t: -gain(t))[: MOST_VALUES // 2]
    newest = [t for t in usable[-MOST_VALUES // 2 :] if t not in best]
    kept = {t.number for t in [base, *best, *newest]}
    return [t for t in usable if t.number in kept]
