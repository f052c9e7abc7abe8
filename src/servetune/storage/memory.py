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

from servetune.core.benchmark import Measurement
from servetune.core.errors import StorageError, UsageError
from servetune.core.failure import Failure
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.study import StoredStudy, StudyRunState, StudySpec
from servetune.core.trial import Outcome, RunPurpose, RunRecord, TrialRecord, TrialState
from servetune.storage.times import now

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
        self._outcomes: dict[int, Outcome] = {}
        self._ledger: dict[str, float] = defaultdict(float)
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

    def set_state(self, name: str, state: StudyRunState, reason: str = "") -> None:
        """Write what the study is doing, and why it stopped or failed."""
        self._study = self.study(name).model_copy(update={"state": state, "reason": reason})

    def begin_run(
        self, study: str, trial: int, attempt: int, purpose: RunPurpose, launch: LaunchSpec, facts: NodeFacts
    ) -> None:
        """Store a launch before anything starts."""
        key = (trial, attempt)
        if key in self._runs:
            raise StorageError(f"attempt {attempt} of trial {trial} was begun already")
        self._runs[key] = RunRecord(
            trial=trial, attempt=attempt, purpose=purpose, launch=launch, facts=facts, started_at=now()
        )
        self._by_trial[trial].append(key)
        self._records.pop(trial, None)

    def save_phase(self, study: str, trial: int, attempt: int, name: str, duration_s: float) -> None:
        """How long a part of an unfinished run took, in node seconds."""
        run = self._runs[trial, attempt]
        self._change(trial, attempt, {"phase_s": {**run.phase_s, name: duration_s}})

    def save_progress(self, study: str, trial: int, attempt: int, node_s: float) -> None:
        """Node seconds that an unfinished run has used so far."""
        self._change(trial, attempt, {"node_s": node_s})

    def save_measurement(self, study: str, trial: int, attempt: int, measurement: Measurement) -> None:
        """What a level of an unfinished run gave."""
        self._change(trial, attempt, {"measurements": (*self._runs[trial, attempt].measurements, measurement)})

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
        change = {"node_s": node_s, "failure": failure, "log_facts": dict(log_facts or {}), "finished_at": now()}
        self._change(trial, attempt, {**change, "log_warnings": tuple(log_warnings)})
        for purpose, charged_s in (charges or {}).items():
            self._ledger[purpose] += charged_s

    def _change(self, trial: int, attempt: int, values: Mapping[str, Any]) -> None:
        self._runs[trial, attempt] = self._runs[trial, attempt].model_copy(update=dict(values))
        self._records.pop(trial, None)

    def runs(self, study: str, trial: int | None = None) -> tuple[RunRecord, ...]:
        """Runs of the study, or of one trial, by trial and attempt."""
        keys = sorted(self._runs) if trial is None else sorted(self._by_trial[trial])
        return tuple(self._runs[key] for key in keys)

    def save_outcome(self, study: str, trial: int, outcome: Outcome) -> None:
        """Store what became of a trial. Final: another outcome raises StorageError."""
        if self._outcomes.setdefault(trial, outcome) != outcome:
            raise StorageError(f"trial {trial} has the outcome {self._outcomes[trial].state}: outcomes are final")
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
        self._ledger[purpose] += node_s

    def ledger(self, study: str) -> Mapping[str, float]:
        """Purpose → node seconds."""
        return dict(self._ledger)

    def acquire(self, key: str, ttl_s: float = 60.0) -> MemoryLease:
        """A lease that is always held."""
        return MemoryLease()
