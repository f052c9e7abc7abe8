"""One launch on a simulated node: the command as read, the configuration in effect, and how its start will go."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from servetune.core.failure import Phase
from servetune.core.space import Assignment, Value
from servetune.simulation.command import SERVING_FLAGS, Command, CommandError, read_command
from servetune.simulation.configuration import configure, overlay
from servetune.simulation.model import PARSE_S, Fault, LevelOutcome, PhaseEnd, Startup, level_outcome, startup, strikes
from servetune.simulation.rates import noise
from servetune.simulation.scenario import Scenario


class Launch(NamedTuple):
    """A launch whose fate is known. `seed` tells repeated launches of the same command apart."""

    scenario: Scenario
    command: Command
    configuration: Mapping[str, Value]
    warnings: Sequence[str]
    struck: Sequence[bool]
    startup: Startup
    seed: str

    def level(self, concurrency: int) -> LevelOutcome:
        """What holding `concurrency` requests gives, free of noise."""
        return level_outcome(self.scenario, self.configuration, concurrency, self.struck)

    def noise(self, concurrency: int, precision: float = 1.0, seed: object = "") -> float:
        """Noise factor of a measurement: the same for the same seed, command and concurrency, in whatever order."""
        return noise(self.scenario, rng(self, f"{seed}level {concurrency}"), precision)


def plan(scenario: Scenario, argv: Sequence[str], environ: Mapping[str, str], seed: str) -> Launch:
    """Read the command and decide how the start goes. A command that cannot be read is a launch that fails to parse."""
    try:
        command = read_command(argv, environ, scenario)
    except CommandError as error:
        return _refused(scenario, str(error), seed)
    return _fated(scenario, command, seed)


def planned(scenario: Scenario, assignment: Assignment, seed: str) -> Launch:
    """The launch of an assignment that has been read before."""
    return _fated(scenario, _command(assignment), seed)


def _fated(scenario: Scenario, command: Command, seed: str) -> Launch:
    configuration, warnings = configure(scenario, command.assignment)
    draft = Launch(scenario, command, configuration, warnings, (), Startup((), None), seed)
    struck = strikes(scenario, rng(draft, "strikes"))
    return draft._replace(struck=struck, startup=startup(scenario, configuration, struck))


def _refused(scenario: Scenario, message: str, seed: str) -> Launch:
    fate = Startup((PhaseEnd(Phase.PARSE, PARSE_S),), Fault(Phase.PARSE, "cli_parse", message))
    return Launch(scenario, _command({}), overlay(scenario, {}), (), (), fate, seed)


def _command(assignment: Assignment) -> Command:
    return Command("", "", "127.0.0.1", 0, None, 1, assignment)


def rng(launch: Launch, purpose: str) -> random.Random:
    """Random numbers that depend on the launch's seed, its command (where it listens aside) and `purpose` only."""
    told = overlay(launch.scenario, launch.command.assignment)
    key = {flag: value for flag, value in told.items() if flag not in SERVING_FLAGS}
    return random.Random(f"{launch.seed}|{purpose}|{json.dumps(key, sort_keys=True)}")  # noqa: S311 -- not a secret


def launch_seed(seed: int, log_dir: str) -> str:
    """Seed of one launch: `log_dir` ends in `launch-K` for the launches of a trial after its first."""
    name = PurePath(log_dir).name
    attempt = name.removeprefix("launch-") if name.startswith("launch-") else "0"
    return f"{seed}:{attempt}"


def exit_code(fault: Fault) -> int:
    """SGLang's own: argparse 2, the parent's validation 1; when a child fails, the parent kills itself."""
    return {Phase.PARSE: 2, Phase.VALIDATE: 1}.get(fault.phase, -9)
