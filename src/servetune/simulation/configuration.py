"""The configuration in effect on a simulated node, and its memory arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from servetune.core.space import Assignment, Condition, Value
from servetune.simulation.scenario import Scenario


class Memory(NamedTuple):
    """The arithmetic of one launch, GiB per GPU. `needed`: what serving takes beside the KV pool."""

    weights: float
    pre: float
    avail: float
    kv_gib: float
    graph: float
    headroom: float
    needed: float


def overlay(scenario: Scenario, assignment: Assignment) -> dict[str, Value]:
    """The configuration as launched: the scenario's defaults under what is set. A switch that is not set is false."""
    defaults = {flag: False if isinstance(value, bool) else value for flag, value in scenario.flags.items()}
    return {**defaults, **{_name(scenario, flag): value for flag, value in assignment.items()}}


def _name(scenario: Scenario, flag: str) -> str:
    """Scenarios are written with the earlier name of the largest captured batch size."""
    return "cuda-graph-max-bs" if flag == "cuda-graph-max-bs-decode" and flag not in scenario.flags else flag


def configure(scenario: Scenario, assignment: Assignment) -> tuple[dict[str, Value], tuple[str, ...]]:
    """The configuration in effect, and the warnings about what was ignored.

    Every `no_effect` entry that holds of the configuration as launched resets its flags to the scenario's defaults.
    """
    launched = overlay(scenario, assignment)
    effective, warnings = dict(launched), []
    for entry in scenario.no_effect:
        if holds(entry.when, launched):
            warnings.append(entry.log)
            for flag in entry.when.any_of:
                effective.pop(flag, None)
                if flag in scenario.flags:
                    effective[flag] = scenario.flags[flag]
    return effective, tuple(warnings)


def holds(when: Condition, configuration: Mapping[str, Value]) -> bool:
    """Whether every clause holds. A flag that is absent counts as None, and where false is listed, as false."""
    absent_switches = {
        flag: False for flag, wanted in when.any_of.items() if flag not in configuration and _lists_a_switch(wanted)
    }
    return when.holds({**configuration, **absent_switches} if absent_switches else configuration)


def _lists_a_switch(wanted: Iterable[object]) -> bool:
    return any(isinstance(want, bool) for want in wanted)


def memory(scenario: Scenario, configuration: Mapping[str, Value]) -> Memory:
    """The memory arithmetic of a configuration in effect."""
    sheet = scenario.memory_gib
    weights = sheet.weights + sum(extra.add for extra in sheet.extra if holds(extra.when, configuration))
    pre = sheet.free_before_weights
    headroom = pre * (1 - number(configuration, "mem-fraction-static"))
    avail = pre - weights
    graph = 0.0
    if captures(configuration):
        graph = sheet.graph_base + sheet.graph_per_batch_size * number(configuration, "cuda-graph-max-bs")
    chunks = number(configuration, "chunked-prefill-size") / 1024
    needed = graph + sheet.activation + sheet.activation_per_1k_chunk * chunks
    return Memory(weights, pre, avail, avail - headroom, graph, headroom, needed)


def captures(configuration: Mapping[str, Value]) -> bool:
    """Whether CUDA graphs are captured at all."""
    return configuration.get("disable-cuda-graph") is not True


def largest_graph(configuration: Mapping[str, Value]) -> float:
    """Largest captured batch size; 0 without graphs."""
    return number(configuration, "cuda-graph-max-bs") if captures(configuration) else 0.0


def number(configuration: Mapping[str, Value], flag: str) -> float:
    """The value of a numeric flag that is known to be set."""
    return float(configuration[flag])
