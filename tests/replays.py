"""Whole studies on scenarios in virtual time, and what each cause of a failure cost them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from servetune import plugins
from servetune.cli._virtual_study import virtual_spec
from servetune.core.events import Note, Silent
from servetune.core.study import NamedChoice, StudySpec
from servetune.core.trial import RunPurpose
from servetune.simulation import scenario as scenarios
from servetune.simulation.configuration import configure, holds
from servetune.simulation.scenario import Scenario, load_scenario
from servetune.storage import MemoryStore
from servetune.tuner.session import run_study
from servetune.tuner.stopping import StopRequest

SHIPPED = Path(scenarios.__file__).parent / "scenarios"
KIMI, GLM = "kimi-k2.5-int4-8x-rtx-pro-6000", "glm-5-nvfp4-8x-rtx-pro-6000"
#: What the people of both journeys tried.
EXPERT_PARALLEL = {"moe-a2a-backend": "flashinfer", "moe-runner-backend": "flashinfer_cutlass"}


class Notes(Silent):
    """Hears the sentences for the person who watches."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def on(self, event: Any) -> None:
        if isinstance(event, Note):
            self.texts.append(event.text)


def changed(tmp_path: Path, shipped: str, **keys: Any) -> str:
    """A copy of a shipped scenario with other top-level keys."""
    document = {**yaml.safe_load((SHIPPED / f"{shipped}.yaml").read_text()), **keys}
    file = tmp_path / f"{shipped}.yaml"
    file.write_text(yaml.safe_dump(document))
    return str(file)


def spec_of(
    place: str, sampler: str = "adaptive", seed: int = 0, node_hours: float = 24.0, hints: Any = (), **keys: Any
) -> StudySpec:
    scenario = load_scenario(place)
    spec = virtual_spec(scenario, place, sampler=NamedChoice(name=sampler), seed=seed, node_hours=node_hours, **keys)
    return spec.model_copy(update={"space": spec.space.model_copy(update={"hints": tuple(hints)})})


def replay(spec: StudySpec, store: Any = None) -> tuple[Any, Notes]:
    """The study's store when it is over, and what was said. A store that is given knows the study already."""
    if store is None:
        store = MemoryStore()
        store.create_study(spec, "")
    notes = Notes()
    run_study(spec, store, notes, StopRequest(), probe=plugins.load("nodes", "virtual").probe)
    return store, notes


def launches_by_cause(store: Any, spec: StudySpec, scenario: Scenario) -> dict[tuple[str, ...], list[int]]:
    """Failure of the scenario and the values it names → trials that it ended."""
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for record in store.trials(spec.study):
        effective, _ = configure(scenario, record.assignment)
        for run in record.runs:
            if run.purpose is RunPurpose.SEARCH and run.failure is not None:
                cause = _cause(scenario, effective, run.failure, len(run.measurements))
                if cause is not None:
                    found[cause].append(record.number)
    return found


def _cause(scenario: Scenario, effective: Any, failure: Any, levels_done: int) -> tuple[str, ...] | None:
    for index, rule in enumerate(scenario.failures):
        level = scenario.levels[min(levels_done, len(scenario.levels) - 1)]
        reached = rule.at_concurrency is None or level >= rule.at_concurrency
        if (rule.slug, rule.phase) == (failure.slug, failure.phase) and reached and holds(rule.when, effective):
            return (f"failure {index}", *(f"{flag}={effective.get(flag)}" for flag in rule.when.any_of))
    for index, wrong in enumerate(scenario.wrong_output):
        if failure.slug == "wrong_output" and holds(wrong.when, effective):
            return (f"wrong output {index}", *(f"{flag}={effective.get(flag)}" for flag in wrong.when.any_of))
    return None


def named_by_its_log(cause: tuple[str, ...], scenario: Scenario) -> bool:
    """Whether the text of the failure holds the name, or for a choice the value, of every flag that it speaks of."""
    kind, _, index = cause[0].rpartition(" ")
    if kind != "failure":
        return False
    text = scenario.failures[int(index)].log.lower().replace("-", "_")
    pairs = [setting.partition("=")[::2] for setting in cause[1:]]
    return all(
        flag.replace("-", "_") in text or (len(value) > 4 and value.lower().replace("-", "_") in text)
        for flag, value in pairs
    )
