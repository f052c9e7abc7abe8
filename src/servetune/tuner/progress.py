"""Where a study stands: what its budget has left, and whether a configuration was measured before."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence

from servetune.core.quantities import counted
from servetune.core.space import Assignment, Choice, SearchSpace
from servetune.core.study import StudySpec
from servetune.core.trial import Outcome, RunPurpose, TrialRecord, TrialState
from servetune.search._grid import Grid
from servetune.storage import Store

#: States of a trial that says something about its configuration.
TELLING = (TrialState.COMPLETE, TrialState.PRUNED)
#: Asks in a row that cost nothing (rejected, or seen before) before a large space counts as exhausted.
FREE_ASKS = 300


class Progress:
    """Answers from the study database alone, so that a resumed study goes on where it was."""

    def __init__(self, spec: StudySpec, store: Store) -> None:
        self._spec, self._store = spec, store
        self._keys: dict[int, str] = {}

    def over(self) -> str | None:
        """Why the search is over, in one sentence; None while it goes on."""
        budget = self._spec.budget
        launched = [t for t in self._store.trials(self._spec.study) if t.state in TELLING and t.runs]
        if len(launched) >= budget.trials:
            were = "was" if len(launched) == 1 else "were"
            return f"{counted(len(launched), 'trial')} {were} launched: the budget of {budget.trials} is spent"
        spent_h = sum(self._store.ledger(self._spec.study).values()) / 3600
        reserve_h = self._confirmation_s(launched) / 3600
        if budget.node_hours is not None and spent_h + reserve_h >= budget.node_hours:
            return (
                f"{spent_h:.2f} node-hours are spent and {reserve_h:.2f} are kept for the confirmation: "
                f"the budget of {budget.node_hours:g} is reached"
            )
        stale = trials_since_best(launched)
        if budget.patience is not None and stale >= budget.patience:
            row = f"{counted(stale, 'trial')} in a row brought nothing better"
            return f"{row}: the patience of {budget.patience} is at its end"
        return None

    def _confirmation_s(self, launched: Sequence[TrialRecord]) -> float:
        """Node seconds that the confirmation will take, by the mean of the complete trials."""
        plan, complete = self._spec.confirm, [t.runs[0].node_s for t in launched if t.state is TrialState.COMPLETE]
        if not complete or not plan.top:
            return 0.0
        return (plan.top + 1) * plan.launches * sum(complete) / len(complete)

    def time_for_more(self, trials: Sequence[TrialRecord]) -> bool:
        """Whether another round of the confirmation fits into the node-hours."""
        if self._spec.budget.node_hours is None:
            return True
        launched = [t for t in trials if t.state in TELLING and t.runs]
        round_s = self._confirmation_s(launched) / max(1, self._spec.confirm.launches)
        spent_s = sum(self._store.ledger(self._spec.study).values())
        return spent_s + round_s <= 3600 * self._spec.budget.node_hours

    def seen(
        self, number: int, effective: Assignment, effective_of: Callable[[Assignment], Assignment]
    ) -> Outcome | None:
        """The outcome of an earlier trial with the same effective configuration, marked as its duplicate."""
        key = configuration_key(effective)
        for record in self._store.trials(self._spec.study):
            if record.number >= number or record.state not in TELLING or not record.runs:
                continue
            if record.number not in self._keys:
                self._keys[record.number] = configuration_key(effective_of(record.assignment))
            if self._keys[record.number] == key:
                return self._answer(record)
        return None

    def _answer(self, record: TrialRecord) -> Outcome | None:
        known = self._store.outcome(self._spec.study, record.number)
        if known is None:
            return None
        message = f"the same effective configuration as trial {record.number}: answered from storage"
        return known.model_copy(update={"duplicate_of": record.number, "message": message})


def trials_since_best(launched: Sequence[TrialRecord]) -> int:
    """Launched trials after the best one; 0 while nothing is complete."""
    values = [record.value if record.state is TrialState.COMPLETE else None for record in launched]
    best = max((value for value in values if value is not None), default=None)
    return 0 if best is None else len(values) - 1 - values.index(best)


def searched(record: TrialRecord) -> bool:
    """Whether the trial has a finished search run."""
    return any(run.purpose is RunPurpose.SEARCH and run.finished_at for run in record.runs)


def in_hand_s(records: Sequence[TrialRecord]) -> float:
    """Node seconds of launches without an end, which are not in the ledger yet: the one that runs, or was cut off."""
    open_runs = [run for record in records for run in record.runs if run.finished_at is None]
    return sum(max(run.node_s, sum(run.phase_s.values())) for run in open_runs)


def configuration_key(assignment: Mapping[str, Choice]) -> str:
    """One text for each effective configuration."""
    return json.dumps(dict(assignment), sort_keys=True)


def asks_to_see_all(space: SearchSpace) -> int:
    """So many asks in a row that cost nothing show that the space has nothing new; FREE_ASKS at most.

    N (ln N + 5) uniform draws leave out any of N points with a probability below e^-5 (coupon collector).
    """
    points = math.prod(len(axis.values) for axis in Grid(space).axes)
    return min(FREE_ASKS, math.ceil(points * (math.log(points) + 5)))
