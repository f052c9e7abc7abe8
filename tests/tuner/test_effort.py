"""What a level is measured against: the best configuration's, and nothing where levels take their whole time."""

import pytest

from servetune.cli._virtual_study import run_virtual
from servetune.core.objective import Objective
from servetune.core.study import NamedChoice
from servetune.tuner.effort import bars_of

SCENARIO = "generated-12"


@pytest.fixture(scope="module")
def finished():
    """Half a dozen launches."""
    keys = {"sampler": NamedChoice(name="random"), "seed": 0, "node_hours": 2.0, "level_error": 0.05}
    spec, store, *_ = run_virtual(SCENARIO, keys)
    return spec, store


def changed(spec, **budget):
    return spec.model_copy(update={"budget": spec.budget.model_copy(update=budget)})


def test_the_best_complete_trial_is_the_bar(finished):
    spec, store = finished
    trials = store.trials(spec.study)
    best = max((t for t in trials if t.state.value == "complete"), key=lambda t: t.value)
    bars = bars_of(spec, trials)
    assert {level: bar.output_tokens_per_s for level, bar in bars.items()} == {
        m.concurrency: m.output_tokens_per_s for m in best.measurements
    }
    assert all(bar.error == 0.05 and bar.sd > 0 for bar in bars.values())


def test_levels_take_their_time_where_asked_to_or_where_more_than_throughput_counts(finished):
    spec, store = finished
    trials = store.trials(spec.study)
    assert bars_of(spec, []) == {}
    assert bars_of(changed(spec, level_error=0.0), trials) == {}
    assert bars_of(changed(spec, level_sd=0.0), trials) == {}
    limited = spec.model_copy(update={"objective": Objective(limits={"ttft_p99_s": 2.0})})
    assert bars_of(limited, trials) == {}


def test_a_level_below_the_best_is_measured_for_half_its_time(finished):
    """The baseline, with nothing to compare, is measured as ever."""
    spec, store = finished
    _, usual, *_ = run_virtual(SCENARIO, {"sampler": spec.sampler, "seed": 0, "node_hours": 2.0})
    ended, whole = (
        [[m.duration_s for m in trial.measurements] for trial in s.trials(spec.study) if trial.runs]
        for s in (store, usual)
    )
    assert ended[0] == whole[0]
    levels = [pair for both in zip(ended[1:], whole[1:], strict=False) for pair in zip(*both, strict=False)]
    assert sum(short == pytest.approx(long / 2) for short, long in levels) >= 2
