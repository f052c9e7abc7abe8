"""Other tools' ways of searching, as samplers: each sees of the study's trials what its tool would see."""

from __future__ import annotations

import warnings

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from servetune.core.space import SearchSpace


class Blind(BaseSampler):
    """auto-tuning-vllm: plain TPE; crashed trials are told FAIL, so TPE does not see them."""

    def __init__(self, seed: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._inner = TPESampler(seed=seed, n_startup_trials=10)
        self._view: Study | None = None

    def _seen(self, study: Study) -> Study:
        if self._view is None:
            optuna.logging.set_verbosity(optuna.logging.WARNING)
            self._view = optuna.create_study(direction="maximize")
            done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            self._view.add_trials([t for t in done if t.params])
        return self._view

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._inner.infer_relative_search_space(self._seen(study), trial)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict:
        return self._inner.sample_relative(self._seen(study), trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ):
        return self._inner.sample_independent(self._seen(study), trial, param_name, param_distribution)


def tpe_fail(seed: int, space: SearchSpace) -> BaseSampler:
    return Blind(seed)


MAKERS = {"tpe-fail": tpe_fail}
