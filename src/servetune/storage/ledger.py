"""The ledger: every node second that a study used, by what it was used for."""

from __future__ import annotations

import math
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from servetune.storage.tables import charge as table
from servetune.storage.times import now

#: Purpose of the node seconds of a launch that never finished because the tuner was killed.
INTERRUPTED = "interrupted"


def checked_s(name: str, seconds: float) -> float:
    """`seconds`, or ValueError when they are negative, infinite or no number."""
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"{name} must be finite and at least 0, got {seconds}")
    return seconds


def charge(connection: Connection, study: str, purpose: str, node_s: float, trial: int | None) -> None:
    """Add `node_s` (finite, at least 0) to `purpose`."""
    spent_s = checked_s(f"node seconds for {purpose!r}", node_s)
    values = {"study": study, "trial": trial, "purpose": purpose, "node_s": spent_s, "charged_at": now()}
    connection.execute(table.insert().values(values))


def totals(connection: Connection, study: str) -> Mapping[str, float]:
    """Purpose → node seconds, in the order of first use."""
    total, first = sa.func.sum(table.c.node_s), sa.func.min(table.c.id)
    query = sa.select(table.c.purpose, total).where(table.c.study == study).group_by(table.c.purpose).order_by(first)
    return {purpose: float(node_s) for purpose, node_s in connection.execute(query)}
