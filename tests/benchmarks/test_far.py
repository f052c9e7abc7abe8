"""The load generator as it runs on a node."""

import os
import subprocess
import sys


def test_it_ends_when_nobody_asks_it_for_long_although_its_input_stays_open():
    """As that of a connection whose other machine died."""
    words = [sys.executable, "-m", "servetune.benchmarks._far"]
    environ = {**os.environ, "SERVETUNE_HEARD_WITHIN_S": "0.5"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as program:
        assert b"ready" in program.stdout.readline()
        assert program.wait(20) == 0
