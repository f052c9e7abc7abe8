"""Load and what it measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from pydantic import Field

from servetune.core.clock import Clock
from servetune.core.space import Frozen


class Workload(Frozen):
    """What each request asks for, and the concurrency levels to hold. `auto`: chosen by the load generator."""

    input_tokens: int = Field(default=512, ge=1, le=10_000_000)
    output_tokens: int = Field(default=256, ge=1, le=10_000_000)
    concurrency: tuple[int, ...] = (1, 10, 256, 1024)
    requests_per_level: int | Literal["auto"] = "auto"
    warmup: int | Literal["auto"] = "auto"  # requests thrown away before each level
    api: Literal["sglang", "openai"] = "sglang"
    seed: int = 0


class Bar(Frozen):
    """What the best configuration gave at a level: tokens/s and their standard deviation.

    A level that is as good may be taken for a worse one with the chance `error`.
    """

    output_tokens_per_s: float
    sd: float
    error: float


class Level(Frozen):
    """One concurrency level of a workload: what a load generator is asked to hold, for at most `limit_s`.

    `effort`: share of the usual measuring time that is wanted; a generator that cannot measure less measures it all.
    `bar`: the level may end as soon as it is surely below it.
    """

    concurrency: int
    workload: Workload
    limit_s: float
    effort: float = Field(default=1.0, gt=0, le=1)
    window: int = 0  # how often this launch has held the level before
    bar: Bar | None = None


class Percentiles(Frozen):
    """Of one latency metric, in seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class Measurement(Frozen):
    """What one level gave. Throughput in output tokens per second over `duration_s`, with a 95 % interval.

    `valid` False: the number must not be used; `invalid_because` has those of the `warnings` that say why.
    """

    concurrency: int
    output_tokens_per_s: float
    low: float
    high: float
    duration_s: float
    requests_completed: int
    requests_failed: int
    output_tokens: int
    ttft_s: Percentiles | None = None
    tpot_s: Percentiles | None = None
    itl_s: Percentiles | None = None
    e2e_s: Percentiles | None = None
    valid: bool = True
    warnings: tuple[str, ...] = ()
    invalid_because: tuple[str, ...] = ()
    details: Mapping[str, float] = Field(default_factory=dict)  # client_cpu_s, server_output_tokens_per_s, …

    @classmethod
    def empty(cls, concurrency: int, warnings: Sequence[str], requests_failed: int = 0) -> Measurement:
        """Of a level at which nothing was measured; not valid, for the last of `warnings`."""
        return cls(
            concurrency=concurrency,
            output_tokens_per_s=0.0,
            low=0.0,
            high=0.0,
            duration_s=0.0,
            requests_completed=0,
            requests_failed=requests_failed,
            output_tokens=0,
            valid=False,
            warnings=tuple(warnings),
            invalid_because=tuple(warnings[-1:]),
        )


class Progress(Frozen):
    """Where a level is; sent about five times a second of wall time."""

    concurrency: int
    stage: Literal["warmup", "measure"]
    completed: int
    expected: int
    failed: int
    output_tokens_per_s: float
    elapsed_s: float


GoOn = Callable[[Progress], bool]
"""Called with progress, also while nothing completes; False ends the level at once."""


class LoadGenerator(Protocol):
    """Produces load against a server and measures. Times are node time (`clock`)."""

    def run(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Measurement | None:
        """Hold one level and measure it. None when `go_on` returned False. `headers` go with each request.

        Never raises for what the server does: refused, reset or cut requests are counted in the measurement.
        """
        ...
