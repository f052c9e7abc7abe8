"""Our tables, beside Optuna's in the same database. `migrations/` makes the schema; a test compares the two.

Every name begins with `servetune_`. Rows are keyed by study name and Optuna's trial number; nothing refers to Optuna's
tables, which stay Optuna's alone. Columns named after a type of `core` hold its JSON (see `documents`).
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

Double = Float(53)
Time = String(32)
Name = String(100)


def _of_study() -> Column[str]:
    return Column("study", Name, ForeignKey("servetune_study.name", ondelete="CASCADE"), primary_key=True)


def _of_run() -> ForeignKeyConstraint:
    target = [f"servetune_run.{column}" for column in ("study", "trial", "attempt")]
    return ForeignKeyConstraint(["study", "trial", "attempt"], target, ondelete="CASCADE")


study = Table(
    "servetune_study",
    metadata,
    Column("name", Name, primary_key=True),
    Column("spec", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("created_at", Time, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
)

run = Table(
    "servetune_run",
    metadata,
    _of_study(),
    Column("trial", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("purpose", String(16), nullable=False),
    Column("launch", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Column("started_at", Time, nullable=False),
    Column("finished_at", Time),  # NULL: still running, or interrupted
    Column("node_s", Double, nullable=False),
    Column("failure", Text),
    Column("log_facts", Text, nullable=False),
    Column("log_warnings", Text, nullable=False),
)

phase = Table(
    "servetune_phase",
    metadata,
    Column("id", Integer, primary_key=True),  # order in which the phases were first saved
    Column("study", Name, nullable=False),
    Column("trial", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("name", String(64), nullable=False),
    Column("duration_s", Double, nullable=False),
    _of_run(),
    UniqueConstraint("study", "trial", "attempt", "name"),
)

measurement = Table(
    "servetune_measurement",
    metadata,
    Column("id", Integer, primary_key=True),  # order in which the levels were first measured
    Column("study", Name, nullable=False),
    Column("trial", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("valid", Boolean, nullable=False),  # this and the next repeat the document, for people who write SQL
    Column("output_tokens_per_s", Double),
    Column("document", Text, nullable=False),
    _of_run(),
    UniqueConstraint("study", "trial", "attempt", "concurrency"),
)

answers = Table(
    "servetune_answers",
    metadata,
    _of_study(),
    Column("trial", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("wrong", Boolean, nullable=False),  # repeats the document
    Column("document", Text, nullable=False),
    _of_run(),
)

outcome = Table(
    "servetune_outcome",
    metadata,
    _of_study(),
    Column("trial", Integer, primary_key=True, autoincrement=False),
    Column("state", String(16), nullable=False),  # this and the next repeat the document
    Column("value", Double),
    Column("document", Text, nullable=False),
    Column("saved_at", Time, nullable=False),
)

charge = Table(
    "servetune_charge",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("study", Name, ForeignKey("servetune_study.name", ondelete="CASCADE"), nullable=False),
    Column("trial", Integer),
    Column("purpose", String(32), nullable=False),
    Column("node_s", Double, nullable=False),
    Column("charged_at", Time, nullable=False),
    Index("servetune_charge_study", "study"),
)

lease = Table(
    "servetune_lease",
    metadata,
    Column("key", String(200), primary_key=True),
    Column("token", String(32), nullable=False),  # of this very acquisition
    Column("owner", Text, nullable=False),
    Column("acquired_at", Time, nullable=False),  # these three by the database's clock
    Column("renewed_at", Time, nullable=False),
    Column("expires_at", Time, nullable=False),
)

constraint = Table(
    "servetune_constraint",
    metadata,
    Column("key", String(16), primary_key=True),
    Column("slug", String(64), nullable=False),
    Column("forbids", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("confidence", Double, nullable=False),
    Column("lessons", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("withdrawn", Text, nullable=False),  # empty: it applies
    Column("rejections", Integer, nullable=False),
    Column("learned_at", Time, nullable=False),
    Column("changed_at", Time, nullable=False),
)
