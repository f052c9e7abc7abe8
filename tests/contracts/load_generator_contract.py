"""What every load generator must do. A test class inherits `LoadGeneratorContract` and gives the fixtures.

`generator`, `base_url` of a server that works, `level` (a short one that the generator completes with 0 failures) and
`clock`; optionally `unreachable_url`.
"""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from servetune.core.benchmark import Level, LoadGenerator, Measurement, Progress
from servetune.core.clock import Clock, WallClock

ENDS_WITHIN_S = 1.0
#: For a machine that is busy with other tests.
GRACE_S = 1.0


#: How warnings begin that other work on this machine brings about.
STARVED = ("the client", "latencies hold delays of the client", "the halves", "the load had not settled", "only ")


def trusted(measurement: Measurement) -> bool:
    """Valid, or invalid only because other work on this machine kept the client from a core."""
    return measurement.valid or all(warning.startswith(STARVED) for warning in measurement.warnings)


class Listener:
    """Keeps what it is told; says stop when `until` holds."""

    def __init__(self, until=lambda progress: False) -> None:
        self.told: list[Progress] = []
        self.stopped_at: float | None = None
        self._until = until

    def __call__(self, progress: Progress) -> bool:
        self.told.append(progress)
        if self._until(progress):
            self.stopped_at = time.monotonic()
            return False
        return True


class LoadGeneratorContract:
    @pytest.fixture
    def clock(self) -> Clock:
        return WallClock()

    @pytest.fixture
    def unreachable_url(self) -> str:
        return "http://127.0.0.1:1"

    def test_a_level_gives_consistent_figures(self, generator: LoadGenerator, base_url, level: Level, clock) -> None:
        listener = Listener()
        before_s = clock.now_s()
        measurement = generator.run(base_url, level, clock, listener, {})
        took_s = clock.now_s() - before_s
        assert isinstance(measurement, Measurement)
        assert trusted(measurement), measurement.warnings
        assert measurement.concurrency == level.concurrency
        assert 0 < measurement.low <= measurement.output_tokens_per_s <= measurement.high
        assert 0 < measurement.duration_s <= took_s
        assert measurement.requests_completed > 0
        assert measurement.requests_failed == 0
        made = measurement.output_tokens_per_s * measurement.duration_s
        assert abs(measurement.output_tokens - made) <= 0.01 * made + 1
        for latency in (measurement.ttft_s, measurement.tpot_s, measurement.itl_s, measurement.e2e_s):
            if latency is not None:
                assert 0 <= latency.p50 <= latency.p90 <= latency.p95 <= latency.p99
                assert latency.mean >= 0

    def test_it_tells_how_far_it_is(self, generator: LoadGenerator, base_url, level: Level, clock) -> None:
        listener = Listener()
        generator.run(base_url, level, clock, listener, {})
        assert listener.told
        assert all(progress.concurrency == level.concurrency for progress in listener.told)
        stages = [progress.stage for progress in listener.told]
        assert stages == sorted(stages, key=("warmup", "measure").index)
        measuring = [progress for progress in listener.told if progress.stage == "measure"]
        assert all(a.completed <= b.completed for a, b in pairwise(measuring))
        assert all(a.elapsed_s <= b.elapsed_s for a, b in pairwise(listener.told))

    def test_a_no_at_once_ends_it(self, generator: LoadGenerator, base_url, level: Level, clock) -> None:
        listener = Listener(until=lambda progress: True)
        assert generator.run(base_url, level, clock, listener, {}) is None
        assert listener.stopped_at is not None
        assert time.monotonic() - listener.stopped_at < ENDS_WITHIN_S + GRACE_S
        assert len(listener.told) == 1

    def test_a_no_later_ends_it(self, generator: LoadGenerator, base_url, level: Level, clock) -> None:
        begin = time.monotonic()
        listener = Listener(until=lambda progress: time.monotonic() - begin > 0.3)
        measurement = generator.run(base_url, level, clock, listener, {})
        if listener.stopped_at is not None:
            assert measurement is None
            assert time.monotonic() - listener.stopped_at < ENDS_WITHIN_S + GRACE_S

    def test_an_error_of_the_caller_passes_through(self, generator: LoadGenerator, base_url, level, clock) -> None:
        def fails(progress: Progress) -> bool:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            generator.run(base_url, level, clock, fails, {})

    def test_a_server_that_is_not_there_is_a_value(
        self, generator: LoadGenerator, unreachable_url, level: Level, clock
    ) -> None:
        measurement = generator.run(unreachable_url, level, clock, lambda progress: True, {})
        assert isinstance(measurement, Measurement)
        assert not measurement.valid
        assert measurement.warnings
        assert measurement.output_tokens_per_s == 0

    def test_the_limit_holds(self, generator: LoadGenerator, base_url, level: Level, clock) -> None:
        short = level.model_copy(update={"limit_s": level.limit_s / 20})
        before_s = clock.now_s()
        generator.run(base_url, short, clock, lambda progress: True, {})
        slack_s = GRACE_S * getattr(clock, "time_scale", 1.0)
        assert clock.now_s() - before_s < short.limit_s + slack_s
