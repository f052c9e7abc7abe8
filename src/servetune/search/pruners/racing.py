"""Ends a trial when no likely outcome of the levels still to come can bring it above the best complete trial.

What is still to come is expected to differ from the best as the measured levels do on average, with the spread between
levels that the complete trials show. The chance of wrongly ending a trial that would have become the best is stated in
the settings. Values are taken level by level from Optuna's intermediate values; the study's user attribute `context`
gives the levels' weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from pydantic import Field
from scipy.special import ndtr

from servetune.core.space import Frozen

#: Spread between levels before there are enough complete trials to know it, and how many trials that belief weighs.
SPREAD, SPREAD_WEIGHT = 0.15, 4.0


class Settings(Frozen):
    """`error`: chance that a trial is ended which would have become the best."""

    error: float = Field(default=0.02, gt=0, lt=0.5)


def create(settings: Settings) -> BasePruner:
    """Needs one complete trial to race against."""
    return RacingPruner(settings.error)


class RacingPruner(BasePruner):
    """A pure function of the study's trials."""

    def __init__(self, error: float) -> None:
        self._error = error

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether the chance to become the best has fallen below the stated error."""
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        told = [
            t for t in complete if t.value is not None and set(t.intermediate_values) > set(trial.intermediate_values)
        ]
        if not told or not trial.intermediate_values:
            return False
        best = max(told, key=lambda t: t.value or 0.0)
        weights = _weights(study, sorted(best.intermediate_values))
        steps = sorted(trial.intermediate_values)
        ahead = [_gain(trial, best, step) for step in steps]
        rest = sum(weight for step, weight in weights.items() if step not in steps)
        if rest <= 0 or not all(math.isfinite(gain) for gain in ahead):
            return rest > 0
        own = sum(weights[step] * gain for step, gain in zip(steps, ahead, strict=True))
        expected = own + rest * float(np.mean(ahead))
        spread = rest * _between_levels(told, best) * math.sqrt(1 + 1 / len(steps))
        return bool(ndtr(expected / spread) < self._error)


def _gain(trial: FrozenTrial, best: FrozenTrial, step: int) -> float:
    """Logarithm of a level's value over the best trial's."""
    value, other = trial.intermediate_values[step], best.intermediate_values[step]
    return math.log(value / other) if value > 0 and other > 0 else -math.inf


def _weights(study: Study, steps: Sequence[int]) -> dict[int, float]:
    told = list(study.user_attrs.get("context", {}).get("weights", {}).values())
    weights = {step: (float(told[step]) if step < len(told) else 1.0) for step in steps}
    total = sum(weights.values()) or 1.0
    return {step: weight / total for step, weight in weights.items()}


def _between_levels(told: Sequence[FrozenTrial], best: FrozenTrial) -> float:
    """Pooled standard deviation, within a trial, of what its levels gain over the best one's."""
    squares, freedom = SPREAD_WEIGHT * SPREAD**2, SPREAD_WEIGHT
    for trial in told:
        shared = [step for step in trial.intermediate_values if step in best.intermediate_values]
        gains = [gain for step in shared if math.isfinite(gain := _gain(trial, best, step))]
        if trial.number != best.number and len(gains) > 1:
            squares += float(np.var(gains)) * len(gains)
            freedom += len(gains) - 1
    return math.sqrt(squares / freedom)
