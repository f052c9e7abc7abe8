"""Outcomes, and trials as a whole: Optuna's rows joined with ours."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from servetune.core.errors import StorageError
from servetune.core.trial import Outcome, RunRecord, TrialRecord, TrialState
from servetune.storage import runs
from servetune.storage.documents import dump, load
from servetune.storage.proposals import Proposal
from servetune.storage.tables import outcome as table
from servetune.storage.times import now


def save_outcome(connection: Connection, study: str, trial: int, outcome: Outcome) -> None:
    """Written once. The same outcome again is no change; another one raises StorageError."""
    stored = get_outcome(connection, study, trial)
    if stored == outcome:
        return
    if stored is not None:
        raise StorageError(outcome_is_final(study, trial, stored, outcome))
    values = {
        "study": study,
        "trial": trial,
        "state": outcome.state,
        "value": outcome.value,
        "document": dump(outcome),
        "saved_at": now(),
    }
    connection.execute(table.insert().values(values))


def outcome_is_final(study: str, trial: int, stored: Outcome, wanted: Outcome) -> str:
    """Why another outcome is refused."""
    message = f"trial {trial} of study {study!r} has the outcome {stored.state}, cannot become {wanted.state}"
    return f"{message}: outcomes are final, since the sampler learns from them"


def get_outcome(connection: Connection, study: str, trial: int) -> Outcome | None:
    """The outcome of one trial; None while there is none."""
    query = sa.select(table.c.document).where(table.c.study == study, table.c.trial == trial)
    document = connection.execute(query).scalar_one_or_none()
    return None if document is None else load(Outcome, document)


def records(connection: Connection, study: str, proposed: Sequence[Proposal]) -> tuple[TrialRecord, ...]:
    """One record per trial of Optuna's, in its order."""
    query = sa.select(table.c.trial, table.c.document).where(table.c.study == study)
    outcomes = {trial: load(Outcome, document) for trial, document in connection.execute(query)}
    launched: dict[int, list[RunRecord]] = defaultdict(list)
    for run in runs.every(connection, study):
        launched[run.trial].append(run)
    return tuple(_record(trial, outcomes.get(trial.number), launched[trial.number]) for trial in proposed)


def _record(trial: Proposal, outcome: Outcome | None, launched: Sequence[RunRecord]) -> TrialRecord:
    """An outcome decides, even while Optuna says RUNNING: the tuner was killed before it told the sampler."""
    known = outcome or Outcome.model_construct(state=trial.state)
    return TrialRecord(
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
        runs=tuple(launched),
    )


def counts(connection: Connection, study: str, proposed: Mapping[int, TrialState]) -> Mapping[TrialState, int]:
    """Trials by state, judged as in `records`. `proposed`: number → state as Optuna has it."""
    query = sa.select(table.c.trial, table.c.state).where(table.c.study == study)
    decided = {trial: TrialState(state) for trial, state in connection.execute(query)}
    return Counter(decided.get(number, state) for number, state in proposed.items())


def best(connection: Connection, study: str) -> float | None:
    """Highest value of a complete trial, tokens/s; None while there is none."""
    complete = sa.and_(table.c.study == study, table.c.state == TrialState.COMPLETE)
    value: float | None = connection.execute(sa.select(sa.func.max(table.c.value)).where(complete)).scalar_one()
    return value
