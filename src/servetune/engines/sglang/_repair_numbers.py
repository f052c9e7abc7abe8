"""The numbers that repairs are computed from, and the repairs of one crash while they are collected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from servetune.core.failure import Phase, Repair
from servetune.core.space import Value
from servetune.engines.sglang._log_flags import LaunchFlags, usable
from servetune.engines.sglang._log_run import Run

_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_TRIED = re.compile(rf"Tried to allocate {_NUMBER} (?P<unit>[KMG]i?B)")
_FREE = re.compile(rf"{_NUMBER} (?P<unit>[KMG]i?B) (?:is )?free")
_CAPACITY = re.compile(rf"total capacity of {_NUMBER} (?P<unit>[KMG]i?B)")
_GIB = {"K": 1 / 1024**2, "M": 1 / 1024, "G": 1.0}


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of a crash, GiB: `before` and `after` the weights, what was `tried` and `free` when memory ran out."""

    before: float | None = None
    after: float | None = None
    minimum: float | None = None
    fraction: float | None = None
    tried: float | None = None
    free: float | None = None
    capacity: float | None = None
    occupied: float | None = None  # memory that another process holds

    @property
    def window_low(self) -> float | None:
        """The smallest fraction that leaves a KV pool: the engine's own number, else `1 - after / before`."""
        if self.minimum is not None:
            return self.minimum
        if self.before and self.after is not None and self.before > 0:
            return 1 - self.after / self.before
        return None


def numbers_of(run: Run, flags: LaunchFlags, text: str, groups: Mapping[str, str | None]) -> Numbers:
    """The numbers of a log and of its deciding text."""
    memory = run.progress.memory
    fraction = groups.get("fraction") or flags.number("mem-fraction-static")
    minimum = groups.get("minimum")
    return Numbers(
        before=memory.get("before_load_gib"),
        after=memory.get("after_load_gib"),
        minimum=usable(float(minimum)) if minimum else None,
        fraction=usable(float(fraction)) if fraction is not None else _fraction_in(text),
        tried=_gib(_TRIED, text),
        free=_gib(_FREE, text),
        capacity=_gib(_CAPACITY, text),
        occupied=_occupied(run, text),
    )


def _fraction_in(text: str) -> float | None:
    match = re.search(r"mem_fraction_static=(\d{0,3}\.\d{1,18})", text)
    return float(match.group(1)) if match else None


def _gib(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return float(match.group(1)) * _GIB[match["unit"][0]] if match else None


def _occupied(run: Run, text: str) -> float | None:
    """GiB that a foreign process holds: one rank starts with far less than the others, or than the GPU has."""
    begin = run.progress.before_load
    if len(begin) > 1:
        missing = max(begin.values()) - min(begin.values())
        if missing > 0.1 * max(begin.values()):
            return missing
    capacity = _gib(_CAPACITY, text)
    lowest = min(begin.values()) if begin else None
    if capacity and lowest is not None and lowest < 0.8 * capacity:
        return capacity - lowest
    return None


@dataclass(slots=True)
class Draft:
    """What a step works with, and the repairs so far."""

    run: Run
    flags: LaunchFlags
    numbers: Numbers
    text: str
    groups: Mapping[str, str | None]
    blamed: tuple[str, ...]
    phase: Phase
    repairs: list[Repair] = field(default_factory=list)

    def add(self, flag: str, value: Value | None, reason: str) -> None:
        """Append a repair, unless the flag already has that value or a repair."""
        if any(repair.flag == flag for repair in self.repairs) or len(self.repairs) >= 5:
            return
        self.repairs.append(Repair(flag=flag, value=value, reason=reason))

    def current(self, flag: str) -> float | None:
        """The flag's value as a number, asked for, effective or from the log's own ready line."""
        number = self.flags.number(flag)
        if number is not None and number >= 0:
            return number
        known = self.run.progress.pool.get(flag.replace("-", "_"))
        number = usable(known)
        return number if number and number > 0 else None

    @property
    def attention_ranks(self) -> int:
        """Schedulers whose requests `max-running-requests` counts together: data-parallel ranks of the attention."""
        return int(self.current("dp-size") or 1) if self.flags.on("enable-dp-attention") else 1

    @property
    def running_limit(self) -> float | None:
        """Requests that may run on all these ranks; the log's own number counts one of them."""
        asked = self.flags.number("max-running-requests")
        if asked is not None and asked >= 0:
            return asked
        known = self.current("max-running-requests")
        return known * self.attention_ranks if known is not None else None

    @property
    def drafted(self) -> bool:
        """Whether a draft model's own pool failed: the target's pool had already taken its share."""
        return self.run.progress.loads > 1
