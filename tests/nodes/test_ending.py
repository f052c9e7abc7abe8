from __future__ import annotations

import pytest

from servetune.core.errors import NodeUnusableError
from servetune.nodes import _ending
from servetune.nodes._ending import end, reclaimed
from servetune.nodes._marks import FILTER, Mark, Process, Snapshot


class PlayedMachine:
    """A machine of which a test says which signal ends which process; it records what was sent."""

    def __init__(self, ends_by, roles=None):
        self.ends_by = dict(ends_by)
        self.roles = roles or {}
        self.sent = []

    def snapshot(self):
        processes = {pid: Process(pid, pid, "python3", 1, pid, "D", 1) for pid in self.ends_by}
        marks = {pid: Mark("s", str(pid // 100), "1/1/0", self.roles.get(pid, "")) for pid in processes}
        return Snapshot(processes, marks, 0)

    def send(self, process, number):
        self.sent.append((process.pid, number.name))
        if self.ends_by.get(process.pid) == number.name:
            del self.ends_by[process.pid]

    def wait_for_exit(self, processes, timeout_s):
        pass


def everything(mark):
    return True


def test_nothing_to_end():
    machine = PlayedMachine({})
    assert end(machine, everything, 1) == []
    assert machine.sent == []


def test_each_signal_only_when_the_one_before_did_not_do():
    machine = PlayedMachine({101: "SIGINT", 102: "SIGTERM", 103: "SIGKILL"})
    assert [member.process.pid for member in end(machine, everything, 0)] == [101, 102, 103]
    assert machine.sent == [
        *[(101, "SIGINT"), (102, "SIGINT"), (103, "SIGINT")],
        *[(102, "SIGTERM"), (103, "SIGTERM")],
        (103, "SIGKILL"),
    ]


def test_what_survives_kill_is_named():
    with pytest.raises(NodeUnusableError, match=r"pid 101 \(python3, state D\).*dmesg"):
        end(PlayedMachine({101: "never"}), everything, 0, kill_s=0)


def test_the_filter_is_spared_while_it_may_still_write(monkeypatch):
    machine = PlayedMachine({101: "SIGKILL", 102: "SIGKILL"}, {102: FILTER})
    monkeypatch.setattr(_ending, "_ROLES_S", 0.1)
    end(machine, everything, 0)
    assert machine.sent.index((101, "SIGKILL")) < machine.sent.index((102, "SIGKILL"))


def test_one_sentence_per_trial():
    machine = PlayedMachine({301: "SIGINT", 302: "SIGINT", 401: "SIGINT"})
    assert reclaimed(machine, everything) == [
        "trial 3: ended pids 301, 302 of an interrupted run",
        "trial 4: ended pid 401 of an interrupted run",
    ]
