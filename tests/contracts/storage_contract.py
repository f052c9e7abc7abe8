"""What must hold of the study database, whichever database it is. A test module subclasses it and gives the URLs."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from contracts import storage_examples as examples
from contracts.storage_examples import FACTS, FORKSERVER, LAUNCH, a_constraint, a_spec, complete
from contracts.store_contract import StoreContract

from servetune.core.errors import NodeBusyError, StorageError, StudyBusyError, UsageError
from servetune.core.study import StudyRunState
from servetune.core.trial import Outcome, RunPurpose, TrialState
from servetune.storage import StudyStore, schema
from servetune.storage.database import Database, parse_url
from servetune.storage.documents import dump
from servetune.storage.owner import this_process
from servetune.storage.proposals import Proposals
from servetune.storage.tables import metadata


class StorageContract(StoreContract):
    kills = 20

    @pytest.fixture
    def url(self):
        """Of a database that holds the schema and no study."""
        raise NotImplementedError

    @pytest.fixture
    def empty_url(self):
        """Of a database that holds nothing."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, url):
        with StudyStore.open(url) as store:
            yield store

    @pytest.fixture
    def study(self, store):
        """Optuna's side of a study `quick`."""
        store.create_study(a_spec(), "study: quick\n")
        return optuna.load_study(study_name="quick", storage=store.optuna_storage)

    @pytest.fixture
    def execute(self, url):
        """Runs one statement beside the store; rows of a SELECT come back."""
        database = Database(parse_url(url))

        def run(statement, **parameters):
            with database.write() as connection:
                result = connection.execute(sa.text(statement), parameters)
                return result.all() if result.returns_rows else []

        yield run
        database.close()

    # schema

    def test_migrations_make_the_schema_of_the_tables(self, store, url):
        database = Database(parse_url(url))
        ours = {"include_object": lambda _, name, kind, *__: kind != "table" or name in metadata.tables}
        with database.read() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True, **ours})
            differences = compare_metadata(context, metadata)
        database.close()
        assert differences == []

    def test_optunas_version_table_stays_optunas(self, store, execute):
        ours = execute("SELECT version_num FROM servetune_alembic_version")
        optunas = execute("SELECT version_num FROM alembic_version")
        assert [row[0] for row in optunas] == [store.optuna_storage.get_head_version()]
        assert ours != optunas

    def test_processes_that_open_an_empty_database_at_once_all_succeed(self, empty_url):
        processes = [examples.start(examples.open_and_close, empty_url) for _ in range(6)]
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * 6
        with StudyStore.open(empty_url, create=False) as store:
            assert store.studies() == ()

    def test_a_kill_while_the_schema_is_made_is_repaired_by_the_next_open(self, empty_url):
        chance = random.Random(0)
        for _ in range(8):
            process = examples.start(examples.open_and_close, empty_url)
            process.join(chance.uniform(0.02, 0.4))
            process.kill()
            process.join()
        with StudyStore.open(empty_url) as store:
            store.create_study(a_spec(), "")
            assert [study.name for study in store.studies()] == ["quick"]

    def test_nothing_there_is_a_usage_error_unless_it_may_be_created(self, empty_url):
        with pytest.raises(UsageError, match=r"no study database at .*; start a study first"):
            StudyStore.open(empty_url, create=False)

    def test_a_newer_schema_is_refused(self, store, url, execute):
        execute("UPDATE servetune_alembic_version SET version_num = '9999'")
        with pytest.raises(StorageError, match=r"schema 9999, written by a newer servetune.*upgrade servetune"):
            StudyStore.open(url)

    def test_an_older_optuna_schema_is_refused_with_optunas_remedy(self, store, url, execute):
        execute("UPDATE alembic_version SET version_num = 'v3.0.0.a'")
        with pytest.raises(StorageError, match="optuna storage upgrade"):
            StudyStore.open(url)

    def test_a_database_of_optuna_alone_gets_our_tables_beside_its_own(self, empty_url):
        full = parse_url(empty_url).render_as_string(hide_password=False)
        storage = optuna.storages.RDBStorage(full)
        theirs = optuna.create_study(study_name="theirs", storage=storage)
        theirs.add_trial(optuna.trial.create_trial(value=1.0))
        with StudyStore.open(empty_url) as store:
            assert store.studies() == ()
            with pytest.raises(UsageError, match=r"'theirs' of Optuna's that servetune did not create.*--new-name"):
                store.create_study(a_spec("theirs"), "")
        assert len(theirs.trials) == 1
        storage.remove_session()
        storage.engine.dispose()

    def test_optunas_command_line_opens_the_database(self, store, study, url):
        full = parse_url(url).render_as_string(hide_password=False)
        program = Path(sys.executable).with_name("optuna")
        run = [program, "studies", "--storage", full, "-f", "json"]
        assert '"quick"' in subprocess.run(run, check=True, capture_output=True, text=True).stdout

    # studies

    def test_a_study_comes_back_as_it_was_created(self, store):
        spec = a_spec(
            "deep", budget={"trials": 3, "node_hours": 0.1}, secret_flags={"api-key": {"from_env": "API_KEY"}}
        )
        store.create_study(spec, "study: deep  # ü\0\n")
        stored = store.study("deep")
        assert stored.spec == spec
        assert stored.source == "study: deep  # ü\N{REPLACEMENT CHARACTER}\n"
        assert (stored.fingerprint, stored.state) == (spec.space.fingerprint(), StudyRunState.CREATED)
        assert stored.created_at.endswith("Z")

    def test_a_password_in_a_storage_url_is_not_stored(self, store, execute):
        secret = "postgresql://tuner:hunter2@db/studies"
        store.create_study(a_spec(storage=secret), f"study: quick\nstorage: {secret}\n")
        assert "hunter2" not in str(execute("SELECT * FROM servetune_study"))
        assert store.study("quick").spec.storage == "postgresql://tuner:***@db/studies"

    def test_a_taken_name_names_resume_and_new_name(self, store):
        store.create_study(a_spec(), "")
        with pytest.raises(UsageError, match=r"servetune resume quick.*--new-name"):
            store.create_study(a_spec(), "")

    def test_a_kill_between_optunas_study_and_ours_is_repaired(self, store):
        optuna.create_study(study_name="quick", storage=store.optuna_storage, direction="maximize")
        store.create_study(a_spec(), "text")
        assert store.study("quick").source == "text"

    def test_of_processes_that_create_one_study_exactly_one_does(self, store, url):
        results = FORKSERVER.Queue()
        processes = [examples.start(examples.create_study, url, "quick", results) for _ in range(6)]
        for process in processes:
            process.join()
        assert sorted(results.get(timeout=10) for _ in processes) == ["created"] + ["exists"] * 5

    def test_an_unknown_study_names_the_nearest(self, store):
        with pytest.raises(UsageError, match="it holds no study yet"):
            store.study("quik")
        store.create_study(a_spec(), "")
        for call in (store.study, store.trials, lambda name: store.set_state(name, StudyRunState.RUNNING)):
            with pytest.raises(UsageError, match="did you mean 'quick'"):
                call("quik")

    def test_studies_count_their_trials_and_know_the_best_value(self, store, study):
        for value in (90.0, 110.0):
            number = study.ask().number
            store.save_outcome("quick", number, complete(value))
            study.tell(number, value)
        rejected = study.ask().number
        store.save_outcome("quick", rejected, Outcome(state=TrialState.REJECTED))
        study.tell(rejected, state=optuna.trial.TrialState.FAIL)
        study.ask()
        study.enqueue_trial({"tp-size": 2})
        store.create_study(a_spec("second"), "")
        first, second = store.studies()
        assert first.trials == {
            TrialState.COMPLETE: 2, TrialState.REJECTED: 1, TrialState.RUNNING: 1, TrialState.WAITING: 1
        }  # fmt: skip
        assert (first.best, second.best, second.trials) == (110.0, None, {})

    def test_secrets_are_stored_as_references(self, store, study, execute, monkeypatch):
        monkeypatch.setenv("API_KEY", "hunter2")
        store.begin_run("quick", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        (row,) = execute("SELECT launch FROM servetune_run")
        assert '{"from_env":"API_KEY"}' in row[0]
        assert "hunter2" not in row[0]

    def test_reading_optunas_rows_by_sql_gives_what_its_api_gives(self, store, study, url):
        study.enqueue_trial({"kind": None}, user_attrs={"assignment": {"é": [1, None]}, "baseline": True})
        for number in range(12):
            trial = study.ask()
            trial.suggest_categorical("kind", [None, True, 1, 2.5, "text"])
            trial.suggest_int("size", 8, 512, log=True)
            trial.suggest_float("fraction", 0.5, 0.95)
            if number % 2:
                trial.suggest_float("grid", 0.1, 0.9, step=0.1)
            trial.set_user_attr("number", number)
        states = optuna.trial.TrialState
        for number, state in enumerate((states.COMPLETE, states.PRUNED, states.FAIL)):
            study.tell(number, 1.5 if state is states.COMPLETE else None, state=state)
        study.enqueue_trial({"size": 16})
        proposals = Proposals(store.optuna_storage)
        by_api = proposals._by_api("quick")
        database = Database(parse_url(url))
        with database.read() as connection:
            by_sql, by_number = proposals.read(connection, "quick"), proposals.states(connection, "quick")
        database.close()
        assert list(by_sql) == list(by_api)
        assert [list(map(type, trial.params.values())) for trial in by_sql] == [
            list(map(type, trial.params.values())) for trial in by_api
        ]
        assert by_number == {trial.number: trial.state for trial in by_api}
        assert proposals._by_sql, "Optuna's schema is not the one that is read by SQL: compare and raise SCHEMA"

    def test_an_older_schema_is_migrated_and_keeps_its_rows(self, empty_url):
        database = Database(parse_url(empty_url))
        with database.write() as connection:
            config = schema._config()
            config.attributes["connection"] = connection
            command.upgrade(config, "0001")
            values = {"name": "old", "spec": dump(a_spec("old")), "source": "", "fingerprint": "f", "reason": ""}
            times = {"created_at": "2026-11-29T12:00:00.000Z", "state": "stopped"}
            connection.execute(metadata.tables["servetune_study"].insert().values(**values, **times))
        database.close()
        with StudyStore.open(empty_url) as store:
            assert store.study("old").state is StudyRunState.STOPPED
            store.learn(a_constraint())

    # more of runs and the ledger

    def test_rows_belong_to_a_study_that_exists(self, store, study):
        with pytest.raises(StorageError, match="study database"):
            store.begin_run("nowhere", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        with pytest.raises(StorageError, match="study database"):
            store.charge("nowhere", "launch", 1.0)

    def test_every_study_has_its_own_rows(self, store, study):
        store.create_study(a_spec("second"), "")
        store.begin_run("second", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        store.finish_run("second", 0, 1, node_s=1.0, charges={"launch": 1.0})
        store.save_outcome("second", 0, complete())
        assert (store.runs("quick"), store.outcome("quick", 0), store.ledger("quick")) == ((), None, {})

    # leases

    def test_a_held_lease_names_its_owner(self, store, url):
        lease = store.acquire("study:quick", 30)
        with StudyStore.open(url) as second:
            message = rf"study quick is in use by process {this_process().pid} on host .* since .*kill -INT"
            with pytest.raises(StudyBusyError, match=message):
                second.acquire("study:quick", 30)
            with pytest.raises(StudyBusyError):  # nor twice by one process
                store.acquire("study:quick", 30)
            second.acquire("study:other", 30)
            lease.check()
            lease.release()
            lease.release()
            second.acquire("study:quick", 30)

    def test_a_busy_node_is_another_error(self, store):
        store.acquire("node:gpu-1/0-7", 30)
        with pytest.raises(NodeBusyError, match="node gpu-1/0-7 is in use by process"):
            store.acquire("node:gpu-1/0-7", 30)

    def test_closing_the_store_releases_its_leases(self, store, url):
        with StudyStore.open(url) as second:
            second.acquire("study:quick", 30)
        store.acquire("study:quick", 30)

    def test_a_lease_is_renewed_while_it_is_held(self, store, execute):
        lease = store.acquire("study:quick", 0.6)
        expiry = "SELECT expires_at FROM servetune_lease"
        first = execute(expiry)
        time.sleep(1.2)
        assert execute(expiry) > first
        lease.check()
        with pytest.raises(StudyBusyError):
            store.acquire("study:quick", 0.6)

    @pytest.mark.parametrize(
        ("owner", "free"),
        [
            ({"pid": 2**22 + 1}, True),  # above the kernel's highest pid
            ({"started": "1"}, True),
            ({"boot": "another"}, True),
            ({"boot": ""}, False),
            ({"host": "elsewhere", "pid": 2**22 + 1}, False),
            ({"machine": "a clone of the same name", "boot": "another"}, False),
            ({"pid_namespace": "pid:[1]", "pid": 2**22 + 1}, False),
            ({}, False),
        ],
    )
    def test_only_a_provably_dead_owner_is_followed_at_once(self, store, execute, owner, free):
        _plant(execute, this_process().model_copy(update=owner), expires_in="future")
        if free:
            store.acquire("study:quick", 30).check()
        else:
            with pytest.raises(StudyBusyError):
                store.acquire("study:quick", 30)

    def test_an_expired_lease_is_free_whoever_holds_it(self, store, execute):
        _plant(execute, this_process().model_copy(update={"host": "elsewhere"}), expires_in="past")
        store.acquire("study:quick", 30).check()

    def test_a_lease_that_was_taken_is_lost_and_names_the_taker(self, store, execute):
        lease = store.acquire("study:quick", 0.6)
        taker = this_process().model_copy(update={"host": "elsewhere", "pid": 77})
        execute("UPDATE servetune_lease SET token = 'x', owner = :owner", owner=dump(taker))
        _wait_for(lambda: lease.lost)
        with pytest.raises(StudyBusyError, match="taken over by process 77 on host elsewhere"):
            lease.check()
        lease.release()
        assert execute("SELECT token FROM servetune_lease") == [("x",)]

    def test_of_eight_contenders_one_wins_and_after_its_kill_one_other(self, store, url):
        for killed in (None, "winner"):
            results, context = FORKSERVER.Queue(), FORKSERVER
            go, stay = context.Event(), context.Event()
            if killed is None:
                holder = None
            contenders = [
                examples.start(examples.contend, url, "study:quick", 600, results, go, stay) for _ in range(8)
            ]
            for _ in contenders:
                assert results.get(timeout=60) == "ready"
            if holder is not None:
                holder.kill()
                holder.join()
            go.set()
            answers = dict(results.get(timeout=60) for _ in contenders)
            winners = [pid for pid, answer in answers.items() if answer == "won"]
            assert len(winners) == 1, answers
            losers = [answer for answer in answers.values() if answer != "won"]
            assert all(f"process {winners[0]} on host" in answer for answer in losers)
            holder = next(process for process in contenders if process.pid == winners[0])
        stay.set()
        holder.join(30)
        assert holder.exitcode == 0
        store.acquire("study:quick", 30)

    # kills and concurrency

    def test_killed_again_and_again_the_database_holds_no_half_rows(self, store, url):
        chance = random.Random(7)
        for _ in range(self.kills):
            steps = FORKSERVER.Semaphore(0)
            tuner = examples.start(examples.tune, url, "quick", steps)
            for _ in range(chance.randrange(25)):
                assert steps.acquire(timeout=60)
            time.sleep(chance.uniform(0, 0.01))
            tuner.kill()
            tuner.join()
            with StudyStore.open(url, create=False) as fresh:
                if fresh.studies():
                    _check_invariants(fresh)
        assert len(store.trials("quick")) >= self.kills / 2

    def test_reading_while_a_tuner_writes_never_fails(self, store, url):
        steps, finished = FORKSERVER.Semaphore(0), FORKSERVER.Queue()
        tuner = examples.start(examples.tune, url, "quick", steps)
        assert steps.acquire(timeout=60)
        readers = [examples.start(examples.read_again_and_again, url, "quick", 6, finished) for _ in range(2)]
        assert [finished.get(timeout=60) for _ in readers] == [6, 6]
        while steps.acquire(block=False):
            pass
        assert steps.acquire(timeout=60), "the tuner goes on"
        tuner.kill()
        tuner.join()


def _check_invariants(store: StudyStore) -> None:
    trials = store.trials("quick")
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert sum(not trial.state.finished for trial in trials) <= 1
    study = optuna.load_study(study_name="quick", storage=store.optuna_storage)
    for told in study.get_trials(deepcopy=False):
        assert (store.outcome("quick", told.number) is not None) or not told.state.is_finished()
    finished = [run for run in store.runs("quick") if run.finished_at]
    for run in finished:
        assert [level.concurrency for level in run.measurements] == [1, 256]
        assert list(run.phase_s) == ["start", "level:1", "level:256"]
    for trial in trials:
        if trial.state is TrialState.COMPLETE:
            assert [bool(run.finished_at) for run in trial.runs] == [True]
    ledger = dict(store.ledger("quick"))
    ledger.pop("interrupted", None)
    expected = {"launch": examples.LAUNCH_S, "measure": 2 * examples.LEVEL_S}
    assert ledger == ({purpose: node_s * len(finished) for purpose, node_s in expected.items()} if finished else {})


def _plant(execute, owner, expires_in: str) -> None:
    """A lease as another process would have left it."""
    execute(
        "INSERT INTO servetune_lease VALUES ('study:quick', 'planted', :owner, :past, :past, :expiry)",
        owner=dump(owner),
        past="2026-01-01T00:00:00.000Z",
        expiry={"past": "2026-01-01T00:01:00.000Z", "future": "2999-01-01T00:00:00.000Z"}[expires_in],
    )


def _wait_for(happened, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
