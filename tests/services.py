"""Outside services that tests need: where they come from, and what their absence means."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parent.parent
POSTGRESQL_SCRIPT = ROOT / ".ci" / "postgresql.sh"
POSTGRESQL_URL = "SERVETUNE_TEST_POSTGRESQL_URL"


def require(service: str, reason: str) -> NoReturn:
    """Call it where `service` is missing: skips the test by name; with CI=true it fails instead."""
    message = f"needs {service}: {reason}"
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@contextmanager
def postgresql() -> Iterator[str]:
    """URL of a PostgreSQL server where the tests may create databases: the environment's, or one started for them."""
    given = os.environ.get(POSTGRESQL_URL)
    if given:
        yield given
        return
    if subprocess.run([POSTGRESQL_SCRIPT, "available"], check=False).returncode:
        require("PostgreSQL", f"install the package `postgresql`, or set {POSTGRESQL_URL}")
    with subprocess.Popen(
        [POSTGRESQL_SCRIPT, "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        url = server.stdout.readline().strip()
        if not url:
            require("PostgreSQL", f"{POSTGRESQL_SCRIPT} failed with status {server.wait()}")
        yield url  # leaving the block closes its input, which ends the server
