"""Two objectives: the configurations that none other beats in both, and the picks among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from servetune.core.objective import pareto
from servetune.core.space import Frozen
from servetune.core.study import StudySpec
from servetune.core.trial import TrialRecord, TrialState
from servetune.tuner.confirm import failed_again, winner

Pick = Literal["throughput", "balanced", "latency"]
PICKS: tuple[Pick, ...] = ("throughput", "balanced", "latency")


class FrontPoint(Frozen):
    """A configuration on the front. `picks`: the names under which `export --pick` gives it."""

    trial: int
    rate: float  # of what is maximised
    latency_s: float  # of what is minimised
    picks: tuple[Pick, ...] = ()


def front(trials: Sequence[TrialRecord], spec: StudySpec) -> tuple[FrontPoint, ...]:
    """The Pareto front from the highest rate to the lowest latency; empty with one objective."""
    if spec.objective.minimize is None:
        return ()
    points = _points(trials, spec)
    members = pareto(points)
    named: Mapping[Pick, int | None] = {name: _picked(name, members, trials, spec) for name in PICKS}
    return tuple(
        FrontPoint(
            trial=number,
            rate=points[number][0],
            latency_s=points[number][1],
            picks=tuple(name for name in PICKS if named[name] == number),
        )
        for number in members
    )


def pick(name: Pick, trials: Sequence[TrialRecord], spec: StudySpec) -> TrialRecord | None:
    """The configuration of that name; None when nothing is complete, or with one objective."""
    found = next((point.trial for point in front(trials, spec) if name in point.picks), None)
    return next((trial for trial in trials if trial.number == found), None)


def _picked(name: Pick, members: Sequence[int], trials: Sequence[TrialRecord], spec: StudySpec) -> int | None:
    """The confirmed winner is the balanced one; where noise has put it beside the front, the nearest on it."""
    if not members:
        return None
    if name != "balanced":
        return members[0] if name == "throughput" else members[-1]
    best = winner([trial for trial in trials if not failed_again(trial)], spec)
    if best is not None and best.number in members:
        return best.number
    points = _points(trials, spec)
    return max(members, key=lambda number: points[number][0] / points[number][1])


def _points(trials: Sequence[TrialRecord], spec: StudySpec) -> dict[int, tuple[float, float]]:
    complete = [t for t in trials if t.state is TrialState.COMPLETE and t.duplicate_of is None and not failed_again(t)]
    found = {t.number: spec.objective.both(t.measurements) for t in complete if t.measurements}
    return {number: point for number, point in found.items() if math.isfinite(point[1]) and point[0] > 0}
