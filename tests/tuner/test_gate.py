"""The correctness gate in the tuner: who has to answer, under which load, what is kept; a study that it saves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from servetune.benchmarks import closed_loop, scenario
from servetune.core.answers import LATE, Answer, AnswerSet
from servetune.core.benchmark import Measurement, Percentiles
from servetune.core.engine import EngineChoice
from servetune.core.failure import Verdict
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.space import SearchSpace
from servetune.core.study import StudySpec
from servetune.core.trial import Outcome, RunPurpose, TrialState
from servetune.storage import MemoryStore, StudyStore
from servetune.tuner.gate import Gate, checker_of, random_weights

SPEC = StudySpec(study="s", engine=EngineChoice(model="m"), space=SearchSpace(name="x"), workload={"concurrency": (8,)})
LAUNCH, FACTS = LaunchSpec(argv=("x",), port=1), NodeFacts(node="local")


def measured(
    value: float, e2e_s: float = 1.0, itl_s: float = 0.01, concurrency: int = 8, **details: float
) -> Measurement:
    return Measurement(
        concurrency=concurrency,
        output_tokens_per_s=value,
        low=value,
        high=value,
        duration_s=1,
        requests_completed=1,
        requests_failed=0,
        output_tokens=1,
        itl_s=percentiles(itl_s),
        e2e_s=percentiles(e2e_s),
        details=details,
    )


def percentiles(value: float) -> Percentiles:
    return Percentiles(mean=value, p50=value, p90=value, p95=value, p99=value)


def answers(*, wrong: bool = False, late: int = 0, seed: int = 0) -> AnswerSet:
    def one(prompt: int, number: int) -> Answer:
        if number < late:
            return Answer(asked=48, error=LATE)
        key = prompt + 1000 * seed if wrong else prompt
        return Answer(tokens=tuple(f"{key}-{at}" for at in range(48)), asked=48, given=48)

    loaded = tuple(one(prompt, prompt) for prompt in range(24))
    idle = tuple(Answer(tokens=tuple(f"{p}-{at}" for at in range(48)), asked=48, given=48) for p in range(24))
    return AnswerSet(idle=idle, loaded=loaded, concurrency=8)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.create_study(SPEC, "")
    return store


def gate(store: MemoryStore, trial: int, purpose: RunPurpose = RunPurpose.SEARCH, attempt: int = 0) -> Gate:
    checker = checker_of(closed_loop.create(closed_loop.Settings()))
    assert checker is not None
    store.begin_run("s", trial, attempt, purpose, LAUNCH, FACTS)
    return Gate(SPEC, store, checker, trial, attempt, purpose, False)


def calibrated(store: MemoryStore, value: float = 100.0) -> None:
    """The baseline has answered and is measured."""
    assert gate(store, 0).judge([answers(), answers()]) is None
    store.finish_run("s", 0, 0, node_s=1.0)
    store.save_outcome("s", 0, Outcome(state=TrialState.COMPLETE, value=value))


def test_only_what_might_win_has_to_answer(store):
    assert gate(store, 0).rounds([measured(100)]) == 2
    calibrated_store = MemoryStore()
    calibrated_store.create_study(SPEC, "")
    calibrated(calibrated_store)
    assert gate(calibrated_store, 1).rounds([measured(99)]) == 0
    assert gate(calibrated_store, 2).rounds([measured(101)]) == 1
    assert gate(calibrated_store, 1, RunPurpose.CONFIRM, 2).rounds([measured(99)]) == 1


def test_a_generator_that_sends_nothing_or_was_told_not_to_has_no_gate():
    assert checker_of(scenario.create(scenario.Settings())) is None
    assert checker_of(closed_loop.create(closed_loop.Settings(check_answers=False))) is None


@pytest.mark.parametrize(
    ("levels", "load"),
    [
        ([measured(50, concurrency=1), measured(900, concurrency=256)], 256),
        ([measured(900, e2e_s=300, itl_s=0.02, concurrency=256)], 18),  # the others wait in the server's queue
        ([measured(900, e2e_s=300, itl_s=0.27, concurrency=256)], 256),  # slow, but nobody waits
        ([measured(900, concurrency=256, concurrency_found=40.0)], 40),
        ([measured(0.001, e2e_s=300, itl_s=0.02, concurrency=256)], 1),
    ],
)
def test_it_answers_under_the_load_of_the_busiest_level(store, levels, load):
    assert gate(store, 0).level(levels).concurrency == load


def test_wrong_answers_are_a_failure_with_its_evidence_and_are_kept(store):
    calibrated(store)
    failure = gate(store, 1).judge([answers(wrong=True, seed=1)])
    assert failure is not None
    assert (failure.slug, failure.verdict) == ("wrong_output", Verdict.INFEASIBLE)
    assert "under load, 0% of an answer agrees" in failure.message
    assert any("'1001-0 1001-1" in evidence.text and "'1-0 1-1" in evidence.text for evidence in failure.evidence)
    store.finish_run("s", 1, 0, node_s=1.0, failure=failure)
    kept = store.answers("s", 1)[0]
    assert kept.agreement.wrong
    assert kept.sets[0].loaded[1].tokens[0] == "1001-0"


def test_right_answers_are_no_failure(store):
    calibrated(store)
    assert gate(store, 1).judge([answers()]) is None


def test_answers_that_come_too_late_decide_nothing(store):
    calibrated(store)
    assert gate(store, 1).judge([answers(late=8)]) is None
    failure = gate(store, 2).judge([answers(late=20)])
    assert failure is not None
    assert (failure.slug, failure.verdict) == ("invalid_measurement", Verdict.RETRY)


def test_the_baseline_is_wrong_only_by_itself(store):
    empty = answers().model_copy(update={"loaded": (Answer(asked=48, given=48),) * 24})
    failure = gate(store, 0).judge([answers(), empty])
    assert failure is not None
    assert "no token" in failure.message
    other = MemoryStore()
    other.create_study(SPEC, "")
    assert gate(other, 0).judge([answers(wrong=True, seed=1), answers(wrong=True, seed=2)]) is None


def test_another_launch_of_the_baseline_calibrates_too(store):
    calibrated(store)
    again = gate(store, 0, RunPurpose.CONFIRM, 2)
    assert again.judge([answers(wrong=True, seed=3)]) is None
    store.finish_run("s", 0, 2, node_s=1.0)
    assert len([one for record in store.answers("s", 0) for one in record.sets]) == 3


def test_an_interrupted_run_leaves_no_answers(store):
    calibrated(store)
    gate(store, 1).judge([answers(wrong=True, seed=1)])
    assert store.answers("s", 1) == ()
    store.begin_run("s", 1, 0, RunPurpose.SEARCH, LAUNCH, FACTS)
    store.finish_run("s", 1, 0, node_s=1.0)
    assert store.answers("s", 1) == ()


def test_random_weights_are_known_by_the_load_format():
    assert random_weights({"load-format": "dummy"})
    assert not random_weights({"load-format": "auto"})


STUDY = """
study: {name}
engine: {{name: sglang, model: /models/small}}
node: {{name: simulated, scenario: {folder}/small.yaml, time_scale: 20}}
search_space:
  parameters:
    moe-runner-backend: [auto, triton]
  hints:
    - {{moe-runner-backend: triton}}
workload: {{input_tokens: 64, output_tokens: 64, concurrency: [1, 32]}}
timeouts: {{stall_s: 7200, ready_s: 7200, level_s: 3600}}
budget: {{trials: {trials}}}
confirm: {{top: 0, launches: 0}}
sampler: {{name: random}}
"""
SHIPPED = Path(__file__).parents[2] / "src/servetune/simulation/scenarios/kimi-k2.5-int4-8x-rtx-pro-6000.yaml"


@pytest.mark.slow
def test_a_configuration_that_answers_nonsense_only_under_load_never_wins_after_a_resume_either(tmp_path):
    """The faster backend answers well alone and nonsense among many; the baseline answered in an earlier sitting."""
    document = yaml.safe_load(SHIPPED.read_text())
    document |= {"name": "small", "throughput": {1: 100, 32: 1500}, "failures": [], "curves": []}
    document["startup_s"] = dict.fromkeys(document["startup_s"], 1)
    document["effects"] = [{"when": {"moe-runner-backend": "triton"}, "factor": 3.0}]
    # four are asked at once alone, more than six under the load of 32 even where a busy machine holds it badly
    document["wrong_output"] = [{"when": {"moe-runner-backend": "triton"}, "at_concurrency": 6}]
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(document))
    name = f"gate-{os.getpid()}"
    file = tmp_path / "study.yaml"

    def sit(command, what, trials):
        file.write_text(STUDY.format(name=name, folder=tmp_path, trials=trials))
        words = [sys.executable, "-m", "servetune", command, str(what)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    sit("start", file, 1)
    sit("resume", name, 2)
    with StudyStore.open(f"sqlite:///{tmp_path}/studies/studies.db") as kept:
        baseline, fast = kept.trials(name)
        records = kept.answers(name)
        ledger = kept.ledger(name)
    assert baseline.state is TrialState.COMPLETE
    assert fast.state is TrialState.PRUNED
    assert fast.failure is not None
    assert fast.failure.slug == "wrong_output"
    assert fast.failure.message.startswith("under load, ")
    assert "of the answers have one token or a short cycle repeated" in fast.failure.message
    assert [len(record.sets) for record in records] == [2, 1]
    assert records[1].agreement.figures["idle_match"] == 1.0
    assert 0 < ledger["answers"] < 300
    words = [sys.executable, "-m", "servetune", "report", name, "--json"]
    report = json.loads(subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    assert report["winner"] == 0
