"""Rows of runs, their phases and measurements."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql import ColumnElement

from servetune.core.answers import AnswerRecord
from servetune.core.benchmark import Measurement
from servetune.core.errors import StorageError
from servetune.core.failure import Failure
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.trial import RunPurpose, RunRecord
from servetune.storage.documents import dump, load, load_optional
from servetune.storage.ledger import INTERRUPTED, charge, checked_s
from servetune.storage.tables import answers
from servetune.storage.tables import measurement as measurements
from servetune.storage.tables import phase as phases
from servetune.storage.tables import run as runs
from servetune.storage.times import after, now

Key = tuple[str, int, int]  # study, trial, attempt


def begin(connection: Connection, key: Key, purpose: RunPurpose, launch: LaunchSpec, facts: NodeFacts) -> None:
    """A new run. An interrupted one under the same key goes, with all its parts; the ledger keeps its node seconds.

    It starts after every other run of the study, whatever the clock says: the confirmation goes by the order.
    """
    _discard_interrupted(connection, key)
    study, trial, attempt = key
    latest = connection.execute(sa.select(sa.func.max(runs.c.started_at)).where(runs.c.study == study)).scalar()
    values = {
        "study": study,
        "trial": trial,
        "attempt": attempt,
        "purpose": purpose,
        "launch": dump(launch),
        "facts": dump(facts),
        "started_at": after(latest),
        "node_s": 0.0,
        "log_facts": "{}",
        "log_warnings": "[]",
    }
    connection.execute(runs.insert().values(values))


def _discard_interrupted(connection: Connection, key: Key) -> None:
    row = connection.execute(sa.select(runs.c.finished_at, runs.c.node_s).where(_is(runs, key))).one_or_none()
    if row is None:
        return
    if row.finished_at is not None:
        raise StorageError(f"{_named(key)} is finished; a further launch of the trial needs the next attempt number")
    spent = sa.select(sa.func.coalesce(sa.func.sum(phases.c.duration_s), 0.0)).where(_is(phases, key))
    interrupted_s = max(float(row.node_s), float(connection.execute(spent).scalar_one()))
    if interrupted_s > 0:
        charge(connection, key[0], INTERRUPTED, interrupted_s, key[1])
    for table in (phases, measurements, answers, runs):
        connection.execute(table.delete().where(_is(table, key)))


def save_phase(connection: Connection, key: Key, name: str, duration_s: float) -> None:
    """One phase of an unfinished run, in node seconds; a second time under the same name replaces the first."""
    _check_open(connection, key)
    _replace(connection, phases, key, {"name": name}, {"duration_s": checked_s("duration_s", duration_s)})


def save_measurement(connection: Connection, key: Key, measurement: Measurement) -> None:
    """One level of an unfinished run; a level measured again replaces its first measurement."""
    _check_open(connection, key)
    rate = measurement.output_tokens_per_s
    values = {
        "valid": measurement.valid,
        "output_tokens_per_s": rate if math.isfinite(rate) else None,
        "document": dump(measurement),
    }
    _replace(connection, measurements, key, {"concurrency": measurement.concurrency}, values)


def save_answers(connection: Connection, study: str, record: AnswerRecord) -> None:
    """The answers of an unfinished run; a second time they replace the first."""
    key = (study, record.trial, record.attempt)
    _check_open(connection, key)
    _replace(connection, answers, key, {}, {"wrong": record.agreement.wrong, "document": dump(record)})


def every_answers(connection: Connection, study: str, trial: int | None = None) -> tuple[AnswerRecord, ...]:
    """Answers of a study's finished runs, or of one trial's, by trial and attempt."""
    finished = sa.exists().where(
        runs.c.study == answers.c.study,
        runs.c.trial == answers.c.trial,
        runs.c.attempt == answers.c.attempt,
        runs.c.finished_at.is_not(None),
    )
    query = sa.select(answers.c.document).where(_of(answers, study, trial), finished)
    rows = connection.execute(query.order_by(answers.c.trial, answers.c.attempt))
    return tuple(load(AnswerRecord, row.document) for row in rows)


def save_progress(connection: Connection, key: Key, node_s: float) -> None:
    """Node seconds spent so far by an unfinished run: what the ledger keeps should the tuner be killed."""
    _update_open(connection, key, {"node_s": checked_s("node_s", node_s)})


def finish(
    connection: Connection,
    key: Key,
    node_s: float,
    failure: Failure | None,
    log_facts: Mapping[str, Any],
    log_warnings: Sequence[str],
) -> None:
    """Close an unfinished run; nothing about it changes afterwards."""
    values = {
        "finished_at": now(),
        "node_s": checked_s("node_s", node_s),
        "failure": None if failure is None else dump(failure),
        "log_facts": dump(dict(log_facts)),
        "log_warnings": dump(list(log_warnings)),
    }
    _update_open(connection, key, values)


def every(connection: Connection, study: str, trial: int | None = None) -> tuple[RunRecord, ...]:
    """Runs of a study or of one trial, by trial and attempt."""
    tables = (runs, phases, measurements)
    wanted = {table: _of(table, study, trial) for table in tables}
    durations: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    for row in connection.execute(sa.select(phases).where(wanted[phases]).order_by(phases.c.id)):
        durations[row.trial, row.attempt][row.name] = row.duration_s
    levels: dict[tuple[int, int], list[Measurement]] = defaultdict(list)
    for row in connection.execute(sa.select(measurements).where(wanted[measurements]).order_by(measurements.c.id)):
        levels[row.trial, row.attempt].append(load(Measurement, row.document))
    query = sa.select(runs).where(wanted[runs]).order_by(runs.c.trial, runs.c.attempt)
    return tuple(
        _record(row, durations[row.trial, row.attempt], levels[row.trial, row.attempt])
        for row in connection.execute(query)
    )


def _record(row: Row[Any], phase_s: Mapping[str, float], levels: Sequence[Measurement]) -> RunRecord:
    return RunRecord(
        trial=row.trial,
        attempt=row.attempt,
        purpose=RunPurpose(row.purpose),
        launch=load(LaunchSpec, row.launch),
        facts=load(NodeFacts, row.facts),
        started_at=row.started_at,
        finished_at=row.finished_at,
        phase_s=phase_s,
        node_s=row.node_s,
        measurements=tuple(levels),
        failure=load_optional(Failure, row.failure),
        log_facts=json.loads(row.log_facts),
        log_warnings=tuple(json.loads(row.log_warnings)),
    )


def _of(table: sa.Table, study: str, trial: int | None) -> ColumnElement[bool]:
    of_study = table.c.study == study
    return of_study if trial is None else sa.and_(of_study, table.c.trial == trial)


def _is(table: sa.Table, key: Key) -> ColumnElement[bool]:
    study, trial, attempt = key
    return sa.and_(table.c.study == study, table.c.trial == trial, table.c.attempt == attempt)


def _replace(
    connection: Connection, table: sa.Table, key: Key, which: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    clauses = [table.c[column] == value for column, value in which.items()]
    if connection.execute(table.update().where(_is(table, key), *clauses).values(values)).rowcount == 0:
        study, trial, attempt = key
        row = {"study": study, "trial": trial, "attempt": attempt, **which, **values}
        connection.execute(table.insert().values(row))


def _update_open(connection: Connection, key: Key, values: Mapping[str, Any]) -> None:
    change = runs.update().where(_is(runs, key), runs.c.finished_at.is_(None)).values(values)
    if connection.execute(change).rowcount == 0:
        raise _not_open(connection, key)


def _check_open(connection: Connection, key: Key) -> None:
    row = connection.execute(sa.select(runs.c.finished_at).where(_is(runs, key))).one_or_none()
    if row is None or row.finished_at is not None:
        raise _not_open(connection, key)


def _not_open(connection: Connection, key: Key) -> StorageError:
    known = connection.execute(sa.select(runs.c.trial).where(_is(runs, key))).first()
    return StorageError(f"{_named(key)} {'is finished already' if known else 'was never begun'}")


def _named(key: Key) -> str:
    study, trial, attempt = key
    return f"attempt {attempt} of trial {trial} of study {study!r}"
