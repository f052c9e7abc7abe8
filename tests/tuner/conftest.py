"""A lab for studies over a real sshd; the module's own `sshd` is the far side."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
from nodes.sshd import Sshd
from tuner.ssh_lab import Lab


@pytest.fixture
def lab(sshd: Sshd, tmp_path: Path):
    lab = Lab(sshd, tmp_path)
    yield lab
    left = lab.left()
    for pid in left:  # a failed test leaves nothing on the machine either
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == []
