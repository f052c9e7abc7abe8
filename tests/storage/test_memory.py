import pytest
from contracts.storage_examples import a_spec
from contracts.store_contract import StoreContract

from servetune.core.errors import UsageError
from servetune.storage import MemoryStore


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self):
        with MemoryStore() as store:
            yield store

    def test_it_holds_one_study(self, store, study):
        with pytest.raises(UsageError, match="holds the study 'quick'"):
            store.create_study(a_spec("second"), "")
        with pytest.raises(UsageError, match="no study 'second' in memory"):
            store.study("second")

    def test_its_leases_are_always_held(self, store):
        with store.acquire("study:quick") as lease, store.acquire("study:quick"):
            lease.check()
