"""Rows of studies: what was asked for, and what the study was last doing."""

from __future__ import annotations

import difflib
from typing import Any

import sqlalchemy as sa
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import IntegrityError

from servetune.core.errors import StorageError, UsageError
from servetune.core.study import StoredStudy, StudyRunState, StudySpec
from servetune.storage.database import Database, masked
from servetune.storage.documents import dump, load, plain_text
from servetune.storage.tables import study as table
from servetune.storage.times import now


def create(database: Database, optuna_storage: RDBStorage, spec: StudySpec, source: str) -> None:
    """Optuna's study first, then our row: a kill between the two leaves an empty Optuna study, which is adopted here.

    Raises UsageError when the name is taken.
    """
    with database.read() as connection:
        if connection.execute(sa.select(table.c.name).where(table.c.name == spec.study)).first():
            raise _exists(spec.study, database.shown)
    with database.errors():
        _create_in_optuna(optuna_storage, spec.study, database.shown)
    try:
        with database.write() as connection:
            connection.execute(table.insert().values(_values(spec, source)))
    except StorageError as error:
        if isinstance(error.__cause__, IntegrityError):  # another process was faster
            raise _exists(spec.study, database.shown) from error
        raise


def _create_in_optuna(optuna_storage: RDBStorage, name: str, shown: str) -> None:
    try:
        optuna_storage.create_new_study([StudyDirection.MAXIMIZE], name)
    except DuplicatedStudyError:
        study_id = optuna_storage.get_study_id_from_name(name)
        ours = optuna_storage.get_study_directions(study_id) == [StudyDirection.MAXIMIZE]
        if not ours or optuna_storage.get_n_trials(study_id):
            message = f"{shown} holds a study {name!r} of Optuna's that servetune did not create"
            raise UsageError(f"{message}: choose another name (`--new-name NAME`)") from None


def _values(spec: StudySpec, source: str) -> dict[str, str]:
    """A password in the storage URL stays out of the database that it opens."""
    return {
        "name": spec.study,
        "spec": dump(spec.model_copy(update={"storage": masked(spec.storage)})),
        "source": plain_text(masked(source)),
        "fingerprint": spec.space.fingerprint(),
        "created_at": now(),
        "state": StudyRunState.CREATED,
        "reason": "",
    }


def _exists(name: str, shown: str) -> UsageError:
    return UsageError(
        f"study {name!r} exists in {shown}: go on with it by `servetune resume {name}`, or start another one under "
        f"a new name with `--new-name NAME`"
    )


def get(connection: Connection, name: str, shown: str) -> StoredStudy:
    """One study. Raises UsageError naming the nearest one when there is none of that name."""
    row = connection.execute(sa.select(table).where(table.c.name == name)).one_or_none()
    if row is None:
        raise _unknown(connection, name, shown)
    return _stored(row)


def every(connection: Connection) -> tuple[StoredStudy, ...]:
    """All studies, oldest first."""
    return tuple(_stored(row) for row in connection.execute(sa.select(table).order_by(table.c.created_at)))


def set_state(connection: Connection, name: str, state: StudyRunState, reason: str, shown: str) -> None:
    """Write what the study does now, and why. Raises UsageError for an unknown study."""
    change = table.update().where(table.c.name == name).values(state=state, reason=plain_text(reason))
    if connection.execute(change).rowcount == 0:
        raise _unknown(connection, name, shown)


def revise(connection: Connection, spec: StudySpec, shown: str) -> None:
    """Write the settings that a study goes on with. Raises UsageError for an unknown study."""
    kept = dump(spec.model_copy(update={"storage": masked(spec.storage)}))
    if connection.execute(table.update().where(table.c.name == spec.study).values(spec=kept)).rowcount == 0:
        raise _unknown(connection, spec.study, shown)


def _stored(row: Row[Any]) -> StoredStudy:
    columns = row._asdict()
    return StoredStudy(**{**columns, "spec": load(StudySpec, columns["spec"])})


def _unknown(connection: Connection, name: str, shown: str) -> UsageError:
    known = list(connection.execute(sa.select(table.c.name).order_by(table.c.created_at)).scalars())
    if not known:
        return UsageError(
            f"no study {name!r} in {shown}: it holds no study yet; `servetune start STUDY_FILE` makes one"
        )
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UsageError(f"no study {name!r} in {shown}; there are: {', '.join(known)}{hint}")
