"""How long each level is measured while searching: as long as the wanted precision needs, by the baseline's.

And what it is measured against: a level that is surely below the best configuration's ends early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from servetune.core.benchmark import Bar
from servetune.core.objective import OUTPUT_TOKENS
from servetune.core.study import StudySpec
from servetune.core.trial import RunRecord, TrialRecord, TrialState

#: A level is never measured for less than this share of its usual time.
LEAST = 0.2


def effort_of(wanted_sd: float, baseline: Sequence[RunRecord]) -> Mapping[int, float]:
    """Level → share of the usual measuring time. `wanted_sd`: relative standard deviation; 0 asks for the whole time.

    The deviation falls with the square root of the time. Levels that the baseline's first complete run does not know
    are measured in full.
    """
    complete = [run for run in baseline if run.failure is None and run.finished_at is not None]
    if wanted_sd <= 0 or not complete:
        return {}
    found = {}
    for measured in complete[0].measurements:
        rate = measured.output_tokens_per_s
        if rate > 0 and measured.high > measured.low:
            sd = (measured.high - measured.low) / (2 * 1.96 * rate)
            found[measured.concurrency] = min(1.0, max(LEAST, (sd / wanted_sd) ** 2))
    return found


def bars_of(spec: StudySpec, trials: Sequence[TrialRecord]) -> Mapping[int, Bar]:
    """Level → what the best complete trial gave; empty where levels are measured to their end (see `Budget`)."""
    plain = spec.objective.maximize == OUTPUT_TOKENS and spec.objective.minimize is None and not spec.objective.limits
    told = [(t.value, t) for t in trials if t.state is TrialState.COMPLETE and t.value is not None]
    if not told or not plain or not spec.budget.level_sd or not spec.budget.level_error:
        return {}
    _, best = max(told, key=lambda entry: entry[0])
    return {
        m.concurrency: Bar(
            output_tokens_per_s=m.output_tokens_per_s, sd=(m.high - m.low) / (2 * 1.96), error=spec.budget.level_error
        )
        for m in best.measurements
    }
