"""Confirmation: the best configurations and the baseline again, interleaved, in fresh launches; and what it proves.

The value that put a configuration on top is biased upwards (the winner's curse), so it does not count: the lead is
computed from the confirmation's launches, and from those of the baseline that took turns with them; the baseline's
first one, which nothing selected, counts for those that are confirmed first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from statistics import fmean, variance

from scipy.special import stdtrit

from servetune.core.failure import Verdict
from servetune.core.objective import Objective
from servetune.core.space import Frozen, Value
from servetune.core.study import Confirmation, StudySpec
from servetune.core.trial import RunPurpose, RunRecord, TrialRecord, TrialState
from servetune.tuner.effects import is_the_baseline
from servetune.tuner.estimate import estimated
from servetune.tuner.judge import is_the_configurations
from servetune.tuner.turns import Sides, baseline_is_due, sides

#: Chance that the reported interval misses the true lead.
ERROR = 0.05
#: Expected values that differ by less than this share are called the same: the simpler configuration is preferred.
SAME = 0.002
#: A difference above this is never called a tie, however little is known of the noise.
MOST_TIED = 0.01


class Candidate(Frozen):
    """One launch of the confirmation."""

    trial: int
    attempt: int
    assignment: Mapping[str, Value]


class Lead(Frozen):
    """How far a trial is ahead of the baseline: ratio − 1 with a 95 % interval; None while it cannot be said."""

    trial: int
    gain: float
    low: float | None = None
    high: float | None = None
    launches: int = 0
    baseline_launches: int = 0

    @property
    def proved(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.low > 0

    @property
    def equivalent(self) -> bool:
        """Whether the interval says that no difference from the baseline is worth having."""
        return self.low is not None and self.high is not None and self.low >= -MOST_TIED and self.high <= MOST_TIED


def next_launch(spec: StudySpec, trials: Sequence[TrialRecord], may_go_on: bool = True) -> Candidate | None:
    """What the confirmation launches next, interleaved; None when it is over. A function of what was launched alone.

    Every leader `launches` times, the baseline before each round; then, while the interval leaves open who is ahead and
    `may_go_on` (there is node time left), further rounds up to `confirm.most`. A leader that fails gives its place to
    the next one. One that came up after another had been confirmed takes turns with the baseline of its own.
    """
    ahead = leaders(trials, spec)
    if not ahead or spec.confirm.launches == 0:
        return None
    tries = spec.retries.transient + 1  # the first ones belong to the search
    done = {t.number: len(_over(t, tries)) for t in ahead}
    last = min(ahead, key=lambda t: done[t.number])
    base = next(iter(baselines(trials)), None)
    whole = max(done.values()) == done[last.number]  # nobody waits for the rest of a round
    if done[last.number] >= spec.confirm.launches and whole:
        over = done[last.number] >= spec.confirm.rounds_at_most or not may_go_on
        if over or _decided(ahead, base, spec):
            return None
    others = [_rounds(t, tries) for t in trials if t is not last and not t.baseline]
    due = base is not None and baseline_is_due(_rounds(last, tries), _rounds(base, tries), others)
    record = base if base is not None and due else last
    return Candidate(trial=record.number, attempt=_free_attempt(record, tries), assignment=record.assignment)


def _free_attempt(record: TrialRecord, tries: int) -> int:
    """Of the next round. After a change of `retries.transient` rounds have other numbers than their count says."""
    over = _over(record, tries)
    number = 1 + len(over)
    while number in over:
        number += 1
    return tries * number


def _over(record: TrialRecord, tries: int) -> set[int]:
    """Numbers of the confirmation's rounds that are over, tries after transient failures not counted."""
    return {run.attempt // tries for run in _rounds(record, tries)}


def _rounds(record: TrialRecord, tries: int) -> Sequence[RunRecord]:
    """The last launch of each round that is over."""
    runs = [run for run in record.runs if run.purpose is RunPurpose.CONFIRM and run.finished_at]
    ended = {
        run.attempt // tries: run
        for run in runs
        if run.failure is None or run.failure.verdict is not Verdict.RETRY or run.attempt % tries == tries - 1
    }
    return list(ended.values())


def _decided(ahead: Sequence[TrialRecord], base: TrialRecord | None, spec: StudySpec) -> bool:
    """Whether the interval of the best lead says who is ahead, or that nobody is by a difference worth having."""
    leads = [found for record in ahead if (found := lead(record, base, spec)) is not None]
    best = max(leads, key=lambda found: found.gain, default=None)
    if best is None or best.low is None or best.high is None:
        return best is None
    return best.low > 0 or best.high < 0 or best.equivalent


def baselines(trials: Sequence[TrialRecord]) -> Sequence[TrialRecord]:
    """The baseline, when it is complete."""
    return [t for t in trials if t.baseline and t.state is TrialState.COMPLETE]


def leaders(trials: Sequence[TrialRecord], spec: StudySpec, most: int | None = None) -> Sequence[TrialRecord]:
    """The best complete trials above the baseline and not the same as it, at most `most` (by default `confirm.top`).

    Judged by what the model expects of them. Among those that it cannot tell from the best one, the fewest changed
    flags come first; the earlier trial wins a tie.
    """
    values = estimated(trials, spec)
    base = next(iter(baselines(trials)), None)
    floor = 0.0 if base is None else values.get(base.number, 0.0)
    complete = [t for t in trials if t.state is TrialState.COMPLETE and not t.baseline and t.duplicate_of is None]
    ahead = [t for t in complete if values.get(t.number, 0.0) > floor and not failed_again(t)]
    differs = partial(_differs, base)  # asked of as few as can be
    best = next((values[t.number] for t in sorted(ahead, key=lambda t: -values[t.number]) if differs(t)), 0.0)
    standard = standards(trials)

    def rank(record: TrialRecord) -> tuple[float, float, int]:
        value = values[record.number]
        tied = value >= best * (1 - SAME)
        return (-best, changes(record.assignment, standard), 0) if tied else (-value, 0.0, record.number)

    ranked = sorted(ahead, key=lambda t: (*rank(t)[:2], -values[t.number], t.number))
    return list(islice(filter(differs, ranked), spec.confirm.top if most is None else most))


def _differs(base: TrialRecord | None, record: TrialRecord) -> bool:
    return base is None or not is_the_baseline(record, base)


def standards(trials: Sequence[TrialRecord]) -> Mapping[str, Value]:
    """What the flags are when a configuration changes nothing: the node's defaults and the baseline's assignment."""
    base = next((t for t in trials if t.baseline), None)
    if base is None:
        return {}
    known = base.runs[0].facts.flag_defaults if base.runs else {}
    return {**known, **base.assignment}


def _ahead(found: Lead | None, confirm: Confirmation) -> bool:
    """A lead that is not known yet counts; one that is still open when nothing more will be launched does not."""
    if found is None or found.low is None:
        return found is None or found.gain > 0
    over = found.launches >= confirm.rounds_at_most
    return found.gain > 0 and not found.equivalent and not (over and not found.proved)


def run_value(run: RunRecord, objective: Objective, levels: Sequence[int]) -> float | None:
    """The objective of one finished run; None when it failed or a level is missing."""
    measured = objective.contributions(run.measurements)
    if run.finished_at is None or run.failure is not None or any(level not in measured for level in levels):
        return None
    return objective.value(measured)


def lead(record: TrialRecord, baseline: TrialRecord | None, spec: StudySpec) -> Lead | None:
    """The lead over the baseline: Student's interval on the logarithms of the values of launches that took turns.

    None without a complete baseline. Without confirmation launches only the ratio of the search's values is given.
    """
    if baseline is None or not baseline.value or record.value is None:
        return None
    runs, turns = compared(record, baseline, spec)
    ours, theirs = _run_values(runs, spec), _run_values(turns.beside, spec)
    others = [_run_values(turns.before, spec), _run_values(turns.after, spec)]
    if len(ours) < 1 or min([*theirs, *others[0], *others[1]], default=0.0) <= 0:
        return Lead(trial=record.number, gain=record.value / baseline.value - 1)
    if min(ours) <= 0:  # a goodput of nothing has no logarithm; it proves nothing good
        ratio = fmean(ours) / fmean(theirs) - 1
        counts = {"launches": len(ours), "baseline_launches": len(theirs)}
        return Lead(trial=record.number, gain=ratio, low=-1.0, high=max(ratio, 0.0), **counts)
    logs, base = [math.log(v) for v in ours], [math.log(v) for v in theirs]
    difference = fmean(logs) - fmean(base)
    apart = [[math.log(v) for v in values] for values in others]
    half = _half_width(logs, base, error_of(len(ours), spec.confirm), apart)
    bounds = (None, None) if half is None else (math.expm1(difference - half), math.expm1(difference + half))
    return Lead(
        trial=record.number,
        gain=math.expm1(difference),
        low=bounds[0],
        high=bounds[1],
        launches=len(ours),
        baseline_launches=len(theirs),
    )


def compared(record: TrialRecord, baseline: TrialRecord, spec: StudySpec) -> tuple[Sequence[RunRecord], Sides]:
    """The fresh launches that a trial's lead counts, and the baseline's beside them. Empty without a confirmation."""
    ours = _fresh(record, spec)
    return ours, sides(ours, valued(baseline, spec))


def error_of(launches: int, confirm: Confirmation) -> float:
    """Chance that an interval misses, after so many launches, such that it is 5 % for all that may be looked at.

    The confirmation looks after `launches`, and again after each further round: half of the 5 % is spent at the first
    look, the rest evenly on the later ones. That the best of `top` leaders is reported costs a factor of `top`.
    """
    later = confirm.rounds_at_most - confirm.launches
    share = 1.0 if not later else 0.5 if launches <= confirm.launches else 0.5 / later
    return ERROR * share / max(1, confirm.top)


def winner(trials: Sequence[TrialRecord], spec: StudySpec) -> TrialRecord | None:
    """What `export` gives: the confirmed leader with the highest lead; the baseline when no leader is ahead of it.

    A leader that ran as the baseline does, or is equivalent to it, is not ahead; nor is one whose lead a whole
    confirmation has not proved: a tie goes to the configuration that changes less. A proved lead stands until a later
    leader has proved its own. Before any confirmation: the best complete trial. None when nothing is complete.
    """
    base = next(iter(baselines(trials)), None)
    ahead = leaders(trials, spec, max(1, spec.confirm.top))
    leads = {t.number: found for t in trials if (found := lead(t, base, spec)) is not None}
    ahead = [*ahead, *(t for t in trials if t not in ahead and t.number in leads and leads[t.number].proved)]
    standing = [t for t in ahead if not failed_again(t) and _ahead(leads.get(t.number), spec.confirm)]
    standing = [t for t in standing if not passed_by_chance(t, spec)]
    confirmed = [t for t in standing if t.number in leads and leads[t.number].launches > 0]
    proved = [t for t in confirmed if leads[t.number].proved]
    if confirmed:
        return _simplest(proved or confirmed, leads, spec, standards(trials))
    return next(iter(standing), None) or base


def _simplest(
    confirmed: Sequence[TrialRecord],
    leads: Mapping[int, Lead],
    spec: StudySpec,
    standard: Mapping[str, Value],
) -> TrialRecord:
    """Of those that cannot be told apart from the best, the one that changes the fewest flags of the baseline."""
    best = max(confirmed, key=lambda t: leads[t.number].gain)
    logs = {t.number: [math.log(v) for v in _run_values(_fresh(t, spec), spec) if v > 0] for t in confirmed}
    gains = {t.number: math.log1p(leads[t.number].gain) for t in confirmed}

    def tied(record: TrialRecord) -> bool:
        half = _half_width(logs[best.number], logs[record.number])
        return half is not None and gains[best.number] - gains[record.number] <= min(half, MOST_TIED)

    level = [t for t in confirmed if t.number == best.number or tied(t)]
    return min(level, key=lambda t: (changes(t.assignment, standard), -leads[t.number].gain))


def changes(assignment: Mapping[str, Value], standard: Mapping[str, Value]) -> int:
    """How many flags differ from the standard; a switch that is false counts as left out."""
    flags = {*assignment, *standard}
    return sum((assignment.get(f, standard.get(f)) or False) != (standard.get(f) or False) for f in flags)


def failed_again(record: TrialRecord) -> bool:
    """Whether a configuration that worked once failed in its confirmation: it may not win.

    A fault of the node or of the measurement is not the configuration's.
    """
    failures = [run.failure for run in record.runs if run.purpose is RunPurpose.CONFIRM]
    return any(failure is not None and is_the_configurations(failure) for failure in failures)


def passed_by_chance(record: TrialRecord, spec: StudySpec) -> bool:
    """Whether a configuration crashed, passed when it was tried again, and has not survived a confirmation yet.

    It may not win before it has.
    """
    searched = [run.failure for run in record.runs if run.purpose is RunPurpose.SEARCH]
    crashed = any(failure is not None and is_the_configurations(failure) for failure in searched)
    return crashed and not _fresh(record, spec)


def _fresh(record: TrialRecord, spec: StudySpec) -> list[RunRecord]:
    return [run for run in valued(record, spec) if run.purpose is RunPurpose.CONFIRM]


def valued(record: TrialRecord, spec: StudySpec) -> list[RunRecord]:
    """The launches of a trial that measured the objective."""
    return [run for run in record.runs if run_value(run, spec.objective, spec.workload.concurrency) is not None]


def _run_values(runs: Sequence[RunRecord], spec: StudySpec) -> list[float]:
    found = (run_value(run, spec.objective, spec.workload.concurrency) for run in runs)
    return [value for value in found if value is not None]


def _half_width(
    left: Sequence[float], right: Sequence[float], error: float = ERROR, others: Sequence[Sequence[float]] = ()
) -> float | None:
    """Half of a difference's interval that misses with chance `error`; None with a single value on a side.

    Student's with pooled variance: the noise of a launch, as a share of its value, is the node's, so both
    sides have the same, and so have `others`, each of launches of one configuration in the same turns. With two or
    three launches a side Welch's would have one degree of freedom, and say nothing.
    """
    if len(left) < 2 or len(right) < 2:
        return None
    groups = [group for group in (left, right, *others) if len(group) > 1]
    freedom = sum(len(group) - 1 for group in groups)
    pooled = sum((len(group) - 1) * variance(group) for group in groups) / freedom
    return float(stdtrit(freedom, 1 - error / 2)) * math.sqrt(pooled * (1 / len(left) + 1 / len(right)))
