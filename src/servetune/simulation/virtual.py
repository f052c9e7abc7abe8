"""A launch in virtual time: its log and its death appear on a virtual clock; holding a level passes the clock."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from weakref import WeakValueDictionary

from servetune.core.node import Exit
from servetune.simulation.clock import VirtualClock
from servetune.simulation.launch import Launch, exit_code
from servetune.simulation.model import PROBE_S, STOP_S, Fault, LevelOutcome, answers_nonsense
from servetune.simulation.story import Line, banner, death, render, start_story

_ORIGIN = datetime(2026, 1, 1, tzinfo=UTC)
_numbers = itertools.count(1)
_live: WeakValueDictionary[str, VirtualLaunch] = WeakValueDictionary()

SCHEME = "virtual://"
#: (start + t) - start may fall short of t by a rounding error.
_TOLERANCE_S = 1e-6


def launch_at(url: str) -> VirtualLaunch | None:
    """The launch behind a `virtual://` address; None when there is none any more."""
    return _live.get(url)


class VirtualLaunch:
    """A started server in virtual time. Nothing runs; what has happened follows from the clock."""

    def __init__(self, launch: Launch, clock: VirtualClock) -> None:
        self.launch, self.clock = launch, clock
        self.url = f"{SCHEME}{launch.scenario.name}/{next(_numbers)}"
        self.answers_nonsense = answers_nonsense(launch.scenario, launch.configuration)
        self._started_s = clock.now_s()
        self._exit: tuple[float, Exit] | None = None  # when it ends or ended
        self._levels: dict[int, LevelOutcome] = {}
        self._stopped = False
        self._log = bytearray()
        self._told_until = 0
        self._lines = [Line(0.0, None, banner(launch.scenario, None)), *start_story(launch)]
        if launch.startup.fault:
            self._end(launch.startup.fault, launch.startup.seconds)
        for at_s in {line.at_s for line in self._lines}:
            clock.schedule(self._started_s + at_s)
        _live[self.url] = self

    def poll(self) -> Exit | None:
        """How it ended, once it has."""
        return self._exit[1] if self._exit and self._exit[0] <= self._elapsed_s() + _TOLERANCE_S else None

    def read_log(self, offset_bytes: int) -> bytes:
        """The log as far as it has been written by now."""
        elapsed_s = self._elapsed_s() + _TOLERANCE_S
        while self._told_until < len(self._lines) and self._lines[self._told_until].at_s <= elapsed_s:
            self._log += render(self._lines[self._told_until], self._stamp).encode()
            self._told_until += 1
        return bytes(self._log[offset_bytes : offset_bytes + 2**20])

    def probe(self) -> bool:
        """Whether the correctness probe is content; it takes 20 s."""
        self.clock.advance(PROBE_S)
        return self.poll() is None and not self.answers_nonsense

    def hold(self, concurrency: int) -> LevelOutcome:
        """What the level will give. A death is scheduled at its second of the level; the caller passes the clock."""
        outcome = self._levels.get(concurrency) or self.launch.level(concurrency)
        self._levels[concurrency] = outcome
        if outcome.fault and self._exit is None:
            self._end(outcome.fault, self._elapsed_s() + outcome.seconds)
            self._lines += death(self.launch, outcome.fault, self._elapsed_s() + outcome.seconds)
        return outcome

    def stop(self) -> Exit:
        """End it. The first stop takes 15 s, of a dead server too; the rest nothing."""
        if not self._stopped:
            self._stopped = True
            ended = self.poll()
            self.read_log(0)
            self._lines = self._lines[: self._told_until]
            self.clock.advance(STOP_S)
            if ended is None:
                self._exit = (self._elapsed_s(), Exit(code=0))
        return self.poll() or Exit(code=0)

    def _end(self, fault: Fault, at_s: float) -> None:
        self._exit = (at_s, Exit(code=exit_code(fault)))
        self.clock.schedule(self._started_s + at_s)

    def _elapsed_s(self) -> float:
        return self.clock.now_s() - self._started_s

    def _stamp(self, at_s: float) -> str:
        return (_ORIGIN + timedelta(seconds=self._started_s + at_s)).strftime("%Y-%m-%d %H:%M:%S")
