"""Brings a database to the schema of this version: Optuna's tables by Optuna, ours by Alembic."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from optuna.storages import RDBStorage
from sqlalchemy.engine import Connection

from servetune.core.errors import StorageError, UsageError
from servetune.storage.database import BUSY_TIMEOUT_S, Database, engine_settings

#: Optuna owns `alembic_version` in the same database.
VERSION_TABLE = "servetune_alembic_version"

#: Key of the PostgreSQL advisory lock held while a schema is made; any fixed number ("stune" in ASCII).
ADVISORY_LOCK = 0x7374756E65


def prepare(database: Database, *, create: bool) -> RDBStorage:
    """Make or migrate both schemas, and return Optuna's storage on the same database. Safe when processes race.

    Raises UsageError when nothing is there and `create` is False; StorageError for a schema newer than this version
    or an Optuna schema that this Optuna cannot use.
    """
    if database.file:
        _prepare_file(database.file, database.shown, create=create)
    script = ScriptDirectory.from_config(_config())
    with database.errors():
        version = _version(database)
        if version == script.get_current_head():
            return _optuna(database, create=False)
        if version is None and not create:
            raise _nothing_there(database.shown)
        with _one_at_a_time(database):
            _check_known(database, script)
            storage = _optuna(database, create=True)
            with ExitStack() as undo:
                undo.callback(storage.engine.dispose)
                _migrate(database)
                undo.pop_all()
            return storage


def _prepare_file(file: Path, shown: str, *, create: bool) -> None:
    if not create and not (file.exists() and file.stat().st_size):
        raise _nothing_there(shown)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"study database {shown}: cannot make its folder: {error}; name another place in `storage:`"
        raise StorageError(message) from error


def _nothing_there(shown: str) -> UsageError:
    return UsageError(f"no study database at {shown}; start a study first: `servetune start STUDY_FILE`")


def _version(database: Database) -> str | None:
    with database.read() as connection:
        return _context(connection).get_current_revision()


def _context(connection: Connection) -> MigrationContext:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})


def _check_known(database: Database, script: ScriptDirectory) -> None:
    version = _version(database)
    known = [revision.revision for revision in script.walk_revisions()]
    if version is not None and version not in known:
        raise StorageError(
            f"study database {database.shown} has schema {version}, written by a newer servetune; this one knows up to "
            f"{known[0]}: upgrade servetune, or name another database in `storage:`"
        )


def _migrate(database: Database) -> None:
    if database.file:
        _use_wal(database)
    with database.write() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _use_wal(database: Database) -> None:
    """The mode is a property of the file, so once is enough."""
    with database.engine.connect() as connection:  # outside a transaction
        mode = connection.exec_driver_sql("PRAGMA journal_mode = WAL").scalar_one()
    if mode != "wal":
        raise StorageError(
            f"study database {database.shown}: its file system cannot do SQLite's WAL mode (got {mode!r}): "
            f"put it on a local disk, or use PostgreSQL"
        )


def _config() -> Config:
    config = Config()
    folder = str(Path(__file__).with_name("migrations"))
    config.set_main_option("script_location", folder.replace("%", "%%"))
    return config


def _optuna(database: Database, *, create: bool) -> RDBStorage:
    # Optuna takes the URL for a format string with one field, its schema version
    url = database.url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")
    storage = RDBStorage(
        url, engine_kwargs=engine_settings(database.url), skip_compatibility_check=True, skip_table_creation=not create
    )
    found, wanted = storage.get_current_version(), storage.get_head_version()
    if found == wanted:
        database.translate_errors_of(storage.engine)
        return storage
    storage.engine.dispose()
    cure = (
        "`optuna storage upgrade --storage URL`"
        if found in storage.get_all_versions()
        else "`pip install --upgrade optuna`"
    )
    raise StorageError(
        f"study database {database.shown} has Optuna's schema {found}, and this Optuna needs {wanted}: run {cure}"
    )


@contextmanager
def _one_at_a_time(database: Database) -> Iterator[None]:
    if database.file:
        with _folder_lock(database.file.parent, database.shown):
            yield
        return
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text(f"SET lock_timeout = '{BUSY_TIMEOUT_S}s'"))
        connection.execute(sa.text("SELECT pg_advisory_lock(:key)"), {"key": ADVISORY_LOCK})
        try:
            yield
        finally:
            connection.execute(sa.text("SELECT pg_advisory_unlock(:key)"), {"key": ADVISORY_LOCK})
            connection.execute(sa.text("RESET lock_timeout"))


@contextmanager
def _folder_lock(folder: Path, shown: str) -> Iterator[None]:
    """SQLite cannot lock across Optuna's own transactions; a lock on the folder leaves no file behind."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"study database {shown}: another process has been creating or migrating it for a minute"
                    raise StorageError(f"{message}; end that process, then run the command again") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)
