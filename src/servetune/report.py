"""What a study found, as data: ranking against the baseline, what failed and why, where the node time went."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from servetune.core.answers import Agreement, AnswerRecord
from servetune.core.knowledge import Clause, LearnedConstraint, Lesson, Scope
from servetune.core.quantities import counted
from servetune.core.space import Frozen
from servetune.core.study import StoredStudy, StudySpec
from servetune.core.trial import TrialRecord, TrialState
from servetune.search.learning import implies
from servetune.tuner.confirm import Lead, baselines, failed_again, lead, passed_by_chance, winner
from servetune.tuner.doubts import confirmations, not_valid, of_the_verdict, warnings
from servetune.tuner.effects import is_the_baseline, no_difference, not_in_effect
from servetune.tuner.front import FrontPoint, front
from servetune.tuner.knowledge import LAYER

#: So many trials of the ranking have their measurements' warnings told.
BEST = 5

SIMULATED = "SIMULATED: every number below was invented by a model of a node, none was measured on hardware"


class Ranked(Frozen):
    """One line of the ranking. `levels`: concurrency → what is maximised; `gains`: the same over the baseline, − 1.

    `not_valid`: levels whose numbers the honesty checks doubt; a simulated node's are kept all the same.
    `confirmation_not_valid`: those of its confirmation's launches.
    """

    trial: int
    value: float
    levels: dict[int, float]
    not_valid: tuple[int, ...]
    confirmation_not_valid: tuple[int, ...] = ()
    gains: dict[int, float]
    sets: str
    lead: Lead | None = None
    note: str = ""
    notices: tuple[str, ...] = ()
    not_in_effect: tuple[str, ...] = ()


class FailureGroup(Frozen):
    """Trials that failed alike."""

    slug: str
    phase: str
    trials: tuple[int, ...]
    message: str
    evidence: str


class LearnedHere(Frozen):
    """A learned constraint that this study taught, used or withdrew. `rejections`: proposals it turned down here."""

    key: str
    slug: str
    says: str
    confidence: float
    scope: Scope
    lessons: tuple[Lesson, ...]
    rejections: int
    withdrawn: str
    forbids: tuple[Clause, ...]


class Report(Frozen):
    """A whole report. `unit`: of the ranking's values. `front`: of two objectives.

    `warnings` are for the reader's judgement of everything else.
    """

    study: str
    state: str
    reason: str = ""  # why it stopped, failed or is finished
    simulated: bool
    baseline: Ranked | None
    ranking: tuple[Ranked, ...]
    unit: str
    front: tuple[FrontPoint, ...]
    objectives: tuple[str, ...]
    winner: int | None
    verdict: str
    answers: dict[int, Agreement]  # trial → what the correctness gate made of its last launch's answers
    no_effect: tuple[int, ...]  # trials that differ from the baseline at no level, as far as one launch can tell
    failures: tuple[FailureGroup, ...]
    rejected: dict[str, int]
    learned: tuple[LearnedHere, ...] = ()
    node_s: dict[str, float]
    warnings: tuple[str, ...]


def build(
    stored: StoredStudy,
    records: Sequence[TrialRecord],
    ledger: dict[str, float],
    answers: Sequence[AnswerRecord] = (),
    learned: Sequence[LearnedConstraint] = (),
) -> Report:
    """The report of a study in any state; `learned`: every constraint of the database, withdrawn ones too."""
    complete = [r for r in records if r.state is TrialState.COMPLETE and r.duplicate_of is None and r.value is not None]
    ordered = sorted(complete, key=lambda r: (-(r.value or 0.0), r.number))
    base = next(iter(baselines(records)), None)
    best = winner(records, stored.spec)
    return Report(
        study=stored.name,
        state=stored.state.value,
        reason=stored.reason,
        simulated=is_simulated(records),
        baseline=None if base is None else _ranked(stored, base, base),
        ranking=tuple(_ranked(stored, record, base) for record in ordered),
        unit=stored.spec.objective.unit,
        front=front(records, stored.spec),
        objectives=tuple(filter(None, (stored.spec.objective.maximize, stored.spec.objective.minimize))),
        winner=None if best is None else best.number,
        verdict=verdict(stored, records, best, base),
        no_effect=_without_effect(ordered, base),
        answers={record.trial: record.agreement for record in answers},
        failures=failure_groups(records),
        rejected=_rejections(records),
        learned=learned_here(stored.name, records, learned),
        node_s=ledger,
        warnings=_warnings(records, ordered, stored.spec),
    )


def is_simulated(records: Sequence[TrialRecord]) -> bool:
    """Whether any run was on a simulated node."""
    return any(run.facts.simulated for record in records for run in record.runs)


def _ranked(stored: StoredStudy, record: TrialRecord, base: TrialRecord | None) -> Ranked:
    rate = stored.spec.objective.rate
    levels = {m.concurrency: rate(m) for m in record.measurements}
    base_levels = {} if base is None else {m.concurrency: rate(m) for m in base.measurements}
    own = base is not None and base.number == record.number
    runs = [run for run in record.runs if run.finished_at]
    return Ranked(
        trial=record.number,
        value=record.value or 0.0,
        levels=levels,
        not_valid=tuple(m.concurrency for m in record.measurements if not m.valid),
        confirmation_not_valid=not_valid(confirmations(record, stored.spec)),
        gains={level: value / base_levels[level] - 1 for level, value in levels.items() if base_levels.get(level)},
        sets=sets(stored, record),
        lead=None if own else lead(record, base, stored.spec),
        note=_note(stored, record, base),
        not_in_effect=tuple(sorted(not_in_effect(record))),
        notices=tuple(dict.fromkeys(warning for run in runs for warning in run.log_warnings)),
    )


def _note(stored: StoredStudy, record: TrialRecord, base: TrialRecord | None) -> str:
    """Why a trial may not win although it is in the ranking."""
    if failed_again(record):
        return "failed in its confirmation: it may not win"
    if base is None or base.number == record.number:
        return ""
    if passed_by_chance(record, stored.spec):
        return "crashed once and then passed: it may not win before it survives a confirmation"
    found = lead(record, base, stored.spec)
    return _nothing_done(record, base, found) or _fell_behind(record, base, found)


def _nothing_done(record: TrialRecord, base: TrialRecord, found: Lead | None) -> str:
    """By what tells that an option did nothing; empty when nothing does."""
    if is_the_baseline(record, base):
        return "ran as the baseline does, nothing that it sets is in effect: a difference is noise, and it may not win"
    if found is not None and found.equivalent:
        return "does what the baseline does, within 1 %: what it sets has no effect worth having"
    return ""


def _fell_behind(record: TrialRecord, base: TrialRecord, found: Lead | None) -> str:
    """A trial that was ahead in the launch that chose it, and not in those that were to confirm it."""
    if found is None or not found.launches or found.gain > 0 or (record.value or 0.0) <= (base.value or 0.0):
        return ""
    count = _launches(found)
    return f"measured more than the baseline in the search alone: {100 * found.gain:+.1f} % in {count}"


def sets(stored: StoredStudy, record: TrialRecord) -> str:
    """What a trial sets beside the fixed flags, in one line."""
    fixed = stored.spec.space.fixed
    words = [f"{flag}={value}" for flag, value in record.assignment.items() if fixed.get(flag) != value]
    return " ".join(words) or "(the fixed flags alone)"


def _launches(found: Lead) -> str:
    return f"{counted(found.launches, 'fresh launch')} against {found.baseline_launches} of the baseline"


def verdict(
    stored: StoredStudy, records: Sequence[TrialRecord], best: TrialRecord | None, base: TrialRecord | None
) -> str:
    """One sentence: who won, by how much, how sure that is, and what the honesty checks doubt of it."""
    doubts = "" if best is None else of_the_verdict(records, best, base, stored.spec)
    return f"{_who_won(stored, records, best, base)}{doubts}"


def _who_won(
    stored: StoredStudy, records: Sequence[TrialRecord], best: TrialRecord | None, base: TrialRecord | None
) -> str:
    if best is None and not any(run.finished_at for record in records for run in record.runs):
        return "nothing has been measured to the end yet"
    if best is None:
        return "no configuration worked"
    if base is None:
        return f"trial {best.number} is the best; there is no complete baseline to compare it with"
    if best.number == base.number:
        return f"the baseline stands: {_why_it_stands(stored, records, base)}"
    found = lead(best, base, stored.spec)
    if found is None:
        return f"trial {best.number} is the best; the baseline measured nothing to compare it with"
    ahead = f"trial {best.number} is {100 * found.gain:+.1f} % ahead of the baseline{_idle(best)}"
    if found.launches == 0:
        return f"{ahead}; not confirmed in fresh launches, so expect less"
    count = _launches(found)
    if found.low is None or found.high is None:
        return f"{ahead} in {count}: too few for an interval"
    interval = f"95 % interval {100 * found.low:+.1f} to {100 * found.high:+.1f} %, {count}"
    if found.proved:
        return f"{ahead} ({interval})"
    if found.high < 0:
        return f"trial {best.number} is {-100 * found.gain:.1f} % behind the baseline{_idle(best)} ({interval})"
    return f"{ahead}, but the lead is not proved ({interval}): the baseline may be as good"


def _not_proved(stored: StoredStudy, records: Sequence[TrialRecord], base: TrialRecord) -> str:
    """The lead that a whole confirmation left open, in half a sentence; empty when there is none."""
    leads = [lead(t, base, stored.spec) for t in records if t.number != base.number and t.value is not None]
    tied = [x for x in leads if x is not None and x.low is not None and x.high is not None]
    best = max(tied, key=lambda found: found.gain, default=None)
    if best is None or best.low is None or best.high is None or best.gain <= 0 or best.equivalent:
        return ""
    interval = f"95 % interval {100 * best.low:+.1f} to {100 * best.high:+.1f} %"
    count = _launches(best)
    return f"trial {best.trial} is not proved to be ahead ({100 * best.gain:+.1f} %, {interval}, {count})"


def _why_it_stands(stored: StoredStudy, records: Sequence[TrialRecord], base: TrialRecord) -> str:
    """What became of each trial that measured more than the baseline in the search."""
    spec, idle, behind, once = stored.spec, [], [], []
    for record in records:
        complete = record.state is TrialState.COMPLETE and record.duplicate_of is None and not failed_again(record)
        if not complete or record.number == base.number or (record.value or 0.0) <= (base.value or 0.0):
            continue
        found = lead(record, base, spec)
        if _nothing_done(record, base, found):
            idle.append(record.number)
        elif _fell_behind(record, base, found):
            behind.append(record.number)
        elif found is not None and not found.launches:
            once.append(record.number)
    told = [
        f"trial {', '.join(map(str, numbers))} {fate}"
        for numbers, fate in (
            (idle, "did nothing"),
            (behind, "was ahead in the search alone, not when launched again"),
            (once, "was ahead in one launch alone, which may be noise"),
        )
        if numbers
    ]
    told += filter(None, [_not_proved(stored, records, base)])
    return "; ".join(told) or "nothing measured is ahead of it"


def _without_effect(ranked: Sequence[TrialRecord], base: TrialRecord | None) -> tuple[int, ...]:
    if base is None:
        return ()
    return tuple(t.number for t in ranked if t.number != base.number and no_difference(t, base))


def _idle(best: TrialRecord) -> str:
    """What the winner sets in vain, as a clause."""
    flags = sorted(not_in_effect(best))
    if not flags:
        return ""
    return f" ({', '.join(flags)} {'is' if len(flags) == 1 else 'are'} not in effect and may be left out)"


def failure_groups(records: Sequence[TrialRecord]) -> tuple[FailureGroup, ...]:
    """Failures by class and phase; unknown ones first, then the most frequent."""
    groups: dict[tuple[str, str, str], list[TrialRecord]] = defaultdict(list)
    for record in records:
        if record.failure is not None:
            groups[record.failure.slug, record.failure.phase.value, record.failure.message].append(record)
    found = []
    for (slug, phase, message), members in groups.items():
        failure = members[0].failure
        evidence = failure.evidence[0].text if failure is not None and failure.evidence else ""
        trials = tuple(member.number for member in members)
        found.append(FailureGroup(slug=slug, phase=phase, trials=trials, message=message, evidence=evidence))
    return tuple(sorted(found, key=lambda g: (g.slug != "unknown", -len(g.trials), g.trials[0])))


def _rejections(records: Sequence[TrialRecord]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for record in records:
        for violation in record.rejected:
            named = violation.layer if violation.layer == LAYER else f"{violation.layer} {violation.rule}"
            counts[f"{named}: {violation.message}"] += 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def learned_here(
    study: str, records: Sequence[TrialRecord], learned: Sequence[LearnedConstraint]
) -> tuple[LearnedHere, ...]:
    """The constraints that a study taught, or that turned proposals of it down, or that it withdrew; surest first."""
    turned_down = Counter(violation.rule for record in records for violation in record.rejected)
    standing = [one for one in learned if not one.withdrawn]
    said_already = {one.key for one in learned if any(implies(wide, one) for wide in standing if wide.key != one.key)}
    found = [
        LearnedHere(
            key=one.key,
            slug=one.slug,
            says=f"{one.said()} cannot work",
            confidence=one.confidence,
            scope=one.scope,
            lessons=one.lessons,
            rejections=turned_down[one.key],
            withdrawn=one.withdrawn,
            forbids=one.forbids,
        )
        for one in learned
        if one.key not in said_already and _concerns(one, study, turned_down)
    ]
    return tuple(sorted(found, key=lambda one: (bool(one.withdrawn), -one.confidence, one.key)))


def _concerns(one: LearnedConstraint, study: str, turned_down: Mapping[str, int]) -> bool:
    return bool(
        turned_down[one.key]
        or any(lesson.study == study for lesson in one.lessons)
        or f"of study {study} " in f"{one.withdrawn} "
    )


def _warnings(records: Sequence[TrialRecord], ordered: Sequence[TrialRecord], spec: StudySpec) -> tuple[str, ...]:
    """Of the best trials and of all that were confirmed."""
    told = []
    versions = {run.facts.engine_version for record in records for run in record.runs if run.facts.engine_version}
    if len(versions) > 1:
        told.append(f"measured with different engine versions ({', '.join(sorted(versions))}): not comparable")
    shown = [record for place, record in enumerate(ordered) if place < BEST or confirmations(record, spec)]
    return (*told, *(one.said() for one in warnings(shown, spec)))
