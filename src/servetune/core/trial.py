"""Trials and runs. A **trial** is an assignment the sampler proposed; a **run** is one launch of it.

A trial usually has one run; a retry after a transient fault, or a confirmation, adds one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import Field, model_validator

from servetune.core.benchmark import Measurement
from servetune.core.engine import Violation
from servetune.core.failure import Failure
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.space import Choice, Frozen, Value


class TrialState(StrEnum):
    """State of a trial as shown to people and scripts."""

    WAITING = "waiting"  # enqueued, not started
    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"  # infeasible, or not worth finishing
    FAIL = "fail"  # a fault of the node, not of the configuration
    REJECTED = "rejected"  # known not to work, or a duplicate, before anything was launched

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen to the trial."""
        return self not in (TrialState.WAITING, TrialState.RUNNING)


class RunPurpose(StrEnum):
    """Why a server was launched."""

    SEARCH = "search"
    CONFIRM = "confirm"


class RunRecord(Frozen):
    """One launch: what was started, how long each part took (node seconds), what came out.

    `phase_s` keys: start, ready, probe, warmup, `level:<concurrency>`, stop. `finished_at` None: it was interrupted.
    """

    trial: int
    attempt: int
    purpose: RunPurpose
    launch: LaunchSpec
    facts: NodeFacts
    started_at: str  # ISO 8601, UTC
    finished_at: str | None = None
    phase_s: Mapping[str, float] = {}
    node_s: float = 0.0  # node seconds spent in all
    measurements: tuple[Measurement, ...] = ()
    failure: Failure | None = None
    log_facts: Mapping[str, Any] = {}
    log_warnings: tuple[str, ...] = ()


class Outcome(Frozen):
    """What became of a trial; stored before the sampler is told, so that a kill between the two loses nothing.

    `value` is the objective, `levels` maps concurrency to what it contributes (both finite). `constraint`: how
    infeasible it is (above 0) or not (0 or below), None when that is not known. `violations` and `duplicate_of` say why
    nothing was launched. `message`: one sentence for people.
    """

    state: TrialState
    value: float | None = Field(default=None, allow_inf_nan=False)
    levels: Mapping[int, float] = Field(default_factory=dict)
    constraint: float | None = Field(default=None, allow_inf_nan=False)
    violations: tuple[Violation, ...] = ()
    duplicate_of: int | None = None
    message: str = ""

    @model_validator(mode="after")
    def _finished(self) -> Self:
        if not self.state.finished:
            raise ValueError(f"an outcome has a finished state, got {self.state}")
        if self.state is TrialState.COMPLETE and self.value is None:
            raise ValueError("a complete trial has a value")
        return self


class TrialRecord(Frozen):
    """Everything known about a trial."""

    number: int
    state: TrialState
    point: Mapping[str, Choice]
    assignment: Mapping[str, Value]
    value: float | None = None  # of the objective
    rejected: tuple[Violation, ...] = ()
    duplicate_of: int | None = None
    constraint: float | None = None  # of its outcome
    message: str = ""  # of its outcome
    repaired_from: int | None = None
    baseline: bool = False
    runs: tuple[RunRecord, ...] = ()

    @property
    def failure(self) -> Failure | None:
        """Failure of the last finished search run, if it failed."""
        searched = [run for run in self.runs if run.purpose is RunPurpose.SEARCH and run.finished_at]
        return searched[-1].failure if searched else None

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """Measurements of the last finished search run."""
        searched = [run for run in self.runs if run.purpose is RunPurpose.SEARCH and run.finished_at]
        return searched[-1].measurements if searched else ()
