"""What a doctor finds on a node before any node hour is spent: one finding a row, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol, runtime_checkable

from servetune.core.space import Frozen


class Finding(Frozen):
    """One row. `remedy`: what to do; empty when all is well."""

    row: str
    state: Literal["ok", "warning", "error"]
    found: str
    remedy: str = ""


class Purpose(Frozen):
    """What the node is wanted for, as a study says it. `logs`: the folder on the tuner's machine where logs will lie.

    `thorough`: also how fast the load generator is there.
    """

    study: str
    model: str
    gpus_needed: int = 1  # 0: the engine does without
    concurrency: int = 1  # the highest level
    load_processes: int | None = None  # of the load generator, where the study says how many
    logs: str = "."
    thorough: bool = True


@runtime_checkable
class Examined(Protocol):
    """A node that can be examined."""

    def examine(self, purpose: Purpose) -> Iterator[Finding]:
        """Every row, one after the other; nothing is changed on the node. Never raises for what the node is like."""
        ...
