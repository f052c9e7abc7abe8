"""Optuna's tree-structured Parzen estimator, multivariate, with constraints told as infeasible trials."""

from __future__ import annotations

import warnings

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, TPESampler
from pydantic import Field

from servetune.core.space import Frozen, SearchSpace


class Settings(Frozen):
    """`n_startup_trials`: random trials before the model counts (rejected ones are not counted by Optuna)."""

    n_startup_trials: int = Field(default=6, ge=0)
    multivariate: bool = True
    group: bool = True


def create(settings: Settings, seed: int, space: SearchSpace) -> BaseSampler:
    """`group` splits conditional spaces into branches that are modelled jointly each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return TPESampler(
            seed=seed,
            n_startup_trials=settings.n_startup_trials,
            multivariate=settings.multivariate,
            group=settings.multivariate and settings.group,
        )
