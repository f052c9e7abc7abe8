"""Processes of this machine as /proc shows them, and how to signal exactly the one that was meant.

Linux only: man 5 proc, man 2 pidfd_open.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from servetune.nodes._by_log import mark_by_log
from servetune.nodes._marks import Mark, Process, Snapshot, mark_in, process_in

_PROC = Path("/proc")
_WITHOUT_PIDFD_S = 0.02  # how often exits are looked for on kernels older than 5.3


class ThisMachine:
    """Looks at, signals and waits for processes of this user on this machine; a `Machine` of `_ending`."""

    def snapshot(self) -> Snapshot:
        """Everything of this user that runs at this moment."""
        processes = {process.pid: process for process in _of_this_user() if process.running}
        told = ((pid, mark_of(pid) or mark_by_log(process)) for pid, process in processes.items())
        marks = {pid: mark for pid, mark in told if mark is not None}
        return Snapshot(processes, marks, os.getpid())

    def send(self, process: Process, number: signal.Signals) -> None:
        """Signal exactly this process, never one that took over its pid. Nothing happens when it is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            descriptor = _pidfd(process.pid)
            # Looked at after the descriptor was opened: what it names can no longer change.
            same = is_same(read(process.pid), process)
            if descriptor is None:
                if same:
                    os.kill(process.pid, number)
                return
            try:
                if same:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def wait_for_exit(self, processes: Sequence[Process], timeout_s: float) -> None:
        """Return when all have exited (a zombie has) or after `timeout_s` of wall time."""
        deadline_s = time.monotonic() + timeout_s
        for process in processes:
            descriptor = None
            with contextlib.suppress(ProcessLookupError):
                descriptor = _pidfd(process.pid)
            try:
                _wait_for_one(process, descriptor, deadline_s)
            finally:
                if descriptor is not None:
                    os.close(descriptor)


def read(pid: int) -> Process | None:
    """The process now, None when there is none."""
    try:
        return process_in((_PROC / str(pid) / "stat").read_bytes())
    except OSError:
        return None


def mark_of(pid: int) -> Mark | None:
    """The mark that a process carries; None as well when its environment may not be read."""
    try:
        return mark_in((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return None


def is_same(now: Process | None, earlier: Process) -> bool:
    """Whether it is the process that was seen earlier, not a later one of the same pid."""
    return now is not None and now.key == earlier.key


def _wait_for_one(process: Process, descriptor: int | None, deadline_s: float) -> None:
    while (left_s := deadline_s - time.monotonic()) > 0:
        now = read(process.pid)
        if now is None or not is_same(now, process) or not now.running:
            return
        if descriptor is None:
            time.sleep(min(left_s, _WITHOUT_PIDFD_S))
        else:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(left_s * 1000 + 1)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None  # kernel older than 5.3, or a sandbox without the call


def _of_this_user() -> list[Process]:
    user = os.geteuid()
    found = []
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == user and (process := read(int(entry.name))) is not None:
                    found.append(process)
    return found
