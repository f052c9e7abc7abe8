"""A test run that is cut off leaves nothing on the machine."""

import os
import subprocess
import sys
from pathlib import Path

from contracts.node_contract import alive, until

RUN = """
import os, subprocess, sys
def test_that_starts_what_it_does_not_end(tmp_path):
    hidden = {name: value for name, value in os.environ.items() if name != "TEST_RUN"}
    mine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    other = subprocess.Popen(["tail", "-f", tmp_path / "x", "/dev/null"], start_new_session=True, env=hidden)
    print("started", mine.pid, other.pid, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_run_that_is_killed_leaves_nothing(tmp_path):
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text().replace(
        'Path(__file__).parent / "fakes" / "reaper.py"', f"Path({str(Path(__file__).parent)!r}) / 'fakes' / 'reaper.py'"
    ))  # fmt: skip
    (tmp_path / "test_run.py").write_text(RUN)
    words = ["-m", "pytest", "-s", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}", "test_run.py"]
    with subprocess.Popen([*([sys.executable]), *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as run:
        said = next(line for line in run.stdout if "started" in line)
        started = [int(word) for word in said.split() if word.isdigit()]
        assert run.wait() == -9
    assert len(started) == 2
    until(lambda: not any(map(alive, started)))
    assert alive(os.getpid())
