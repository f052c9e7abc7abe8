"""What the simulated servers print when they fail is judged as the scenario says."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

import pytest

from servetune.core.space import Value
from servetune.engines.sglang.logs import SglangLogReader
from servetune.simulation.clock import VirtualClock
from servetune.simulation.launch import planned
from servetune.simulation.model import Fault
from servetune.simulation.scenario import Scenario, load_scenario, shipped_names
from servetune.simulation.virtual import VirtualLaunch

SAMPLES = 60


def choices(scenario: Scenario) -> dict[str, list[Value]]:
    """Every value that a rule of the scenario speaks of, flag by flag."""
    found: dict[str, set[Value]] = {flag: {value} for flag, value in scenario.flags.items()}
    rules = [*scenario.failures, *scenario.no_effect, *scenario.memory_gib.extra]
    for rule in rules:
        for flag, values in rule.when.any_of.items():
            found.setdefault(flag, set()).update(value for value in values if value is not None)
    found["mem-fraction-static"] |= {0.5, 0.7, 0.9, 0.97}
    found["cuda-graph-max-bs"] |= {8, 512, 4096}
    return {flag: sorted(values, key=str) for flag, values in found.items()}


def assignments(scenario: Scenario) -> list[dict[str, Value]]:
    """One for each combination that a failure names, and random ones."""
    found: list[dict[str, Value]] = []
    known = choices(scenario)
    roomy: dict[str, Value] = {**scenario.flags, "cuda-graph-max-bs": 8, "mem-fraction-static": 0.93}
    for rule in scenario.failures:
        wanted = rule.when.any_of
        for point in itertools.product(*wanted.values()):
            stated = {flag: value for flag, value in zip(wanted, point, strict=True) if value is not None}
            found += [
                stated,
                *({**roomy, "moe-runner-backend": runner, **stated} for runner in known["moe-runner-backend"]),
            ]
    source = random.Random(scenario.name)
    for _ in range(SAMPLES):
        flags = source.sample(sorted(known), 4)
        found.append({flag: source.choice(known[flag]) for flag in flags})
    return found


def log_and_fault(scenario: Scenario, assignment: Mapping[str, Value]) -> tuple[bytes, Fault | None]:
    """The whole log of a launch that is loaded at each level until it dies."""
    clock = VirtualClock()
    launch = planned(scenario, assignment, "0")
    server = VirtualLaunch(launch, clock)
    clock.advance(launch.startup.seconds + 1)
    fault = launch.startup.fault
    for level in () if fault else scenario.levels:
        outcome = server.hold(level)
        clock.advance(outcome.seconds + 1)
        fault = outcome.fault
        if fault:
            break
    log = b""
    while chunk := server.read_log(len(log)):
        log += chunk
    return log, fault


def judged(scenario: Scenario, assignment: dict[str, Value]) -> tuple[SglangLogReader, Any, Fault | None]:
    log, fault = log_and_fault(scenario, assignment)
    reader = SglangLogReader(assignment)
    reader.feed(log)
    return reader, reader.diagnose(None), fault


@pytest.mark.parametrize("name", shipped_names())
def test_every_failure_of_a_scenario_is_judged_right(name: str) -> None:
    scenario = load_scenario(name)
    seen = set()
    for assignment in assignments(scenario):
        reader, failure, fault = judged(scenario, assignment)
        if fault is None:
            assert reader.ready
            assert failure.slug in ("none", "perf_regression"), (assignment, failure)
            assert not reader.decided
            continue
        seen.add((fault.slug, fault.phase))
        assert (failure.slug, failure.phase) == (fault.slug, fault.phase), (assignment, failure)
        assert reader.decided
    stated = {(rule.slug, rule.phase) for rule in scenario.failures}
    assert len(stated - seen) <= 1, "a rule that another one hides is not seen"


def test_the_first_repair_of_the_seed_is_the_computed_fraction() -> None:
    scenario = load_scenario("kimi-k2.5-int4-8x-rtx-pro-6000")
    assignment: dict[str, Value] = {"moe-a2a-backend": "flashinfer", "moe-runner-backend": "flashinfer_cutlass"}
    _, failure, _ = judged(scenario, assignment)
    assert (failure.slug, failure.repairs[0].flag) == ("kv_budget", "mem-fraction-static")
    assert failure.repairs[0].value == pytest.approx(0.837)
    assert "at least 0.827" in failure.repairs[0].reason


def test_options_without_effect_are_named() -> None:
    scenario = load_scenario("kimi-k2.5-int4-8x-rtx-pro-6000")
    reader, failure, _ = judged(scenario, {"enable-torch-symm-mem": True})
    assert failure.slug == "perf_regression"
    assert any("enable-torch-symm-mem" in warning for warning in reader.warnings())
