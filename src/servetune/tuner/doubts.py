"""What the honesty checks say of the launches behind a ranking and a verdict, the search's and the confirmation's.

A real node's measurement that they doubt is none: it is made again. A simulated node's is kept, and marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from servetune.core.benchmark import Measurement
from servetune.core.quantities import counted
from servetune.core.space import Frozen
from servetune.core.study import StudySpec
from servetune.core.trial import RunPurpose, RunRecord, TrialRecord
from servetune.tuner.confirm import compared, valued

#: Behind a number that the checks doubt.
MARK = "?"

#: What the mark means.
NOT_VALID = (
    f"{MARK}: the honesty checks doubt it (see the warnings); kept because it is simulated: the node's clock is "
    "compressed, which magnifies the load generator's own delays"
)


class Warned(Frozen):
    """What the checks say of one level of one launch. `confirmation`: which one, from 1; None: the search's launch.

    `doubted`: it is why the level's numbers are not valid.
    """

    trial: int
    attempt: int
    confirmation: int | None
    concurrency: int
    text: str
    doubted: bool

    def said(self) -> str:
        """In one sentence, with its place."""
        which = "" if self.confirmation is None else f", confirmation {self.confirmation}"
        return f"trial {self.trial}{which}, concurrency {self.concurrency}: {self.text}"


def confirmations(record: TrialRecord, spec: StudySpec) -> list[RunRecord]:
    """The confirmation's launches of a trial that count, in the order in which they were made."""
    return [run for run in valued(record, spec) if run.purpose is RunPurpose.CONFIRM]


def not_valid(runs: Sequence[RunRecord]) -> tuple[int, ...]:
    """Levels that the checks doubt in one of the launches, ascending."""
    return tuple(sorted({m.concurrency for run in runs for m in run.measurements if not m.valid}))


def warnings(records: Sequence[TrialRecord], spec: StudySpec) -> list[Warned]:
    """Of the search's last launch and of the confirmation's that count; what makes a number doubtful comes first."""
    found = [one for record in records for one in _of_trial(record, spec)]
    return sorted(found, key=lambda one: (not one.doubted, one.confirmation is None))


def _of_trial(record: TrialRecord, spec: StudySpec) -> Iterator[Warned]:
    searched = [run for run in record.runs if run.purpose is RunPurpose.SEARCH and run.finished_at]
    launches: list[tuple[int | None, RunRecord]] = [(None, run) for run in searched[-1:]]
    launches += list(enumerate(confirmations(record, spec), start=1))
    for number, run in launches:
        for measured in run.measurements:
            for text in measured.warnings:
                yield Warned(
                    trial=record.number,
                    attempt=run.attempt,
                    confirmation=number,
                    concurrency=measured.concurrency,
                    text=text,
                    doubted=_doubts(measured, text),
                )


def _doubts(measured: Measurement, text: str) -> bool:
    """Studies of older versions did not keep apart what made a level invalid."""
    return not measured.valid and (text in measured.invalid_because or not measured.invalid_because)


def of_the_verdict(records: Sequence[TrialRecord], best: TrialRecord, base: TrialRecord | None, spec: StudySpec) -> str:
    """A clause on the doubtful levels that a verdict counts, empty when there are none.

    Where the baseline stands, those of every trial that was launched again beside it count.
    """
    if base is None:
        return ""
    told = [best] if best.number != base.number else [r for r in records if r.number != base.number]
    sides = [(record, *compared(record, base, spec)) for record in told if confirmations(record, spec)]
    clauses = [_side(f"trial {record.number}", ours) for record, ours, _ in sides]
    beside = {run.attempt: run for _, _, turns in sides for run in turns.beside}
    clauses += [_side("the baseline", list(beside.values()))]
    said = "; ".join(filter(None, clauses))
    return f" ({MARK}); the honesty checks doubt launches that it counts: {said}" if said else ""


def _side(name: str, runs: Sequence[RunRecord]) -> str:
    """`trial 3 at concurrency 256, 1024 (2 of 3 launches)`."""
    levels = not_valid(runs)
    if not levels:
        return ""
    doubted = sum(any(not m.valid for m in run.measurements) for run in runs)
    return f"{name} at concurrency {', '.join(map(str, levels))} ({doubted} of {counted(len(runs), 'launch')})"
