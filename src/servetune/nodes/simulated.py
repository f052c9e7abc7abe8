"""The simulated node: the launch spec stays the engine's command, and a scenario answers for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from servetune.core.clock import WallClock
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.space import Frozen
from servetune.nodes._by_log import boot_id
from servetune.nodes._ending import reclaimed
from servetune.nodes._launch import left_behind, prepared
from servetune.nodes._ports import PortGuard, free_port
from servetune.nodes._processes import ThisMachine, read
from servetune.nodes._server import LocalServer
from servetune.nodes.local import start_server
from servetune.simulation.launch import launch_seed
from servetune.simulation.scenario import facts, load_scenario, shipped_names


class Settings(Frozen):
    """Keys of a study file's `node:` beside `name: simulated`."""

    scenario: str  # a scenario that comes with servetune, or a file
    time_scale: float = Field(default=60.0, gt=0, le=100_000)  # node seconds per wall second
    seed: int = Field(default=0, ge=0)  # of the noise


def create(settings: Settings, base_dir: Path) -> SimulatedNode:
    """The simulated node; a relative scenario path is taken from `base_dir`. Raises SpecError for a bad scenario."""
    base_dir = base_dir.resolve()  # the server reads the scenario too, from another directory
    known = facts(load_scenario(settings.scenario, base_dir))
    shipped = settings.scenario in shipped_names()
    scenario = settings.scenario if shipped else str(base_dir / Path(settings.scenario).expanduser())
    return SimulatedNode(settings, scenario, known)


class SimulatedNode:
    """Starts `servetune.simulation.server` in place of each spec's program, as the local node would start that."""

    name = "simulated"

    def __init__(self, settings: Settings, scenario: str, facts: NodeFacts) -> None:
        self.clock = WallClock(settings.time_scale)
        self._settings = settings
        self._scenario = scenario
        self._facts = facts

    def identity(self) -> str:
        """One per tuner: simulated nodes are free, so two studies need not wait for each other."""
        me = read(os.getpid())
        return f"simulated/{boot_id()}/{os.getpid()}/{me.start_ticks if me else 0}"

    def facts(self) -> NodeFacts:
        """What the scenario says; `simulated` is True."""
        return self._facts

    def environment(self) -> Mapping[str, str]:
        """What this node adds to a launch's environment, for the spec that is stored and exported: nothing."""
        return {}

    def free_port(self) -> int:
        """A TCP port in 30000–39999 on which nothing listens."""
        return free_port()

    def start(self, spec: LaunchSpec, study: str, trial: int, log_dir: str) -> LocalServer:
        """Start the simulated server with the argv and environment of `spec`; raises as the local node does."""
        played = spec.model_copy(update={"argv": (*self._program(log_dir), "--", *spec.argv)})
        launch = prepared(played, study, trial, log_dir, None)
        return start_server(launch, self.clock.time_scale, [PortGuard(spec.port)])

    def reclaim(self, study: str) -> Sequence[str]:
        """End what an earlier tuner, or this one, left running for `study`; not the server of a tuner that lives."""
        return reclaimed(ThisMachine(), lambda mark: mark.study == study and left_behind(mark))

    def _program(self, log_dir: str) -> tuple[str, ...]:
        settings = self._settings
        seed = launch_seed(settings.seed, log_dir)  # another launch of a trial draws other noise
        return (
            *(sys.executable, "-m", "servetune.simulation.server", "--scenario", self._scenario),
            *("--time-scale", str(settings.time_scale), "--seed", seed),
        )
