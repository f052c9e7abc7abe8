from __future__ import annotations

import logging
import shutil
import uuid

import psycopg
import pytest
import services
from sqlalchemy.engine import make_url

from servetune.storage import StudyStore


@pytest.fixture(autouse=True)
def _quiet_optuna():
    logging.getLogger("optuna").setLevel(logging.WARNING)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "studies.db"
    StudyStore.open(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def sqlite_url(tmp_path, sqlite_template):
    shutil.copy(sqlite_template, tmp_path / "studies.db")
    return f"sqlite:///{tmp_path}/studies.db"


@pytest.fixture(scope="session")
def postgresql_server():
    with services.postgresql() as url:
        yield url


@pytest.fixture(scope="session")
def postgresql_template(postgresql_server):
    with _database(postgresql_server) as url:
        StudyStore.open(url).close()
        yield make_url(url).database


@pytest.fixture
def postgresql_url(postgresql_server, postgresql_template):
    with _database(postgresql_server, template=postgresql_template) as url:
        yield url


@pytest.fixture
def empty_postgresql_url(postgresql_server):
    with _database(postgresql_server) as url:
        yield url


class _database:
    """A database of a random name, dropped at the end."""

    def __init__(self, server: str, template: str = "template1") -> None:
        self.server = server
        self.template = template
        self.name = f"servetune_test_{uuid.uuid4().hex[:12]}"

    def __enter__(self) -> str:
        self._run(f'CREATE DATABASE "{self.name}" TEMPLATE "{self.template}"')
        return make_url(self.server).set(database=self.name).render_as_string(hide_password=False)

    def __exit__(self, *_: object) -> None:
        self._run(f'DROP DATABASE "{self.name}" WITH (FORCE)')

    def _run(self, statement: str) -> None:
        with psycopg.connect(self.server, autocommit=True) as connection:
            connection.execute(statement)
