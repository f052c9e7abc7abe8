"""The inference engine: what it accepts, how an assignment becomes a command, what its log says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from servetune.core.failure import Failure, Phase
from servetune.core.node import EnvRef, Exit, LaunchSpec, NodeFacts
from servetune.core.space import Assignment, Frozen, SearchSpace, Value


class EngineChoice(Frozen):
    """The `engine:` mapping of a study file."""

    name: str = "sglang"
    model: str
    python: str = "python3"
    version: str | None = None  # asked from the node when absent
    env: Mapping[str, str | EnvRef] = {}


class Violation(Frozen):
    """Why an assignment cannot work. `layer` says who knows it."""

    rule: str
    layer: str  # capability | rule | runtime | memory | preflight | learned
    flags: tuple[str, ...]
    message: str
    alternatives: tuple[str, ...] = ()
    source: str = ""


class LogReader(Protocol):
    """Reads one server's log as it grows; bounded memory. Bytes may be cut anywhere."""

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        ...

    @property
    def phase(self) -> Phase:
        """The phase that the log has reached."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the engine said that it is ready to serve."""
        ...

    @property
    def decided(self) -> bool:
        """Whether a line has been seen after which the server cannot recover, although its process may linger."""
        ...

    @property
    def last_line(self) -> str:
        """The last complete line, cleaned of colours and carriage returns, for the live view."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Numbers out of the log, JSON-able: memory before and after load, KV tokens, effective arguments, …"""
        ...

    def warnings(self) -> Sequence[str]:
        """Lines that say that an option is not in effect, or that matter to a reader of the report."""
        ...

    def diagnose(self, exit: Exit | None, hint: str | None = None) -> Failure:
        """Why it failed. `hint`: what the tuner itself saw (`stall`, `deadline`, `wrong_output`, `overload`)."""
        ...


class Engine(Protocol):
    """One inference engine, bound to a study's `engine:` mapping."""

    def resolve_space(self, space: SearchSpace, facts: NodeFacts) -> tuple[SearchSpace, Sequence[str]]:
        """The space in the spelling of the installed version, and one sentence per thing translated or dropped.

        Raises SpecError naming a flag or value that this version does not know and that has no equivalent.
        """
        ...

    def check(self, assignment: Assignment, facts: NodeFacts) -> Sequence[Violation]:
        """Every reason why it cannot work that is known without the node; pure, below 1 ms. Empty: go."""
        ...

    def defaults(self, facts: NodeFacts) -> Assignment:
        """What the engine uses for flags that are left out, as far as it is known for this node and model."""
        ...

    def effective(self, assignment: Assignment, facts: NodeFacts) -> Assignment:
        """What the engine makes of it (defaults dropped, silent overrides applied): the key for duplicates."""
        ...

    def launch(self, assignment: Assignment, facts: NodeFacts, port: int) -> LaunchSpec:
        """The command. Pure: same input, same argv."""
        ...

    def log_reader(self, assignment: Assignment) -> LogReader:
        """A fresh reader for the log of a server started with `assignment`."""
        ...


@runtime_checkable
class LearnsFromLogs(Protocol):
    """An engine that knows more about numbers of an assignment after every launch on this node."""

    def learn(self, assignment: Assignment, log_facts: Mapping[str, Any]) -> None:
        """Take what one launch's log showed (`LogReader.facts`), also of launches of an earlier sitting."""
        ...

    def bounds(self, assignment: Assignment, facts: NodeFacts) -> Mapping[str, tuple[float, float]]:
        """Flag → (lowest, highest) number that can work beside the other flags. Empty: nothing is known."""
        ...


class ProbeResult(Frozen):
    """Answer of the correctness probe before any load."""

    ok: bool
    message: str
    details: Mapping[str, Value] = {}
