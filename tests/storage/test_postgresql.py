import optuna
import psycopg
import pytest
from contracts.storage_contract import StorageContract
from contracts.storage_examples import a_spec

from servetune.core.study import StudyRunState

pytestmark = pytest.mark.postgresql


class TestPostgreSQL(StorageContract):
    kills = 8  # each is dearer here

    @pytest.fixture
    def url(self, postgresql_url):
        return postgresql_url

    @pytest.fixture
    def empty_url(self, empty_postgresql_url):
        return empty_postgresql_url

    def test_a_study_outlives_a_restart_of_the_server(self, store, study, url):
        lease = store.acquire("study:quick", 30)
        study.ask()
        with psycopg.connect(url, autocommit=True) as connection:
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            ended = connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
            assert len(ended.fetchall()) >= 2  # ours and Optuna's
        store.set_state("quick", StudyRunState.RUNNING)
        assert study.ask().number == 1
        assert len(store.trials("quick")) == 2
        lease._renew()
        lease.check()

    def test_no_transaction_stays_open_between_calls(self, store, study, url):
        study.ask()
        store.trials("quick")
        store.create_study(a_spec("second"), "")
        optuna.load_study(study_name="quick", storage=store.optuna_storage).get_trials()
        with psycopg.connect(url) as connection:
            query = "SELECT state, query FROM pg_stat_activity WHERE datname = current_database()"
            assert [row for row in connection.execute(query) if row[0].startswith("idle in")] == []
