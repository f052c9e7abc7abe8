"""A whole study in virtual time: through the real loop, on a scenario's node, in seconds; and what it would export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from servetune import plugins
from servetune.core.benchmark import Workload
from servetune.core.engine import EngineChoice
from servetune.core.events import Event, RunEnded, TrialEnded
from servetune.core.space import Assignment, SearchSpace, Value
from servetune.core.study import Budget, Confirmation, NamedChoice, NodeChoice, Retries, StudySpec
from servetune.core.trial import RunPurpose, TrialRecord
from servetune.settings import load_space, load_study
from servetune.simulation.configuration import overlay
from servetune.simulation.scenario import Scenario, load_scenario
from servetune.storage import MemoryStore
from servetune.tuner.confirm import winner
from servetune.tuner.loop import MakeSampler
from servetune.tuner.session import run_study
from servetune.tuner.stopping import StopRequest

#: So many trials that the node-hours end a simulated study, never these.
TRIALS = 100_000


def simulated_space(name: str = "simulated") -> SearchSpace:
    """A space by name or file, or that of a study file, without hints: those were written with one scenario in mind.

    The default has the flags that most scenarios speak about.
    """
    path = Path(name)
    is_study = path.is_file() and any(line.startswith("study:") for line in path.read_text("utf-8").splitlines())
    space = load_study(path).space if is_study else load_space(name, Path())
    return space.model_copy(update={"hints": ()})


def virtual_spec(
    scenario: Scenario,
    place: str,
    *,
    sampler: NamedChoice,
    seed: int,
    node_hours: float,
    pruner: NamedChoice | None = None,
    confirm: Confirmation | None = None,
    retries: Retries | None = None,
    level_sd: float | None = None,
    level_error: float | None = None,
    space: str = "simulated",
) -> StudySpec:
    """The study of `scenario` (read from `place`). It is told the flags' defaults and nothing else of the scenario.

    Switches that are on by default are written into the baseline: left out, they would be off.
    """
    sampled = simulated_space(space)
    optional = {"pruner": pruner, "confirm": confirm, "retries": retries}
    levels = {"level_sd": level_sd, "level_error": level_error}
    told = {key: value for key, value in levels.items() if value is not None}
    return StudySpec(
        study=f"simulate-{scenario.name}"[:100],
        engine=EngineChoice(model=scenario.model.path, version=scenario.engine_version),
        node=NodeChoice(name="virtual", settings={"scenario": place, "seed": seed}),
        space=sampled.model_copy(update={"fixed": {**sampled.fixed, **_fixed(scenario)}}),
        baseline={flag: value for flag, value in scenario.flags.items() if value is True},
        workload=Workload(
            input_tokens=scenario.input_tokens, output_tokens=scenario.output_tokens, concurrency=scenario.levels
        ),
        budget=Budget(trials=TRIALS, node_hours=node_hours, **told),
        sampler=sampler,
        load_generator=NamedChoice(name="scenario", settings={"seed": seed}),
        seed=seed,
        **{key: value for key, value in optional.items() if value is not None},
    )


def _fixed(scenario: Scenario) -> dict[str, Value]:
    """Where the engine's rules hold, the command must be one that uses the whole node."""
    return {"tp-size": scenario.node.gpu_count} if scenario.engine_rules else {}


class Recorded:
    """Hears a study in virtual time and keeps its trajectory and what `export` would have given, at each change."""

    def __init__(self, spec: StudySpec, store: MemoryStore, shown: Callable[[Assignment], dict[str, Value]]) -> None:
        """`shown`: an assignment to every flag as on the command line; a switch that is not set is false."""
        self._spec, self._store, self._shown = spec, store, shown
        self.trajectory: list[dict[str, Any]] = []
        self.recommended: list[dict[str, Any]] = []

    def on(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, TrialEnded):
            self.trajectory.append(self._entry(event.record))
            self._recommend()
        elif isinstance(event, RunEnded) and event.purpose is RunPurpose.CONFIRM:
            self._recommend()

    def _entry(self, record: TrialRecord) -> dict[str, Any]:
        failure = record.failure
        return {
            "node_hours": self._node_hours(),
            "trial": record.number,
            "flags": self._shown(record.assignment),
            "outcome": record.state.value,
            "phase": None if failure is None else failure.phase.value,
            "class": None if failure is None else failure.slug,
            "value": record.value,
        }

    def _recommend(self) -> None:
        best = winner(self._store.trials(self._spec.study), self._spec)
        if best is None:
            return
        flags = self._shown(best.assignment)
        if not self.recommended or self.recommended[-1]["flags"] != flags:
            self.recommended.append({"node_hours": self._node_hours(), "flags": flags})

    def _node_hours(self) -> float:
        return round(sum(self._store.ledger(self._spec.study).values()) / 3600, 6)


def run_virtual(
    place: str, spec_keys: Mapping[str, Any], make_sampler: MakeSampler | None = None
) -> tuple[StudySpec, MemoryStore, Recorded, str]:
    """Run one study on the scenario at `place` (a shipped name or a file); `spec_keys`: those of `virtual_spec`.

    Returns the study, its store, what was recorded, and why it ended. Raises SpecError for a wrong scenario.
    """
    scenario = load_scenario(place)
    spec = virtual_spec(scenario, place, **spec_keys)
    store = MemoryStore()
    store.create_study(spec, "")
    recorded = Recorded(spec, store, lambda assignment: dict(sorted(overlay(scenario, assignment).items())))
    probe = plugins.load("nodes", "virtual").probe
    reason = run_study(spec, store, recorded, StopRequest(), probe=probe, make_sampler=make_sampler)
    return spec, store, recorded, reason


def simulate(place: str, spec_keys: Mapping[str, Any], make_sampler: MakeSampler | None = None) -> dict[str, Any]:
    """As `run_virtual`: `{scenario, strategy, seed, trajectory, recommended, reason}`."""
    spec, _, recorded, reason = run_virtual(place, spec_keys, make_sampler)
    return {
        "scenario": load_scenario(place).name,
        "strategy": spec.sampler.name,
        "seed": spec.seed,
        "trajectory": recorded.trajectory,
        "recommended": recorded.recommended,
        "reason": reason,
    }
