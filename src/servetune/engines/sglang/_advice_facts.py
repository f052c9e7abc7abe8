"""What a person is told about the node after a crash: processes, GPUs, paths, ports and sizes of the deciding lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import Formatter

#: What a download warns of before it fills the disk.
FREE_SPACE = re.compile(r"[Nn]ot enough (?:free )?(?:disk )?space\b.{0,200}\d ?[KMGT]i?B\b")
_SIZE = r"\d{1,9}(?:\.\d{1,9})? ?[KMGT]i?B"
_PATH = r"/[\w.@+~-][^\s'\",;:)]{0,300}"
#: Name → what the first group of the pattern is called in an advice.
_PATTERNS = {
    "gpu": re.compile(r"\bGPU[: ](\d{1,3})\b"),
    "path": re.compile(
        r"(?i:no space left|quota exceeded|permission denied|not permitted|read-only|header\w*)"
        rf"[^\n'\"]{{0,40}}['\"]({_PATH})['\"]"
    ),
    "location": re.compile(rf"[Tt]arget location ({_PATH})"),
    "segment": re.compile(r"(/dev/shm/[\w.-]{1,80})"),
    "needed": re.compile(rf"(?i)(?:expected file size is|need\w*|requir\w+)\b[^\n\d]{{0,20}}({_SIZE})"),
    "free": re.compile(rf"(?i)\bonly(?: has)? ({_SIZE})|({_SIZE}) (?:is |are )?(?:free|available|left)\b"),
    "port": re.compile(
        r"(?i)\bport[ =:]{1,2}(\d{2,5})\b|\('[\w.:]{2,60}', (\d{2,5})\)|tcp://[\w.*\[\]:-]{1,60}:(\d{2,5})\b"
    ),
    "cuda_home": re.compile(rf"(?i)\bcuda_home\b\W{{1,4}}({_PATH})"),
    "module": re.compile(r"No module named '([A-Za-z_]\w*)"),
    "call": re.compile(r"\b(ibv_reg_(?:dm_)?mr\w*)\b(?=.*(?:errno 12\b|[Cc]annot allocate memory))"),
}
_HOLDER = re.compile(rf"\b[Pp]rocess (\d{{1,10}}) has ({_SIZE}) memory in use")
_SEGMENT_BYTES = re.compile(r"/dev/shm/\S{1,80} \(size (\d{1,15})\)")  # noqa: S108 - of a message
#: As CUDA writes its versions: 12040 is 12.4.
_DRIVER = re.compile(r"found version (\d{4,5})\b")
_HEARTBEAT = re.compile(
    r"tic start time: (\d\d):(\d\d):(\d\d)\b.{0,40}last_heartbeat time: (\d\d):(\d\d):(\d\d)\b",
)
#: Without a heartbeat for so long a process is stuck; below, the server may only be slow (it is asked every 20 s).
STUCK_S = 60
_DAY_S = 24 * 3600
#: Every name that an advice may use.
NAMES = frozenset((*_PATTERNS, "holders", "size", "cuda", "stuck", "slow"))


def facts_of(text: str) -> dict[str, str]:
    """Every fact that the text has, by its name."""
    found = {name: next(filter(None, match.groups())) for name, match in _matches(text)}
    holders = list(dict.fromkeys(_HOLDER.findall(text)))
    if holders:
        found["holders"] = " and ".join(f"process {pid} holds {size}" for pid, size in holders[:4])
    if (segment := _SEGMENT_BYTES.search(text)) is not None:
        found["size"] = f"{int(segment[1]) / 1024**2:.1f} MiB"
    if (driver := _DRIVER.search(text)) is not None:
        found["cuda"] = f"{int(driver[1]) // 1000}.{int(driver[1]) % 1000 // 10}"
    if (heartbeat := _HEARTBEAT.search(text)) is not None:
        hours, minutes, seconds, *before = map(int, heartbeat.groups())
        gap_s = (3600 * (hours - before[0]) + 60 * (minutes - before[1]) + seconds - before[2]) % _DAY_S
        found["stuck" if gap_s >= STUCK_S else "slow"] = f"{gap_s} "
    return found


def _matches(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    for name, pattern in _PATTERNS.items():
        if (match := pattern.search(text)) is not None:
            yield name, match


def names_in(template: str) -> set[str]:
    """The facts that a sentence of advice needs."""
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def checked(advice: tuple[str, ...]) -> tuple[str, ...]:
    """The advice; ValueError unless each name is a fact and the last sentence can always be said."""
    unknown = set[str]().union(*map(names_in, advice)) - NAMES
    if unknown:
        raise ValueError(f"unknown facts in an advice: {', '.join(sorted(unknown))}; known: {', '.join(sorted(NAMES))}")
    if advice and names_in(advice[-1]):
        raise ValueError(f"the last sentence of an advice has to go without facts: {advice[-1]!r}")
    return advice
