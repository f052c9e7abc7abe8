"""A simulated node in virtual time: no process, no sleeping. Days of node time cost seconds.

For `servetune simulate` alone: no study file may name it, because nothing can be asked of its servers over HTTP.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from servetune.core.engine import ProbeResult
from servetune.core.node import Exit, LaunchSpec, NodeFacts, ServerProcess
from servetune.core.space import Frozen
from servetune.simulation.clock import VirtualClock
from servetune.simulation.launch import launch_seed, plan
from servetune.simulation.scenario import Scenario, facts, load_scenario
from servetune.simulation.virtual import VirtualLaunch

_numbers = itertools.count(1)


class Settings(Frozen):
    """Of a study in virtual time."""

    scenario: str  # name of a shipped scenario, or a file
    seed: int = 0  # of noise and of failures that are not certain


def create(settings: Settings, base_dir: Path) -> VirtualNode:
    """The node; a scenario file is taken from `base_dir`. Raises SpecError when it is missing or wrong."""
    return VirtualNode(load_scenario(settings.scenario, base_dir), settings.seed)


class VirtualNode:
    """A node whose servers follow a scenario's model on a clock of its own."""

    name = "virtual"

    def __init__(self, scenario: Scenario, seed: int = 0) -> None:
        self.clock = VirtualClock()
        self.scenario = scenario
        self._seed = seed
        self._number = next(_numbers)

    def identity(self) -> str:
        """One for each node object: virtual nodes are never shared."""
        return f"virtual/{self.scenario.name}/{self._number}"

    def facts(self) -> NodeFacts:
        """What the scenario says, marked as simulated."""
        return facts(self.scenario).model_copy(update={"node": self.name})

    def environment(self) -> Mapping[str, str]:
        """What this node adds to a launch's environment: nothing."""
        return {}

    def free_port(self) -> int:
        """SGLang's usual port: nothing listens in virtual time."""
        return 30000

    def start(self, spec: LaunchSpec, study: str, trial: int, log_dir: str) -> VirtualServer:
        """Start `spec`. `log_dir` names the attempt; nothing is written there. Secrets are left out."""
        argv = [word if isinstance(word, str) else f"${word.from_env}" for word in spec.argv]
        environ = {name: text for name, text in spec.env.items() if isinstance(text, str)}
        launch = plan(self.scenario, argv, environ, launch_seed(self._seed, log_dir))
        return VirtualServer(VirtualLaunch(launch, self.clock))

    def reclaim(self, study: str) -> Sequence[str]:
        """Nothing is ever left behind."""
        return ()


class VirtualServer:
    """A `core.node.ServerProcess` in virtual time."""

    def __init__(self, launch: VirtualLaunch) -> None:
        self._launch = launch

    @property
    def answers_nonsense(self) -> bool:
        """What a correctness probe would find."""
        return self._launch.answers_nonsense

    def poll(self) -> Exit | None:
        """None while it runs."""
        return self._launch.poll()

    def read_log(self, offset_bytes: int) -> bytes:
        """At most 1 MiB of the log from `offset_bytes` on."""
        return self._launch.read_log(offset_bytes)

    @contextmanager
    def endpoint(self) -> Iterator[str]:
        """An address that only the `scenario` load generator understands."""
        yield self._launch.url

    def stop(self, grace_s: float) -> Exit:
        """End it; 15 s of node time, once."""
        return self._launch.stop()

    def probe(self) -> ProbeResult:
        """The correctness probe; 20 s of node time."""
        if self._launch.probe():
            return ProbeResult(ok=True, message="")
        return ProbeResult(ok=False, message="the scenario says that this configuration answers nonsense")


def probe(process: ServerProcess, headers: Mapping[str, str], random_weights: bool) -> ProbeResult:
    """The tuner's probe for servers of this node. Raises TypeError for a server of another node."""
    if not isinstance(process, VirtualServer):
        raise TypeError(f"{type(process).__name__} is not a server in virtual time")
    return process.probe()
