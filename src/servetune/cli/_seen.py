"""A study as it is now: the database holds what its tuner wrote last, its lease knows whether that tuner lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from servetune.core.study import StoredStudy, StudyRunState
from servetune.core.trial import TrialRecord, TrialState
from servetune.storage import StudyStore
from servetune.tuner.progress import in_hand_s

#: Beside the ledger's purposes: the launch that has not ended, or was cut off.
UNFINISHED = "unfinished"


class Seen(NamedTuple):
    """`node_s`: purpose → node seconds, with those of a launch that has not ended."""

    study: StoredStudy
    records: tuple[TrialRecord, ...]
    node_s: Mapping[str, float]

    @property
    def state(self) -> str:
        """With the reason, for people: `stopped (its tuner died; …)`."""
        reason = f" ({self.study.reason})" if self.study.reason else ""
        return f"{self.study.state.value}{reason}"


def seen(store: StudyStore, name: str) -> Seen:
    """The study, its trials and its node time. Raises UsageError when there is none of that name."""
    stored, records = seen_alive(store, store.study(name)), store.trials(name)
    open_s = in_hand_s(records)
    node_s = {**store.ledger(name), **({UNFINISHED: open_s} if open_s else {})}
    return Seen(stored, tuple(_waiting(stored.state, records)), node_s)


def seen_alive(store: StudyStore, stored: StoredStudy) -> StoredStudy:
    """A study whose tuner was killed still says `running` in the database; its lease knows better."""
    if stored.state is StudyRunState.RUNNING and not store.leased(f"study:{stored.name}"):
        reason = f"its tuner died; `servetune resume {stored.name}` goes on"
        return stored.model_copy(update={"state": StudyRunState.STOPPED, "reason": reason})
    return stored


def _waiting(state: StudyRunState, records: Sequence[TrialRecord]) -> Sequence[TrialRecord]:
    """A trial that a stopped tuner left unfinished waits to be run again."""
    if state is StudyRunState.RUNNING:
        return records
    left = {"state": TrialState.WAITING}
    return [r.model_copy(update=left) if r.state is TrialState.RUNNING else r for r in records]
