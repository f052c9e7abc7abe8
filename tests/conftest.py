"""One thread for linear algebra: matrices are small, and threads that wait for each other count as computing time.

And a reaper: whatever cuts a test run off, nothing that it started stays on the machine.
"""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

# before any test module imports them: their asserts show values like those of test modules
for contract in ("load_generator_contract", "node_contract", "storage_contract", "store_contract"):
    pytest.register_assert_rewrite(f"contracts.{contract}")

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background: servers would ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests of these folders run real processes against the clock; docs/decisions/0006.
AGAINST_THE_CLOCK = {Path(__file__).parent / folder for folder in ("benchmarks", "cli", "nodes", "tuner")}
REAPER = Path(__file__).parent / "fakes" / "reaper.py"


@pytest.fixture(scope="session", autouse=True)
def reaper(tmp_path_factory):
    """Waits for the end of this process, in a session of its own: signals to this one's group do not reach it."""
    os.environ["TEST_RUN"] = run = uuid.uuid4().hex
    words = [sys.executable, "-S", str(REAPER), run, str(tmp_path_factory.getbasetemp())]
    environ = {name: value for name, value in os.environ.items() if name != "TEST_RUN"}
    process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, env=environ)
    yield
    process.communicate(b"over")


def pytest_collection_modifyitems(items):
    for item in items:
        if AGAINST_THE_CLOCK.intersection(item.path.parents):
            item.add_marker(pytest.mark.flaky(reruns=1))
