"""Turns of a confirmation: which launch of the baseline stands beside one of a configuration's.

Nodes drift, and a study that goes on another day may find another machine: of two machines of one kind one ran the
same server a fifth slower (docs/results-h200.md). So each launch of a leader has one of the baseline right before it,
and is compared with that. The baseline's other launches still tell how much launches of one configuration differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from servetune.core.trial import RunPurpose, RunRecord

Place = tuple[str, int, int]


class Sides(NamedTuple):
    """The baseline's launches: those that count beside a configuration, and those of earlier and of later turns."""

    beside: Sequence[RunRecord]
    before: Sequence[RunRecord] = ()
    after: Sequence[RunRecord] = ()


def in_order(runs: Sequence[RunRecord], role: int) -> list[tuple[Place, RunRecord]]:
    """Launches of a confirmation as they were made. `role`: 0 the baseline's, which goes first, 1 a leader's.

    The store sees to it that a launch never starts before the one before it; where times are equal, rounds tell.
    """
    confirmed = [run for run in runs if run.purpose is RunPurpose.CONFIRM]
    return sorted((((run.started_at, run.attempt, role), run) for run in confirmed), key=lambda placed: placed[0])


def sides(ours: Sequence[RunRecord], baseline: Sequence[RunRecord]) -> Sides:
    """Of the `baseline`'s launches those that stand beside `ours`, the launches of a configuration's confirmation.

    That is before each of ours the last one since the one before it. The search's launch of the baseline, which nothing
    selected, counts with whoever took the first turn.
    """
    searched = [run for run in baseline if run.purpose is not RunPurpose.CONFIRM]
    turns, places = in_order(baseline, 0), [place for place, _ in in_order(ours, 1)]
    beside = []
    for since, place in zip([None, *places], places, strict=False):
        between = [turn for turn in turns if turn[0] < place and (since is None or turn[0] > since)]
        beside += between[-1:]
    if not beside:
        return Sides([*searched, *(run for _, run in turns)])
    first, last = beside[0][0], beside[-1][0]
    counted = {place for place, _ in beside}
    before = [run for place, run in turns if place not in counted and place < last]
    after = [run for place, run in turns if place > last]
    runs = [run for _, run in beside]
    if first == turns[0][0]:
        return Sides([*searched, *runs], before, after)
    return Sides(runs, [*searched, *before], after)


def baseline_is_due(
    ours: Sequence[RunRecord], baseline: Sequence[RunRecord], others: Sequence[Sequence[RunRecord]]
) -> bool:
    """Whether the baseline is launched before the next launch of a leader, whose launches so far are `ours`.

    Not when it was launched since the leader's last one. Before its first one the baseline's last launch serves all who
    are in their first turn, but nobody who came up after `others` had taken theirs.
    """
    turns = in_order(baseline, 0)
    if not turns:
        return True
    latest = turns[-1][0]
    if ours:
        return in_order(ours, 1)[-1][0] > latest
    placed = [[place for place, _ in in_order(runs, 1)] for runs in others]
    return any(places and places[0] < latest < places[-1] for places in placed)
