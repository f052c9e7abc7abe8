"""When a level's warm-up is over and when it has been measured long enough. Pure; node seconds."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servetune.benchmarks._holder import Sample
from servetune.benchmarks._intervals import FEWEST_BATCHES, batch_count, batch_means, student
from servetune.core.benchmark import Level

#: A level lasts four waves (a wave: the time of one full answer), at least 30 s, and beyond that until the throughput
#: is known to 1 %, for 180 s at most. The simulated node charges max(30, min(180, 4 * L * output_tokens / throughput)).
#: All of it times `level.effort`.
WAVES = 4.0
SHORTEST_S = 30.0
LONGEST_S = 180.0
PRECISION = 0.01
#: Share of the longest time after which measuring begins even if the load has not settled.
LATEST_START = 0.5
#: And after which it may begin although the first wave is not over: a long queue at the server.
EARLIEST_START = 0.25
AGREEMENT = 0.05
LOOKS = 20  # at the precision, per level

Stage = Literal["warmup", "measure", "over"]


class Pace:
    """Fed a few times per second; says which stage the level is in.

    `held`: requests kept in flight; None: an open loop, where that is read from the samples. `shortest_window_s`: the
    measured part lasts at least that long, unless the deadline comes: where a compressed clock makes a level shorter
    than the client's own delays.
    """

    def __init__(
        self,
        level: Level,
        mean_output_tokens: float,
        held: int | None,
        start_s: float,
        deadline_s: float,
        shortest_window_s: float = 0.0,
    ) -> None:
        self.stage: Stage = "warmup"
        self.start_s = start_s
        self.measure_from_s = start_s
        self.settled = False
        self._level = level
        self._mean_output_tokens = mean_output_tokens
        self._held = held
        self._in_flight = float(held or 0)
        self._deadline_s = deadline_s
        self._shortest_window_s = shortest_window_s
        self._times_s = [start_s]
        self._tokens = [0.0]
        self._completed_before = 0
        self._next_look_s = self._next_bar_look_s = start_s

    @property
    def longest_s(self) -> float:
        """The most that the level may last."""
        limit_s = self._deadline_s - self.start_s
        by_number = isinstance(self._level.workload.requests_per_level, int)
        return limit_s if by_number else min(LONGEST_S * self._level.effort, limit_s)

    def _shortest_s(self, wave_s: float) -> float:
        return self._level.effort * max(SHORTEST_S, WAVES * wave_s)

    def update(self, now_s: float, sample: Sample) -> Stage:
        """A reading taken at node time `now_s`."""
        if self._held is None:
            self._in_flight = max(1.0, float(sample.in_flight))
        if now_s > self._times_s[-1]:
            self._times_s.append(now_s)
            self._tokens.append(max(sample.tokens, self._tokens[-1]))
        if self.stage == "warmup" and self._warm(now_s, sample):
            self.stage, self.measure_from_s, self._completed_before = "measure", now_s, sample.completed
        elif self.stage == "measure" and self._enough(now_s, sample):
            self.stage = "over"
        if now_s >= self._deadline_s or sample.given_up is not None:
            self.stage = "over"
        return self.stage

    def rate(self, since_s: float) -> float:
        """Output tokens per second since then."""
        begin = max(0, bisect_right(self._times_s, since_s) - 1)
        span_s = self._times_s[-1] - self._times_s[begin]
        return (self._tokens[-1] - self._tokens[begin]) / span_s if span_s > 0 else 0.0

    def wave_s(self) -> float | None:
        """Estimated time of one full answer at the present rate; None before the first tokens."""
        middle_s = (self.start_s + self._times_s[-1]) / 2
        rate = self.rate(middle_s) or self.rate(self.start_s)
        return self._in_flight * self._mean_output_tokens / rate if rate else None

    def completed_in_window(self, completed: int) -> int:
        """Requests completed since the measured part began."""
        return 0 if self.stage == "warmup" else completed - self._completed_before

    def expected_requests(self, completed: int) -> int:
        """How many requests the measured part will complete, as far as one can tell."""
        asked = self._level.workload.requests_per_level
        if isinstance(asked, int):
            return asked
        wave_s = self.wave_s()
        done = self.completed_in_window(completed)
        if wave_s is None or self.stage == "over":
            return done
        end_s = self.start_s + min(self.longest_s, self._shortest_s(wave_s))
        begin_s = self.measure_from_s if self.stage == "measure" else self.start_s + wave_s
        return max(done, round(max(0.0, end_s - begin_s) / wave_s * self._in_flight))

    def _warm(self, now_s: float, sample: Sample) -> bool:
        asked = self._level.workload.warmup
        if now_s - self.start_s >= LATEST_START * self.longest_s:
            return self._tokens[-1] > 0
        if isinstance(asked, int):
            return sample.completed >= asked
        turned_over = sample.first_wave_left <= 0 or now_s - self.start_s >= EARLIEST_START * self.longest_s
        self.settled = turned_over and sample.completed > 0 and self._agree(now_s)
        return self.settled

    def _agree(self, now_s: float) -> bool:
        """Two neighbouring windows of a quarter of the time so far agree."""
        window_s = (now_s - self.start_s) / 4
        later = self.rate(now_s - window_s)
        earlier = 2 * self.rate(now_s - 2 * window_s) - later
        return later > 0 and abs(later - earlier) <= AGREEMENT * later

    def _enough(self, now_s: float, sample: Sample) -> bool:
        asked = self._level.workload.requests_per_level
        if isinstance(asked, int):
            return self.completed_in_window(sample.completed) >= asked
        if now_s - self.measure_from_s < self._shortest_window_s:
            return False
        elapsed_s = now_s - self.start_s
        if elapsed_s >= self.longest_s:
            return True
        completed = self.completed_in_window(sample.completed)
        if self._below_the_bar(now_s, completed):
            return True
        wave_s = self.wave_s()
        if wave_s is None or elapsed_s < self._shortest_s(wave_s) or now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + self.longest_s / LOOKS
        return self._precise(now_s, completed)

    def _precise(self, now_s: float, completed: int) -> bool:
        rates = self._batches(now_s, completed)
        return batch_means(rates).relative_half_width <= PRECISION / math.sqrt(self._level.effort)

    def _batches(self, now_s: float, completed: int) -> NDArray[np.float64]:
        """Tokens per second in equal parts of the measured time."""
        edges_s = np.linspace(self.measure_from_s, now_s, batch_count(completed) + 1)
        return np.asarray(np.diff(np.interp(edges_s, self._times_s, self._tokens)) / np.diff(edges_s))

    def _below_the_bar(self, now_s: float, completed: int) -> bool:
        """A sequential test: at most LOOKS looks, each with its share of the error (Bonferroni), by Student's t."""
        bar = self._level.bar
        if bar is None or completed < FEWEST_BATCHES or now_s < self._next_bar_look_s:
            return False
        self._next_bar_look_s = now_s + self.longest_s / LOOKS
        rates = self._batches(now_s, completed)
        error = math.hypot(float(np.std(rates, ddof=1)) / math.sqrt(len(rates)), bar.sd)
        return bar.output_tokens_per_s - float(np.mean(rates)) > student(len(rates) - 1, bar.error / LOOKS) * error
