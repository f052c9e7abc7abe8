"""Throughput of a configuration in effect on a simulated node, in output tokens per second of the whole server."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from typing import NamedTuple

from servetune.core.space import Value
from servetune.simulation.configuration import holds, largest_graph, memory, number
from servetune.simulation.scenario import Scenario

LEVEL_MIN_S, LEVEL_MAX_S = 30.0, 180.0


def running(scenario: Scenario, configuration: Mapping[str, Value], level: int) -> float:
    """Requests that decode at the same time (C), not rounded: limited by the KV pool and by max-running-requests."""
    room = memory(scenario, configuration)
    limits = [float(level), room.kv_gib * scenario.kv_tokens_per_gib / (scenario.input_tokens + scenario.output_tokens)]
    if "max-running-requests" in configuration:
        limits.append(number(configuration, "max-running-requests"))
    return min(limits)


def throughput(scenario: Scenario, configuration: Mapping[str, Value], level: int) -> float:
    """Output tokens/s at `level`, free of noise. Only of a configuration whose KV pool is not empty."""
    concurrency = running(scenario, configuration, level)
    rate = _base(scenario.throughput, concurrency)
    for effect in scenario.effects:
        if holds(effect.when, configuration):
            factor = effect.factor
            rate *= _at(factor, level) if isinstance(factor, Mapping) else factor
    for curve in scenario.curves:
        if curve.flag in configuration:
            rate *= _on_curve(number(configuration, curve.flag), curve.optimum, curve.penalty)
    if concurrency > largest_graph(configuration):
        rate *= _at(scenario.eager_factor, level)
    return rate


def _base(table: Mapping[int, float], concurrency: float) -> float:
    """Linear in (log concurrency, log throughput); proportional below the first level, constant above the last."""
    levels = sorted(table)
    if concurrency <= levels[0]:
        return table[levels[0]] * concurrency / levels[0]
    return math.exp(_at({level: math.log(table[level]) for level in levels}, concurrency))


def _at(table: Mapping[int, float], concurrency: float) -> float:
    """Linear in log concurrency between the entries, constant beyond the ends."""
    levels = sorted(table)
    if concurrency <= levels[0]:
        return table[levels[0]]
    for low, high in itertools.pairwise(levels):
        if concurrency <= high:
            share = math.log(concurrency / low) / math.log(high / low)
            return table[low] + share * (table[high] - table[low])
    return table[levels[-1]]


def _on_curve(value: float, optimum: float, penalty: float) -> float:
    """A value that has no logarithm (a switched-off chunk size) gets the floor."""
    return max(0.3, 1 - penalty * abs(math.log2(value / optimum))) if value > 0 else 0.3


def noise(scenario: Scenario, rng: random.Random, precision: float = 1.0) -> float:
    """Factor of one measured value. Draws twice. `precision`: share of the full measuring time that was spent."""
    normal, lot = rng.gauss(0.0, 1.0), rng.random()
    factor = 1 + scenario.noise.cv * normal / math.sqrt(precision)
    return factor * scenario.noise.outlier_factor if lot < scenario.noise.outlier_probability else factor


def measured(
    scenario: Scenario, configuration: Mapping[str, Value], level: int, rng: random.Random, precision: float = 1.0
) -> float:
    """Output tokens/s as one measurement would give it; never below 0."""
    return max(0.0, throughput(scenario, configuration, level) * noise(scenario, rng, precision))


class Latency(NamedTuple):
    """Mean times of one request at a level, in seconds. They follow from throughput and concurrency alone."""

    ttft_s: float
    tpot_s: float
    e2e_s: float


#: Share of a running request's time that passes before its first token, at most this and PREFILL_S.
PREFILL_SHARE, PREFILL_S = 0.05, 2.0


def prefill_s(served_s: float) -> float:
    """Seconds to the first token of a request that is served for `served_s`."""
    return min(PREFILL_SHARE * served_s, PREFILL_S)


def latency(scenario: Scenario, configuration: Mapping[str, Value], level: int, tokens_per_s: float) -> Latency:
    """With L requests present and C of them running, each is present for L, and served for C, times tokens / rate."""
    e2e_s = level * scenario.output_tokens / tokens_per_s
    served_s = running(scenario, configuration, level) * scenario.output_tokens / tokens_per_s
    ttft_s = e2e_s - served_s + prefill_s(served_s)
    return Latency(ttft_s, (e2e_s - ttft_s) / max(1, scenario.output_tokens - 1), e2e_s)


def level_s(scenario: Scenario, level: int, tokens_per_s: float) -> float:
    """Seconds that measuring a level takes."""
    return max(LEVEL_MIN_S, min(LEVEL_MAX_S, 4 * level * scenario.output_tokens / tokens_per_s))
