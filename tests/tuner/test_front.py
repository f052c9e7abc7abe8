"""The Pareto front of a study with two objectives, and what `export --pick` gives."""

from servetune.core.benchmark import Measurement, Percentiles
from servetune.core.engine import EngineChoice
from servetune.core.failure import Failure, Phase, Verdict
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.objective import Objective
from servetune.core.space import SearchSpace
from servetune.core.study import StudySpec
from servetune.core.trial import RunPurpose, RunRecord, TrialRecord, TrialState
from servetune.tuner.front import front, pick

SPEC = StudySpec(
    study="s",
    engine=EngineChoice(model="m"),
    space=SearchSpace(name="x"),
    workload={"concurrency": (8,)},
    objective=Objective(minimize="e2e_p50_s"),
)


def measured(rate: float, e2e_s: float) -> Measurement:
    return Measurement(
        concurrency=8,
        output_tokens_per_s=rate,
        low=rate,
        high=rate,
        duration_s=1,
        requests_completed=1,
        requests_failed=0,
        output_tokens=1,
        e2e_s=Percentiles(mean=e2e_s, p50=e2e_s, p90=e2e_s, p95=e2e_s, p99=e2e_s),
    )


WRONG = Failure(slug="wrong_output", phase=Phase.SERVING, verdict=Verdict.INFEASIBLE, message="nonsense")


def run(
    rate: float, e2e_s: float, purpose: RunPurpose = RunPurpose.SEARCH, failure: Failure | None = None
) -> RunRecord:
    return RunRecord(
        trial=0,
        attempt=0 if purpose is RunPurpose.SEARCH else 2,
        purpose=purpose,
        launch=LaunchSpec(argv=("x",), port=1),
        facts=NodeFacts(node="local"),
        started_at="t",
        finished_at="t",
        measurements=(measured(rate, e2e_s),),
        failure=failure,
    )


def trial(number: int, rate: float, e2e_s: float, *more: RunRecord, **fields) -> TrialRecord:
    return TrialRecord(
        number=number,
        point={},
        assignment={"n": number},
        runs=(run(rate, e2e_s), *more),
        **{"state": TrialState.COMPLETE, "value": rate / e2e_s, "baseline": number == 0, **fields},
    )


TRIALS = [
    trial(0, 100, 1.0),
    trial(1, 200, 4.0),  # the highest throughput
    trial(2, 150, 1.2),  # the best quotient
    trial(3, 60, 0.7),  # the lowest latency
    trial(4, 90, 1.5),  # beaten by the baseline in both
    trial(5, 500, 0.1, duplicate_of=1),
    trial(6, 500, 0.1, run(500, 0.1, RunPurpose.CONFIRM, WRONG)),
    trial(7, 500, 0.1, state=TrialState.PRUNED),
]


def test_the_front_has_what_nothing_beats_and_names_its_picks():
    found = front(TRIALS, SPEC)
    assert [(p.trial, round(p.rate, 6), round(p.latency_s, 6)) for p in found] == [
        (1, 200, 4.0),
        (2, 150, 1.2),
        (0, 100, 1.0),
        (3, 60, 0.7),
    ]
    assert [p.picks for p in found] == [("throughput",), ("balanced",), (), ("latency",)]
    picked = [pick(name, TRIALS, SPEC).number for name in ("throughput", "balanced", "latency")]
    assert picked == [1, 2, 3]


def test_one_objective_or_nothing_complete_has_no_front():
    assert front(TRIALS, SPEC.model_copy(update={"objective": Objective()})) == ()
    assert front([TRIALS[7]], SPEC) == ()
    assert pick("balanced", [TRIALS[7]], SPEC) is None
