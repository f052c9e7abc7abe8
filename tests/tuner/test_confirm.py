"""What the confirmation launches, and what it proves."""

import random

import pytest

from servetune.core.benchmark import Measurement
from servetune.core.engine import EngineChoice
from servetune.core.failure import Failure, Phase, Verdict
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.space import SearchSpace
from servetune.core.study import Confirmation, StoredStudy, StudySpec
from servetune.core.trial import RunPurpose, RunRecord, TrialRecord, TrialState
from servetune.report import build
from servetune.tuner.confirm import confirmation_plan, lead, winner

LEVELS = (1, 10)
SPEC = StudySpec(
    study="s",
    engine=EngineChoice(model="m"),
    space=SearchSpace(name="x"),
    workload={"concurrency": LEVELS},
    confirm=Confirmation(top=2, launches=3),
)
CRASH = Failure(slug="hang", phase=Phase.SERVING, verdict=Verdict.INFEASIBLE, message="silent")


def run_of(value: float, attempt: int, purpose: RunPurpose, failure: Failure | None = None) -> RunRecord:
    measured = tuple(
        Measurement(
            concurrency=level,
            output_tokens_per_s=value,
            low=value,
            high=value,
            duration_s=1,
            requests_completed=1,
            requests_failed=0,
            output_tokens=1,
        )
        for level in LEVELS
    )
    return RunRecord(
        trial=0,
        attempt=attempt,
        purpose=purpose,
        launch=LaunchSpec(argv=("x",), port=1),
        facts=NodeFacts(node="local"),
        started_at="t",
        finished_at="t",
        measurements=measured,
        failure=failure,
    )


def trial(number: int, value: float, confirmed: tuple[float, ...] = (), baseline: bool = False) -> TrialRecord:
    runs = [run_of(value, 0, RunPurpose.SEARCH)]
    runs += [run_of(v, 2 + i, RunPurpose.CONFIRM) for i, v in enumerate(confirmed)]
    return TrialRecord(
        number=number,
        state=TrialState.COMPLETE,
        point={},
        assignment={"n": number},
        value=value,
        baseline=baseline,
        runs=tuple(runs),
    )


def test_the_plan_interleaves_the_baseline_and_the_best_and_never_changes():
    trials = [trial(0, 100, baseline=True), trial(1, 120), trial(2, 110), trial(3, 130), trial(4, 90)]
    plan = confirmation_plan(SPEC, trials)
    assert [(c.trial, c.attempt) for c in plan] == [(t, 2 + 2 * r) for r in range(3) for t in (0, 3, 1)]
    assert confirmation_plan(SPEC, trials) == plan


def test_nothing_is_confirmed_when_nothing_is_ahead():
    assert confirmation_plan(SPEC, [trial(0, 100, baseline=True), trial(1, 99)]) == ()
    assert winner([trial(0, 100, baseline=True), trial(1, 99)], SPEC).number == 0


def test_the_value_that_won_the_search_does_not_count():
    base = trial(0, 100, (100, 101, 99), baseline=True)
    found = lead(trial(1, 200, (110, 111, 109)), base, SPEC)
    assert found.gain == pytest.approx(0.10, abs=0.005)
    assert found.launches == 3
    assert found.baseline_launches == 4
    assert found.proved


def test_a_lead_that_does_not_hold_gives_way_to_the_baseline():
    trials = [trial(0, 100, (100, 101, 99), baseline=True), trial(1, 108, (98, 97, 99))]
    assert winner(trials, SPEC).number == 0


def test_a_configuration_that_fails_in_its_confirmation_may_not_win():
    crashed = trial(2, 150)
    crashed = crashed.model_copy(update={"runs": (*crashed.runs, run_of(0, 2, RunPurpose.CONFIRM, CRASH))})
    trials = [trial(0, 100, (100,), baseline=True), trial(1, 120, (119,)), crashed]
    assert winner(trials, SPEC).number == 1


def test_a_fault_of_the_measurement_is_not_held_against_a_configuration():
    noisy = trial(2, 150, (149,))
    fault = CRASH.model_copy(update={"slug": "invalid_measurement", "verdict": Verdict.RETRY})
    noisy = noisy.model_copy(update={"runs": (*noisy.runs, run_of(0, 4, RunPurpose.CONFIRM, fault))})
    assert winner([trial(0, 100, (100,), baseline=True), noisy], SPEC).number == 2


def test_the_interval_covers_the_true_gain():
    """2 % noise, three launches each, a true gain of 5 %: the 95 % interval must cover it in 95 of 100, nearly."""
    rng = random.Random(1)
    covered = 0
    for _ in range(1000):
        noisy = [[100 * (1.05**side) * (1 + 0.02 * rng.gauss(0, 1)) for _ in range(3)] for side in (0, 1)]
        base = trial(0, noisy[0][0], tuple(noisy[0][1:]), baseline=True)
        found = lead(trial(1, 120, tuple(noisy[1])), base, SPEC)
        covered += found.low <= 0.05 <= found.high
    assert 925 <= covered <= 985


def test_a_lead_without_confirmation_has_no_interval():
    found = lead(trial(1, 120), trial(0, 100, baseline=True), SPEC)
    assert found.gain == pytest.approx(0.2)
    assert found.low is None
    assert not found.proved


def test_a_baseline_that_measured_nothing_does_not_stop_a_report():
    trials = (trial(0, 0.0, baseline=True), trial(1, 120))
    stored = StoredStudy(name="s", spec=SPEC, source="", fingerprint="", created_at="t")
    report = build(stored, trials, {})
    assert report.winner == 1
    assert "nothing to compare" in report.verdict
