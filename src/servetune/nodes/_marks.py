"""Which processes belong to a launch.

A launch is known by what the node put into its environment (`Mark`). A process belongs to it when it carries the mark,
or when it carries none but shares a session with, or descends from, one that does. Names and ports never decide.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from servetune.core.node import STUDY_MARKER, TRIAL_MARKER
from servetune.nodes._processes import Process, of_this_user

STARTER_MARKER = "SERVETUNE_STARTER"  # "<tuner's pid>/<its start ticks>/<how many launches before this one>"
ROLE_MARKER = "SERVETUNE_ROLE"  # set to FILTER for the process that redacts a log
FILTER = "log-filter"


@dataclass(frozen=True, slots=True)
class Mark:
    """What the node put into the environment of everything that it started."""

    study: str
    trial: str
    starter: str
    role: str = ""

    def environment(self) -> dict[str, str]:
        """The variables that carry the mark."""
        carried = {STUDY_MARKER: self.study, TRIAL_MARKER: self.trial, STARTER_MARKER: self.starter}
        return carried | ({ROLE_MARKER: self.role} if self.role else {})


@dataclass(frozen=True, slots=True)
class Member:
    """A running process of a launch, and the mark that it, its session or its ancestor carries."""

    process: Process
    mark: Mark


def mark_of(pid: int) -> Mark | None:
    """The mark that a process carries; None as well when its environment may not be read."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    if STUDY_MARKER.encode() not in environment:
        return None
    found = dict(os.fsdecode(entry).partition("=")[::2] for entry in environment.split(b"\0"))
    if not {STUDY_MARKER, TRIAL_MARKER, STARTER_MARKER} <= found.keys():
        return None
    return Mark(found[STUDY_MARKER], found[TRIAL_MARKER], found[STARTER_MARKER], found.get(ROLE_MARKER, ""))


def members(wanted: Callable[[Mark], bool]) -> list[Member]:
    """Every running process of this user that belongs to a wanted launch, oldest first.

    Never this process, its ancestors or its session: a tuner may itself run inside a marked environment.
    """
    running = {process.pid: process for process in of_this_user() if process.running}
    marks = {pid: mark for pid in running if (mark := mark_of(pid)) is not None}
    sessions = _sessions({running[pid].session: mark for pid, mark in marks.items() if wanted(mark)}, running, marks)
    protected = _ancestors(os.getpid(), running)
    found = []
    for pid, process in running.items():
        mark = _belonging(process, running, marks, sessions)
        if mark is not None and wanted(mark) and pid not in protected:
            found.append(Member(process, mark))
    return sorted(found, key=lambda member: member.process.start_ticks)


def running_pids(found: Sequence[Member]) -> str:
    """`pid 12`, or `pids 12, 13`."""
    pids = ", ".join(str(member.process.pid) for member in found)
    return f"pid{'s' if len(found) > 1 else ''} {pids}"


def _sessions(found: Mapping[int, Mark], running: Mapping[int, Process], marks: Mapping[int, Mark]) -> dict[int, Mark]:
    """Those whose leader is marked or gone: a marked program in a person's login session claims nobody else."""
    own = os.getsid(0)
    return {
        leader: mark for leader, mark in found.items() if leader != own and (leader in marks or leader not in running)
    }


def _belonging(
    process: Process, running: Mapping[int, Process], marks: Mapping[int, Mark], sessions: Mapping[int, Mark]
) -> Mark | None:
    """The mark that decides for a process: its own, else its session's, else the nearest marked ancestor's."""
    seen: Process | None = process
    while seen is not None:
        if seen.pid in marks:
            return marks[seen.pid]
        if seen.session in sessions:
            return sessions[seen.session]
        seen = running.get(seen.parent)
    return None


def _ancestors(pid: int, running: Mapping[int, Process]) -> set[int]:
    found = set()
    while pid in running and pid not in found:
        found.add(pid)
        pid = running[pid].parent
    return found
