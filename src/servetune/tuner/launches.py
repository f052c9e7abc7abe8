"""Launches of a trial: the store's order of writes, retries of transient failures, and the ledger of node time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from servetune.core.benchmark import Measurement
from servetune.core.engine import Engine, LearnsFromLogs
from servetune.core.events import Listener, Note, RunEnded, TrialStarted
from servetune.core.failure import Failure, Verdict
from servetune.core.node import LaunchSpec, Node, NodeFacts
from servetune.core.space import Assignment
from servetune.core.study import StudySpec
from servetune.core.trial import RunPurpose, RunRecord
from servetune.search.learning import CERTAIN, teaches
from servetune.storage import Store
from servetune.tuner.adoption import TakenUp, take_up
from servetune.tuner.confirm import Candidate
from servetune.tuner.effort import bars_of, effort_of
from servetune.tuner.gate import Gate, checker_of, random_weights
from servetune.tuner.judge import NOT_THE_CONFIGURATION
from servetune.tuner.trial_runner import Job, OnLevel, RunResult, TrialRunner

__all__ = ["Launches", "OnLevel"]

#: Node seconds between a crash that may pass and the next launch of the same: ports, memory and drivers settle.
PAUSE_S = 5.0


class StoreRecorder:
    """Writes the parts of one run into the study database as they happen."""

    def __init__(self, store: Store, study: str, trial: int, attempt: int) -> None:
        self._store, self._key = store, (study, trial, attempt)
        self.phase_s: dict[str, float] = {}

    def phase(self, name: str, duration_s: float) -> None:
        """Store how long a part took."""
        self.phase_s[name] = duration_s
        self._store.save_phase(*self._key, name, duration_s)

    def progress(self, node_s: float) -> None:
        """Store how much node time the run has used so far."""
        self._store.save_progress(*self._key, node_s)

    def measurement(self, measurement: Measurement) -> None:
        """Store a level's measurement."""
        self._store.save_measurement(*self._key, measurement)


class Launches:
    """Launches assignments of one study. What an earlier, killed process has finished is not launched again."""

    def __init__(
        self,
        spec: StudySpec,
        store: Store,
        node: Node,
        engine: Engine,
        runner: TrialRunner,
        facts: NodeFacts,
        study_dir: Path,
        listener: Listener,
    ) -> None:
        self._spec, self._store, self._node, self._engine = spec, store, node, engine
        self._runner, self._facts, self._study_dir, self._listener = runner, facts, study_dir, listener
        self.guided = False  # whether the sampler learns from crashes itself
        self._remember()

    def search(self, number: int, assignment: Assignment, on_level: OnLevel, baseline: bool = False) -> RunResult:
        """Launch a trial, and again while its failure is transient and tries are left.

        So with a crash of the `baseline` that nobody is certain of: all that follows is compared with it.
        """
        finished = self._finished(number)
        result = _result_of(finished[-1], self._spec) if finished else None
        most = 1 + self._spec.retries.transient
        while result is None or (len(finished) < most and self._may_pass(result.failure, baseline)):
            if result is not None and result.failure is not None:
                self._pause(number, result.failure)
            result = self._launch(number, len(finished), RunPurpose.SEARCH, assignment, on_level)
            finished = self._finished(number)
        return result

    def _pause(self, number: int, failure: Failure) -> None:
        """Before the same is launched again; `_launch` then ends and cleans what the crash has left."""
        text = f"trial {number}: {failure.slug} may pass, it is tried again in {PAUSE_S:g} s of node time"
        self._listener.on(Note(text=text))
        until_s = self._node.clock.now_s() + PAUSE_S
        while (left_s := until_s - self._node.clock.now_s()) > 0:
            self._node.clock.sleep(left_s)

    def _may_pass(self, failure: Failure | None, baseline: bool) -> bool:
        """Whether to launch the same again at once.

        A guided sampler comes back by itself to a configuration that crashed, with other company, when it is worth it.
        """
        if failure is not None and baseline and teaches(failure) and failure.confidence < CERTAIN:
            return True
        if failure is None or not _transient(failure):
            return False
        return not self.guided or failure.slug in NOT_THE_CONFIGURATION or failure.slug == "unknown"

    def confirm(self, candidate: Candidate) -> None:
        """One more launch of a trial's assignment, with every level; again while its failure is transient.

        Attempts `candidate.attempt` to `candidate.attempt + retries.transient` belong to it.
        """
        last = candidate.attempt + self._spec.retries.transient
        runs = self._store.runs(self._spec.study, candidate.trial)
        done = {run.attempt: run.failure for run in runs if run.finished_at is not None}
        for attempt in range(candidate.attempt, last + 1):
            if attempt not in done:
                if (failed := done.get(attempt - 1)) is not None and attempt > candidate.attempt:
                    self._pause(candidate.trial, failed)
                result = self._launch(
                    candidate.trial, attempt, RunPurpose.CONFIRM, candidate.assignment, lambda measurement: True
                )
                done[attempt] = result.failure
            if not _transient(done[attempt]):
                return

    def last_failure(self, number: int) -> Failure | None:
        """Failure of the last finished search run of a trial."""
        run = self.last_search(number)
        return run.failure if run is not None else None

    def last_search(self, number: int) -> RunRecord | None:
        """The last finished search run of a trial."""
        finished = self._finished(number)
        return finished[-1] if finished else None

    def _finished(self, number: int) -> Sequence[RunRecord]:
        runs = self._store.runs(self._spec.study, number)
        return [run for run in runs if run.purpose is RunPurpose.SEARCH and run.finished_at is not None]

    def _launch(
        self, number: int, attempt: int, purpose: RunPurpose, assignment: Assignment, on_level: OnLevel
    ) -> RunResult:
        """The launch spec is stored before anything starts, the end of the run after the server is gone.

        A server that a killed sitting left running is taken up; where it fails, that may be for what happened in
        between, and it is launched anew.
        """
        taken_up = self._taken_up(number, attempt, purpose, assignment)
        if taken_up is not None:
            self._listener.on(Note(text=f"trial {number}: its server still runs and is taken up again"))
            result = self._run(number, attempt, purpose, assignment, on_level, taken_up)
            if result.failure is None or len(result.measurements) > len(taken_up.measurements):
                return self._finish(number, attempt, purpose, result)
            text = f"trial {number}: the server taken up failed ({result.failure.message}); it is launched anew"
            self._listener.on(Note(text=text, warning=True))
        return self._finish(number, attempt, purpose, self._run(number, attempt, purpose, assignment, on_level, None))

    def _taken_up(self, number: int, attempt: int, purpose: RunPurpose, assignment: Assignment) -> TakenUp | None:
        runs = {run.attempt: run for run in self._store.runs(self._spec.study, number)}
        log_dir = str(self.log_dir(number, attempt))
        spec_of = partial(self._spec_of, assignment)
        return take_up(self._node, runs.get(attempt), purpose, log_dir, self._spec.study, spec_of)

    def _spec_of(self, assignment: Assignment, port: int) -> LaunchSpec:
        launch = self._engine.launch(assignment, self._facts, port)
        return launch.model_copy(update={"env": {**self._node.environment(), **launch.env}})

    def _run(
        self,
        number: int,
        attempt: int,
        purpose: RunPurpose,
        assignment: Assignment,
        on_level: OnLevel,
        taken_up: TakenUp | None,
    ) -> RunResult:
        study = self._spec.study
        if taken_up is None:
            for sentence in self._node.reclaim(study):
                self._listener.on(Note(text=sentence, warning=True))
            launch = self._spec_of(assignment, self._node.free_port())
            self._store.begin_run(study, number, attempt, purpose, launch, self._facts)
        else:
            launch = taken_up.launch
        self._listener.on(
            TrialStarted(
                trial=number,
                attempt=attempt,
                purpose=purpose,
                command=launch.shown(),
                overrides=overrides(assignment, self._spec.space.fixed),
            )
        )
        recorder = StoreRecorder(self._store, study, number, attempt)
        recorder.phase_s |= {} if taken_up is None else taken_up.phase_s
        searching = purpose is RunPurpose.SEARCH
        effort = self._effort() if searching else {}
        bars = bars_of(self._spec, self._store.trials(study)) if searching else {}
        log_dir, gate = str(self.log_dir(number, attempt)), self._gate(number, attempt, purpose, assignment)
        job = Job(number, launch, assignment, log_dir, recorder, on_level, effort, bars, gate, taken_up)
        result = self._runner.run(job)
        self._engine_learns(assignment, result.log_facts)
        self._phase_s = recorder.phase_s
        return result

    def _finish(self, number: int, attempt: int, purpose: RunPurpose, result: RunResult) -> RunResult:
        self._store.finish_run(
            self._spec.study,
            number,
            attempt,
            node_s=result.node_s,
            failure=result.failure,
            log_facts=result.log_facts,
            log_warnings=result.log_warnings,
            charges=_charges(purpose, result, self._phase_s),
        )
        spent_s = sum(self._store.ledger(self._spec.study).values())
        ended = RunEnded(trial=number, purpose=purpose, node_s=result.node_s, spent_s=spent_s, failure=result.failure)
        self._listener.on(ended)
        return result

    def _gate(self, number: int, attempt: int, purpose: RunPurpose, assignment: Assignment) -> Gate | None:
        checker = checker_of(self._runner.generator)
        if checker is None:
            return None
        return Gate(self._spec, self._store, checker, number, attempt, purpose, random_weights(assignment))

    def _remember(self) -> None:
        """Tell the engine of the launches of earlier sittings, in the order in which they happened."""
        records = self._store.trials(self._spec.study)
        runs = sorted(
            ((run.started_at, record.assignment, run.log_facts) for record in records for run in record.runs),
            key=lambda told: told[0],
        )
        for _, assignment, log_facts in runs:
            self._engine_learns(assignment, log_facts)

    def _engine_learns(self, assignment: Assignment, log_facts: Mapping[str, Any]) -> None:
        if isinstance(self._engine, LearnsFromLogs):
            self._engine.learn(assignment, log_facts)

    def _effort(self) -> Mapping[int, float]:
        """By the baseline's runs, which are those of the first trial."""
        return effort_of(self._spec.budget.level_sd, self._store.runs(self._spec.study, 0))

    def log_dir(self, number: int, attempt: int) -> Path:
        """Where a run's log lies, below the study's folder."""
        return log_dir(self._study_dir, number, attempt)


def log_dir(study_dir: Path, number: int, attempt: int) -> Path:
    """Where the log of a launch lies: the trial's own folder, a subfolder for every further launch."""
    trial_dir = study_dir / "trials" / str(number)
    return trial_dir if attempt == 0 else trial_dir / f"launch-{attempt}"


def overrides(assignment: Assignment, fixed: Mapping[str, object]) -> str:
    """What an assignment sets beside the fixed flags, in one line; `(baseline)` when nothing."""
    words = [f"{flag}={value}" for flag, value in assignment.items() if flag not in fixed or fixed[flag] != value]
    return " ".join(words) or "(nothing beside the fixed flags)"


def _transient(failure: Failure | None) -> bool:
    return failure is not None and failure.verdict is Verdict.RETRY


def _charges(purpose: RunPurpose, result: RunResult, phase_s: Mapping[str, float]) -> dict[str, float]:
    """Node seconds of a run by purpose: crash or confirm as a whole, else launch, measure and stop."""
    if purpose is RunPurpose.CONFIRM:
        return {"confirm": result.node_s}
    if result.failure is not None:
        return {"crash": result.node_s}
    measure_s = sum(duration_s for name, duration_s in phase_s.items() if name.startswith("level:"))
    stop_s, answers_s = phase_s.get("stop", 0.0), phase_s.get("answers", 0.0)
    charges = {"launch": result.node_s - measure_s - stop_s - answers_s, "measure": measure_s, "stop": stop_s}
    return {**charges, "answers": answers_s} if answers_s else charges


def _result_of(run: RunRecord, spec: StudySpec) -> RunResult:
    """What a finished run gave, read back: the kill came after it was stored."""
    pruned = run.failure is None and len(run.measurements) < len(spec.workload.concurrency)
    return RunResult(list(run.measurements), run.failure, pruned, run.node_s, run.log_facts, run.log_warnings)
