"""A new study that begins with what an earlier one found."""

from __future__ import annotations

from collections.abc import Sequence

from servetune.core.study import StoredStudy, StudySpec
from servetune.core.trial import TrialRecord, TrialState

#: Configurations of the earlier study that are measured again, right after the baseline.
SEEDS = 5


def with_hints_of(spec: StudySpec, earlier: StoredStudy, trials: Sequence[TrialRecord]) -> StudySpec:
    """The study with the earlier one's best assignments as hints: measured again, nothing is taken on trust."""
    complete = [t for t in trials if t.state is TrialState.COMPLETE and t.duplicate_of is None and not t.baseline]
    best = sorted(complete, key=lambda t: -(t.value or 0.0))[:SEEDS]
    fixed = earlier.spec.space.fixed
    # a hint lies over the baseline: what it does not set must go, a switch by being false
    absent = {flag: False if isinstance(value, bool) else None for flag, value in spec.baseline.items()}
    hints = tuple({**absent, **{flag: v for flag, v in t.assignment.items() if flag not in fixed}} for t in best)
    space = spec.space.model_copy(update={"hints": (*hints, *spec.space.hints)})
    return spec.model_copy(update={"space": space})
