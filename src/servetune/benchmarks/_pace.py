"""When a level's warm-up is over and when it has been measured long enough. Pure; node seconds."""

from __future__ import annotations

from typing import Literal

import numpy as np

from servetune.benchmarks._intervals import batch_means
from servetune.core.benchmark import Level

#: A level lasts four waves (the time of one full answer), at least 30 s, and 180 s at most unless precision asks for
#: nothing more. The simulated node charges the same: max(30, min(180, 4 * L * output_tokens / throughput)).
WAVES = 4.0
SHORTEST_S = 30.0
LONGEST_S = 180.0
#: Share of the time after which measuring begins even if the load has not settled.
LATEST_START = 0.5
PRECISION = 0.01
AGREEMENT = 0.05

Stage = Literal["warmup", "measure", "over"]


class Pace:
    """Fed a few times per second; says which stage the level is in."""

    def __init__(self, level: Level, start_s: float, deadline_s: float) -> None:
        self.stage: Stage = "warmup"
        self.start_s = start_s
        self.measure_from_s = start_s
        self.end_s = start_s
        self.settled = False
        self._level = level
        self._deadline_s = deadline_s
        self._history: list[tuple[float, int]] = [(start_s, 0)]
        self._completed_before = 0
        self._next_look_s = start_s

    @property
    def longest_s(self) -> float:
        """The most that the level may last."""
        limit = self._deadline_s - self.start_s
        return limit if isinstance(self._level.workload.requests_per_level, int) else min(LONGEST_S, limit)

    def wave_s(self) -> float | None:
        """Estimated time of one full answer at the present rate; None before the first tokens."""
        now_s, _ = self._history[-1]
        rate = self.rate(self.start_s + (now_s - self.start_s) / 2) or self.rate(self.start_s)
        return self._level.concurrency * self._level.workload.output_tokens / rate if rate else None

    def rate(self, since_s: float) -> float:
        """Output tokens per second since then, from what has arrived."""
        now_s, tokens = self._history[-1]
        times = [time_s for time_s, _ in self._history]
        before = int(np.searchsorted(times, since_s, side="right")) - 1
        begin_s, begun = self._history[max(before, 0)]
        return (tokens - begun) / (now_s - begin_s) if now_s > begin_s else 0.0

    def expected_requests(self, completed: int) -> int:
        """How many requests the measured part will complete, as far as one can tell."""
        if isinstance(self._level.workload.requests_per_level, int):
            return self._level.workload.requests_per_level
        wave_s = self.wave_s()
        if wave_s is None or self.stage == "over":
            return completed
        end_s = self.start_s + min(self.longest_s, max(SHORTEST_S, WAVES * wave_s))
        begin_s = self.measure_from_s if self.stage == "measure" else self.start_s + wave_s
        return max(completed, round(max(0.0, end_s - begin_s) / wave_s * self._level.concurrency))

    def update(self, now_s: float, tokens: int, completed: int, first_wave_over: bool) -> Stage:
        """Cumulative tokens and completed requests at `now_s`."""
        if now_s > self._history[-1][0]:
            self._history.append((now_s, tokens))
        if self.stage == "warmup" and self._warm(now_s, completed, first_wave_over):
            self.stage, self.measure_from_s, self._completed_before = "measure", now_s, completed
        elif self.stage == "measure" and self._enough(now_s, completed):
            self.stage = "over"
        if now_s >= self._deadline_s:
            self.stage = "over"
        self.end_s = now_s
        return self.stage

    def completed_in_window(self, completed: int) -> int:
        """Requests completed since the measured part began."""
        return completed - self._completed_before if self.stage != "warmup" else 0

    def _warm(self, now_s: float, completed: int, first_wave_over: bool) -> bool:
        warmup = self._level.workload.warmup
        if now_s - self.start_s >= LATEST_START * self.longest_s:
            return self._history[-1][1] > 0
        if isinstance(warmup, int):
            return completed >= warmup
        if not first_wave_over:
            return False
        self.settled = self._settled(now_s)
        return self.settled

    def _settled(self, now_s: float) -> bool:
        """Two neighbouring windows of a quarter of the time so far agree."""
        window_s = (now_s - self.start_s) / 4
        later = self.rate(now_s - window_s)
        both = self.rate(now_s - 2 * window_s)
        earlier = 2 * both - later
        return later > 0 and abs(later - earlier) <= AGREEMENT * later

    def _enough(self, now_s: float, completed: int) -> bool:
        elapsed_s = now_s - self.start_s
        if isinstance(self._level.workload.requests_per_level, int):
            return self.completed_in_window(completed) >= self._level.workload.requests_per_level
        if elapsed_s >= self.longest_s:
            return True
        wave_s = self.wave_s()
        if wave_s is None or elapsed_s < max(SHORTEST_S, WAVES * wave_s) or now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + 0.02 * elapsed_s
        return self._precise(now_s)

    def _precise(self, now_s: float) -> bool:
        times = np.array([time_s for time_s, _ in self._history])
        counts = np.array([tokens for _, tokens in self._history], dtype=np.float64)
        edges = np.linspace(self.measure_from_s, now_s, 21)
        rates = np.diff(np.interp(edges, times, counts)) / np.diff(edges)
        return batch_means(rates).relative_half_width <= PRECISION
