"""Load generator: the highest throughput of one configuration at which limits are kept, by a search over the load.

The level's concurrency is the most that is tried. Latencies rise with the number of requests in flight, so the largest
number that keeps the limits is found by bisection on a logarithmic scale (`_bisection`); the throughput there, in the
latest measurement at that load, is the level's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from pydantic import Field, field_validator

from servetune.benchmarks._answering import Answering
from servetune.benchmarks._bisection import Bisection, Verdict
from servetune.benchmarks._checks import FAILED_AT_MOST
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
        value = _value(measurement, key)
        if value is None:
            return f"{key} is not known at concurrency {measurement.concurrency}"
        if value > bound:
            return f"{key} is {value:.4g} s at concurrency {measurement.concurrency}, limit {bound:g} s"
    return None


def clear(measurement: Measurement, limits: Mapping[str, float]) -> bool:
    """Whether noise cannot have decided: all 95 % intervals lie below the limits, or one of them above its limit."""
    intervals = {key: _interval(measurement, key) for key in limits}
    if any(low > limits[key] for key, (low, _) in intervals.items()):
        return True
    return all(high < limits[key] for key, (_, high) in intervals.items())


def _value(measurement: Measurement, key: str) -> float | None:
    metric, _, statistic = key.removesuffix("_s").rpartition("_")
    percentiles: Percentiles | None = getattr(measurement, f"{metric}_s")
    return None if percentiles is None else float(getattr(percentiles, statistic))


def _interval(measurement: Measurement, key: str) -> tuple[float, float]:
    name, details = key.removesuffix("_s"), measurement.details
    return details.get(f"{name}_low_s", 0.0), details.get(f"{name}_high_s", math.inf)


def verdict_on(measurement: Measurement, limits: Mapping[str, float]) -> Verdict:
    """A server that refuses part of the requests does not keep limits; otherwise invalid figures say nothing."""
    if measurement.valid:
        return Verdict.KEPT if beyond(measurement, limits) is None else Verdict.BROKEN
    ended = measurement.requests_failed + measurement.requests_completed
    refused = measurement.requests_completed and measurement.requests_failed > FAILED_AT_MOST * ended
    return Verdict.BROKEN if refused else Verdict.UNMEASURED


class LoadGenerator(Answering[Settings]):
    """Implements `core.benchmark.LoadGenerator` and `core.answers.AnswerChecker`."""

    def run(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Measurement | None:
        """Search for the load and measure there. `concurrency_found` in `details`; 0 tokens/s when no load keeps them.

        Not valid: no load could be measured, or those above the one found could not, so that it may be too low.
        """
        return _Search(self._settings, base_url, level, clock, go_on, headers).run()


class _Search:
    """One level's search."""

    def __init__(
        self, settings: Settings, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> None:
        self._settings, self._base_url, self._level = settings, base_url, level
        self._clock, self._go_on, self._headers = clock, go_on, headers
        self._end_s = clock.now_s() + level.limit_s
        self._tried = 0
        self._bisection = Bisection(level.concurrency, settings.tolerance)
        self._latest: dict[int, Measurement] = {}

    def run(self) -> Measurement | None:
        while (load := self._bisection.next()) and (not self._tried or self._clock.now_s() < self._end_s):
            probe = self._measure(load)
            if probe is None:
                return None
            self._latest[load] = probe
            limits = self._settings.limits
            self._bisection.tell(load, verdict_on(probe, limits), not probe.valid or clear(probe, limits))
        return self._answer(ended_early=load != 0)

    def _measure(self, concurrency: int) -> Measurement | None:
        limit_s = max(1e-3, (self._end_s - self._clock.now_s()) / self._bisection.left())
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

    def _answer(self, ended_early: bool) -> Measurement:
        found = self._bisection
        measured = self._latest.get(found.kept) or Measurement.empty(self._level.concurrency, ())
        told = self._told(ended_early)
        unknown = found.bound_unmeasured
        details = {
            **measured.details,
            "concurrency_found": float(found.kept),
            "loads_tried": float(self._tried),
        }
        if found.bound is not None:
            details["concurrency_beyond"] = float(found.bound)
        change = {
            "concurrency": self._level.concurrency,
            "details": details,
            "valid": not unknown,
            "warnings": (*measured.warnings, *told),
            "invalid_because": tuple(told[:1]) if unknown else (),
        }
        return measured.model_copy(update=change)

    def _told(self, ended_early: bool) -> list[str]:
        """Why not a higher load."""
        found, told = self._bisection, []
        if found.bound is not None:
            probe = self._latest[found.bound]
            why = beyond(probe, self._settings.limits) if probe.valid else "; ".join(probe.warnings)
            if found.bound_unmeasured:
                told.append(f"loads from {found.bound} requests in flight on could not be measured: {why}")
            elif not found.kept:
                tried = ", ".join(f"{load:,}" for load in found.tried)
                told.append(f"no load keeps the limits (tried {tried}): {why}")
            else:
                told.append(why or "")
        if ended_early:
            bound = "" if found.bound is None else f" and {found.bound:,}"
            told.append(f"the time was over before the load was found: it lies between {found.kept:,}{bound}")
        return told
