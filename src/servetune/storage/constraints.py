"""Rows of learned constraints; of the whole database, not of one study."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from servetune.core.errors import UsageError
from servetune.core.knowledge import LearnedConstraint
from servetune.storage.documents import dump, plain_text
from servetune.storage.tables import constraint as table
from servetune.storage.times import now


def learn(connection: Connection, learned: LearnedConstraint) -> LearnedConstraint:
    """Add it; one that says the same is made surer and gains the lessons. Returns what is stored now.

    A withdrawn one stays withdrawn: what has worked once is not forbidden by another crash.
    """
    known = _row(connection, learned.key)
    if known is None:
        connection.execute(table.insert().values(key=learned.key, learned_at=now(), **_values(learned)))
        return learned
    merged = _constraint(known).merged(learned)
    connection.execute(table.update().where(table.c.key == learned.key).values(_values(merged)))
    return merged


def every(connection: Connection, withdrawn: bool) -> tuple[LearnedConstraint, ...]:
    """All that apply, in the order in which they were learned; with `withdrawn`, those that no longer do, too."""
    query = sa.select(table).order_by(table.c.learned_at, table.c.key)
    if not withdrawn:
        query = query.where(table.c.withdrawn == "")
    return tuple(_constraint(row) for row in connection.execute(query))


def withdraw(connection: Connection, key: str, reason: str) -> None:
    """It no longer applies, because of `reason` (not empty). Raises UsageError for an unknown key."""
    if not reason:
        raise ValueError("a constraint is withdrawn for a reason")
    _change(connection, key, {"withdrawn": plain_text(reason)})


def touch(connection: Connection, key: str) -> None:
    """It has saved one more launch. Raises UsageError for an unknown key."""
    _change(connection, key, {"rejections": table.c.rejections + 1})


def _change(connection: Connection, key: str, values: dict[str, Any]) -> None:
    change = table.update().where(table.c.key == key).values(changed_at=now(), **values)
    if connection.execute(change).rowcount == 0:
        raise UsageError(f"no learned constraint {key!r}; `servetune knowledge export` lists them")


def _row(connection: Connection, key: str) -> Row[Any] | None:
    return connection.execute(sa.select(table).where(table.c.key == key)).one_or_none()


def _values(learned: LearnedConstraint) -> dict[str, Any]:
    fields = learned.model_dump(mode="json")
    documents = {name: dump(fields[name]) for name in ("forbids", "scope", "lessons")}
    texts = {name: plain_text(fields[name]) for name in ("message", "withdrawn")}
    return {**fields, **documents, **texts, "changed_at": now()}


def _constraint(row: Row[Any]) -> LearnedConstraint:
    columns = row._asdict()
    fields = {name: columns[name] for name in LearnedConstraint.model_fields}
    documents = {name: json.loads(fields[name]) for name in ("forbids", "scope", "lessons")}
    return LearnedConstraint.model_validate({**fields, **documents})
