"""Learned constraints out of a study's launches: a function of its history alone, for resuming.

A crash that would happen again teaches: the settings that explain it (`explanations`), or a bound (`bounds`). What is
sure is forbidden; what two crashes only suggest, or unsure diagnoses say, is forbidden at a confidence below SURE and
tried again; what one unexplained crash leaves open forbids nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from servetune.core.failure import Failure, Verdict
from servetune.core.knowledge import Clause, LearnedConstraint, Lesson, Scope
from servetune.core.space import Choice
from servetune.search._history import OF_MEMORY
from servetune.search.bounds import FRACTION, GRAPH, RUNTIME, heavier, pool_bound, room_bounds, told_apart
from servetune.search.explanations import Explainer, Explanation, Hypothesis, Suspicion
from servetune.search.launched import Launched, Setting, is_context, settled

#: Below this confidence a constraint is a suspicion that is tried again.
SURE = 0.7
#: From this confidence on nobody doubts a diagnosis, nor what it names, as long as the study has found what works.
CERTAIN = 0.8
#: Most confidence in what is only left over when all that worked is taken away: after one crash, and after more.
LEFT_OVER, LEFT_OVER_AGAIN = 0.75, 0.78
#: Confidence in what crashed twice although such crashes may pass.
MAY_PASS = 0.65
#: Out of memory over so much of the fraction, or so often, a setting is blamed and not the lack of room.
MUCH_ROOM, MANY = 0.05, 5
#: Classes that are no crash, or that another launch cures.
NOT_LEARNED = frozenset(("limit_exceeded", "hang", "perf_regression", "none"))
_ROUTES = {"oom_graph": GRAPH, "oom_runtime": RUNTIME}


@dataclass(frozen=True)
class Learned:
    """What a study's launches teach: constraints, widest first, and crashes that are not explained."""

    constraints: tuple[LearnedConstraint, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()


@dataclass(frozen=True)
class Subject:
    """What is learned about: the study, where it runs, its categorical parameters (name → flags), its fixed flags.

    `ordered`: flags with numbers that are sampled.
    """

    study: str
    scope: Scope
    flags: Mapping[str, tuple[str, ...]]
    fixed: Mapping[str, Choice]
    ordered: tuple[str, ...] = ()

    @property
    def context(self) -> tuple[Clause, ...]:
        """Fixed flags that what crashes may depend on in other studies."""
        return tuple(
            Clause(flag=flag, any_of=(value,)) for flag, value in settled(self.fixed).items() if is_context(flag)
        )


def learned(subject: Subject, launches: Sequence[Launched]) -> Learned:
    """Everything that these launches teach."""
    crashes = [one for one in launches if one.crash is not None and teaches(one.crash)]
    explainer = Explainer(launches, subject.flags)
    explained, open_ = explainer.explain([one for one in crashes if not _is_of_memory(one)])
    found = [made for one in explained if (made := _of_explanation(subject, one, launches)) is not None]
    found += _pools(subject, crashes, launches)
    found += _rooms(subject, crashes, launches)
    found += _whatever_the_room(subject, crashes, launches)
    return Learned(tuple(_widest(found)), tuple(one for one in open_ if len(one.hypotheses) > 1))


def teaches(failure: Failure) -> bool:
    """Whether a crash says something about its configuration."""
    if failure.slug in NOT_LEARNED or failure.verdict is Verdict.STOP:
        return False
    return failure.verdict is Verdict.INFEASIBLE or failure.slug not in ("host_env", "overload", "invalid_measurement")


def together(failures: Sequence[Failure]) -> float:
    """How sure crashes are that blame the same: as the surest diagnosis, or surer for their number."""
    alone = [failure.confidence for failure in failures]
    return max(*alone, min(LEFT_OVER_AGAIN, 1 - math.prod(1 - one for one in alone)))


def _is_of_memory(launched: Launched) -> bool:
    """`oom_weights` is not: the fraction does not help, something else is too heavy."""
    assert launched.crash is not None
    return launched.crash.slug in OF_MEMORY - {"oom_weights"}


def _of_explanation(
    subject: Subject, explanation: Explanation, launches: Sequence[Launched]
) -> LearnedConstraint | None:
    failures = [one.crash for one in explanation.crashes if one.crash is not None]
    alone = len({one.trial for one in explanation.crashes}) == 1
    certain = any(failure.deterministic is True for failure in failures)
    if not certain and len(failures) < 2:
        return None
    confidence = together(failures)
    if not certain:
        confidence = min(MAY_PASS, confidence)
    elif not explanation.named:
        confidence = min(LEFT_OVER if alone else LEFT_OVER_AGAIN, confidence)
    core = _trimmed(explanation.core, launches, explanation.crashes[0])
    clauses = _clauses(core | explanation.context)
    return _constraint(subject, clauses, explanation.crashes, confidence)


def _trimmed(core: Hypothesis, launches: Sequence[Launched], crash: Launched) -> Hypothesis:
    """Without what the first launch has too, as long as nothing that worked falls under the rest."""
    later = [one for one in launches if one.reached > crash.reached]
    for setting in sorted(core, key=str):
        rest = core - {setting}
        if rest and launches[0].has((setting,)) and not any(one.has(rest) for one in later):
            core = rest
    return core


def _pools(subject: Subject, crashes: Sequence[Launched], launches: Sequence[Launched]) -> Iterator[LearnedConstraint]:
    """Lower bounds of the memory fraction. Crashes with the same bound narrow down why the weights are heavier."""
    told: list[tuple[Clause, frozenset[Setting], list[Launched]]] = []
    for crash in crashes:
        if crash.crash is None or crash.crash.slug != "kv_budget" or crash.crash.deterministic is not True:
            continue
        clause, why = pool_bound(crash), heavier(crash, launches, subject.flags)
        for at, (known, reason, members) in enumerate(told):
            if known == clause and (reason & why or not reason):
                told[at] = (known, reason & why, [*members, crash])
                break
        else:
            told.append((clause, why, [crash]))
    for clause, why, members in told:
        yield _constraint(subject, (clause, *_clauses(why)), members, _sureness(members))


def _rooms(subject: Subject, crashes: Sequence[Launched], launches: Sequence[Launched]) -> Iterator[LearnedConstraint]:
    """Bounds on what must fit beside the KV pool."""
    for crash in crashes:
        failure = crash.crash
        if failure is None or failure.slug not in _ROUTES or failure.deterministic is not True:
            continue
        bounds = room_bounds(crash, [flag for flag in _ROUTES[failure.slug] if flag in subject.ordered])
        worked = [one for one in launches if one.reached > crash.reached]
        why = told_apart(crash, worked, bounds, subject.flags) if bounds else None
        if why is not None:
            yield _constraint(subject, (*bounds, *_clauses(why)), [crash], failure.confidence)


def _whatever_the_room(
    subject: Subject, crashes: Sequence[Launched], launches: Sequence[Launched]
) -> Iterator[LearnedConstraint]:
    """A setting that ran out of memory in each launch: after two, with much less room still; after more, always.

    Only launches count that ran out of memory where another one worked with no more room: so room is not the reason.
    Each of them lay outside the bounds that the others taught, or it would not have been launched.
    """
    flags = sorted({flag for own in subject.flags.values() for flag in own} - set(subject.ordered))
    for slug in _ROUTES:
        left = [one for one in crashes if _has_room(one, slug, subject, launches)]
        while left:
            setting, members = _commonest(left, flags, launches)
            if len(members) < 2:
                break
            left = [one for one in left if one not in members]
            fractions = [float(str(one.values[FRACTION])) for one in members if FRACTION in one.values]
            clauses = _clauses(frozenset((setting,)))
            if len(members) < MANY and (not fractions or max(fractions) - min(fractions) < MUCH_ROOM):
                if not fractions:
                    continue
                clauses = (Clause(flag=FRACTION, above=round(min(fractions) - MUCH_ROOM, 5)), *clauses)
            failures = [one.crash for one in members if one.crash is not None]
            yield _constraint(subject, clauses, members, min(LEFT_OVER, together(failures)))


def _has_room(crash: Launched, slug: str, subject: Subject, launches: Sequence[Launched]) -> bool:
    """Whether it ran out of memory for certain, and another launch that leaves no more room came further."""
    if crash.crash is None or crash.crash.slug != slug or crash.crash.deterministic is not True:
        return False
    bounds = room_bounds(crash, [flag for flag in _ROUTES[slug] if flag in subject.ordered])
    return any(one.reached > crash.reached and all(bound.holds(one.values) for bound in bounds) for one in launches)


def _commonest(
    crashes: Sequence[Launched], flags: Sequence[str], launches: Sequence[Launched]
) -> tuple[Setting, list[Launched]]:
    """The setting that most crashes share and no launch that came further has, and these crashes."""
    best: tuple[Setting, list[Launched]] = (("", None), [])
    for setting in sorted({(flag, one.settings.get(flag)) for one in crashes for flag in flags}, key=str):
        members = [one for one in crashes if one.has((setting,))]
        earliest = min(one.reached for one in members)
        if len(members) > len(best[1]) and not any(one.reached > earliest and one.has((setting,)) for one in launches):
            best = setting, members
    return best


def _sureness(crashes: Sequence[Launched]) -> float:
    return max(one.crash.confidence for one in crashes if one.crash is not None)


def _clauses(settings: frozenset[Setting]) -> tuple[Clause, ...]:
    """What is left out may also be written as off."""
    return tuple(
        Clause(flag=flag, any_of=(None, False) if value is None else (value,))
        for flag, value in sorted(settings, key=str)
    )


def _constraint(
    subject: Subject, clauses: Sequence[Clause], crashes: Sequence[Launched], confidence: float
) -> LearnedConstraint:
    failure = crashes[0].crash
    assert failure is not None
    said = {clause.flag for clause in clauses}
    lessons = [Lesson(study=subject.study, trial=one.trial, line=_line(one)) for one in crashes]
    return LearnedConstraint(
        slug=failure.slug,
        forbids=(*clauses, *(clause for clause in subject.context if clause.flag not in said)),
        scope=subject.scope,
        confidence=round(min(1.0, confidence), 2),
        lessons=tuple(dict.fromkeys(lessons)),
        message=f"{failure.slug} in {failure.phase.value}: {failure.message}"[:500],
    )


def _line(launched: Launched) -> str:
    evidence = launched.crash.evidence if launched.crash is not None else ()
    return evidence[0].text[:300] if evidence else ""


def _widest(found: Sequence[LearnedConstraint]) -> list[LearnedConstraint]:
    """Without those that another one implies."""
    kept: list[LearnedConstraint] = []
    for one in found:
        if any(implies(other, one) for other in kept):
            continue
        kept = [other for other in kept if not implies(one, other)] + [one]
    return kept


def implies(wide: LearnedConstraint, narrow: LearnedConstraint) -> bool:
    """Whether everything that `narrow` forbids is forbidden by `wide`."""
    if wide.scope != narrow.scope or wide.confidence < min(SURE, narrow.confidence):
        return False
    return all(any(_contains(outer, inner) for inner in narrow.forbids) for outer in wide.forbids)


def _contains(outer: Clause, inner: Clause) -> bool:
    if outer.flag != inner.flag:
        return False
    if outer.any_of:
        return bool(inner.any_of) and set(inner.any_of) <= set(outer.any_of)
    if inner.any_of:
        return all(outer.holds({outer.flag: value}) for value in inner.any_of)
    above = outer.above is None or (inner.above is not None and inner.above >= outer.above)
    below = outer.below is None or (inner.below is not None and inner.below <= outer.below)
    return above and below
