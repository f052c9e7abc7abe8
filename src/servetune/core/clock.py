"""Clocks and sleeps are arguments everywhere, so that a study replays in seconds. All times are node time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Node time. Under a time scale or in virtual time it runs faster than the wall clock."""

    @property
    def poll_s(self) -> float:
        """How long to sleep between two looks at something, in node seconds."""
        ...

    def now_s(self) -> float:
        """Seconds of node time since an arbitrary origin; never goes back."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Return after at most `duration_s` of node time; may return earlier when something is known to happen."""
        ...


class WallClock:
    """The real clock, optionally compressed: `time_scale` seconds of node time pass per wall second."""

    def __init__(self, time_scale: float = 1.0) -> None:
        if not time_scale > 0:
            raise ValueError(f"time_scale must be above 0, got {time_scale}")
        self.time_scale = time_scale
        # a compressed phase may last a fraction of a second
        self.poll_s = 0.2 if time_scale == 1.0 else 0.05 * time_scale

    def now_s(self) -> float:
        """Seconds of node time since an arbitrary origin."""
        return time.monotonic() * self.time_scale

    def sleep(self, duration_s: float) -> None:
        """Sleep `duration_s` of node time, which is `duration_s / time_scale` of wall time."""
        time.sleep(max(0.0, duration_s / self.time_scale))
