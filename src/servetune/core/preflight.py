"""The engine's own word about an assignment, asked on the node before a launch, without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from pydantic import Field

from servetune.core.engine import Violation
from servetune.core.node import NodeFacts, Text
from servetune.core.space import Assignment, Frozen


class Conversation(Protocol):
    """A helper process on a node: one line in, one line out. It ends by itself when it is let go of."""

    def say(self, line: str) -> None:
        """Send one line. Raises ConversationError when the process is gone."""
        ...

    def hear(self, timeout_s: float) -> str:
        """The next line, in wall time. Raises ConversationError when it ended or says nothing for `timeout_s`."""
        ...

    def close(self) -> None:
        """Let go of it; idempotent."""
        ...


Converse = Callable[[Sequence[str], Mapping[str, Text]], Conversation]
"""Starts a program on the node, given argv and the variables that it gets beside those of every launch."""


@runtime_checkable
class OffersConversation(Protocol):
    """A node on which a helper process can be talked with."""

    def converse(self, argv: Sequence[str], env: Mapping[str, Text]) -> Conversation:
        """Start `argv`. Raises ConversationError when it cannot be started."""
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
        """The verdict. Raises ConversationError when the helper process broke; later questions raise it, too."""
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
        """Start the checks; `facts` are those of the node. Raises ConversationError when they cannot be started."""
        ...
