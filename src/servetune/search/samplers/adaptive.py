"""The sampler made for this problem: launches are dear, many crash, effects multiply, memory obeys arithmetic.

Each proposal maximises expected improvement × the chance that the launch works. Where each part comes from:
`search/_values.py` (value), `search/feasibility.py` (crashes), `search/_room.py` (memory). docs/search.md says what
each part is worth.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial
from pydantic import Field

from servetune.core.space import Frozen, Point, SearchSpace
from servetune.search._grid import Codes, Grid, grid_of
from servetune.search._history import Context, Seen, history
from servetune.search._model import Model
from servetune.search.listed import ListedGrid
from servetune.search.sampling import Guide, distribution

Floats = NDArray[np.float64]

#: Only what beats the best by more than this (logarithm) counts as an improvement: less drowns in the noise.
WORTHWHILE = 0.003
#: Candidates: random points, observed points whose neighbours are looked at, climbers and their rounds, and for each
#: climber so many joint changes of all ordered parameters (memory couples them).
RANDOM, BEST, CLIMBERS, ROUNDS, JOINT = 256, 5, 4, 2, 200

#: Shares of all points: at most so many workers can ask at once without choosing the same.
SHARES = 32


class Settings(Frozen):
    """`stop_gain`: the search ends when proposals promise less than this share of the best value per node-hour."""

    stop_gain: float = Field(default=0.001, ge=0, lt=1)


def create(settings: Settings, seed: int, space: SearchSpace) -> BaseSampler:
    """A sampler that reads everything it knows from the study's trials."""
    return AdaptiveSampler(space, seed)


class AdaptiveSampler(BaseSampler):
    """One proposal for each trial; a pure function of the study's history and `seed`."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._grid: Grid = grid_of(space)
        self._seed = seed
        self._random = RandomSampler(seed=seed)
        self._guide: Guide | None = None

    def heed(self, guide: Guide) -> None:
        """Learn which points the engine rejects, and which are the same configuration to it."""
        self._guide = guide

    def confine(self, points: Sequence[Point]) -> None:
        """Propose these points only."""
        self._grid = ListedGrid(self._grid.space, points)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Every parameter."""
        return {axis.name: distribution(axis.parameter.domain) for axis in self._grid.axes}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The proposal; nothing for a trial whose point is given."""
        if "fixed_params" in trial.system_attrs:
            return {}
        rng = np.random.default_rng(self._seed)
        seen, running = history(study.get_trials(deepcopy=False), self._grid)
        others = [t for t in running if t.number != trial.number]
        pending = np.array([self._grid.encode(t.params) for t in others if t.params], dtype=np.int64)
        asking = [t.number for t in others if not t.params]
        pending = pending.reshape(-1, len(self._grid.axes))
        model = Model(self._grid, seen, Context.of(study.user_attrs), self._seed, pending)
        ranked, scores = self._ranked(model, seen, rng)
        place = self._pick(ranked, seen, pending, asking, trial.number)
        if self._guide is not None and model.known:
            self._guide.expects(_gain_per_node_hour(float(scores[place]), seen))
        return dict(self._grid.decode(ranked[place]))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Only for what the proposal left out: at random."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _ranked(self, model: Model, seen: Sequence[Seen], rng: np.random.Generator) -> tuple[Codes, Floats]:
        """Candidates and their scores, best first: random ones, neighbours of the best points and of candidates."""
        pool = self._grid.random(RANDOM, rng)
        starts = [t.codes for t in sorted(seen, key=lambda t: -_value(t))[:BEST]]
        pool = self._allowed(np.concatenate([pool, *(self._grid.neighbours(row, rng) for row in starts)]))
        scores = score(model, pool)
        for _ in range(ROUNDS):
            free = np.where(self._objectors(pool) < 0, scores, -np.inf)
            top = pool[np.argsort(-free, kind="stable")[:CLIMBERS]]
            joint = [self._grid.reordered(row, JOINT, rng) for row in top]
            more = self._allowed(np.concatenate([*(self._grid.neighbours(row, rng) for row in top), *joint]))
            pool, scores = np.concatenate([pool, more]), np.concatenate([scores, score(model, more)])
        order = np.argsort(-scores, kind="stable")
        return pool[order], scores[order]

    def _allowed(self, codes: Codes) -> Codes:
        """The different ones among `codes`, without those that the engine is known to refuse."""
        different = self._grid.different(codes)
        return different[~self._barred(different)]

    def _pick(self, ranked: Codes, seen: Sequence[Seen], pending: Codes, asking: Sequence[int], number: int) -> int:
        """Place of the best candidate that is new to the engine and not rejected by it.

        Workers that are `asking` right now (numbers of their trials) may see another history than we do. So that no
        two of them choose the same, each passes over as many candidates as asked before it, and keeps to its share.
        """
        skip = sum(other < number for other in asking)
        known = {tuple(t.codes) for t in seen} | {tuple(row) for row in pending}
        keys = (
            set() if self._guide is None else {self._guide.effective_key(self._grid.decode(np.array(c))) for c in known}
        )
        barred, objectors = self._barred(ranked), self._objectors(ranked)
        for place, row in enumerate(ranked):
            if barred[place] or tuple(row) in known:
                continue
            if objectors[place] >= 0:
                if self._blocked(objectors[place], row):
                    barred |= objectors == objectors[place]
                continue
            known.add(tuple(row))
            if self._guide is not None:
                key = self._guide.key(self._grid.decode(row))
                if key is None and self._guide.refusals.learn(row):
                    barred |= self._barred(ranked)
                if key is None or key in keys:
                    continue
                keys.add(key)
            if skip == 0 and (not asking or zlib.crc32(row.tobytes()) % SHARES == number % SHARES):
                return place
            skip = max(0, skip - 1)
        return 0

    def _blocked(self, rule: int, row: Codes) -> bool:
        assert self._guide is not None
        return self._guide.blocks(self._guide.objections.rules[rule].name, self._grid.decode(row))

    def _objectors(self, codes: Codes) -> NDArray[np.int64]:
        """Which learned rule is against each row, −1 where none is."""
        return np.full(len(codes), -1) if self._guide is None else self._guide.objections.first(codes)

    def _barred(self, codes: Codes) -> NDArray[np.bool_]:
        return np.zeros(len(codes), dtype=bool) if self._guide is None else self._guide.refusals.refused(codes)


def score(model: Model, codes: Codes) -> Floats:
    """Log of expected improvement times the chance to work; before any value is known, the chance alone."""
    feasible = model.log_feasible(codes)
    if not model.known:
        return feasible
    return model.log_improvement(codes, WORTHWHILE) + feasible


def _gain_per_node_hour(log_gain: float, seen: Sequence[Seen]) -> float:
    hours = np.mean([t.node_s for t in seen if t.node_s > 0] or [900.0]) / 3600
    return float(np.exp(log_gain) / hours)


def _value(trial: Seen) -> float:
    return float(np.mean(list(trial.log_levels.values()))) if trial.complete and trial.log_levels else -np.inf
