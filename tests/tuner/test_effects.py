"""Options that did nothing, and a report that says so instead of a win."""

import pytest

from servetune.core.benchmark import Measurement
from servetune.core.engine import EngineChoice
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.space import CategoricalDomain, Parameter, SearchSpace
from servetune.core.study import Confirmation, StoredStudy, StudySpec
from servetune.core.trial import RunPurpose, RunRecord, TrialRecord, TrialState
from servetune.report import build
from servetune.tuner.confirm import winner
from servetune.tuner.effects import (
    SERVED,
    flags_to_watch,
    in_effect,
    is_the_baseline,
    no_difference,
    not_in_effect,
    sentences,
    served_arguments,
)

SPEC = StudySpec(
    study="s",
    engine=EngineChoice(model="m"),
    space=SearchSpace(name="x"),
    workload={"concurrency": (1,)},
    confirm=Confirmation(top=1, launches=3),
)


def run(value: float, purpose: RunPurpose, attempt: int, served, in_log=(), half: float = 0.001, why="override"):
    measurement = Measurement(
        concurrency=1,
        output_tokens_per_s=value,
        low=value * (1 - half),
        high=value * (1 + half),
        duration_s=1,
        requests_completed=1,
        requests_failed=0,
        output_tokens=1,
    )
    return RunRecord(
        trial=0,
        attempt=attempt,
        purpose=purpose,
        launch=LaunchSpec(argv=("x",), port=1),
        facts=NodeFacts(node="local"),
        started_at="t",
        finished_at="t",
        measurements=(measurement,),
        log_facts={SERVED: served, "not_in_effect": [{"flag": flag, "why": why} for flag in in_log]},
    )


def trial(number, value, assignment, served=None, in_log=(), confirmed=(), half=0.001, why="override") -> TrialRecord:
    served = served or {}
    runs = [run(value, RunPurpose.SEARCH, 0, served, in_log, half, why)]
    runs += [run(v, RunPurpose.CONFIRM, 2 + i, served, in_log) for i, v in enumerate(confirmed)]
    return TrialRecord(
        number=number,
        state=TrialState.COMPLETE,
        point={},
        assignment=assignment,
        value=value,
        baseline=number == 0,
        runs=tuple(runs),
    )


def report_of(*trials):
    stored = StoredStudy(name="s", spec=SPEC, source="", fingerprint="", created_at="t")
    return build(stored, trials, {})


def test_only_plain_arguments_of_the_studys_flags_are_kept():
    domain = CategoricalDomain(choices=(None, True))
    space = SearchSpace(name="x", parameters=(Parameter(name="enable-x", domain=domain),))
    flags = flags_to_watch(space, {"tp-size": 8, "env.NCCL_ALGO": "Ring"})
    assert flags == {"enable-x", "tp-size"}
    info = {"enable_x": False, "tp_size": 8, "api_key": "secret", "lora_paths": ["a"]}
    assert served_arguments(info, flags) == {"enable-x": False, "tp-size": 8}
    assert served_arguments({"enable_x": None}, flags) == {}
    assert served_arguments("nonsense", flags) == {}


@pytest.mark.parametrize(
    ("asked", "told", "said"),
    [
        (True, False, "x=True is not in effect: the server itself says False"),
        ("fa3", "triton", "x=fa3 is not in effect: the server itself says triton"),
        (8192, 1024, "x=8192 is changed: the server itself says 1024"),
        (True, True, None),
        (8, 8.0, None),
        (0.9, 0.9000000001, None),
        ("auto", "triton", None),
        ("8", 8, None),
    ],
)
def test_what_the_server_says_of_a_flag(asked, told, said):
    assert sentences({"x": asked}, {"x": told}, ()) == (() if said is None else (said,))


def test_what_the_log_said_already_is_not_said_twice():
    log = ("line 3: x is not in effect: no NVLink",)
    assert sentences({"x": True}, {"x": False}, log) == log


def test_a_trial_of_which_nothing_is_in_effect_is_the_baseline_and_never_wins():
    base = trial(0, 100, {"tp": 8}, {"x": False})
    by_server = trial(1, 110, {"tp": 8, "x": True}, {"x": False})
    by_log = trial(1, 110, {"tp": 8, "x": True}, in_log=("x",))
    spelled_out = trial(1, 110, {"tp": 8, "chunk": 8192}, {"chunk": 8192})
    told = trial(0, 100, {"tp": 8}, {"chunk": 8192})
    for record, baseline in ((by_server, base), (by_log, base), (spelled_out, told)):
        assert is_the_baseline(record, baseline)
        assert winner([baseline, record], SPEC).number == 0
        report = report_of(baseline, record)
        assert report.winner == 0
        assert "trial 1 did nothing" in report.verdict
        assert "nothing that it sets is in effect" in report.ranking[0].note
    assert not is_the_baseline(trial(2, 110, {"tp": 8, "x": True, "y": 1}, {"x": False}), base)
    assert not is_the_baseline(spelled_out, base)


def test_the_number_that_the_log_says_is_in_effect_decides():
    facts = {"in_effect": {"max-running-requests": 10000, "max-total-tokens": 20000}}
    assert in_effect(facts, {"max-running-requests", "tp-size"}) == {"max-running-requests": 10000}
    base = trial(0, 100, {"tp": 8}, {"running": 2500})
    # reduced, and still another number than the baseline's: it may well win
    reduced = trial(1, 110, {"tp": 8, "running": 100000}, {"running": 10000}, in_log=("running",), why="adapted")
    assert not is_the_baseline(reduced, base)
    assert not_in_effect(reduced) == frozenset()
    assert winner([base, reduced], SPEC).number == 1
    # two numbers that the pool makes one
    capped = trial(0, 100, {"tp": 8, "running": 20000}, {"running": 10000}, in_log=("running",), why="adapted")
    assert is_the_baseline(reduced, capped)
    said = sentences({"running": 100000}, {"running": 10000}, ("line 2: running is changed: it was reduced",))
    assert said == ("line 2: running is changed: it was reduced",)


def test_what_the_baseline_ignores_too_says_nothing_of_a_trial():
    base = trial(0, 100, {"x": True}, {"x": False})
    assert not is_the_baseline(trial(1, 110, {"x": True, "y": 2}, {"x": False}), base)


def test_a_winner_with_an_idle_option_says_so():
    base = trial(0, 100, {}, confirmed=(100, 100.1, 99.9))
    best = trial(1, 120, {"x": True, "chunk": 4096}, {"x": False}, confirmed=(120, 120.1, 119.9))
    assert not_in_effect(best) == {"x"}
    assert "(x is not in effect and may be left out)" in report_of(base, best).verdict


def test_an_equivalent_configuration_does_not_win():
    base = trial(0, 100, {}, confirmed=(100, 100.1, 99.9))
    best = trial(1, 100.4, {"x": True}, confirmed=(100.3, 100.4, 100.2))
    report = report_of(base, best)
    assert report.winner == 0
    assert "does what the baseline does, within 1 %" in report.ranking[0].note
    better = trial(1, 103, {"x": True}, confirmed=(103, 103.1, 102.9))
    assert report_of(base, better).winner == 1


def test_what_was_ahead_in_its_search_alone_is_told_where_the_baseline_stands():
    base = trial(0, 100, {}, confirmed=(100, 100.1, 99.9))
    fell = trial(1, 135, {"x": True}, confirmed=(90, 90.1, 89.9))
    once, below = trial(2, 120, {"y": 1}), trial(3, 80, {"y": 2})
    report = report_of(base, fell, once, below)
    assert report.winner == 0
    assert report.verdict == (
        "the baseline stands: trial 1 was ahead in the search alone, not when launched again; "
        "trial 2 was ahead in one launch alone, which may be noise"
    )
    notes = {ranked.trial: ranked.note for ranked in report.ranking}
    told = "measured more than the baseline in the search alone: -10.0 % in 3 fresh launches against 4 of the baseline"
    assert notes == {0: "", 1: told, 2: "", 3: ""}
    assert report_of(base, below).verdict == "the baseline stands: nothing measured is ahead of it"


@pytest.mark.parametrize(("value", "half", "alike"), [(100.5, 0.005, True), (103, 0.005, False), (100.5, 0.05, False)])
def test_no_effect_is_only_said_with_enough_precision(value, half, alike):
    base, other = trial(0, 100, {}), trial(1, value, {"x": True}, half=half)
    assert no_difference(other, base) is alike
    assert report_of(base, other).no_effect == ((1,) if alike else ())
