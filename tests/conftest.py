"""One thread for linear algebra: matrices are small, and threads that wait for each other count as computing time."""

import os

import pytest

# before any test module imports them: their asserts show values like those of test modules
for contract in ("load_generator_contract", "node_contract", "storage_contract", "store_contract"):
    pytest.register_assert_rewrite(f"contracts.{contract}")

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
