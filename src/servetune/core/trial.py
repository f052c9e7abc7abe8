"""Trials and runs. A **trial** is an assignment the sampler proposed; a **run** is one launch of it.

A trial usually has one run; a retry after a transient fault, or a confirmation, adds one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

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


class TrialRecord(Frozen):
    """Everything known about a trial."""

    number: int
    state: TrialState
    point: Mapping[str, Choice]
    assignment: Mapping[str, Value]
    value: float | None = None  # of the objective
    rejected: tuple[Violation, ...] = ()
    duplicate_of: int | None = None
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
