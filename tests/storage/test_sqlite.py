import pytest
from contracts.storage_contract import StorageContract


class TestSQLite(StorageContract):
    @pytest.fixture
    def url(self, sqlite_url):
        return sqlite_url

    @pytest.fixture
    def empty_url(self, tmp_path):
        return f"sqlite:///{tmp_path}/new studies.db"
