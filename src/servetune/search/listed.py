"""Samplers confined to a list of points: for studies in which only what was measured before can be asked for.

`confined` leaves a sampler's own judgement as it is. One that ranks candidates ranks those of the list; a proposal of
any other goes to the nearest point of the list that was not tried; random sampling draws evenly among these.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from servetune.core.space import Choice, Point, SearchSpace, same_value
from servetune.search._grid import Codes, Grid
from servetune.search.sampling import distribution

Sampler: TypeAlias = BaseSampler  # for callers that are not to know Optuna


@runtime_checkable
class Ranking(Protocol):
    """A sampler that ranks candidates and can be given their list."""

    def confine(self, points: Sequence[Point]) -> None:
        """Propose these points only."""
        ...


def confined(sampler: BaseSampler, space: SearchSpace, points: Sequence[Point], seed: int) -> BaseSampler:
    """`sampler`, proposing only points of the list, and each once while one is left. The space has no conditions."""
    if isinstance(sampler, Ranking):
        sampler.confine(points)
        return sampler
    return Listed(sampler, space, points, seed)


class ListedGrid(Grid):
    """A grid on which every candidate is a point of the list."""

    def __init__(self, space: SearchSpace, points: Sequence[Point]) -> None:
        super().__init__(space)
        self._listed: Codes = np.array([self.encode(point) for point in points], dtype=np.int64)

    def random(self, count: int, rng: np.random.Generator) -> Codes:
        """The whole list, in a drawn order: no point comes first by its place in the table."""
        return self._listed[rng.permutation(len(self._listed))]

    def neighbours(self, row: Codes, rng: np.random.Generator) -> Codes:
        """The whole list."""
        return self._listed

    def reordered(self, row: Codes, count: int, rng: np.random.Generator) -> Codes:
        """The whole list."""
        return self._listed


class Listed(BaseSampler):
    """Moves what another sampler proposes to the nearest point of the list that was not tried."""

    def __init__(self, inner: BaseSampler, space: SearchSpace, points: Sequence[Point], seed: int) -> None:
        self._inner, self._space, self._points, self._seed = inner, space, points, seed

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Every parameter."""
        return {parameter.name: distribution(parameter.domain) for parameter in self._space.parameters}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """A point of the list; nothing for a trial whose point is given."""
        if "fixed_params" in trial.system_attrs or not self._points:
            return {}
        tried = [other.params for other in study.get_trials(deepcopy=False) if other.number != trial.number]
        left = [point for point in self._points if not any(_same(point, params) for params in tried)]
        return dict(self._chosen(left or self._points, study, trial))

    def _chosen(self, left: Sequence[Point], study: Study, trial: FrozenTrial) -> Point:
        text = hashlib.sha256(f"{self._seed}:{trial.number}".encode()).hexdigest()
        rng = random.Random(text)  # noqa: S311 -- not a secret
        drawn = rng.sample(left, len(left))
        if isinstance(self._inner, RandomSampler):
            return drawn[0]
        wanted = self._proposal(study, trial)
        return min(drawn, key=lambda point: sum(not same_value(point[name], wanted.get(name)) for name in point))

    def _proposal(self, study: Study, trial: FrozenTrial) -> dict[str, Choice]:
        """What the inner sampler would have asked for."""
        own = self._inner.infer_relative_search_space(study, trial)
        proposed: dict[str, Choice] = dict(self._inner.sample_relative(study, trial, own))
        for parameter in self._space.parameters:
            if parameter.name not in proposed:
                told = distribution(parameter.domain)
                proposed[parameter.name] = self._inner.sample_independent(study, trial, parameter.name, told)
        return proposed

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Only for what a given point leaves out: as the inner sampler."""
        return self._inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        """As the inner sampler."""
        self._inner.after_trial(study, trial, state, values)


def _same(point: Point, params: Mapping[str, Any]) -> bool:
    return all(name in params and same_value(value, params[name]) for name, value in point.items())
