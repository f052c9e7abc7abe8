"""Racing: a trial ends when it cannot come to the top any more, and not before."""

import math
import random

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from servetune.search.pruners.racing import Settings, create
from servetune.search.sampling import quiet_optuna

quiet_optuna()
BEST = (80.0, 430.0, 1950.0, 2700.0)


def study_with(*complete):
    study = optuna.create_study(direction="maximize", pruner=create(Settings(error=0.02)))
    study.set_user_attr("context", {"weights": {"1": 1.0, "10": 1.0, "256": 1.0, "1024": 1.0}})
    for values in complete:
        score = math.exp(sum(map(math.log, values)) / len(values))
        study.add_trial(create_trial(value=score, intermediate_values=dict(enumerate(values))))
    return study


def judged(study, *values):
    trial = study.ask()
    for step, value in enumerate(values):
        trial.report(value, step)
    return trial.should_prune()


def scaled(*factors):
    return tuple(best * factor for best, factor in zip(BEST, factors, strict=False))


def test_without_a_complete_trial_nothing_ends():
    assert not judged(study_with(), 1.0)


def test_far_behind_ends_and_close_goes_on():
    study = study_with(BEST)
    assert judged(study, *scaled(0.4, 0.4))
    assert not judged(study, *scaled(0.95, 0.93))
    assert not judged(study, *scaled(1.1))


def test_one_bad_level_among_good_ones_is_not_the_end():
    assert not judged(study_with(BEST), *scaled(0.7, 1.1, 1.1))


def test_levels_that_move_together_end_it_sooner():
    alike = [scaled(f, f * 1.01, f, f * 0.99) for f in (0.7, 0.75, 0.8, 0.85, 0.9)]
    assert judged(study_with(BEST, *alike), *scaled(0.88, 0.88))
    assert not judged(study_with(BEST), *scaled(0.88, 0.88))


def test_a_complete_trial_is_never_ended_at_its_last_level():
    assert not judged(study_with(BEST), *scaled(0.1, 0.1, 0.1, 0.1))


@pytest.mark.parametrize("error", [0.02])
def test_few_trials_that_would_have_won_are_ended(error):
    """The stated error, on levels that spread as the prior says: of 2,000 would-be winners few are ended."""
    rng, ended, winners = random.Random(0), 0, 0
    study = study_with(BEST)
    while winners < 400:
        common = rng.gauss(-0.1, 0.1)
        values = scaled(*(math.exp(common + rng.gauss(0, 0.12)) for _ in BEST))
        if sum(math.log(v / b) for v, b in zip(values, BEST, strict=True)) <= 0:
            continue
        winners += 1
        trial = optuna.trial.create_trial(state=TrialState.PRUNED, intermediate_values=dict(enumerate(values[:2])))
        ended += study.pruner.prune(study, trial)
    assert ended / winners <= error + 0.01
