"""Virtual time: it passes when somebody sleeps, and at once."""

from __future__ import annotations

import heapq
import math


class VirtualClock:
    """A `core.clock.Clock` on which a sleep ends early at the next scheduled event, so that polling is exact.

    Not thread-safe: one study, one clock.
    """

    #: Long, since every sleep ends where something happens.
    poll_s = 30.0

    def __init__(self) -> None:
        self._now_s = 0.0
        self._events_s: list[float] = []

    def now_s(self) -> float:
        """Seconds of node time since the clock was made."""
        return self._now_s

    def schedule(self, at_s: float) -> None:
        """Something happens at `at_s`: the sleep that would pass it ends there. The past is ignored."""
        if at_s > self._now_s:
            heapq.heappush(self._events_s, at_s)

    def sleep(self, duration_s: float) -> None:
        """Pass to the next scheduled event, or by `duration_s` when that comes first."""
        next_s = self._events_s[0] if self._events_s else math.inf
        self._pass_to(min(self._now_s + max(0.0, duration_s), next_s))

    def advance(self, duration_s: float) -> None:
        """Pass by exactly `duration_s`, over all events."""
        self._pass_to(self._now_s + max(0.0, duration_s))

    def _pass_to(self, at_s: float) -> None:
        self._now_s = at_s
        while self._events_s and self._events_s[0] <= at_s:
            heapq.heappop(self._events_s)
