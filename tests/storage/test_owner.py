"""Which processes count as provably dead; real processes."""

import os
import subprocess
import sys

import pytest

from servetune.storage.owner import Owner, _started, provably_dead, this_process

SLEEPER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def owner_of(pid: int) -> Owner:
    return this_process().model_copy(update={"pid": pid, "started": _started(pid)})


@pytest.fixture
def sleeper():
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as process:
        yield process


def test_this_process_is_not_dead():
    assert this_process().pid == os.getpid()
    assert this_process() == this_process()
    assert not provably_dead(this_process())


def test_a_living_process_is_not_dead_until_it_is(sleeper):
    owner = owner_of(sleeper.pid)
    assert not provably_dead(owner)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert provably_dead(owner), "a zombie holds nothing"
    sleeper.wait()
    assert provably_dead(owner)


def test_another_process_under_its_pid(sleeper):
    assert provably_dead(owner_of(sleeper.pid).model_copy(update={"started": "1"}))


def test_start_times_do_not_depend_on_the_clock():
    assert int(this_process().started) > 0  # ticks since boot


def test_a_process_of_init_is_not_dead():
    assert not provably_dead(owner_of(1))


def test_how_it_is_named():
    assert str(this_process()).startswith(f"process {os.getpid()} on host ")
