"""One SQLite file or PostgreSQL database: URLs, connections, transactions, and errors in our words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from optuna.exceptions import StorageInternalError
from sqlalchemy.engine import URL, Connection, Engine, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from servetune.core.errors import SpecError, StorageError

#: How long a connection waits for another process's write before it gives up. Ours last milliseconds.
BUSY_TIMEOUT_S = 60

ALLOWED = "sqlite:///studies/studies.db, sqlite:////absolute/path.db, postgresql://user@host/database"

#: Part of the driver's message → what to do. First match wins.
REMEDIES = (
    ("database is locked", "another process keeps the database locked: end it, then run the command again"),
    ("disk is full", "free some disk space, then `servetune resume`"),
    ("no space left", "free some disk space, then `servetune resume`"),
    ("disk i/o error", "check the disk and that the database's folder still exists, then `servetune resume`"),
    ("readonly", "make the file and its folder writable for this user"),
    ("unable to open", "check that its folder exists and is writable for this user"),
    ("not a database", "that file is something else: name another one with --storage or `storage:`"),
    ("malformed", "restore it from a copy (`sqlite3 FILE .recover` may save most of it)"),
    ("authentication failed", "check user and password (PGPASSWORD or ~/.pgpass)"),
    ("no password supplied", "set PGPASSWORD or write ~/.pgpass"),
    ("does not exist", "create it first: `createdb NAME`"),
    ("permission denied", "grant this user the right to create and write tables there"),
    ("connection", "check that the server runs and can be reached, then `servetune resume`"),
)


def parse_url(text: str) -> URL:
    """The URL with the driver that we use. Raises SpecError, any password masked, for one that we do not know."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # ValueError: the port is no number
        raise SpecError(f"storage URL {masked(text)!r} cannot be read; allowed: {ALLOWED}") from None
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise SpecError(f"storage URL {masked(text)!r} names the database {url.drivername!r}; allowed: {ALLOWED}")
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise SpecError(
            f"storage URL {masked(text)!r} names no file, and a study must outlive the tuner; use {ALLOWED}"
        )
    if url.query or url.host:
        raise SpecError(f"storage URL {masked(text)!r} has a host or a query, which a file has not; use {ALLOWED}")
    try:
        path = Path(url.database).expanduser().absolute()
        path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a home that is unknown
        raise SpecError(f"storage URL {masked(text)[:200]!r} names no possible file: {error}") from None
    return url.set(drivername="sqlite", database=str(path))


def masked(text: str) -> str:
    """`text` with the password of every URL in it replaced by `***`, in its query too."""
    text = re.sub(r"(\w://[^\s:/@]*):[^\s/]*@", r"\1:***@", text)
    return re.sub(r"(?i)([?&]\w*(?:password|passwd|secret|token)\w*=)[^&\s\"']*", r"\1***", text)


class Database:
    """Connections to one database. Safe to share between threads: each transaction takes a connection of its own.

    SQLite runs in WAL mode, so that a reader never waits for a writer and sees the last commit; writers queue. A commit
    is on disk when it returns (`synchronous=FULL`): a study survives a power cut, not only a kill.
    """

    def __init__(self, url: URL) -> None:
        self.url = url
        self.shown = masked(url.render_as_string(hide_password=True))
        self.engine = sa.create_engine(url, **engine_settings(url))
        # SQLite's transactions are snapshots anyway
        self._one_state = {} if self.file else {"isolation_level": "REPEATABLE READ"}
        if self.file:
            sa.event.listen(self.engine, "connect", _set_up_sqlite)
            sa.event.listen(self.engine, "begin", _begin_sqlite)

    @property
    def file(self) -> Path | None:
        """The SQLite file; None for PostgreSQL."""
        return Path(self.url.database or "") if self.url.drivername == "sqlite" else None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads, and sees one state of the database. Raises StorageError."""
        with self.errors(), self._transaction(sqlite_begin="BEGIN", **self._one_state) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may write: all of it or nothing. Raises StorageError."""
        # SQLite: taking the write lock first waits for its turn; upgrading a read to a write would fail at once
        with self.errors(), self._transaction(sqlite_begin="BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def _transaction(self, **options: Any) -> Iterator[Connection]:
        with self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns what the driver or Optuna's storage raises into StorageError: what happened, where, what to do."""
        try:
            yield
        except StorageInternalError as error:
            raise self._storage_error(error.__cause__ or error) from error
        except SQLAlchemyError as error:
            raise self._storage_error(error) from error

    def translate_errors_of(self, engine: Engine) -> None:
        """Have another engine on this database, Optuna's, raise StorageError by itself.

        Not for violated constraints, which Optuna handles, nor for the ping that finds a connection gone.
        """

        def translate(context: ExceptionContext) -> StorageError | None:
            error = context.sqlalchemy_exception
            if error is None or isinstance(error, IntegrityError) or context.is_pre_ping:
                return None
            return self._storage_error(error)

        sa.event.listen(engine, "handle_error", translate)

    def now(self, connection: Connection) -> str:
        """The database's own clock: for PostgreSQL one clock for all hosts. Format as in `times`."""
        return str(connection.execute(sa.text(_NOW[self.url.get_backend_name()])).scalar_one())

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def _storage_error(self, error: BaseException) -> StorageError:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        what = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        if self.url.password:
            what = what.replace(str(self.url.password), "***")
        remedy = next((text for sign, text in REMEDIES if sign in what.lower()), "see the database's own log")
        return StorageError(f"study database {self.shown}: {what}; {remedy}")


def engine_settings(url: URL) -> dict[str, Any]:
    """Arguments of `create_engine` for this database; Optuna's engine gets the same."""
    if url.get_backend_name() == "sqlite":
        return {"hide_parameters": True, "connect_args": {"timeout": BUSY_TIMEOUT_S}}
    # pre-ping: a study outlives a restart of the server
    return {"hide_parameters": True, "pool_pre_ping": True, "connect_args": {"connect_timeout": 10}}


_NOW = {
    "sqlite": "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
    "postgresql": "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')",
}


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions: see _begin_sqlite
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: Connection) -> None:
    begin = connection.get_execution_options().get("sqlite_begin")
    if begin:
        connection.exec_driver_sql(begin)
