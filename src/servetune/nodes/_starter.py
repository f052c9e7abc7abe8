"""Who started a launch on another machine: named so that it can be told, from anywhere, whether that tuner lives."""

from __future__ import annotations

import functools
import os

from servetune.nodes._by_log import boot_id
from servetune.nodes._marks import Mark
from servetune.nodes._processes import read


@functools.cache
def this_host() -> str:
    """The present run of this machine's kernel, and the process namespace: where a pid means what it means here."""
    return f"{boot_id()}.{os.stat('/proc/self/ns/pid').st_ino}"


def this_tuner() -> str:
    """`host/pid/start ticks` of this process."""
    me = read(os.getpid())
    assert me is not None
    return f"{this_host()}/{me.pid}/{me.start_ticks}"


def tuner_of(mark: Mark) -> str:
    """The tuner in a far launch's mark, whose starter is `host/pid/ticks/how many launches before`."""
    return mark.starter.rpartition("/")[0]


def is_far(mark: Mark) -> bool:
    """Whether a mark is that of a launch over SSH."""
    words = mark.starter.split("/")
    return len(words) == 4 and all(word.isdigit() for word in words[1:])


def lives(tuner: str) -> bool | None:
    """Whether a tuner lives; None when it ran on another host, about which nothing can be told from here."""
    host, pid, ticks = tuner.split("/")
    if host != this_host():
        return None
    process = read(int(pid))
    return process is not None and process.start_ticks == int(ticks) and process.running
