"""Ending a launch: INT, TERM, KILL, and no return before every process of it is gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from servetune.core.errors import NodeUnusableError
from servetune.nodes._marks import FILTER, Mark, Member, members, running_pids
from servetune.nodes._processes import describe, read, send, still_running, wait_for_exit

KILL_S = 15.0  # wall time for the kernel to take a killed process down; freeing much pinned memory takes seconds
_FILTER_S = 2.0  # a log filter ends by itself once the last writer is gone
_RECLAIM_GRACE_S = 5.0
_CONFIRM_S = 0.02  # a process in the midst of an exec has no environment for a moment: look twice
_LOOK_S = 0.5  # how often a wait looks for processes that appeared meanwhile


def end(wanted: Callable[[Mark], bool], grace_s: float) -> Sequence[Member]:
    """End every process of the wanted launches; each of INT and TERM gets `grace_s` of wall time to work.

    Returns what was found, in the order of their start. Raises NodeUnusableError when one survives KILL.
    """
    ended: dict[tuple[int, int], Member] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        if not (found := _gone(wanted, ended)):
            return list(ended.values())
        for member in found:
            send(member.process, number)
        _wait(wanted, ended, time.monotonic() + grace_s)
    _kill(wanted, ended)
    return list(ended.values())


def left_behind(mark: Mark) -> bool:
    """Whether the tuner that started it is gone, or is this very process. A malformed mark is not ours: False."""
    words = mark.starter.split("/")
    if len(words) != 3 or not all(word.isdigit() for word in words):
        return False
    starter = read(int(words[0]))
    alive = starter is not None and starter.start_ticks == int(words[1]) and starter.running
    return not alive or int(words[0]) == os.getpid()


def reclaimed(study: str) -> Sequence[str]:
    """End what earlier tuners, or this one, left running for `study`, and nothing else: one sentence per trial."""
    groups: dict[str, list[Member]] = {}
    for member in end(lambda mark: mark.study == study and left_behind(mark), _RECLAIM_GRACE_S):
        groups.setdefault(member.mark.trial, []).append(member)
    return [f"trial {trial}: ended {running_pids(found)} of an interrupted run" for trial, found in groups.items()]


def _wait(wanted: Callable[[Mark], bool], ended: dict[tuple[int, int], Member], deadline_s: float) -> None:
    while (left_s := deadline_s - time.monotonic()) > 0 and (found := _gone(wanted, ended)):
        wait_for_exit([member.process for member in found], min(left_s, _LOOK_S))


def _kill(wanted: Callable[[Mark], bool], ended: dict[tuple[int, int], Member]) -> None:
    deadline_s = time.monotonic() + KILL_S
    filters_from_s = time.monotonic() + _FILTER_S
    while found := _gone(wanted, ended):
        others = [member for member in found if member.mark.role != FILTER]
        # The filter holds the last lines of the log: it is killed only when it does not end after its writers.
        for member in others if time.monotonic() < filters_from_s else found:
            send(member.process, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise NodeUnusableError(
                "survived KILL: "
                + "; ".join(describe(member.process) for member in found)
                + f". Waited {KILL_S:g} s. A process in state D hangs in the kernel (driver or file system): "
                "look at dmesg, end it by hand or restart the node, then resume"
            )
        wait_for_exit([member.process for member in found], _LOOK_S)


def _gone(wanted: Callable[[Mark], bool], ended: dict[tuple[int, int], Member]) -> list[Member]:
    """What still runs: found by its mark now, or found before and running on although its mark is gone."""
    found = _look(wanted, ended)
    if not found:
        time.sleep(_CONFIRM_S)
        found = _look(wanted, ended)
    return found


def _look(wanted: Callable[[Mark], bool], ended: dict[tuple[int, int], Member]) -> list[Member]:
    now = {(member.process.pid, member.process.start_ticks): member for member in members(wanted)}
    unmarked = {key: member for key, member in ended.items() if key not in now and still_running(member.process)}
    ended.update(now)
    return [*now.values(), *unmarked.values()]
