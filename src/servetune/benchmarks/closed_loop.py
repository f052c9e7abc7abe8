"""Load generator: a fixed number of requests in flight, over HTTP streaming."""

from __future__ import annotations

from collections.abc import Mapping

from servetune.benchmarks._answering import Answering
from servetune.benchmarks._measure import measure
from servetune.benchmarks._settings import LoadSettings
from servetune.core.benchmark import GoOn, Level, Measurement, Workload
from servetune.core.clock import Clock


class Settings(LoadSettings):
    """See `LoadSettings`."""


def create(settings: Settings) -> LoadGenerator:
    """A load generator with these settings. Raises SpecError for a trace that cannot be used."""
    settings.demand(Workload())
    return LoadGenerator(settings)


class LoadGenerator(Answering[Settings]):
    """Implements `core.benchmark.LoadGenerator` and `core.answers.AnswerChecker`."""

    def run(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Measurement | None:
        """Keep `level.concurrency` requests in flight and measure; see the protocol."""
        return measure(base_url, level, clock, go_on, headers, self._settings.demand(level.workload))
