"""A trial's record as learning sees it: one `Launched` for each finished run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from servetune.core.failure import Failure, Phase, Verdict
from servetune.core.space import Choice
from servetune.core.trial import RunRecord, TrialRecord, TrialState
from servetune.search.facts import memory_facts
from servetune.search.launched import END, Launched, position
from servetune.tuner.judge import is_the_configurations


def launched_of(record: TrialRecord, view: Mapping[str, Choice]) -> Iterator[Launched]:
    """Of every finished run; `view`: the flags in effect."""
    for run in record.runs:
        if run.finished_at is None:
            continue
        yield Launched(
            trial=record.number,
            values=view,
            reached=_reached(record, run),
            crash=run.failure if run.failure is not None and _teaches(run.failure) else None,
            facts=memory_facts(run.log_facts),
        )


def _teaches(failure: Failure) -> bool:
    return failure.verdict is not Verdict.STOP and is_the_configurations(failure)


def _reached(record: TrialRecord, run: RunRecord) -> int:
    if run.failure is not None:
        return position(run.failure.phase, len(run.measurements), run.failure.slug)
    whole = record.state is TrialState.COMPLETE
    return END if whole else position(Phase.SERVING, len(run.measurements))
