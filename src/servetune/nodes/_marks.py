"""Which processes belong to a launch: pure functions of what /proc says, of this machine or of another.

A launch is known by what the node put into its environment (`Mark`). A process belongs to it when it carries the mark,
or when it carries none but shares a session with, or descends from, one that does. Names and ports never decide.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from servetune.core.node import STUDY_MARKER, TRIAL_MARKER

STARTER_MARKER = "SERVETUNE_STARTER"  # "<tuner's pid>/<its start ticks>/<how many launches before this one>"
ROLE_MARKER = "SERVETUNE_ROLE"  # absent for the server; a process with a role of ours ends by itself after it
FILTER = "log-filter"  # redacts the log
LOAD = "load"  # generates load beside the server
KEEPER = "keeper"  # waits for the server and keeps its exit status


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment. `start_ticks`: clock ticks since boot; with the pid it names a process for good."""

    pid: int
    start_ticks: int
    name: str
    parent: int
    session: int
    state: str  # R S D T Z X …
    threads: int

    @property
    def running(self) -> bool:
        """False for a zombie, unless threads live on behind a main thread that ended (a hung driver call, say)."""
        return self.state not in "ZX" or self.threads > 1

    @property
    def key(self) -> tuple[int, int]:
        """What no later process of the same pid shares."""
        return self.pid, self.start_ticks

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}, state {self.state})"


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
class Snapshot:
    """One user's running processes by pid, the marks that they carry, and the pid of who looks."""

    processes: Mapping[int, Process]
    marks: Mapping[int, Mark]
    own: int


@dataclass(frozen=True, slots=True)
class Member:
    """A running process of a launch, and the mark that it, its session or its ancestor carries."""

    process: Process
    mark: Mark


def process_in(stat: bytes) -> Process:
    """A line of /proc/PID/stat; field numbers as in man 5 proc. The name may hold blanks and parentheses."""
    before, _, after = stat.rpartition(b")")
    pid, _, name = before.partition(b"(")
    fields = after.split()
    return Process(
        pid=int(pid),
        start_ticks=int(fields[19]),
        name=os.fsdecode(name),
        parent=int(fields[1]),
        session=int(fields[3]),
        state=fields[0].decode(),
        threads=int(fields[17]),
    )


def mark_in(environment: Iterable[bytes]) -> Mark | None:
    """The mark among entries `NAME=value`, None when it is not complete."""
    found = dict(os.fsdecode(entry).partition("=")[::2] for entry in environment if entry.startswith(b"SERVETUNE_"))
    if not {STUDY_MARKER, TRIAL_MARKER, STARTER_MARKER} <= found.keys():
        return None
    return Mark(found[STUDY_MARKER], found[TRIAL_MARKER], found[STARTER_MARKER], found.get(ROLE_MARKER, ""))


def members(seen: Snapshot, wanted: Callable[[Mark], bool]) -> list[Member]:
    """Every process that belongs to a wanted launch, oldest first.

    Never the one who looks, its ancestors or its session: a tuner may itself run inside a marked environment.
    """
    sessions = _sessions(seen, wanted)
    protected = _ancestors(seen.own, seen.processes)
    found = []
    for pid, process in seen.processes.items():
        mark = _belonging(process, seen, sessions)
        if mark is not None and wanted(mark) and pid not in protected:
            found.append(Member(process, mark))
    return sorted(found, key=lambda member: member.process.start_ticks)


def running_pids(found: Sequence[Member]) -> str:
    """`pid 12`, or `pids 12, 13`."""
    pids = ", ".join(str(member.process.pid) for member in found)
    return f"pid{'s' if len(found) > 1 else ''} {pids}"


def _sessions(seen: Snapshot, wanted: Callable[[Mark], bool]) -> dict[int, Mark]:
    """Those whose leader is marked or gone: a marked program in a person's login session claims nobody else."""
    own = seen.processes[seen.own].session if seen.own in seen.processes else 0
    found = {seen.processes[pid].session: mark for pid, mark in seen.marks.items() if wanted(mark)}
    return {
        leader: mark
        for leader, mark in found.items()
        if leader != own and (leader in seen.marks or leader not in seen.processes)
    }


def _belonging(process: Process, seen: Snapshot, sessions: Mapping[int, Mark]) -> Mark | None:
    """The mark that decides for a process: its own, else its session's, else the nearest marked ancestor's."""
    at: Process | None = process
    while at is not None:
        if at.pid in seen.marks:
            return seen.marks[at.pid]
        if at.session in sessions:
            return sessions[at.session]
        at = seen.processes.get(at.parent)
    return None


def _ancestors(pid: int, processes: Mapping[int, Process]) -> set[int]:
    found = set()
    while pid in processes and pid not in found:
        found.add(pid)
        pid = processes[pid].parent
    return found
