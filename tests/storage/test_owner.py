"""Which processes count as provably dead; real processes."""

import os
import subprocess
import sys

import pytest

from servetune.storage.owner import Owner, _started, machine_name, provably_dead, this_process

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


def test_a_machine_without_id_and_network_card_has_the_same_name_in_each_process():
    made_up, real = 0x6B3F5A1C2D4E | 1 << 40, 0x02428F5A1C2D
    assert machine_name("", made_up) == ""
    assert machine_name("", real) == "02428f5a1c2d"
    assert machine_name("abc", made_up) == "abc"


def test_another_boot_proves_nothing_where_the_machine_has_no_name():
    owner = this_process().model_copy(update={"boot": "another boot"})
    assert provably_dead(owner)
    nameless = owner.model_copy(update={"machine": ""})
    assert not provably_dead(nameless), "it may be another machine of the same host name"
