"""A rehearsal: the node is real, the server on it is a simulated one. Its numbers are invented."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from servetune.core.node import NodeFacts
from servetune.core.space import Frozen
from servetune.simulation.launch import launch_seed
from servetune.simulation.scenario import facts, load_scenario, shipped_names


class Rehearsal(Frozen):
    """`rehearse:` of a node: the keys of the simulated node."""

    scenario: str  # a scenario that comes with servetune, or a file on this machine
    time_scale: float = Field(default=60.0, gt=0, le=100_000)  # node seconds per wall second
    seed: int = Field(default=0, ge=0)  # of the noise


def rehearsed_facts(rehearsal: Rehearsal, base_dir: Path) -> NodeFacts:
    """What the scenario says. Raises SpecError for a bad scenario."""
    return facts(load_scenario(rehearsal.scenario, base_dir))


def scenario_file(rehearsal: Rehearsal, base_dir: Path) -> Path | None:
    """The scenario's file on this machine; None for one that comes with servetune."""
    return None if rehearsal.scenario in shipped_names() else base_dir / Path(rehearsal.scenario).expanduser()


def simulated_argv(rehearsal: Rehearsal, scenario: str, log_dir: str) -> Sequence[str]:
    """Module and arguments of the simulated server. `scenario`: its name, or its path on the node."""
    seed = launch_seed(rehearsal.seed, log_dir)  # another launch of a trial draws other noise
    return (
        *("servetune.simulation.server", "--scenario", scenario),
        *("--time-scale", str(rehearsal.time_scale), "--seed", seed, "--"),
    )
