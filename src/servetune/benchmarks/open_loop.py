"""Load generator: requests come at their own times, whatever the server does; Poisson, or as in a trace.

`level.concurrency` is the most that may be in flight: requests beyond it wait in the client, their latencies counting
from when they came, and a warning says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from servetune.benchmarks._answering import Answering
from servetune.benchmarks._lengths import Arrivals, PoissonArrivals, TraceArrivals, read_trace
from servetune.benchmarks._measure import measure
from servetune.benchmarks._settings import LoadSettings
from servetune.core.benchmark import GoOn, Level, Measurement, Workload
from servetune.core.clock import Clock
from servetune.core.errors import SpecError


class Settings(LoadSettings):
    """`rate`: `poisson:20` (requests per node second) or `trace` (the arrival times of `lengths.trace`)."""

    rate: str


def create(settings: Settings) -> LoadGenerator:
    """A load generator with these settings. Raises SpecError for a rate or trace that cannot be used."""
    settings.demand(Workload(), arrivals_of(settings, 0))
    return LoadGenerator(settings)


def arrivals_of(settings: Settings, seed: int) -> Arrivals:
    """When requests come. Raises SpecError."""
    kind, _, number = settings.rate.partition(":")
    if kind == "trace" and not number:
        if settings.lengths.trace is None:
            raise SpecError("rate: trace needs `lengths: {trace: FILE}`")
        times_s = read_trace(settings.lengths.trace).arrivals_s
        if times_s is None:
            raise SpecError(f"rate: trace needs an 'arrival' in every line of {settings.lengths.trace}")
        if len(times_s) > 1 and times_s[-1] <= 0:
            raise SpecError(
                f"rate: trace needs arrivals at different times, {settings.lengths.trace} has one time only"
            )
        return TraceArrivals(times_s)
    try:
        per_s = float(number)
    except ValueError:
        per_s = 0.0
    if kind != "poisson" or not 0 < per_s < float("inf"):
        raise SpecError(f"rate is {settings.rate!r}; write poisson:20 (requests per second) or trace")
    return PoissonArrivals(per_s, seed)


class LoadGenerator(Answering[Settings]):
    """Implements `core.benchmark.LoadGenerator` and `core.answers.AnswerChecker`."""

    def run(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Measurement | None:
        """Send requests as they come and measure; see the protocol."""
        demand = self._settings.demand(level.workload, arrivals_of(self._settings, level.workload.seed))
        return measure(base_url, level, clock, go_on, headers, demand)
