"""The model: what a configuration does on a scenario's node. Pure; the server and virtual time both read it.

Seconds are node seconds, memory is GiB per GPU, throughput is output tokens per second of the whole server.
The tables and formulas are explained in docs/simulated-node.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from servetune.core.failure import Phase
from servetune.core.space import Assignment, Value
from servetune.simulation.configuration import captures, configure, holds, largest_graph, memory
from servetune.simulation.rates import level_s, throughput
from servetune.simulation.scenario import Scenario

PARSE_S = 5.0
PROBE_S = 20.0
FAULT_AFTER_S = 20.0  # of a level, when the server dies in it
STOP_S = 15.0
#: Runtime memory only matters from this concurrency on.
OOM_RUNTIME_LEVEL = 10

#: Phases up to readiness, in order.
STARTUP = (Phase.PARSE, Phase.VALIDATE, Phase.LOAD, Phase.KV_ALLOC, Phase.GRAPH_CAPTURE, Phase.WARMUP)


class Fault(NamedTuple):
    """How a launch fails. `slug`: failure class. `log`: the line that decides; empty when the memory model does."""

    phase: Phase
    slug: str
    log: str


class PhaseEnd(NamedTuple):
    """A phase that was entered, and when it ended or failed, in seconds since the launch."""

    phase: Phase
    end_s: float


class Startup(NamedTuple):
    """From launch to readiness or death. `ends` in order of time; the last one is where it failed, if it did."""

    ends: tuple[PhaseEnd, ...]
    fault: Fault | None

    @property
    def seconds(self) -> float:
        """Seconds from launch to readiness or death."""
        return self.ends[-1].end_s


class LevelOutcome(NamedTuple):
    """One concurrency level. `tokens_per_s` is free of noise, and 0 when the server died."""

    level: int
    seconds: float
    tokens_per_s: float
    fault: Fault | None


class Outcome(NamedTuple):
    """A whole launch. `levels` ends with the one in which the server died; empty when it never came so far."""

    configuration: Mapping[str, Value]
    startup: Startup
    probe: Fault | None
    levels: tuple[LevelOutcome, ...]

    @property
    def fault(self) -> Fault | None:
        """Why the launch failed, or None."""
        later = [level.fault for level in self.levels]
        return next((fault for fault in (self.startup.fault, self.probe, *later) if fault), None)

    @property
    def seconds(self) -> float:
        """Node seconds of the launch, stopping included."""
        probe_s = 0.0 if self.startup.fault else PROBE_S
        return self.startup.seconds + probe_s + sum(level.seconds for level in self.levels) + STOP_S


def strikes(scenario: Scenario, rng: random.Random) -> tuple[bool, ...]:
    """For each failure rule whether it strikes this launch. Draws once per rule that is not certain, in file order."""
    return tuple(rule.probability >= 1 or rng.random() < rule.probability for rule in scenario.failures)


def startup(scenario: Scenario, configuration: Mapping[str, Value], struck: Sequence[bool]) -> Startup:
    """Phase by phase to readiness or to the first failure. Without CUDA graphs there is no capture phase."""
    ends: list[PhaseEnd] = []
    for phase in STARTUP:
        if phase is Phase.GRAPH_CAPTURE and not captures(configuration):
            continue
        before_s = ends[-1].end_s if ends else 0.0
        fault = _startup_fault(scenario, configuration, phase, struck)
        ends.append(PhaseEnd(phase, _end_s(scenario, configuration, phase, before_s, fault is not None)))
        if fault:
            return Startup(tuple(ends), fault)
    return Startup(tuple(ends), None)


def _end_s(scenario: Scenario, configuration: Mapping[str, Value], phase: Phase, before_s: float, fails: bool) -> float:
    sheet = scenario.startup_s
    if phase is Phase.PARSE:
        return PARSE_S if fails else min(PARSE_S, sheet.init)
    if phase is Phase.VALIDATE:
        return sheet.init  # counted from the launch: parsing is part of it
    if phase is Phase.GRAPH_CAPTURE:
        sizes = math.ceil(largest_graph(configuration) / 8)
        return before_s + sheet.graph_base + sheet.graph_per_batch_size * sizes
    return before_s + {Phase.LOAD: sheet.load_weights, Phase.KV_ALLOC: sheet.kv_pool, Phase.WARMUP: sheet.warmup}[phase]


def _startup_fault(
    scenario: Scenario, configuration: Mapping[str, Value], phase: Phase, struck: Sequence[bool]
) -> Fault | None:
    """Of the load phase the stated failures come before memory; of the later ones memory comes first."""
    stated = _stated_fault(scenario, configuration, phase, struck)
    room = memory(scenario, configuration)
    if phase is Phase.LOAD:
        return stated or (Fault(phase, "oom_weights", "") if room.avail < 0 else None)
    if phase is Phase.KV_ALLOC and room.kv_gib <= 0:
        return Fault(phase, "kv_budget", "")
    if phase is Phase.GRAPH_CAPTURE and room.graph > room.headroom:
        return Fault(phase, "oom_graph", "")
    return stated


def _stated_fault(
    scenario: Scenario, configuration: Mapping[str, Value], phase: Phase, struck: Sequence[bool]
) -> Fault | None:
    """The first rule of the phase that holds and strikes this launch."""
    for rule, hit in zip(scenario.failures, struck, strict=True):
        if hit and rule.phase is phase and rule.at_concurrency is None and holds(rule.when, configuration):
            return Fault(rule.phase, rule.slug, rule.log)
    return None


def nonsense_from(scenario: Scenario, configuration: Mapping[str, Value]) -> int | None:
    """The number of requests from which the server answers nonsense; None: never."""
    held = [entry.at_concurrency or 1 for entry in scenario.wrong_output if holds(entry.when, configuration)]
    return min(held, default=None)


def answers_nonsense(scenario: Scenario, configuration: Mapping[str, Value]) -> bool:
    """Whether the server runs and answers nonsense, alone as under load."""
    return nonsense_from(scenario, configuration) == 1


def probe(scenario: Scenario, configuration: Mapping[str, Value]) -> Fault | None:
    """What the correctness probe finds."""
    return Fault(Phase.SERVING, "wrong_output", "") if answers_nonsense(scenario, configuration) else None


def level_fault(
    scenario: Scenario, configuration: Mapping[str, Value], level: int, struck: Sequence[bool]
) -> Fault | None:
    """Why the server dies under `level` concurrent requests, or None."""
    room = memory(scenario, configuration)
    if level >= OOM_RUNTIME_LEVEL and room.needed > room.headroom:
        return Fault(Phase.SERVING, "oom_runtime", "")
    for rule, hit in zip(scenario.failures, struck, strict=True):
        reached = rule.phase is Phase.SERVING and level >= (rule.at_concurrency or 1)
        if hit and reached and holds(rule.when, configuration):
            return Fault(rule.phase, rule.slug, rule.log)
    return None


def level_outcome(
    scenario: Scenario, configuration: Mapping[str, Value], level: int, struck: Sequence[bool]
) -> LevelOutcome:
    """What holding one level gives: a rate and how long it takes to measure, or the server's death."""
    fault = level_fault(scenario, configuration, level, struck)
    if fault:
        return LevelOutcome(level, FAULT_AFTER_S, 0.0, fault)
    rate = throughput(scenario, configuration, level)
    return LevelOutcome(level, level_s(scenario, level, rate), rate, None)


def outcome(scenario: Scenario, assignment: Assignment, levels: Sequence[int], rng: random.Random) -> Outcome:
    """The whole launch: start, probe, then each level in the order given, up to the first failure."""
    configuration, _ = configure(scenario, assignment)
    struck = strikes(scenario, rng)
    start = startup(scenario, configuration, struck)
    wrong = None if start.fault else probe(scenario, configuration)
    held: list[LevelOutcome] = []
    if not start.fault and not wrong:
        for level in levels:
            held.append(level_outcome(scenario, configuration, level, struck))
            if held[-1].fault:
                break
    return Outcome(configuration, start, wrong, tuple(held))


def noise_free_score(scenario: Scenario, assignment: Assignment) -> float | None:
    """Geometric mean of the levels' throughput, or None when infeasible. For judging results; not for strategies.

    A failure that only strikes some launches does not make a configuration infeasible.
    """
    configuration, _ = configure(scenario, assignment)
    certain = [rule.probability >= 1 for rule in scenario.failures]
    nonsense = nonsense_from(scenario, configuration)
    if startup(scenario, configuration, certain).fault or (nonsense is not None and nonsense <= max(scenario.levels)):
        return None
    held = [level_outcome(scenario, configuration, level, certain) for level in scenario.levels]
    if any(level.fault for level in held):
        return None
    return math.exp(sum(math.log(level.tokens_per_s) for level in held) / len(held))
