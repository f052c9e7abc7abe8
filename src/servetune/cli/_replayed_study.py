"""A whole study over measured configurations only: the real loop and strategy, on a node that plays records back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servetune import plugins
from servetune.cli._virtual_study import Recorded
from servetune.core.benchmark import Workload
from servetune.core.engine import EngineChoice
from servetune.core.node import Node
from servetune.core.space import Assignment, SearchSpace, Value
from servetune.core.study import Budget, Confirmation, NamedChoice, NodeChoice, Retries, StudySpec, Timeouts
from servetune.search.listed import Sampler, confined
from servetune.search.sampling import Guided
from servetune.simulation.replay import ReplayGenerator, ReplayNode, probe
from servetune.simulation.replay_engine import ReplayEngine
from servetune.simulation.table import MeasuredTable, facts, load_table, points, space_of
from servetune.storage import MemoryStore
from servetune.tuner.launches import Launches
from servetune.tuner.loop import Tuner
from servetune.tuner.stopping import StopRequest
from servetune.tuner.trial_runner import TrialRunner

#: Whatever a launch took is what it took: no deadline ends a replay.
NO_DEADLINE_S = 1e9


def replay_spec(table: MeasuredTable, sampler: NamedChoice, seed: int, node_hours: float) -> StudySpec:
    """The study of a table: each configuration once. What was measured once would only repeat itself.

    So nothing is confirmed, tried again or repaired; whichever strategy, each level is measured as long as it was.
    """
    row, space = table.first, space_of(table)
    baseline = {flag: value for flag, value in table.baseline().flags.items() if flag not in space.fixed}
    return StudySpec(
        study=f"replay-{row.study}"[:100],
        engine=EngineChoice(name=row.engine.name or "sglang", model=row.engine.model, version=row.engine.version),
        node=NodeChoice(name="replay"),
        space=space,
        baseline=baseline,
        workload=Workload(
            input_tokens=row.load.input_tokens,
            output_tokens=row.load.output_tokens,
            concurrency=row.load.concurrency,
        ),
        budget=Budget(trials=len(table.configurations), node_hours=node_hours, level_sd=0),
        timeouts=Timeouts(ready_s=NO_DEADLINE_S, stall_s=NO_DEADLINE_S, level_s=NO_DEADLINE_S),
        sampler=sampler,
        load_generator=NamedChoice(name="replay"),
        confirm=Confirmation(top=0, launches=0),
        retries=Retries(transient=0, repairs=0),
        seed=seed,
    )


class _Strategy:
    """Makes the study's sampler, confined to the table; the tuner that it hears from is known later."""

    def __init__(self, spec: StudySpec, table: MeasuredTable) -> None:
        self._spec, self._table = spec, table
        self._module = plugins.load("search.samplers", spec.sampler.name)
        self._settings = self._module.Settings.model_validate(dict(spec.sampler.settings))
        self.tuner: Tuner | None = None

    def __call__(self, seed: int, space: SearchSpace) -> Sampler:
        made: Sampler = self._module.create(self._settings, seed, space)
        if isinstance(made, Guided) and self.tuner is not None:
            made.heed(self.tuner)
        return confined(made, space, points(self._table, space), seed)


def replay(place: str, sampler: NamedChoice, seed: int, node_hours: float) -> dict[str, Any]:
    """`{scenario, strategy, seed, trajectory, recommended, optimum, replayed, reason}` of one study on a table.

    Raises SpecError for a wrong table.
    """
    table = load_table(place)
    spec = replay_spec(table, sampler, seed, node_hours)
    store = MemoryStore()
    store.create_study(spec, "")
    recorded = Recorded(spec, store, lambda assignment: shown(table, assignment))
    replayed = ReplayNode(table, seed)
    node: Node = replayed
    engine, strategy, stop = ReplayEngine(table), _Strategy(spec, table), StopRequest()
    runner = TrialRunner(spec, node, engine, ReplayGenerator(replayed), probe, recorded, stop, {}, simulated=True)
    launches = Launches(spec, store, node, engine, runner, facts(table), Path(spec.study), recorded)
    strategy.tuner = tuner = Tuner(spec, store, engine, facts(table), launches, recorded, strategy)
    reason = tuner.run()
    best = table.optimum()
    return {
        "scenario": table.first.study,
        "strategy": sampler.name,
        "seed": seed,
        "trajectory": recorded.trajectory,
        "recommended": recorded.recommended,
        "optimum": None if best is None else {"score": best[0], "config": shown(table, best[1].flags)},
        "replayed": about(table),
        "reason": reason,
    }


def about(table: MeasuredTable) -> dict[str, Any]:
    """Where the numbers come from."""
    row = table.first
    return {
        "file": table.file,
        "study": row.study,
        "measured_on": " ".join([*sorted(set(row.gpu.names)), row.engine.name or "", row.engine.version or ""]).strip(),
        "invented": row.simulated,
        "launches": sum(len(found.launches) for found in table.configurations),
        "configurations": len(table.configurations),
        "left_out": list(table.left_out),
    }


def shown(table: MeasuredTable, assignment: Assignment) -> dict[str, Value]:
    """What is set, and as false every switch that some other configuration sets."""
    switches = {flag for c in table.configurations for flag, value in c.flags.items() if value is True}
    return dict(sorted({**dict.fromkeys(switches, False), **assignment}.items()))


def sentence(told: Mapping[str, Any]) -> str:
    """The line above replayed studies."""
    where = f"in study {told['study']} on {told['measured_on']}"
    left = f"; left out: {'; '.join(told['left_out'])}" if told["left_out"] else ""
    if told["invented"]:
        return f"REPLAYED, SIMULATED: every number was invented by a simulated node {where}{left}"
    return (
        f"REPLAYED: every number was measured {where} ({told['configurations']} configurations in {told['launches']} "
        f"launches); only their order is new{left}"
    )
