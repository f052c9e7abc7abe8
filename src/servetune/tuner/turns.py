"""Which launches of the baseline stand beside a configuration's: those that took turns with it.

Nodes drift, and a study that goes on another day may find another machine: of two machines of one kind one ran the
same server a fifth slower (docs/results-h200.md). So a leader that comes up after another one was confirmed is launched
in turn with the baseline again, and is compared with these launches; the others still tell how much launches of one
configuration differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from servetune.core.trial import RunPurpose, RunRecord


class Sides(NamedTuple):
    """The baseline's launches: those that count beside a configuration, and those of earlier and of later turns."""

    beside: Sequence[RunRecord]
    before: Sequence[RunRecord] = ()
    after: Sequence[RunRecord] = ()


def sides(ours: Sequence[RunRecord], baseline: Sequence[RunRecord]) -> Sides:
    """Of the `baseline`'s launches those that took turns with `ours`, the launches of a configuration's confirmation.

    These are what was launched between ours, and before our first one as many as make up our number. The search's
    launch of the baseline counts with those who took the first turns.
    """
    if not ours:
        return Sides(baseline)
    started = sorted(run.started_at for run in ours)
    turns = sorted((r for r in baseline if r.purpose is RunPurpose.CONFIRM), key=lambda run: run.started_at)
    earlier = [run for run in turns if run.started_at < started[0]]
    between = [run for run in turns if started[0] <= run.started_at <= started[-1]]
    after = [run for run in turns if run.started_at > started[-1]]
    first = max(0, len(earlier) - max(1, len(ours) - len(between)))
    searched = [run for run in baseline if run.purpose is not RunPurpose.CONFIRM]
    if not first:
        return Sides([*searched, *earlier, *between], (), after)
    return Sides([*earlier[first:], *between], [*searched, *earlier[:first]], after)
