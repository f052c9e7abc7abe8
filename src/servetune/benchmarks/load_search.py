"""Load generator: the highest throughput of one configuration at which limits are kept, by a search over the load.

The level's concurrency is the most that is tried. Latencies rise with the number of requests in flight, so the largest
number that keeps the limits is found by bisection on a logarithmic scale; the throughput there is the level's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import Field, field_validator

from servetune.benchmarks._answering import Answering
from servetune.benchmarks._measure import measure
from servetune.benchmarks._settings import LoadSettings
from servetune.core.benchmark import GoOn, Level, Measurement, Percentiles, Progress, Workload
from servetune.core.clock import Clock

PROBE_EFFORT = 0.3  # of the usual measuring time, for each load tried
#: `<metric>_<statistic>_s`, as in a study's `objective.limits`.
METRICS = ("ttft", "tpot", "itl", "e2e")
STATISTICS = tuple(Percentiles.model_fields)


class Settings(LoadSettings):
    """`limits`: upper bounds in node seconds such as `{ttft_p99_s: 2.0}`. `tolerance`: of the load that is found."""

    limits: Mapping[str, float] = Field(min_length=1)
    tolerance: float = Field(default=0.1, gt=0.01, le=1)

    @field_validator("limits")
    @classmethod
    def _known(cls, limits: Mapping[str, float]) -> Mapping[str, float]:
        for key, bound in limits.items():
            metric, _, statistic = key.removesuffix("_s").rpartition("_")
            if not key.endswith("_s") or metric not in METRICS or statistic not in STATISTICS:
                raise ValueError(f"{key!r} is no limit: write <{'|'.join(METRICS)}>_<{'|'.join(STATISTICS)}>_s")
            if not bound > 0:
                raise ValueError(f"the limit {key} must be above 0, got {bound}")
        return limits


def create(settings: Settings) -> LoadGenerator:
    """A load generator with these settings. Raises SpecError for a trace that cannot be used."""
    settings.demand(Workload())
    return LoadGenerator(settings)


def beyond(measurement: Measurement, limits: Mapping[str, float]) -> str | None:
    """The first limit that a measurement does not keep, as a sentence; None when it keeps all."""
    for key, bound in limits.items():
        metric, _, statistic = key.removesuffix("_s").rpartition("_")
        percentiles: Percentiles | None = getattr(measurement, f"{metric}_s")
        if percentiles is None:
            return f"{key} is not known at concurrency {measurement.concurrency}"
        value = getattr(percentiles, statistic)
        if value > bound:
            return f"{key} is {value:.4g} s at concurrency {measurement.concurrency}, limit {bound:g} s"
    return None


class LoadGenerator(Answering[Settings]):
    """Implements `core.benchmark.LoadGenerator` and `core.answers.AnswerChecker`."""

    def run(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Measurement | None:
        """Search for the load and measure there. `concurrency_found` in `details`; 0 tokens/s when no load keeps them.

        A measurement that is not valid ends the search and is the answer.
        """
        return _Search(self._settings, base_url, level, clock, go_on, headers).run()


class _Search:
    """One level's search. `_kept`: the largest load known to keep the limits; `_broken`: the smallest that does not."""

    def __init__(
        self, settings: Settings, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> None:
        self._settings, self._base_url, self._level = settings, base_url, level
        self._clock, self._go_on, self._headers = clock, go_on, headers
        self._end_s = clock.now_s() + level.limit_s
        self._tried = 0
        self._kept, self._broken = 0, level.concurrency + 1
        self._best: Measurement | None = None
        self._why = ""

    def run(self) -> Measurement | None:
        concurrency = self._level.concurrency
        while concurrency:
            probe = self._measure(concurrency)
            if probe is None or not probe.valid:
                return None if probe is None else self._answer(probe)
            why = beyond(probe, self._settings.limits)
            if why is None:
                self._kept, self._best = concurrency, probe
            else:
                self._broken, self._why = concurrency, why
            concurrency = self._next()
        return self._answer(self._best) if self._best is not None else self._none_kept()

    def _next(self) -> int:
        """The next load to try; 0 when the place is known well enough."""
        if self._broken <= max(1, self._kept) * (1 + self._settings.tolerance) or self._broken - self._kept <= 1:
            return 0
        if self._kept == 0:
            return 1
        between = round(math.sqrt(self._kept * self._broken))
        return min(max(between, self._kept + 1), self._broken - 1)

    def _left(self) -> int:
        """How many loads are still to be tried at most, this one counted."""
        if self._tried == 0:
            return 2 + self._steps(1, self._level.concurrency)
        return 1 + self._steps(max(1, self._kept), self._broken)

    def _steps(self, kept: int, broken: int) -> int:
        cells = math.log(max(broken / kept, 1.0)) / math.log1p(self._settings.tolerance)
        return max(0, math.ceil(math.log2(cells))) if cells > 1 else 0

    def _measure(self, concurrency: int) -> Measurement | None:
        limit_s = max(1e-3, (self._end_s - self._clock.now_s()) / self._left())
        level = self._level.model_copy(
            update={
                "concurrency": concurrency,
                "limit_s": limit_s,
                "effort": self._level.effort * PROBE_EFFORT,
                "window": self._level.window * 64 + self._tried,
            }
        )
        self._tried += 1
        demand = self._settings.demand(level.workload)
        return measure(self._base_url, level, self._clock, self._tell, self._headers, demand)

    def _tell(self, progress: Progress) -> bool:
        return self._go_on(progress.model_copy(update={"concurrency": self._level.concurrency}))

    def _answer(self, measurement: Measurement) -> Measurement:
        told = (self._why,) if self._why and measurement.valid else ()
        details = {
            **measurement.details,
            "concurrency_found": float(measurement.concurrency),
            "loads_tried": self._tried,
        }
        change = {
            "concurrency": self._level.concurrency,
            "details": details,
            "warnings": (*measurement.warnings, *told),
        }
        return measurement.model_copy(update=change)

    def _none_kept(self) -> Measurement:
        found = Measurement.empty(self._level.concurrency, [f"no load keeps the limits: {self._why}"])
        details = {"concurrency_found": 0.0, "loads_tried": float(self._tried)}
        return found.model_copy(update={"valid": True, "details": details})
