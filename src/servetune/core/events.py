"""What the tuner tells while it works: one frozen type per event, and the listener that hears them.

A listener must be quick and must not raise: the live view, the plain log, tests that kill at a chosen point.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from servetune.core.benchmark import Measurement, Progress
from servetune.core.failure import Failure, Phase
from servetune.core.node import NodeFacts
from servetune.core.space import Frozen
from servetune.core.study import StudySpec
from servetune.core.trial import RunPurpose, TrialRecord, TrialState


class Note(Frozen):
    """A sentence for the person who watches. `warning`: it deserves attention."""

    text: str
    warning: bool = False


class Step(Frozen):
    """The loop is about to do something: sampling, launching, waiting, probing, measuring, stopping, telling, done."""

    name: str
    trial: int | None = None


class TrialStarted(Frozen):
    """A server is about to be launched for a trial."""

    trial: int
    attempt: int
    purpose: RunPurpose
    command: str
    overrides: str  # what differs from the fixed flags, in one line


class PhaseReached(Frozen):
    """The server's log reached a phase."""

    trial: int
    phase: Phase
    elapsed_s: float


class LogLine(Frozen):
    """The newest line of the server's log."""

    trial: int
    text: str


class LevelProgress(Frozen):
    """A level is being measured."""

    trial: int
    progress: Progress


class LevelDone(Frozen):
    """A level is measured and stored."""

    trial: int
    measurement: Measurement


class RunEnded(Frozen):
    """A launch is over, its server gone. `spent_s`: node seconds of the study until now."""

    trial: int
    purpose: RunPurpose
    node_s: float
    spent_s: float
    failure: Failure | None


class TrialEnded(Frozen):
    """A trial's outcome is stored and told."""

    record: TrialRecord
    state: TrialState


class StudyOpened(Frozen):
    """The study and its node are ready; `node_s` were spent by earlier sittings of the tuner."""

    spec: StudySpec
    facts: NodeFacts
    node_s: float
    records: tuple[TrialRecord, ...]


class ConfirmationStarted(Frozen):
    """The search is over; `launches` more launches confirm its best against the baseline."""

    reason: str
    launches: int


Event: TypeAlias = (
    StudyOpened
    | Note
    | Step
    | TrialStarted
    | PhaseReached
    | LogLine
    | LevelProgress
    | LevelDone
    | RunEnded
    | TrialEnded
    | ConfirmationStarted
)


class Listener(Protocol):
    """Hears every event, in order, in the tuner's thread."""

    def on(self, event: Event) -> None:
        """Take one event."""
        ...


class Silent:
    """Hears nothing."""

    def on(self, event: Event) -> None:
        """Do nothing."""
