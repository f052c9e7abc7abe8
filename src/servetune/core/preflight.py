"""The engine's own word about an assignment, asked on the node before a launch, without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from pydantic import Field

from servetune.core.engine import Violation
from servetune.core.node import NodeFacts, Text
from servetune.core.space import Assignment, Frozen


class Helper(Protocol):
    """A helper process on a node: one line in, one line out; empty lines say nothing. It ends when it is let go of.

    Where the variable SERVETUNE_HEARD_WITHIN_S is set, it also ends when it has heard no line for so long.
    """

    def send(self, line: str) -> None:
        """Say one line. Raises ProgramEndedError, ConnectionLostError."""
        ...

    def receive(self, timeout_s: float) -> list[str]:
        """Every line that has come, waiting `timeout_s` (wall) for the first; empty: none yet. Raises as `send`."""
        ...

    def close(self) -> None:
        """Let go of it; idempotent. Never raises."""
        ...


Converse = Callable[[Sequence[str], Mapping[str, Text]], Helper]
"""Starts a program on the node, given argv and the variables that it gets beside those of every launch."""


@runtime_checkable
class OffersConversation(Protocol):
    """A node on which a helper process can be talked with."""

    def converse(self, argv: Sequence[str], env: Mapping[str, Text]) -> Helper:
        """Start `argv`. Raises ProgramEndedError when it cannot be started, NodeUnreachableError."""
        ...


class PreflightVerdict(Frozen):
    """What the engine's own checks say. `decided` False: something else went wrong, and nothing is known.

    `stage`: parse, resolve or check; `message`: its exact text; `where`: file, line and function in the engine;
    `resolved`: the arguments as the engine resolved them; `took_ms`: node time of this question.
    """

    ok: bool
    decided: bool = True
    stage: str | None = None
    message: str = ""
    where: str = ""
    warnings: tuple[str, ...] = ()
    resolved: Mapping[str, Any] = Field(default_factory=dict)
    took_ms: float = 0.0


class Preflight(Protocol):
    """The engine's checks, warm, on one node."""

    def ask(self, assignment: Assignment) -> PreflightVerdict:
        """The verdict. Raises ProgramEndedError when the helper process broke (later questions do so, too), and
        ConnectionLostError.
        """
        ...

    def violation(self, assignment: Assignment, verdict: PreflightVerdict) -> Violation:
        """A refusal as a violation of layer `preflight`."""
        ...

    def close(self) -> None:
        """End the helper process; idempotent."""
        ...


@runtime_checkable
class OffersPreflight(Protocol):
    """An engine whose checks can be run on a node without its weights."""

    def preflight(self, converse: Converse, facts: NodeFacts) -> Preflight:
        """Start the checks; `facts` are those of the node. Raises as `Converse` does."""
        ...


@runtime_checkable
class ReadsInstallation(Protocol):
    """An engine that can be told by its installation on a node which flags it takes."""

    def read_installation(self, converse: Converse, facts: NodeFacts, flags: Iterable[str]) -> Sequence[str]:
        """Read it, once per installation, and go by it from now on; a sentence per thing that is not plain.

        `flags`: those that the study names. What cannot be read is said, never raised; NodeUnreachableError is.
        """
        ...
