"""What the confirmation launches, and what it proves."""

import random

import pytest

from servetune.core.benchmark import Measurement
from servetune.core.engine import EngineChoice
from servetune.core.failure import Failure, Phase, Verdict
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.space import SearchSpace
from servetune.core.study import Confirmation, Retries, StoredStudy, StudySpec
from servetune.core.trial import RunPurpose, RunRecord, TrialRecord, TrialState
from servetune.report import build
from servetune.tuner.confirm import lead, next_launch, winner

LEVELS = (1, 10)
SPEC = StudySpec(
    study="s",
    engine=EngineChoice(model="m"),
    space=SearchSpace(name="x"),
    workload={"concurrency": LEVELS},
    confirm=Confirmation(top=2, launches=3, most=3),
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
    runs += [run_of(v, 2 + 2 * i, RunPurpose.CONFIRM) for i, v in enumerate(confirmed)]
    return TrialRecord(
        number=number,
        state=TrialState.COMPLETE,
        point={},
        assignment={"n": number},
        value=value,
        baseline=baseline,
        runs=tuple(runs),
    )


def launched(trials: list[TrialRecord], spec: StudySpec, value_of, most: int = 50) -> list[tuple[int, int]]:
    """Carries a confirmation out; (trial, attempt) of each launch. `value_of`: trial and attempt → value or failure."""
    found = []
    so_far = sum(len(t.runs) for t in trials)
    while (candidate := next_launch(spec, trials)) is not None and len(found) < most:
        told = value_of(candidate.trial, candidate.attempt)
        failure = told if isinstance(told, Failure) else None
        run = run_of(0 if failure else told, candidate.attempt, RunPurpose.CONFIRM, failure)
        run = run.model_copy(update={"started_at": f"t{so_far + len(found):05}"})
        place = next(i for i, t in enumerate(trials) if t.number == candidate.trial)
        trials[place] = trials[place].model_copy(update={"runs": (*trials[place].runs, run)})
        found.append((candidate.trial, candidate.attempt))
    return found


def test_the_baseline_and_the_best_are_launched_in_turn():
    trials = [trial(0, 100, baseline=True), trial(1, 120), trial(2, 110), trial(3, 130), trial(4, 90)]
    found = launched(trials, SPEC, lambda number, attempt: 100 + 10 * number + attempt / 10)
    assert found == [(t, 2 + 2 * r) for r in range(3) for t in (0, 3, 1)]


def test_further_rounds_follow_while_the_lead_is_open_and_not_when_it_is_decided():
    spec = SPEC.model_copy(update={"confirm": Confirmation(top=1, launches=2, most=6)})
    rng = random.Random(3)

    def close(number: int, attempt: int) -> float:
        return 100 * (1 + 0.03 * rng.gauss(0, 1))

    open_trials = [trial(0, 100, baseline=True), trial(1, 101)]
    assert len(launched(open_trials, spec, close)) == 12
    assert winner(open_trials, spec).number == 0
    stored = StoredStudy(name="s", spec=spec, source="", fingerprint="", created_at="t")
    assert "the baseline stands: trial 1 is not proved to be ahead" in build(stored, open_trials, {}).verdict
    clear = [trial(0, 100, baseline=True), trial(1, 150)]
    assert len(launched(clear, spec, lambda number, attempt: 100 + 50 * number + attempt / 100)) == 4
    assert winner(clear, spec).number == 1


def test_a_leader_that_fails_gives_its_place_to_the_next():
    spec = SPEC.model_copy(update={"confirm": Confirmation(top=1, launches=2, most=4)})
    trials = [trial(0, 100, baseline=True), trial(1, 120), trial(2, 130)]

    def value_of(number: int, attempt: int) -> float | Failure:
        return CRASH if number == 2 else 100 + 20 * number + attempt / 100

    assert launched(trials, spec, value_of) == [(0, 2), (2, 2), (1, 2), (0, 4), (1, 4)]
    assert winner(trials, spec).number == 1


def test_nothing_is_confirmed_when_nothing_is_ahead():
    trials = [trial(0, 100, baseline=True), trial(1, 99)]
    assert next_launch(SPEC, trials) is None
    assert winner(trials, SPEC).number == 0


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


@pytest.mark.parametrize(("launches", "most", "gain"), [(3, 3, 0.05), (2, 6, 0.02), (2, 6, 0.05)])
def test_the_interval_covers_the_true_gain(launches, most, gain):
    """2 % noise: at least 95 of 100 intervals cover, also when launches go on until the lead is decided."""
    spec = SPEC.model_copy(update={"confirm": Confirmation(top=1, launches=launches, most=most)})
    rng, covered, studies = random.Random(1), 0, 300

    def noisy(number: int, attempt: int) -> float:
        return 100 * (1 + gain) ** number * (1 + 0.02 * rng.gauss(0, 1))

    for _ in range(studies):
        trials = [trial(0, noisy(0, 0), baseline=True), trial(1, 130)]
        launched(trials, spec, noisy)
        found = lead(trials[1], trials[0], spec)
        covered += found.low <= gain <= found.high
    assert covered >= 0.92 * studies  # 95 %, less 2.4 standard deviations of the count


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


def test_what_passed_after_a_crash_wins_only_once_it_is_confirmed():
    flaked = trial(1, 120.0)
    crash = run_of(0.0, 0, RunPurpose.SEARCH, CRASH)
    flaked = flaked.model_copy(update={"runs": (crash, run_of(120.0, 1, RunPurpose.SEARCH))})
    trials = [trial(0, 100.0, baseline=True), flaked, trial(2, 110.0)]
    assert winner(trials, SPEC).number == 2
    survived = tuple(run_of(value, 2 + i, RunPurpose.CONFIRM) for i, value in enumerate((119.9, 120.0, 120.1)))
    confirmed = trial(0, 100.0, (99.9, 100.0, 100.1), baseline=True)
    assert winner([confirmed, flaked.model_copy(update={"runs": (*flaked.runs, *survived)})], SPEC).number == 1
    node_fault = crash.model_copy(
        update={"failure": CRASH.model_copy(update={"slug": "host_env", "verdict": Verdict.RETRY})}
    )
    trials[1] = flaked.model_copy(update={"runs": (node_fault, flaked.runs[1])})
    assert winner(trials, SPEC).number == 1, "a fault of the node says nothing about it"


def test_a_proved_lead_stands_until_a_later_and_better_one_is_proved():
    spec = SPEC.model_copy(update={"confirm": Confirmation(top=1, launches=2, most=2)})
    trials = [trial(0, 100, baseline=True, confirmed=(100.1, 99.9)), trial(1, 120, confirmed=(120.2, 119.8))]
    assert winner([*trials, trial(2, 140)], spec).number == 1
    assert winner([*trials, trial(2, 140, confirmed=(141.0, 139.0))], spec).number == 2
    assert winner([*trials, trial(2, 140, confirmed=(110.0, 90.0))], spec).number == 1


def test_a_leader_that_comes_up_later_is_launched_in_turn_with_the_baseline_again():
    spec = SPEC.model_copy(update={"confirm": Confirmation(top=1, launches=2, most=2)})
    trials = [trial(0, 100, baseline=True, confirmed=(100.1, 99.9)), trial(1, 120, confirmed=(120.2, 119.8))]
    assert next_launch(spec, trials) is None
    trials.append(trial(2, 140))
    later = iter(f"t{n}" for n in range(9))
    found = []
    while (candidate := next_launch(spec, trials)) is not None:
        record = trials[candidate.trial]
        run = run_of(100 + 20 * candidate.trial, candidate.attempt, RunPurpose.CONFIRM)
        run = run.model_copy(update={"started_at": next(later)})
        trials[candidate.trial] = record.model_copy(update={"runs": (*record.runs, run)})
        found.append((candidate.trial, candidate.attempt))
    assert found == [(0, 6), (2, 2), (0, 8), (2, 4)]
    assert winner(trials, spec).number == 2


def test_fewer_retries_or_leaders_than_before_repeat_nothing_and_end():
    """Rounds have other numbers after `retries` changed; a leader that is dropped was confirmed all the same."""
    spec = SPEC.model_copy(update={"confirm": Confirmation(top=1, launches=3, most=3), "retries": Retries(transient=2)})
    trials = [trial(0, 100, baseline=True), trial(1, 150)]
    found = launched(trials, spec, lambda number, attempt: 100 + 50 * number + attempt / 100)
    assert found == [(0, 3), (1, 3), (0, 6), (1, 6), (0, 9), (1, 9)]
    more = spec.model_copy(update={"confirm": Confirmation(top=1, launches=4, most=4), "retries": Retries(transient=1)})
    again = launched(trials, more, lambda number, attempt: 100 + 50 * number + attempt / 100)
    assert 1 <= len(again) <= 4
    assert not set(again) & set(found)
    assert next_launch(more, trials) is None
    two = SPEC.model_copy(update={"confirm": Confirmation(top=2, launches=2, most=2)})
    both = [trial(0, 100, baseline=True), trial(1, 150), trial(2, 140)]
    launched(both, two, lambda number, attempt: 100 + 20 * number + attempt / 100)
    assert next_launch(two.model_copy(update={"confirm": Confirmation(top=1, launches=2, most=2)}), both) is None


def at(record: TrialRecord, *times: str) -> TrialRecord:
    """The record with its launches started at `times`, hours of one day."""
    runs = zip(record.runs, times, strict=True)
    return record.model_copy(update={"runs": tuple(run.model_copy(update={"started_at": time}) for run, time in runs)})


class TestTheBaselinesLaunchesThatCount:
    """A node that is a quarter slower when another leader is confirmed."""

    spec = SPEC.model_copy(update={"confirm": Confirmation(top=1, launches=2, most=2)})
    base = at(trial(0, 100, (101, 99, 75.5, 74.5), baseline=True), "01", "10", "12", "50", "52")
    first = at(trial(1, 120, (121, 119)), "02", "11", "13")
    second = at(trial(2, 140, (106, 104)), "03", "51", "53")

    def test_are_those_that_took_turns_with_the_leader(self):
        one, two = (lead(record, self.base, self.spec) for record in (self.first, self.second))
        assert one.gain == pytest.approx(0.2, abs=0.001)
        assert two.gain == pytest.approx(0.4, abs=0.001)
        assert (one.launches, one.baseline_launches) == (2, 3), "the search's launch counts for the first leader"
        assert (two.launches, two.baseline_launches) == (2, 2)
        assert two.proved
        assert winner([self.base, self.first, self.second], self.spec).number == 2

    def test_the_others_tell_how_much_launches_differ(self):
        alone = at(trial(0, 100, (75.5, 74.5), baseline=True), "01", "50", "52")
        narrower, wider = (lead(self.second, base, self.spec) for base in (self.base, alone))
        assert narrower.high - narrower.low < wider.high - wider.low

    def test_are_the_last_ones_before_each_launch_of_a_leader_that_is_launched_again_on_another_day(self):
        """B1 X1 B2 X2, another leader's B3 B4 on a slow machine, then B5 X3."""
        base = at(trial(0, 100, (101, 99, 70, 71, 100), baseline=True), "01", "10", "12", "50", "52", "60")
        first = at(trial(1, 120, (121, 119, 120)), "02", "11", "13", "61")
        found = lead(first, base, self.spec)
        assert found.gain == pytest.approx(0.2, abs=0.001)
        assert found.baseline_launches == 4  # with the search's

    def test_are_all_where_nothing_says_when_they_were(self):
        base = trial(0, 100, (101, 99), baseline=True)
        assert lead(trial(1, 120, (121, 119)), base, self.spec).baseline_launches == 3


#: What a trial is worth in fresh launches, where the search had it otherwise.
TRUE = {3: 90.0}


class TestDays:
    """Machines of several days, each with its own speed: every leader is compared with the baseline of its own day."""

    def confirmed(self, days):
        """`days`: speed, how many leaders, new trials with the search's values, and who crashes in its last round."""
        trials = [trial(0, 100, baseline=True)]
        for speed, top, more, crashes in days:
            spec = SPEC.model_copy(update={"confirm": Confirmation(top=top, launches=2, most=2)})
            trials += [trial(number, value) for number, value in more]

            def value_of(number, attempt, speed=speed, crashes=crashes, trials=trials):
                if number == crashes and attempt == 4:
                    return CRASH
                searched = next(t.value for t in trials if t.number == number)
                return TRUE.get(number, searched) * speed * (1 + attempt / 1000)

            launched(trials, spec, value_of)
        return trials, spec

    @pytest.mark.parametrize(
        "days",
        [
            pytest.param(
                [(1, 1, [(1, 120)], None), (0.8, 1, [(2, 130)], None), (1.2, 1, [(3, 140)], None)], id="third"
            ),
            pytest.param([(1, 1, [(1, 140)], None), (1.2, 2, [(3, 130)], None)], id="one more leader than before"),
            pytest.param([(1, 1, [(1, 150)], 1), (1.2, 1, [(3, 140)], None)], id="after one that failed"),
        ],
    )
    def test_a_later_leader_that_is_slower_is_not_proved_by_a_faster_day(self, days):
        trials, spec = self.confirmed(days)
        found = lead(trials[-1], trials[0], spec)
        assert found.launches == 2
        assert found.gain == pytest.approx(-0.1, abs=0.01)
        assert winner(trials, spec).number != 3


def test_a_goodput_of_nothing_in_a_confirmation_is_no_lead_of_the_search():
    base = trial(0, 100, (100, 101), baseline=True)
    found = lead(trial(1, 120, (0.0, 0.0)), base, SPEC)
    assert (found.gain, found.launches, found.proved) == (-1.0, 2, False)
    assert winner([base, trial(1, 120, (0.0, 0.0))], SPEC).number == 0
