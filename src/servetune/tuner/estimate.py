"""Expected values of a study's complete trials, for what is recommended and for what the confirmation launches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from servetune.core.space import Assignment
from servetune.core.study import StudySpec
from servetune.core.trial import Outcome, RunPurpose, RunRecord, TrialRecord, TrialState
from servetune.search._grid import Grid, grid_of
from servetune.search._history import Seen, seen_of
from servetune.search.estimates import expected_gains
from servetune.tuner.telling import context_of, told_of

#: The sampler whose model it is. What other samplers propose is judged by its measurement alone.
MODELLED = "adaptive"
#: Deviations by which the model may correct a measured value, and the least deviation between two launches.
DOUBT, BETWEEN_LAUNCHES = 3.0, 0.03


def estimated(trials: Sequence[TrialRecord], spec: StudySpec) -> Mapping[int, float]:
    """Trial number → objective in tokens/s, of complete trials: what the model expects, else what was measured.

    Only the search's own launches count, so that the answer is the same before and after a confirmation.
    """
    complete = {t.number: t.value for t in trials if t.state is TrialState.COMPLETE and t.value is not None}
    base = next((t for t in trials if t.baseline and t.number in complete), None)
    if (
        base is None
        or not spec.space.parameters
        or spec.sampler.name != MODELLED
        or spec.objective.aggregate != "geometric_mean"
    ):
        return complete
    grid = grid_of(spec.space)
    seen = [_once(t, spec, grid) for t in trials if t.duplicate_of is None and t.runs and t.state in _TELLING]
    assumed = {**_defaults(trials), **spec.space.fixed}
    gains = expected_gains(grid, context_of(spec, assumed), seen)
    own = gains.get(base.number, 0.0)
    doubt = {t.number: _doubt(t, spec) for t in trials}
    return {
        number: _within(complete[base.number] * math.exp(gains[number] - own), value, doubt[number])
        if number in gains
        else value
        for number, value in complete.items()
    }


def _within(expected: float, measured: float, doubt: float) -> float:
    """What was seen stands against whatever a model expects."""
    return min(max(expected, measured / doubt), measured * doubt)


def _doubt(record: TrialRecord, spec: StudySpec) -> float:
    """By which factor a model may correct a trial's measured value."""
    run = _search_run(record)
    sds = [] if run is None else list(told_of(_OUTCOME, run, spec.objective)["sd"].values())
    own = math.sqrt(sum(sd * sd for sd in sds)) / max(1, len(sds))
    return math.exp(DOUBT * math.hypot(own, BETWEEN_LAUNCHES))


_TELLING = (TrialState.COMPLETE, TrialState.PRUNED)


def _defaults(trials: Sequence[TrialRecord]) -> Assignment:
    """The engine's defaults on the node, as far as the first launch noted them."""
    first = next((run for t in trials for run in t.runs), None)
    return {} if first is None else first.facts.flag_defaults


#: Trial number → record, the study, and what was made of them: most records are the same when they are asked for again.
_made: dict[int, tuple[TrialRecord, StudySpec, Seen]] = {}


def _once(record: TrialRecord, spec: StudySpec, grid: Grid) -> Seen:
    known = _made.get(record.number)
    if known is None or known[0] is not record or known[1] is not spec:
        known = (record, spec, _seen(record, spec, grid))
        _made[record.number] = known
    return known[2]


def _seen(record: TrialRecord, spec: StudySpec, grid: Grid) -> Seen:
    value = record.value if record.state is TrialState.COMPLETE else None
    told = told_of(_OUTCOME, _search_run(record), spec.objective)
    return seen_of(record.number, record.point, told, value, record.baseline, grid, record.assignment)


_OUTCOME = Outcome.model_construct(state=TrialState.COMPLETE)


def _search_run(record: TrialRecord) -> RunRecord | None:
    searched = [run for run in record.runs if run.purpose is RunPurpose.SEARCH and run.finished_at]
    return searched[-1] if searched else None
