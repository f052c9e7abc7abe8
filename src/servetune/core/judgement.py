"""What is known about one command before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from pydantic import Field

from servetune.core.engine import Violation
from servetune.core.node import NodeFacts
from servetune.core.space import Frozen


class Changed(Frozen):
    """The engine replaces `before` (None: not given) of a flag by `after`, silently or with a warning."""

    flag: str
    before: Any = None
    after: Any = None
    reason: str
    source: str


class NoEffect(Frozen):
    """The flag is accepted and does nothing on this node."""

    flag: str
    reason: str
    source: str


class Judgement(Frozen):
    """One command, judged as it is written.

    `effective`: what the engine makes of it, flags without effect dropped: two commands with the same are one trial.
    `memory`: the forecast of one GPU in GiB; `known_from` None with a `reason` where there is none. A fraction that
    cannot work refuses only a command that names it; else `memory["problems"]` holds the finding. `notes`: what the
    judgement rests on, where that is not plain: another release's table, for instance.
    """

    verdict: Literal["ok", "refused"]
    violations: tuple[Violation, ...] = ()
    effective: Mapping[str, Any] = Field(default_factory=dict)
    no_effect: tuple[NoEffect, ...] = ()
    changed: tuple[Changed, ...] = ()
    memory: Mapping[str, Any] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class JudgesCommands(Protocol):
    """An engine that can judge a command line without starting anything."""

    def judge(self, argv: Sequence[str], facts: NodeFacts) -> Judgement:
        """Judge arguments as they follow the engine's program; unknown spellings are refused, not translated.

        Raises SpecError when the engine's version is not known.
        """
        ...
