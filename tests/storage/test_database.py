"""URLs, and errors in our words: what happened, where, what to do, and never a password."""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
import services
from contracts.storage_examples import FACTS, LAUNCH, a_spec

from servetune.core.errors import SpecError, StorageError
from servetune.core.trial import RunPurpose
from servetune.storage import StudyStore
from servetune.storage.database import Database, masked, parse_url

NOT_A_PORT = "127.0.0.1:9"  # discard: nothing listens there


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("sqlite:////abs/studies.db", "sqlite:////abs/studies.db"),
        ("sqlite+pysqlite:////abs/studies.db", "sqlite:////abs/studies.db"),
        ("sqlite:///studies/studies.db", f"sqlite:///{Path.cwd()}/studies/studies.db"),
        ("sqlite:///~/studies.db", f"sqlite:///{Path.home()}/studies.db"),
        ("postgresql://me:pw@db/x", "postgresql+psycopg://me:***@db/x"),
        ("postgres://me@db:1/x", "postgresql+psycopg://me@db:1/x"),
        ("postgresql+psycopg://db/x?sslmode=require", "postgresql+psycopg://db/x?sslmode=require"),
    ],
)
def test_urls(text, parsed):
    assert Database(parse_url(text)).shown == parsed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("studies.db", "cannot be read"),
        ("postgresql://me:hunter2@db:port/x", "cannot be read"),
        ("mysql://me:hunter2@db/x", "names the database 'mysql'"),
        ("postgresql+asyncpg://me:hunter2@db/x", "names the database 'postgresql\\+asyncpg'"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///file:x?mode=memory&uri=true", "names no file"),
    ],
)
def test_other_urls_are_refused_with_what_is_allowed(text, problem):
    with pytest.raises(SpecError, match=f"{problem}.*sqlite:///.*postgresql://") as refused:
        parse_url(text)
    assert "hunter2" not in str(refused.value)


def test_masked_passwords():
    text = "a: postgresql://me:p@ss:w0rd@db/x # and redis://:pw@h, http://host:80/path@2"
    assert masked(text) == "a: postgresql://me:***@db/x # and redis://:***@h, http://host:80/path@2"


def test_a_server_that_does_not_answer(capfd):
    with pytest.raises(StorageError, match="check that the server runs") as failed:
        StudyStore.open(f"postgresql://me:hunter2@{NOT_A_PORT}/x")
    assert "hunter2" not in str(failed.value)
    assert "postgresql+psycopg://me:***@" in str(failed.value)


def test_a_file_that_is_something_else(tmp_path):
    (tmp_path / "studies.db").write_text("not a database " * 100)
    with pytest.raises(
        StorageError, match="is not a database; that file is something else: name another one with --storage or"
    ):
        StudyStore.open(f"sqlite:///{tmp_path}/studies.db")


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot make its folder.*name another place"):
        StudyStore.open(f"sqlite:///{tmp_path}/file/studies.db")


def test_a_damaged_database(sqlite_url):
    path = sqlite_url.removeprefix("sqlite:///")
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 60_000)
    with pytest.raises(StorageError, match="malformed; restore it from a copy"):
        StudyStore.open(sqlite_url).studies()


def test_a_lock_that_is_never_given_up(sqlite_url, monkeypatch):
    monkeypatch.setattr("servetune.storage.database.BUSY_TIMEOUT_S", 0.2)
    with StudyStore.open(sqlite_url) as store:
        other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
        other.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(StorageError, match="database is locked; another process keeps"):
                store.create_study(a_spec(), "")
            assert store.studies() == ()  # reading goes on
        finally:
            other.close()


def test_optunas_storage_raises_our_errors(sqlite_url):
    with StudyStore.open(sqlite_url) as store:
        store.create_study(a_spec(), "")
        with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as other:
            other.execute("ALTER TABLE trials RENAME TO gone")
        other.close()
        with pytest.raises(StorageError, match=r"study database sqlite:.*no such table: trials"):
            optuna.load_study(study_name="quick", storage=store.optuna_storage).ask()


def test_a_full_disk_loses_nothing_that_was_saved(tmp_path, sqlite_template):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=640k", "tmpfs", tmp_path], check=False)
    if mounted.returncode:
        services.require("a small file system", "only root may mount one, and not in every container")
    try:
        shutil.copy(sqlite_template, tmp_path / "studies.db")
        url = f"sqlite:///{tmp_path}/studies.db"
        with StudyStore.open(url) as store:
            store.create_study(a_spec(), "")
            with pytest.raises(StorageError, match="full; free some disk space"):
                _fill(store, saved := [])
        assert len(saved) > 10
        with StudyStore.open(url) as store:
            assert [run.trial for run in store.runs("quick")] == saved
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_the_parent_folder_is_made_and_no_lock_file_is_left(tmp_path):
    StudyStore.open(f"sqlite:///{tmp_path}/a/b {{c}} %d/studies.db").close()
    assert [path.name for path in (tmp_path / "a" / "b {c} %d").iterdir()] == ["studies.db"]


def test_a_store_closes_twice(sqlite_url):
    store = StudyStore.open(sqlite_url)
    store.acquire("study:quick")
    store.close()
    store.close()


def test_the_schema_ships_with_the_package():
    listing = "import servetune.storage.migrations as m, pathlib; print(*pathlib.Path(m.__file__).parent.rglob('*.py'))"
    found = subprocess.run([sys.executable, "-c", listing], check=True, capture_output=True, text=True).stdout
    assert "versions/v0001_studies.py" in found


def _fill(store, saved):
    for trial in range(10_000):
        store.begin_run("quick", trial, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        saved.append(trial)
