"""Leases: a row that says which process works on a study or a node, renewed while it lives.

A lease is taken over at once when its owner is provably dead on this host (no such process, another process under its
pid, or the host was rebooted), and otherwise after it expired. Expiry is written and judged by the database's clock:
one clock for all, so hosts whose clocks differ cannot misjudge each other. Each change is one conditional statement on
the token of the acquisition that was read, so of several contenders exactly one wins.
"""

from __future__ import annotations

import threading
import time
import uuid
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Row

from servetune.core.errors import NodeBusyError, ServetuneError, StorageError, StudyBusyError
from servetune.storage.database import Database
from servetune.storage.documents import dump, load
from servetune.storage.owner import Owner, provably_dead, this_process
from servetune.storage.tables import lease as table
from servetune.storage.times import later


class Lease:
    """A held lease; a daemon thread renews it every third of `ttl_s`. Also a context manager that releases it."""

    def __init__(self, database: Database, key: str, token: str, ttl_s: float) -> None:
        self.key = key
        self.ttl_s = ttl_s
        self._database = database
        self._token = token
        self._taken_by: Owner | None = None
        self._lost = False
        self._renewed_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease {key}", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether a renewal found that somebody else took it. Never becomes False again."""
        return self._lost

    def check(self) -> None:
        """Return only while the lease is surely ours. Cheap; call it before anything that must not happen twice.

        Raises StudyBusyError or NodeBusyError when it was taken, StorageError when it expired unrenewed and the
        database cannot be asked.
        """
        if not self._lost and time.monotonic() - self._renewed_s >= self.ttl_s:
            self._renew()
        if self._lost:
            owner = self._taken_by or "another process"
            raise _busy(self.key, f"was taken over by {owner} while this process was not renewing its lease; stop here")

    def release(self) -> None:
        """Give it up. Idempotent; never raises: a row that cannot be deleted now is void once this process ends."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join()
        try:
            with self._database.write() as connection:
                connection.execute(table.delete().where(table.c.key == self.key, table.c.token == self._token))
        except StorageError:
            return

    def _keep(self) -> None:
        while not self._lost and not self._stop.wait(self.ttl_s / 3):
            try:
                self._renew()
            except StorageError:
                continue  # the next round tries again; check() judges by the time of the last success

    def _renew(self) -> None:
        asked_s = time.monotonic()
        with self._database.write() as connection:
            now = self._database.now(connection)
            mine = sa.and_(table.c.key == self.key, table.c.token == self._token)
            times = {"renewed_at": now, "expires_at": later(now, self.ttl_s)}
            if connection.execute(table.update().where(mine).values(times)).rowcount == 1:
                self._renewed_s = asked_s
                return
            held = _held(connection, self.key)
        self._taken_by = load(Owner, held.owner) if held else None
        self._lost = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire(database: Database, key: str, ttl_s: float) -> Lease:
    """Take the lease `study:<name>` or `node:<identity>`.

    Raises StudyBusyError or NodeBusyError naming the owner's host and pid, since when, until when, and what to do.
    """
    if not ttl_s > 0:
        raise ValueError(f"ttl_s must be above 0, got {ttl_s}")
    token = uuid.uuid4().hex
    while True:
        with database.write() as connection:
            now = database.now(connection)
            values = {
                "key": key,
                "token": token,
                "owner": dump(this_process()),
                "acquired_at": now,
                "renewed_at": now,
                "expires_at": later(now, ttl_s),
            }
            _insert(connection, values)
            held = _held(connection, key)
            if held is None:  # released since the insertion found it taken
                won = False
            elif held.token == token:
                won = True
            elif held.expires_at <= now or provably_dead(load(Owner, held.owner)):
                won = _take_over(connection, held, values)
            else:
                raise _busy(key, _described(held))
        if won:
            return Lease(database, key, token, ttl_s)


def alive(database: Database, key: str) -> bool:
    """Whether somebody holds the lease now: not expired, its owner not provably dead. Changes nothing."""
    with database.read() as connection:
        held = _held(connection, key)
        return (
            held is not None
            and held.expires_at > database.now(connection)
            and not provably_dead(load(Owner, held.owner))
        )


def _held(connection: Connection, key: str) -> Row[Any] | None:
    return connection.execute(sa.select(table).where(table.c.key == key)).one_or_none()


def _insert(connection: Connection, values: dict[str, str]) -> None:
    """No change when the key is taken."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    connection.execute(insert(table).values(values).on_conflict_do_nothing())


def _take_over(connection: Connection, held: Row[Any], values: dict[str, str]) -> bool:
    unchanged = sa.and_(table.c.key == held.key, table.c.token == held.token, table.c.renewed_at == held.renewed_at)
    return connection.execute(table.update().where(unchanged).values(values)).rowcount == 1


def _described(held: Row[Any]) -> str:
    owner = load(Owner, held.owner)
    return (
        f"is in use by {owner} since {held.acquired_at} (lease renewed at {held.renewed_at}, valid until "
        f"{held.expires_at} unless renewed). Stop that process (Ctrl-C, or `kill -INT {owner.pid}` on {owner.host}) or "
        f"wait for it; if {owner.host} is gone, the lease is free after that time"
    )


def _busy(key: str, what: str) -> ServetuneError:
    kind, _, name = key.partition(":")
    if kind == "node":
        return NodeBusyError(f"node {name} {what}")
    return StudyBusyError(f"study {name} {what}")
