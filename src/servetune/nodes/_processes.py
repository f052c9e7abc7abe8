"""Processes of this machine as /proc shows them, and how to signal exactly the one that was meant.

Linux only: man 5 proc, man 2 pidfd_open.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_WITHOUT_PIDFD_S = 0.02  # how often exits are looked for on kernels older than 5.3


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment. `start_ticks`: clock ticks since boot; with the pid it names a process for good."""

    pid: int
    start_ticks: int
    parent: int
    session: int
    state: str  # R S D T Z X …
    threads: int

    @property
    def running(self) -> bool:
        """False for a zombie, unless threads live on behind a main thread that ended (a hung driver call, say)."""
        return self.state not in "ZX" or self.threads > 1


def read(pid: int) -> Process | None:
    """The process now, None when there is none. Field numbers as in man 5 proc, /proc/pid/stat."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The name (field 2) may hold blanks and parentheses: count from the last one.
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(pid, int(fields[19]), int(fields[1]), int(fields[3]), fields[0].decode(), int(fields[17]))


def send(process: Process, number: signal.Signals) -> None:
    """Signal exactly this process, never one that took over its pid. Nothing happens when it is gone or not ours."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        descriptor = _pidfd(process.pid)
        # Read after the descriptor was opened: what it names can no longer change.
        now = read(process.pid)
        same = now is not None and now.start_ticks == process.start_ticks
        if descriptor is None:
            if same:
                os.kill(process.pid, number)
            return
        try:
            if same:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def wait_for_exit(processes: Iterable[Process], timeout_s: float) -> None:
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


def still_running(process: Process) -> bool:
    """Whether this very process, not a later one of the same pid, still runs."""
    now = read(process.pid)
    return now is not None and now.start_ticks == process.start_ticks and now.running


def describe(process: Process) -> str:
    """For messages: pid, state and command line (cut at 80 characters)."""
    try:
        words = (_PROC / str(process.pid) / "cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        words = b""
    return f"pid {process.pid} (state {process.state}) {os.fsdecode(words).strip()[:80]}".strip()


def _wait_for_one(process: Process, descriptor: int | None, deadline_s: float) -> None:
    while still_running(process) and (left_s := deadline_s - time.monotonic()) > 0:
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


def of_this_user() -> list[Process]:
    """Every process of this user, zombies included."""
    user = os.geteuid()
    found = []
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == user and (process := read(int(entry.name))) is not None:
                    found.append(process)
    return found
