"""The study database as the rest of servetune sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self

import optuna
from optuna.storages import RDBStorage
from sqlalchemy.engine import Connection

from servetune.core.answers import AnswerRecord
from servetune.core.benchmark import Measurement
from servetune.core.failure import Failure
from servetune.core.knowledge import LearnedConstraint
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.study import StoredStudy, StudyRunState, StudySpec, StudySummary
from servetune.core.trial import Outcome, RunPurpose, RunRecord, TrialRecord
from servetune.storage import constraints, leases, ledger, runs, schema, studies, trials
from servetune.storage.database import Database, parse_url
from servetune.storage.proposals import Proposals


class StudyStore:
    """One database: Optuna's storage (`optuna_storage`) and our rows beside it. Each method is one transaction.

    Every method raises StorageError when the database cannot be read or written, beside what it names. What was saved
    is on disk when the method returns. Values are copies; any thread may call.
    """

    def __init__(self, database: Database, optuna_storage: RDBStorage) -> None:
        self.optuna_storage = optuna_storage
        self._database = database
        self._proposals = Proposals(optuna_storage)
        self._leases: list[leases.Lease] = []

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> StudyStore:
        """Open `sqlite:///PATH` (relative to the working directory) or `postgresql://…`, and migrate it when needed.

        Raises SpecError for a URL of another kind, UsageError when nothing is there and `create` is False, StorageError
        for a database that cannot be used: every message says what to do, none shows a password.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # its own log would interleave with the live view
        database = Database(parse_url(url))
        with ExitStack() as undo:
            undo.callback(database.close)
            store = cls(database, schema.prepare(database, create=create))
            undo.pop_all()
        return store

    def close(self) -> None:
        """Release the leases and close every connection. Idempotent."""
        for lease in self._leases:
            lease.release()
        self.optuna_storage.remove_session()
        self.optuna_storage.engine.dispose()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The database's URL with any password masked."""
        return self._database.shown

    def errors(self) -> AbstractContextManager[None]:
        """Turns what Optuna's calls on `optuna_storage` raise into StorageError: `with store.errors(): study.ask()`."""
        return self._database.errors()

    # studies

    def create_study(self, spec: StudySpec, source: str) -> None:
        """Store a new study and the text of its file. Raises UsageError when the name is taken.

        A password in a storage URL is stored as `***`.
        """
        studies.create(self._database, self.optuna_storage, spec, source)

    def study(self, name: str) -> StoredStudy:
        """One study. Raises UsageError naming the nearest one when it is unknown."""
        with self._database.read() as connection:
            return studies.get(connection, name, self.url)

    def studies(self) -> tuple[StudySummary, ...]:
        """All studies, oldest first."""
        with self._database.read() as connection:
            return tuple(self._summary(connection, study) for study in studies.every(connection))

    def _summary(self, connection: Connection, study: StoredStudy) -> StudySummary:
        states = self._proposals.states(connection, study.name)
        return StudySummary(
            name=study.name,
            state=study.state,
            reason=study.reason,
            created_at=study.created_at,
            trials=trials.counts(connection, study.name, states),
            best=trials.best(connection, study.name),
        )

    def set_state(self, name: str, state: StudyRunState, reason: str = "") -> None:
        """Write what the study is doing, and why it stopped or failed."""
        with self._database.write() as connection:
            studies.set_state(connection, name, state, reason, self.url)

    def revise(self, spec: StudySpec) -> None:
        """Write the settings that the study goes on with. Raises UsageError when it is unknown."""
        with self._database.write() as connection:
            studies.revise(connection, spec, self.url)

    # runs

    def begin_run(
        self, study: str, trial: int, attempt: int, purpose: RunPurpose, launch: LaunchSpec, facts: NodeFacts
    ) -> None:
        """Store a launch before anything starts. Attempts are numbered per trial, whatever their purpose.

        An interrupted run under the same numbers is replaced with its phases and measurements; its node seconds are
        charged to `interrupted`. Raises StorageError when that run is finished.
        """
        with self._database.write() as connection:
            runs.begin(connection, (study, trial, attempt), purpose, launch, facts)

    def save_phase(self, study: str, trial: int, attempt: int, name: str, duration_s: float) -> None:
        """How long a part of an unfinished run took, in node seconds. Saved again, the last one stands."""
        with self._database.write() as connection:
            runs.save_phase(connection, (study, trial, attempt), name, duration_s)

    def save_progress(self, study: str, trial: int, attempt: int, node_s: float) -> None:
        """Node seconds that an unfinished run has used so far: what `interrupted` is charged after a kill."""
        with self._database.write() as connection:
            runs.save_progress(connection, (study, trial, attempt), node_s)

    def save_measurement(self, study: str, trial: int, attempt: int, measurement: Measurement) -> None:
        """What a level of an unfinished run gave. A level measured again replaces its first measurement."""
        with self._database.write() as connection:
            runs.save_measurement(connection, (study, trial, attempt), measurement)

    def save_answers(self, study: str, record: AnswerRecord) -> None:
        """What an unfinished run answered, and what the correctness gate made of it."""
        with self._database.write() as connection:
            runs.save_answers(connection, study, record)

    def answers(self, study: str, trial: int | None = None) -> tuple[AnswerRecord, ...]:
        """Answers of the finished runs of a study, or of one trial, by trial and attempt."""
        with self._database.read() as connection:
            return runs.every_answers(connection, study, trial)

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
        """Close a run. `charges` (purpose → node seconds) go to the ledger in the same transaction: never twice."""
        with self._database.write() as connection:
            runs.finish(connection, (study, trial, attempt), node_s, failure, log_facts or {}, log_warnings)
            for purpose, charged_s in (charges or {}).items():
                ledger.charge(connection, study, purpose, charged_s, trial)

    def runs(self, study: str, trial: int | None = None) -> tuple[RunRecord, ...]:
        """Runs of a study, or of one trial, by trial and attempt."""
        with self._database.read() as connection:
            return runs.every(connection, study, trial)

    # trials

    def save_outcome(self, study: str, trial: int, outcome: Outcome) -> None:
        """Store what became of a trial, before the sampler is told. Final: another outcome raises StorageError."""
        with self._database.write() as connection:
            trials.save_outcome(connection, study, trial, outcome)

    def outcome(self, study: str, trial: int) -> Outcome | None:
        """The stored outcome; None while there is none."""
        with self._database.read() as connection:
            return trials.get_outcome(connection, study, trial)

    def trials(self, study: str) -> tuple[TrialRecord, ...]:
        """Every trial with its runs, by number. A stored outcome decides the state; else Optuna's row does.

        Of Optuna's user attributes, `assignment`, `baseline` and `repaired_from` are read.
        """
        with self._database.read() as connection:
            studies.get(connection, study, self.url)
            return trials.records(connection, study, self._proposals.read(connection, study))

    # ledger

    def charge(self, study: str, purpose: str, node_s: float, trial: int | None = None) -> None:
        """Add node seconds to the ledger: launch, measure, answers, stop, crash, confirm, interrupted."""
        with self._database.write() as connection:
            ledger.charge(connection, study, purpose, node_s, trial)

    def ledger(self, study: str) -> Mapping[str, float]:
        """Purpose → node seconds."""
        with self._database.read() as connection:
            return ledger.totals(connection, study)

    # learned constraints, of the whole database

    def learn(self, constraint: LearnedConstraint) -> LearnedConstraint:
        """Add a constraint, or lessons and confidence to one that says the same. Returns what is stored now.

        A withdrawn one stays withdrawn.
        """
        with self._database.write() as connection:
            return constraints.learn(connection, constraint)

    def learn_all(self, learned: Sequence[LearnedConstraint]) -> int:
        """As `learn`, of all of them or of none. Returns how many were not known before."""
        with self._database.write() as connection:
            known = {one.key for one in constraints.every(connection, withdrawn=True)}
            for constraint in learned:
                constraints.learn(connection, constraint)
        return len({one.key for one in learned} - known)

    def learned(self, *, withdrawn: bool = False) -> tuple[LearnedConstraint, ...]:
        """Every constraint that applies, oldest first; with `withdrawn`, the others too. Scopes are not looked at."""
        with self._database.read() as connection:
            return constraints.every(connection, withdrawn)

    def withdraw_constraint(self, key: str, reason: str) -> None:
        """A success contradicted it. Raises UsageError for an unknown `LearnedConstraint.key`."""
        with self._database.write() as connection:
            constraints.withdraw(connection, key, reason)

    def touch_constraint(self, key: str) -> None:
        """It rejected a trial: one launch saved. Raises UsageError for an unknown `LearnedConstraint.key`."""
        with self._database.write() as connection:
            constraints.touch(connection, key)

    # leases

    def leased(self, key: str) -> bool:
        """Whether a living process holds the lease `key`."""
        return leases.alive(self._database, key)

    def acquire(self, key: str, ttl_s: float = 60.0) -> leases.Lease:
        """Take the lease `study:<name>` or `node:<identity>`; renewed until released, by `close` at the latest.

        Raises StudyBusyError or NodeBusyError naming the process that holds it, since when, and what to do.
        """
        lease = leases.acquire(self._database, key, ttl_s)
        self._leases.append(lease)
        return lease
