"""Ending a launch: INT, TERM, KILL, and no return before every process of it is gone. The same on every machine."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from servetune.core.errors import NodeUnusableError
from servetune.nodes._marks import Mark, Member, Process, Snapshot, members, running_pids

KILL_S = 15.0  # wall time for the kernel to take a killed process down; freeing much pinned memory takes seconds
RECLAIM_GRACE_S = 5.0
_ROLES_S = 2.0  # log filter and keeper end by themselves once the server is gone
_CONFIRM_S = 0.02  # a process in the midst of an exec has no environment for a moment: look twice
_LOOK_S = 0.5  # how often a wait looks for processes that appeared meanwhile

Wanted = Callable[[Mark], bool]


class Machine(Protocol):
    """Where processes are looked at and signalled."""

    def snapshot(self) -> Snapshot:
        """Everything of this user that runs at this moment."""
        ...

    def send(self, process: Process, number: signal.Signals) -> None:
        """Signal exactly this process, never one that took over its pid. Nothing happens when it is gone."""
        ...

    def wait_for_exit(self, processes: Sequence[Process], timeout_s: float) -> None:
        """Return when all have exited (a zombie has) or after `timeout_s` of wall time."""
        ...


def end(machine: Machine, wanted: Wanted, grace_s: float, kill_s: float = KILL_S) -> Sequence[Member]:
    """End every process of the wanted launches; each of INT and TERM gets `grace_s` of wall time to work.

    Returns what was found. Raises NodeUnusableError when one survives KILL for `kill_s`.
    """
    return _Ending(machine, wanted).end(grace_s, kill_s)


def reclaimed(machine: Machine, wanted: Wanted) -> Sequence[str]:
    """End the wanted launches: one sentence per trial."""
    groups: dict[str, list[Member]] = {}
    for member in end(machine, wanted, RECLAIM_GRACE_S):
        groups.setdefault(member.mark.trial, []).append(member)
    return [f"trial {trial}: ended {running_pids(found)} of an interrupted run" for trial, found in groups.items()]


class _Ending:
    """Remembers what it has seen, so that a process whose mark vanishes while it dies is still waited for."""

    def __init__(self, machine: Machine, wanted: Wanted) -> None:
        self._machine = machine
        self._wanted = wanted
        self._seen: dict[tuple[int, int], Member] = {}

    def end(self, grace_s: float, kill_s: float) -> list[Member]:
        for number in (signal.SIGINT, signal.SIGTERM):
            if not self._asked(number, grace_s):
                return list(self._seen.values())
        self._kill(kill_s)
        return list(self._seen.values())

    def _asked(self, number: signal.Signals, grace_s: float) -> list[Member]:
        """Signal everything once, also what appears meanwhile; what still runs after `grace_s`."""
        deadline_s = time.monotonic() + grace_s
        told: set[tuple[int, int]] = set()
        while found := self._running():
            for member in found:
                if member.process.key not in told:
                    self._machine.send(member.process, number)
            told.update(member.process.key for member in found)
            if (left_s := deadline_s - time.monotonic()) <= 0:
                return found
            self._wait(found, min(left_s, _LOOK_S))
        return []

    def _kill(self, kill_s: float) -> None:
        began_s = time.monotonic()
        while found := self._running():
            waited_s = time.monotonic() - began_s
            servers = [member for member in found if not member.mark.role]
            # The filter holds the last lines of the log, the keeper the exit status: killed only when they do not end.
            for member in servers if waited_s < _ROLES_S else found:
                self._machine.send(member.process, signal.SIGKILL)
            if waited_s > kill_s:
                raise NodeUnusableError(
                    f"survived KILL for {kill_s:g} s: {'; '.join(str(member.process) for member in found)}. "
                    "A process in state D hangs in the kernel (driver or disk): see dmesg, restart the node, resume"
                )
            self._wait(found, _LOOK_S)

    def _wait(self, found: Sequence[Member], timeout_s: float) -> None:
        self._machine.wait_for_exit([member.process for member in found], timeout_s)

    def _running(self) -> list[Member]:
        found = self._look()
        if not found:
            time.sleep(_CONFIRM_S)
            found = self._look()
        return found

    def _look(self) -> list[Member]:
        """What runs: found by its mark now, or found before and running on although its mark is gone."""
        seen = self._machine.snapshot()
        now = {member.process.key: member for member in members(seen, self._wanted)}
        running = {process.key for process in seen.processes.values()}
        unmarked = [member for key, member in self._seen.items() if key not in now and key in running]
        self._seen.update(now)
        return [*now.values(), *unmarked]
