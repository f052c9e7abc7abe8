"""A study store that lives as long as its process: for studies in virtual time, where nothing is worth keeping."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self

import optuna
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from servetune.core.answers import AnswerRecord
from servetune.core.benchmark import Measurement
from servetune.core.errors import StorageError, UsageError
from servetune.core.failure import Failure
from servetune.core.knowledge import LearnedConstraint
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.study import StoredStudy, StudyRunState, StudySpec
from servetune.core.trial import Outcome, RunPurpose, RunRecord, TrialRecord, TrialState
from servetune.storage.ledger import checked_s
from servetune.storage.times import after, now
from servetune.storage.trials import outcome_is_final

_STATES = {
    OptunaState.WAITING: TrialState.WAITING,
    OptunaState.RUNNING: TrialState.RUNNING,
    OptunaState.COMPLETE: TrialState.COMPLETE,
    OptunaState.PRUNED: TrialState.PRUNED,
    OptunaState.FAIL: TrialState.FAIL,
}


class MemoryLease:
    """Always held: nobody else sees the study."""

    def check(self) -> None:
        """Return."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class MemoryStore:
    """The methods of `StudyStore` that a tuner uses, with the same meaning, for one study of one thread."""

    url = "memory"

    def __init__(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna_storage = InMemoryStorage()
        self._study: StoredStudy | None = None
        self._runs: dict[tuple[int, int], RunRecord] = {}
        self._by_trial: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._answers: dict[tuple[int, int], AnswerRecord] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._ledger: dict[str, float] = defaultdict(float)
        self._latest: str | None = None  # start of the last run
        self._learned: dict[str, LearnedConstraint] = {}
        self._records: dict[int, TrialRecord] = {}  # of finished trials; dropped when a run is added

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing."""

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Nothing to translate."""
        with nullcontext():
            yield

    def create_study(self, spec: StudySpec, source: str) -> None:
        """Keep the study. Raises UsageError for a second one."""
        if self._study is not None:
            raise UsageError(f"this store holds the study {self._study.name!r} already")
        fingerprint = spec.space.fingerprint()
        self._study = StoredStudy(name=spec.study, spec=spec, source=source, fingerprint=fingerprint, created_at=now())
        self.optuna_storage.create_new_study([StudyDirection.MAXIMIZE], spec.study)

    def study(self, name: str) -> StoredStudy:
        """The study. Raises UsageError when it is another one."""
        if self._study is None or self._study.name != name:
            raise UsageError(f"there is no study {name!r} in memory")
        return self._study

    def revise(self, spec: StudySpec) -> None:
        """Keep the settings that the study goes on with."""
        self._study = self.study(spec.study).model_copy(update={"spec": spec})

    def set_state(self, name: str, state: StudyRunState, reason: str = "") -> None:
        """Write what the study is doing, and why it stopped or failed."""
        self._study = self.study(name).model_copy(update={"state": state, "reason": reason})

    def begin_run(
        self, study: str, trial: int, attempt: int, purpose: RunPurpose, launch: LaunchSpec, facts: NodeFacts
    ) -> None:
        """Store a launch before anything starts; an interrupted one is replaced and its node seconds are charged."""
        key = (trial, attempt)
        if key in self._runs:
            run = self._open(trial, attempt)
            self._ledger["interrupted"] += max(run.node_s, sum(run.phase_s.values()))
            self._answers.pop(key, None)
        else:
            self._by_trial[trial].append(key)
        self._latest = after(self._latest)
        self._runs[key] = RunRecord(
            trial=trial, attempt=attempt, purpose=purpose, launch=launch, facts=facts, started_at=self._latest
        )
        self._records.pop(trial, None)

    def save_phase(self, study: str, trial: int, attempt: int, name: str, duration_s: float) -> None:
        """How long a part of an unfinished run took, in node seconds."""
        run = self._open(trial, attempt)
        self._change(trial, attempt, {"phase_s": {**run.phase_s, name: checked_s("duration_s", duration_s)}})

    def save_progress(self, study: str, trial: int, attempt: int, node_s: float) -> None:
        """Node seconds that an unfinished run has used so far."""
        self._change(trial, attempt, {"node_s": checked_s("node_s", node_s)})

    def save_measurement(self, study: str, trial: int, attempt: int, measurement: Measurement) -> None:
        """What a level of an unfinished run gave. A level measured again replaces its first measurement."""
        levels = {level.concurrency: level for level in self._open(trial, attempt).measurements}
        levels[measurement.concurrency] = measurement
        self._change(trial, attempt, {"measurements": tuple(levels.values())})

    def save_answers(self, study: str, record: AnswerRecord) -> None:
        """What an unfinished run answered, and what the correctness gate made of it."""
        self._open(record.trial, record.attempt)
        self._answers[record.trial, record.attempt] = record

    def answers(self, study: str, trial: int | None = None) -> tuple[AnswerRecord, ...]:
        """Answers of the finished runs of the study, or of one trial, by trial and attempt."""
        finished = (key for key in sorted(self._answers) if self._runs[key].finished_at is not None)
        return tuple(self._answers[key] for key in finished if trial is None or key[0] == trial)

    def finish_run(
        self,
        study: str,
        trial: int,
        attempt: int,
        *,
        node_s: float,
        failure: Failure | None = None,
        log_facts: Mapping[str, Any] | None = None,
        log_warnings: Sequence[str] = (),
        charges: Mapping[str, float] | None = None,
    ) -> None:
        """Close a run and charge its node seconds."""
        change = {
            "node_s": checked_s("node_s", node_s),
            "failure": failure,
            "log_facts": dict(log_facts or {}),
            "finished_at": now(),
        }
        self._change(trial, attempt, {**change, "log_warnings": tuple(log_warnings)})
        for purpose, charged_s in (charges or {}).items():
            self._ledger[purpose] += charged_s

    def _open(self, trial: int, attempt: int) -> RunRecord:
        run = self._runs.get((trial, attempt))
        if run is None or run.finished_at is not None:
            name = self._study.name if self._study else None
            what = "is finished already" if run else "was never begun"
            raise StorageError(f"attempt {attempt} of trial {trial} of study {name!r} {what}")
        return run

    def _change(self, trial: int, attempt: int, values: Mapping[str, Any]) -> None:
        self._runs[trial, attempt] = self._open(trial, attempt).model_copy(update=dict(values))
        self._records.pop(trial, None)

    def runs(self, study: str, trial: int | None = None) -> tuple[RunRecord, ...]:
        """Runs of the study, or of one trial, by trial and attempt."""
        keys = sorted(self._runs) if trial is None else sorted(self._by_trial[trial])
        return tuple(self._runs[key] for key in keys)

    def save_outcome(self, study: str, trial: int, outcome: Outcome) -> None:
        """Store what became of a trial. Final: another outcome raises StorageError."""
        stored = self._outcomes.setdefault(trial, outcome)
        if stored != outcome:
            raise StorageError(outcome_is_final(study, trial, stored, outcome))
        self._records.pop(trial, None)

    def outcome(self, study: str, trial: int) -> Outcome | None:
        """The stored outcome; None while there is none."""
        return self._outcomes.get(trial)

    def trials(self, study: str) -> tuple[TrialRecord, ...]:
        """Every trial with its runs, by number."""
        study_id = self.optuna_storage.get_study_id_from_name(study)
        return tuple(self._record(trial) for trial in self.optuna_storage.get_all_trials(study_id, deepcopy=False))

    def _record(self, trial: FrozenTrial) -> TrialRecord:
        if trial.number in self._records:
            return self._records[trial.number]
        known = self._outcomes.get(trial.number) or Outcome.model_construct(state=_STATES[trial.state])
        record = TrialRecord(
            number=trial.number,
            state=known.state,
            point=trial.params,
            assignment=trial.user_attrs.get("assignment", {}),
            value=known.value,
            rejected=known.violations,
            duplicate_of=known.duplicate_of,
            constraint=known.constraint,
            message=known.message,
            repaired_from=trial.user_attrs.get("repaired_from"),
            baseline=trial.user_attrs.get("baseline", False),
            runs=tuple(self._runs[key] for key in sorted(self._by_trial[trial.number])),
        )
        if trial.number in self._outcomes:
            self._records[trial.number] = record
        return record

    def charge(self, study: str, purpose: str, node_s: float, trial: int | None = None) -> None:
        """Add node seconds to the ledger."""
        self._ledger[purpose] += checked_s("node seconds", node_s)

    def ledger(self, study: str) -> Mapping[str, float]:
        """Purpose → node seconds."""
        return dict(self._ledger)

    def learn(self, constraint: LearnedConstraint) -> LearnedConstraint:
        """Add a constraint, or lessons and confidence to one that says the same. Returns what is stored now."""
        known = self._learned.get(constraint.key)
        self._learned[constraint.key] = constraint if known is None else known.merged(constraint)
        return self._learned[constraint.key]

    def learned(self, *, withdrawn: bool = False) -> tuple[LearnedConstraint, ...]:
        """Every constraint that applies, oldest first; with `withdrawn`, the others too."""
        return tuple(constraint for constraint in self._learned.values() if withdrawn or not constraint.withdrawn)

    def withdraw_constraint(self, key: str, reason: str) -> None:
        """A success contradicted it. Raises UsageError for an unknown key."""
        self._learned[key] = self._known(key).model_copy(update={"withdrawn": reason})

    def touch_constraint(self, key: str) -> None:
        """It rejected a trial. Raises UsageError for an unknown key."""
        known = self._known(key)
        self._learned[key] = known.model_copy(update={"rejections": known.rejections + 1})

    def _known(self, key: str) -> LearnedConstraint:
        if key not in self._learned:
            raise UsageError(f"no learned constraint {key!r} in memory")
        return self._learned[key]

    def acquire(self, key: str, ttl_s: float = 60.0) -> MemoryLease:
        """A lease that is always held."""
        return MemoryLease()
