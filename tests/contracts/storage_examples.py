"""Data and small process bodies for the storage tests. Process bodies run in a forkserver child: real processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import optuna
import pytest

from servetune.core.answers import Agreement, Answer, AnswerRecord, AnswerSet
from servetune.core.benchmark import Measurement
from servetune.core.errors import StudyBusyError, UsageError
from servetune.core.failure import Failure, Phase, Verdict
from servetune.core.knowledge import Clause, LearnedConstraint, Scope
from servetune.core.node import EnvRef, LaunchSpec, NodeFacts
from servetune.core.study import StudySpec
from servetune.core.trial import Outcome, RunPurpose, TrialState
from servetune.storage import StudyStore

FORKSERVER = multiprocessing.get_context("forkserver")

LAUNCH = LaunchSpec(argv=("python3", "-m", "server", "--api-key", EnvRef(from_env="API_KEY")), port=30000)
FACTS = NodeFacts(node="local", host="gpu-1", gpu_names=("H20",) * 8, gpu_memory_bytes=96 * 2**30)
FAILURE = Failure(
    slug="kv_budget", phase=Phase.KV_ALLOC, verdict=Verdict.INFEASIBLE, message="no room for the KV cache"
)
LAUNCH_S, LEVEL_S = 30.0, 12.5


def a_spec(name: str = "quick", **changes: Any) -> StudySpec:
    space = {
        "name": "s",
        "parameters": [{"name": "tp-size", "domain": {"kind": "categorical", "choices": [1, 2, None]}}],
    }
    return StudySpec.model_validate({"study": name, "engine": {"model": "/m"}, "space": space, **changes})


def a_measurement(concurrency: int, rate: float = 100.5) -> Measurement:
    return Measurement(
        concurrency=concurrency,
        output_tokens_per_s=rate,
        low=rate - 1,
        high=rate + 1,
        duration_s=LEVEL_S,
        requests_completed=8,
        requests_failed=0,
        output_tokens=1000,
    )


def complete(value: float = 100.5, **fields: Any) -> Outcome:
    return Outcome(state=TrialState.COMPLETE, value=value, levels={1: value, 256: value}, **fields)


def some_answers(trial: int, attempt: int, wrong: bool = False) -> AnswerRecord:
    answer = Answer(
        tokens=("5", "ü"), asked=2, given=2, logprobs=(-0.1, float("inf")), top=((("5", -0.1), ("6", -2.5)), ())
    )
    late = Answer(asked=2, error="no answer within the limit")
    answers = AnswerSet(idle=(answer, late), loaded=(late, answer), concurrency=256, solved=(True, None, False))
    agreement = Agreement(wrong=wrong, findings=("idle, …",), examples=("prompt 0",), figures={"idle_match": 0.1 + 0.2})
    return AnswerRecord(trial=trial, attempt=attempt, sets=(answers, answers), agreement=agreement)


def a_constraint(**changes) -> LearnedConstraint:
    fields = {
        "slug": "kv_budget",
        "forbids": (Clause(flag="moe-a2a-backend", any_of=("flashinfer", None)), Clause(flag="mem", below=0.837)),
        "scope": Scope(engine="sglang", engine_version="0.5.9", gpu_memory_bytes=96 * 2**30, gpu_count=8),
        "confidence": 0.9,
    }
    return LearnedConstraint.model_validate({**fields, **changes})


def start(body: Callable[..., None], *arguments: Any) -> multiprocessing.process.BaseProcess:
    """A new process that runs `body`; forked from a server that has the imports, so that it starts in milliseconds."""
    _ensure_fork_server()
    process = FORKSERVER.Process(target=body, args=arguments, daemon=True)
    process.start()
    return process


@cache
def _ensure_fork_server() -> None:
    """It imports by PYTHONPATH alone, not by this process's path (python/cpython#90549)."""
    FORKSERVER.set_forkserver_preload(["contracts._warm", "pytest"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
        multiprocessing.forkserver.ensure_running()


# bodies


def open_and_close(url: str) -> None:
    StudyStore.open(url).close()


def create_study(url: str, name: str, results: Any) -> None:
    with StudyStore.open(url) as store:
        try:
            store.create_study(a_spec(name), "")
            results.put("created")
        except UsageError:
            results.put("exists")


def contend(url: str, key: str, ttl_s: float, results: Any, go: Any, stay: Any) -> None:
    """Try once to get the lease when told to, say how it went, and hold it until told to end."""
    with StudyStore.open(url) as store:
        results.put("ready")
        go.wait()
        try:
            lease = store.acquire(key, ttl_s)
        except StudyBusyError as error:
            results.put((multiprocessing.current_process().pid, str(error)))
            return
        results.put((multiprocessing.current_process().pid, "won"))
        stay.wait()
        lease.release()


def tune(url: str, name: str, steps: Any) -> None:
    """A tuner in miniature, for ever: repairs what the kill of the one before it left, then runs trial after trial.

    Releases `steps` after each thing it wrote.
    """
    store = StudyStore.open(url)
    with contextlib.suppress(UsageError):
        store.create_study(a_spec(name), "")
    study = optuna.load_study(study_name=name, storage=store.optuna_storage)
    for trial in study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING]):
        _run_and_tell(store, study, name, trial.number, steps)
    while True:
        trial = study.ask()
        trial.suggest_categorical("tp-size", [1, 2, None])
        trial.set_user_attr("assignment", {"tp-size": 1})
        steps.release()
        _run_and_tell(store, study, name, trial.number, steps)


def _run_and_tell(store: StudyStore, study: optuna.Study, name: str, number: int, steps: Any) -> None:
    outcome = store.outcome(name, number)
    finished = [run for run in store.runs(name, number) if run.finished_at]
    if outcome is None and not finished:
        _run(store, name, number, steps)
    if outcome is None:
        store.save_outcome(name, number, complete())
        steps.release()
    study.tell(number, 100.5)
    steps.release()


def _run(store: StudyStore, name: str, number: int, steps: Any) -> None:
    store.begin_run(name, number, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
    steps.release()
    store.save_phase(name, number, 1, "start", LAUNCH_S)
    for level in (1, 256):
        store.save_measurement(name, number, 1, a_measurement(level))
        steps.release()
        store.save_phase(name, number, 1, f"level:{level}", LEVEL_S)
        steps.release()
    charges = {"launch": LAUNCH_S, "measure": 2 * LEVEL_S}
    store.finish_run(name, number, 1, node_s=LAUNCH_S + 2 * LEVEL_S, charges=charges)
    steps.release()


def read_again_and_again(url: str, name: str, rounds: int, finished: Any) -> None:
    """What `status` does: opens, reads, closes."""
    for _ in range(rounds):
        with StudyStore.open(url, create=False) as store:
            store.studies()
            store.trials(name)
            store.runs(name)
    finished.put(rounds)
