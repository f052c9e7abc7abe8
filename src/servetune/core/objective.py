"""What a study is after: throughput, goodput, or throughput and a latency against each other; and its limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from servetune.core.benchmark import Measurement, Percentiles
from servetune.core.space import Frozen

OUTPUT_TOKENS: Literal["output_tokens_per_s"] = "output_tokens_per_s"
#: Latencies that a limit or `minimize` may name, in seconds.
LATENCIES = tuple(
    f"{metric}_{statistic}_s" for metric in ("ttft", "tpot", "itl", "e2e") for statistic in Percentiles.model_fields
)
#: A latency below this is taken for it, so that no quotient is infinite.
SHORTEST_S = 1e-6


class Objective(Frozen):
    """What is maximised: a metric at one level, or its (weighted) geometric or arithmetic mean over all levels.

    `maximize` of goodput: of the load generator's goodput limits, which must be set. `minimize`: a latency as a second
    objective. Then what is maximised is the first divided by the second (1 % of one is worth 1 % of the other), and the
    report shows the Pareto front of the two. `limits`: upper bounds such as `{"ttft_p99_s": 2.0}`; a configuration
    beyond one at any level is infeasible.
    """

    maximize: Literal["output_tokens_per_s", "goodput_output_tokens_per_s", "goodput_requests_per_s"] = OUTPUT_TOKENS
    minimize: str | None = None
    aggregate: Literal["geometric_mean", "mean"] = "geometric_mean"
    level: int | None = None
    weights: Mapping[int, float] = Field(default_factory=dict)
    limits: Mapping[str, float] = Field(default_factory=dict)

    @property
    def unit(self) -> str:
        """Of `value`, for people."""
        rate = "requests/s" if self.maximize == "goodput_requests_per_s" else "tokens/s"
        rate = f"{rate} within limits" if self.maximize != OUTPUT_TOKENS else rate
        return rate if self.minimize is None else f"{rate} per s of {self.minimize.removesuffix('_s')}"

    def rate(self, measurement: Measurement) -> float:
        """What one level gives of the metric that is maximised; 0 where it was not measured."""
        if self.maximize == OUTPUT_TOKENS:
            return measurement.output_tokens_per_s
        return measurement.details.get(self.maximize, 0.0)

    def of(self, measurement: Measurement) -> float:
        """What one level contributes: its rate, divided by its latency where there are two objectives."""
        if self.minimize is None:
            return self.rate(measurement)
        found = latency_s(measurement, self.minimize)
        return 0.0 if found is None else self.rate(measurement) / max(SHORTEST_S, found)

    def value(self, levels: Mapping[int, float]) -> float:
        """Level → what it contributes, to the objective. Every level of the objective must be present.

        Geometric mean: exp(Σ w·ln x / Σ w); a level that gave 0 makes it 0. With equal weights 1.
        """
        if self.level is not None:
            return levels[self.level]
        weights = {level: self.weights.get(level, 0.0 if self.weights else 1.0) for level in levels}
        total = sum(weights.values())
        if self.aggregate == "mean":
            return sum(w * levels[level] for level, w in weights.items()) / total
        if any(levels[level] <= 0 for level, w in weights.items() if w > 0):
            return 0.0
        return math.exp(sum(w * math.log(levels[level]) for level, w in weights.items() if w > 0) / total)

    def contributions(self, measurements: Sequence[Measurement]) -> dict[int, float]:
        """Level → what it contributes."""
        return {m.concurrency: self.of(m) for m in measurements}

    def both(self, measurements: Sequence[Measurement]) -> tuple[float, float]:
        """The two objectives, aggregated alike: rate, and latency in seconds. Only with `minimize`.

        A level without the latency makes it infinite.
        """
        key = self.minimize or ""
        found = {m.concurrency: latency_s(m, key) for m in measurements}
        rate = self.value({m.concurrency: self.rate(m) for m in measurements})
        known = {level: max(SHORTEST_S, value) for level, value in found.items() if value is not None}
        return rate, self.value(known) if len(known) == len(found) else math.inf

    def beyond_limits(self, measurement: Measurement) -> tuple[str, ...]:
        """One sentence per limit that the measurement exceeds. Keys: `<ttft|tpot|itl|e2e>_<mean|p50|p90|p95|p99>_s`."""
        found = []
        for key, bound in self.limits.items():
            got = latency_s(measurement, key)
            if got is not None and got > bound:
                found.append(f"{key} is {got:.4g} s at concurrency {measurement.concurrency}, limit {bound:g} s")
        return tuple(found)


def latency_s(measurement: Measurement, key: str) -> float | None:
    """One of `LATENCIES` of a measurement; None where it was not measured."""
    metric, _, statistic = key.removesuffix("_s").rpartition("_")
    percentiles: Percentiles | None = getattr(measurement, f"{metric}_s")
    return None if percentiles is None else float(getattr(percentiles, statistic))


def pareto(points: Mapping[int, tuple[float, float]]) -> list[int]:
    """Keys of the points (to maximise, to minimise) that no other point beats in both, from the highest rate on."""
    front: list[int] = []
    for key in sorted(points, key=lambda key: (-points[key][0], points[key][1], key)):
        if not front or points[key][1] < points[front[-1]][1]:
            front.append(key)
    return front
