import pytest
from contracts.storage_contract import StorageContract

pytestmark = pytest.mark.postgresql


class TestPostgreSQL(StorageContract):
    kills = 8  # each is dearer here

    @pytest.fixture
    def url(self, postgresql_url):
        return postgresql_url

    @pytest.fixture
    def empty_url(self, empty_postgresql_url):
        return empty_postgresql_url
