"""What throughput is expected of a study's points, by all that was measured. Nothing in it is drawn."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from servetune.search._gp import AMPLITUDE, EXPLAINED_AMPLITUDE, ORDERED_AMPLITUDE, AdditiveGp
from servetune.search._grid import Codes, Grid
from servetune.search._history import Context, Seen
from servetune.search._memory import CHUNK, FRACTION, GRAPH, Memory

Floats = NDArray[np.float64]

#: Decoding beyond the captured batch sizes: expected effect on log throughput, by running requests (what a step costs
#: beside the kernels matters less the larger the batch), and its spread at each level.
EAGER, EAGER_SPREAD = {1: -1.0, 10: -0.8, 256: -0.3, 1024: -0.1}, 0.25
#: Where the baseline's KV pool hides how throughput grows with more requests: as a share of the growth before, spread.
UNSEEN_SLOPE, UNSEEN_SPREAD = 0.6, 0.25
#: Spread of a parameter's effect between levels: what a trial says that measured only some of them.
BETWEEN_LEVELS = 0.1
#: Values that the model looks at: the best and the newest half each.
MOST_VALUES = 160


class Values:
    """Built from a study's history. Values are logarithms, relative to the baseline's. `base` None: none is known."""

    def __init__(self, grid: Grid, seen: Sequence[Seen], context: Context) -> None:
        self._grid = grid
        self.memory = Memory(grid, seen, context)
        told = [t for t in seen if t.log_levels and t.slug is None]
        self.base = next((t for t in told if t.baseline and t.complete), next((t for t in told if t.complete), None))
        if self.base is None:
            return
        self.levels = sorted(self.base.log_levels)
        weights = np.array([context.weights.get(level, 0.0 if context.weights else 1.0) for level in self.levels])
        self.weights = weights / weights.sum()
        self.told = _limited(told, self.base, self.levels)
        self._theirs, self._their_batch = self._launched([self.base])
        self._fit()

    def _fit(self) -> None:
        told, base = self.told, self.base
        assert base is not None
        codes = np.array([t.codes for t in told])
        shares = np.array(
            [[w if lv in t.log_levels else 0.0 for lv, w in zip(self.levels, self.weights, strict=True)] for t in told]
        )
        share = shares.sum(1)
        shares = shares / share[:, None]
        change = np.array([[t.log_levels.get(lv, 0.0) - base.log_levels[lv] for lv in self.levels] for t in told])
        noise = np.array([[t.sd.get(lv, 0.0) for lv in self.levels] for t in told])
        variance = (shares**2 * noise**2).sum(1) + BETWEEN_LEVELS**2 * (1 - share)
        mean, features = self._physics(shares, *self._launched(told))
        y = (shares * change).sum(1) - mean
        self.gp = AdditiveGp(self._grid, self._expected_amplitudes(), codes, y, variance, features)

    @cached_property
    def complete(self) -> Codes:
        """Points of the complete trials that are looked at."""
        return np.array([t.codes for t in self.told if t.complete])

    @cached_property
    def incumbent(self) -> float:
        """The best expected value of a complete trial."""
        return float(self._expected(self.complete).max())

    def believing(self, pending: Codes) -> Values:
        """The same, with points that others measure taken for measured, with what is expected of them."""
        changed = copy.copy(self)
        for name in ("incumbent", "complete"):
            changed.__dict__.pop(name, None)
        changed.gp = self.gp.believing(pending, self._expected_physics(pending)[1])
        return changed

    def gains(self) -> dict[int, float]:
        """Trial number to expected log value over the baseline's, of every complete trial that is looked at."""
        if self.base is None or not len(self.complete):
            return {}
        expected = self._expected(self.complete)
        return dict(zip((t.number for t in self.told if t.complete), expected.tolist(), strict=True))

    def _expected_amplitudes(self) -> Floats:
        """How large each parameter's own effect is before anything is known of it."""
        explained = (*FRACTION, *GRAPH) if self.memory.known else ()
        plain = [AMPLITUDE if axis.place is None else ORDERED_AMPLITUDE for axis in self._grid.axes]
        return np.array(
            [EXPLAINED_AMPLITUDE if a.name in explained else p for a, p in zip(self._grid.axes, plain, strict=True)]
        )

    def _expected(self, codes: Codes) -> Floats:
        mean, features = self._expected_physics(codes)
        return self.gp.expected(codes, features) + mean

    def predict(self, codes: Codes) -> tuple[Floats, Floats]:
        """Expected log value over the baseline's, and its standard deviation."""
        mean, features = self._expected_physics(codes)
        expected, spread = self.gp.predict(codes, features)
        return expected + mean, spread

    def _expected_physics(self, codes: Codes) -> tuple[Floats, Floats]:
        """`_physics` of points that nobody launched."""
        if not self.memory.known:
            return np.zeros(len(codes)), np.zeros((len(codes), 1))
        shares = np.tile(self.weights, (len(codes), 1))
        return self._physics(shares, self._running(self.memory.requests(codes)), self.memory.batch(codes))

    def _launched(self, trials: Sequence[Seen]) -> tuple[Floats, Floats]:
        """Running requests (trials × levels) and the largest captured batch of launches."""
        if not self.memory.known:
            return np.zeros((len(trials), len(self.levels))), np.zeros(len(trials))
        return self._running(self.memory.held(trials)), self.memory.launched(trials)[1]

    def _physics(self, shares: Floats, running: Floats, batch: Floats) -> tuple[Floats, Floats]:
        """Prior mean and linear features: how many requests run at each level, and whether as captured graphs."""
        if not self.memory.known or self.base is None:
            return np.zeros(len(shares)), np.zeros((len(shares), 1))
        theirs, their_batch = self._theirs, self._their_batch
        more = np.einsum("il,ils->is", shares, self._passed(running) - self._passed(theirs))
        slow = self._eager(theirs, their_batch)
        slope, spread = self._slopes(theirs[0], slow[0])
        eager = (running > batch[:, None]).astype(float) - (theirs > their_batch[:, None])
        mean = more @ slope + (shares * (self._eager(running, batch) - slow)).sum(1)
        features = np.concatenate([more * spread, EAGER_SPREAD * shares * eager], axis=1)
        assert features.shape[1] == 2 * len(self.levels)
        return mean, features

    def _running(self, requests: Floats) -> Floats:
        """Points × levels: requests that run at once, of those that the KV pool holds."""
        running: Floats = np.minimum(np.array(self.levels, dtype=float), requests[:, None])
        return running

    def _eager(self, running: Floats, batch: Floats) -> Floats:
        """Points × levels: expected effect of decoding outside the captured graphs, 0 where graphs are large enough."""
        cost = np.interp(np.log(running), np.log(list(EAGER)), list(EAGER.values()))
        return np.where(running > batch[:, None], cost, 0.0)

    def _passed(self, running: Floats) -> Floats:
        """Of log(running): how much lies below the first level, and between each two levels (last axis)."""
        ends = np.log(np.array(self.levels, dtype=float))
        low, high = np.concatenate([[-np.inf], ends[:-1]]), ends
        logs = np.log(np.maximum(running, 1e-3))[..., None]
        passed: Floats = np.minimum(logs, high) - np.where(np.isfinite(low), np.minimum(logs, low), 0.0)
        return passed

    def _slopes(self, own: Floats, slow: Floats) -> tuple[Floats, Floats]:
        """Growth of log throughput with log requests in each stretch, and how sure it is.

        Measured where the baseline's own levels differ in running requests, else less than in the stretch before.
        """
        assert self.base is not None
        rates = [self.base.log_levels[level] - cost for level, cost in zip(self.levels, slow, strict=True)]
        slopes, spreads = [1.0], [0.1]
        for i in range(1, len(self.levels)):
            step = math.log(own[i] / own[i - 1])
            if step > 0.1:
                slopes.append(min(1.0, max(0.0, (rates[i] - rates[i - 1]) / step)))
                guessed = EAGER_SPREAD * math.sqrt((slow[i] < 0) + (slow[i - 1] < 0))
                spreads.append(min(UNSEEN_SPREAD, math.hypot(0.05, (guessed + 0.02) / step)))
            else:
                slopes.append(UNSEEN_SLOPE * slopes[-1])
                spreads.append(UNSEEN_SPREAD)
        return np.array(slopes), np.array(spreads)


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


_made: dict[Hashable, Values] = {}


def values_of(grid: Grid, seen: Sequence[Seen], context: Context) -> Values:
    """`Values`; the last ones are kept, as what is recommended after a launch and what is asked next need the same."""
    numbers = tuple(context.fixed.get(name) for name in (*FRACTION, *GRAPH, *CHUNK))
    key = (grid.key, tuple(context.weights.items()), context.tokens, numbers, tuple(t.key for t in seen))
    found = _made.get(key)
    if found is None:
        found = Values(grid, seen, context)
        _made.clear()
        _made[key] = found
    return found
