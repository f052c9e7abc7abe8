"""What crashes taught, while a study runs: learned when a launch ends, asked before one, withdrawn when it is wrong.

What this study has seen crash for sure is not launched again in it. What it has only been told, or is not sure of, is
tried again: once it has rejected so many proposals (more, the surer it is), one that it covers is launched; and so it
goes with what would otherwise end the search. docs/failures.md says why.
"""

from __future__ import annotations

import math
from collections import Counter, UserDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from servetune.core.engine import Violation
from servetune.core.events import Listener, Note
from servetune.core.knowledge import LearnedConstraint, Scope
from servetune.core.node import NodeFacts
from servetune.core.quantities import counted
from servetune.core.space import Assignment, Choice, SearchSpace
from servetune.core.study import StudySpec
from servetune.core.trial import TrialRecord, TrialState
from servetune.search.explanations import Suspicion
from servetune.search.launched import Launched, kinds_of
from servetune.search.learning import CERTAIN, MAY_PASS, Learned, Subject, implies, learned
from servetune.search.objections import Rule
from servetune.storage import Store
from servetune.tuner.launched import launched_of
from servetune.tuner.progress import configuration_key

LAYER = "learned"
#: Rule of a proposal that would not tell which of several suspects is guilty.
POSTPONED = "postponed"
#: Why a constraint is withdrawn that no success contradicts; it may be concluded again.
EXPLAINED = "explained otherwise"
#: A constraint that is tried again has this many trials for itself before another one is.
ALONE = 10
#: One in so many launches at most is spent on what is tried again.
LAUNCHES_FOR_ONE = 8
#: Launches that a constraint gets which is tried again, when they die of something else.
TRIES = 8


class Tests(UserDict[str, int]):
    """Key of a constraint → number of the first trial that may try it again; `keep` stores it with the study."""

    def __init__(self, known: Mapping[str, int], keep: Callable[[dict[str, int]], None]) -> None:
        super().__init__()
        self.data.update(known)
        self._keep = keep

    def __setitem__(self, key: str, number: int) -> None:
        super().__setitem__(key, number)
        self._keep(dict(self.data))


class Knowledge:
    """The constraints that hold in one study, with those of earlier studies on the same kind of node."""

    def __init__(
        self,
        spec: StudySpec,
        store: Store,
        defaults: Assignment,
        facts: NodeFacts,
        space: SearchSpace,
        listener: Listener,
        tests: Tests,
    ) -> None:
        self._study, self._store, self._facts = spec.study, store, facts
        self._listener, self.tests = listener, tests
        self._defaults = dict(defaults)
        flags, ordered = kinds_of(space)
        self._subject = Subject(spec.study, scope_of(spec, facts), flags, space.fixed, ordered)
        self._views: dict[int, Mapping[str, Choice]] = {}
        self._keys: dict[int, str] = {}
        self._coverage: dict[tuple[str, int], bool] = {}
        self._launched: dict[int, tuple[TrialRecord, Sequence[Launched]]] = {}
        self._records: Sequence[TrialRecord] = ()
        self._known: set[str] = set()
        self._learned = Learned()
        self._inherited = [one for one in store.learned() if self._is_inherited(one, spec.engine.model)]
        self._standing: dict[str, LearnedConstraint] = {}  # by key: all that hold now
        self._failed_again: set[tuple[int, int]] = set()  # trials: one that taught, and one that tried it again
        self._rejections: Counter[str] = Counter()
        self._blocked: set[str] = set()
        self._number = 0  # of the trial that is being proposed
        if self._inherited:
            known = counted(len(self._inherited), "learned constraint")
            holds = "holds" if len(self._inherited) == 1 else "hold"
            listener.on(Note(text=f"{known} of earlier studies {holds} here"))

    def _is_inherited(self, constraint: LearnedConstraint, model: str) -> bool:
        elsewhere = not constraint.lessons or any(lesson.study != self._study for lesson in constraint.lessons)
        return elsewhere and constraint.scope.covers(self._facts, model)

    def view(self, assignment: Assignment) -> Mapping[str, Choice]:
        """Every flag as launched, with the known defaults of what is left out: what constraints speak about.

        Not what the engine is thought to make of it: a crash may show that this was wrong.
        """
        return {**self._defaults, **assignment}

    def resume(self, blocked: Iterable[Sequence[str]]) -> None:
        """Take up where an earlier sitting was; `blocked` of every trial."""
        self.learn()
        records = self._store.trials(self._study)
        rules = [violation.rule for r in records for violation in r.rejected if violation.layer == LAYER]
        self._rejections = Counter([*rules, *(key for keys in blocked for key in keys)])
        self._number = max((r.number for r in records if r.state is not TrialState.WAITING), default=-1)

    # -- learning ------------------------------------------------------------------------------------------------

    def learn(self) -> None:
        """From every launch so far. Idempotent: what a killed tuner left undone, the next call does."""
        self._records = [r for r in self._store.trials(self._study) if r.runs and r.duplicate_of is None]
        launches = [one for r in self._records for one in self._launches_of(r)]
        self._known = {self._key_of(r) for r in self._records}
        concluded = learned(self._subject, launches)
        stored = {one.key: one for one in self._store.learned(withdrawn=True)}
        wrong = {key for key, one in stored.items() if one.withdrawn and not one.withdrawn.startswith(EXPLAINED)}
        standing = tuple(one for one in concluded.constraints if one.key not in wrong)
        for constraint in standing:
            self._keep(constraint, stored.get(constraint.key))
        self._learned = Learned(standing, concluded.suspicions)
        earlier = [one for one in stored.values() if self._is_own(one) and not one.withdrawn]
        held = [one for one in earlier if _may_hold(one, concluded, launches)]
        self._doubt([*self._inherited, *earlier], {one.key for one in held})
        self._standing = {one.key: one for one in (*standing, *held, *self._inherited)}
        self._failed_again = {
            pair for key in self.tests.keys() & stored.keys() for pair in self._trials_of(stored[key])
        }

    def _trials_of(self, tested: LearnedConstraint) -> Iterator[tuple[int, int]]:
        """Of what was tried again: each trial that taught it before, with each that crashed alike since."""
        since, forbids = self.tests[tested.key], tested.model_copy(update={"withdrawn": ""})
        for record in self._records:
            alike = record.failure is not None and record.failure.slug == tested.slug
            if alike and record.number >= since and forbids.covers(self._view_of(record)):
                own = [lesson.trial for lesson in tested.lessons if lesson.study == self._study]
                yield from ((trial, record.number) for trial in own)

    def _launches_of(self, record: TrialRecord) -> Sequence[Launched]:
        """Kept as long as the record says the same: learning looks at every launch again after each."""
        known = self._launched.get(record.number)
        if known is None or (known[0] is not record and known[0] != record):
            known = (record, tuple(launched_of(record, self._view_of(record))))
            self._launched[record.number] = known
        return known[1]

    def _view_of(self, record: TrialRecord) -> Mapping[str, Choice]:
        if record.number not in self._views:
            self._views[record.number] = self.view(record.assignment)
        return self._views[record.number]

    def _key_of(self, record: TrialRecord) -> str:
        if record.number not in self._keys:
            self._keys[record.number] = configuration_key(self._view_of(record))
        return self._keys[record.number]

    def _is_own(self, constraint: LearnedConstraint) -> bool:
        return bool(constraint.lessons) and all(lesson.study == self._study for lesson in constraint.lessons)

    def _keep(self, constraint: LearnedConstraint, known: LearnedConstraint | None) -> None:
        """Store what is new in it."""
        if known is not None and set(constraint.lessons) <= set(known.lessons):
            return
        self._store.learn(constraint)
        if known is None:
            told = f"learned from {_trials(constraint)}: {constraint.said()} cannot work"
            self._listener.on(Note(text=f"{told} ({constraint.slug}, confidence {constraint.confidence:.0%})"))

    def _doubt(self, constraints: Iterable[LearnedConstraint], held: Collection[str]) -> None:
        """Withdraw what a launch that worked to its end contradicts, and what this study no longer concludes."""
        for constraint in constraints:
            key = constraint.key
            against = next((r for r in self._records if _worked(r) and self._covered(key, constraint, r)), None)
            if against is not None:
                self._withdraw(constraint, f"trial {against.number} of study {self._study} worked with it")
            elif self._is_own(constraint) and key not in held and not self._concludes(constraint):
                self._withdraw(constraint, f"{EXPLAINED} by later launches of study {self._study}")

    def _covered(self, key: str, constraint: LearnedConstraint, record: TrialRecord) -> bool:
        """Kept: what a key forbids does not change, nor does what a trial launched."""
        known = self._coverage.get((key, record.number))
        if known is None:
            known = self._coverage[key, record.number] = constraint.covers(self._view_of(record))
        return known

    def _concludes(self, constraint: LearnedConstraint) -> bool:
        return any(one.key == constraint.key or implies(one, constraint) for one in self._learned.constraints)

    def _withdraw(self, constraint: LearnedConstraint, reason: str) -> None:
        self._store.withdraw_constraint(constraint.key, reason)
        self._inherited = [one for one in self._inherited if one.key != constraint.key]
        self._listener.on(Note(text=f"no longer forbidden: {constraint.said()}; {reason}", warning=True))

    # -- asking --------------------------------------------------------------------------------------------------

    def asked(self, number: int) -> None:
        """The trial that is being proposed from now on."""
        self._number = number
        self._blocked.clear()

    def objection(self, view: Mapping[str, Choice], wanted: bool = False) -> Violation | None:
        """Why the trial is not worth a launch; `wanted`: somebody asked for it, so nothing postpones it."""
        violation = self._objection(view, wanted)
        if violation is not None:
            self._rejections[violation.rule] += 1
            if violation.rule != POSTPONED:
                self._store.touch_constraint(violation.rule)
        return violation

    def rules(self) -> list[Rule]:
        """For samplers: what is against proposals just now, the same that `objection` goes by."""
        standing = [(key, one) for key, one in self._standing.items() if not self._under_test(key)]
        found = [Rule(key, key, frozenset(c.flag for c in one.forbids), one.covers) for key, one in standing]
        if POSTPONED not in self.tests:
            found += map(_rule_of, self._learned.suspicions)
        return found

    def blocks(self, rule: str, view: Mapping[str, Choice], fine: Callable[[], bool]) -> bool:
        """Whether a rule kept a sampler from proposing a new point. It is counted once for each trial.

        `fine`: whether nothing else is against the point; asked as seldom as it can be, because that takes time.
        """
        if rule not in self._blocked and (configuration_key(view) in self._known or not fine()):
            return False
        if rule not in self._blocked:
            self._blocked.add(rule)
            self._rejections[rule] += 1
        return True

    @property
    def blocked(self) -> Sequence[str]:
        """What kept a sampler from proposing, for this trial, something that it liked better."""
        return sorted(self._blocked)

    def _objection(self, view: Mapping[str, Choice], wanted: bool) -> Violation | None:
        for key, constraint in self._standing.items():
            if constraint.covers(view) and not self._under_test(key):
                return _violation(key, constraint)
        return None if wanted or POSTPONED in self.tests else self._postponement(view)

    def _postponement(self, view: Mapping[str, Choice]) -> Violation | None:
        """A crash that is not explained forbids nothing; two of its suspects together would not tell which it was."""
        for suspicion in self._learned.suspicions:
            if suspicion.postpones(view):
                crash = suspicion.crash
                flags = tuple(sorted({flag for one in suspicion.hypotheses for flag, _ in one}))
                message = f"has several suspects of the crash of trial {crash.trial}, which must be tried one by one"
                source = f"the log of trial {crash.trial}"
                return Violation(rule=POSTPONED, layer=LAYER, flags=flags, message=message, source=source)
        return None

    # -- trying again --------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Before the next trial: let what has rejected enough be tried again, one after the other."""
        if any(self._number + 1 - since < ALONE and not self._tested(key) for key, since in self.tests.items()):
            return
        due = [one for one in self._doubted(MAY_PASS) if self._rejections[one.key] >= patience(one)]
        if due and (len(self.tests) + 1) * LAUNCHES_FOR_ONE <= len(self._records):
            self._test(min(due, key=lambda one: (one.confidence, one.key)))

    def last_resort(self, exhausted: bool) -> bool:
        """The search would end: try again what is least sure of all that kept it from something. False: nothing is.

        `exhausted`: there is nothing else to propose, so that nothing is postponed any longer, and what is left over
        is doubted however sure its crashes were; when nothing has worked yet, everything is.
        """
        if self._test_least_sure(self._doubted(CERTAIN)):
            return True
        if exhausted and self._rejections[POSTPONED] and POSTPONED not in self.tests:
            self.tests[POSTPONED] = self._number + 1
            return True
        sure = CERTAIN if any(map(_worked, self._records)) else math.inf
        return exhausted and self._test_least_sure(self._untried(sure))

    def _test_least_sure(self, untried: Iterable[LearnedConstraint]) -> bool:
        """Try again what is least sure of all that kept the search from something."""
        doubtful = [one for one in untried if self._rejections[one.key]]
        if doubtful:
            self._test(min(doubtful, key=lambda one: (one.confidence, one.key)))
        return bool(doubtful)

    def _untried(self, sure: float) -> list[LearnedConstraint]:
        """Not tried again yet, and not learned from this study's own crashes with at least this confidence."""
        untried = [one for key, one in self._standing.items() if key not in self.tests]
        return [one for one in untried if not self._is_own(one) or one.confidence < sure]

    def _doubted(self, sure: float) -> list[LearnedConstraint]:
        """Of the untried what this study was told, or itself learned from nothing but unsure diagnoses."""
        return [one for one in self._untried(sure) if not self._is_own(one) or not self._is_certain(one)]

    def _is_certain(self, constraint: LearnedConstraint) -> bool:
        """Whether a crash of this study that taught it was diagnosed for certain, or came when it was tried again."""
        taught = {lesson.trial for lesson in constraint.lessons}
        if any(first in taught and again in taught for first, again in self._failed_again if first < again):
            return True
        failures = [run.failure for r in self._records if r.number in taught for run in r.runs]
        return any(one is not None and one.slug == constraint.slug and one.confidence >= CERTAIN for one in failures)

    def _test(self, constraint: LearnedConstraint) -> None:
        self.tests[constraint.key] = self._number + 1
        told = f"trying again whether {constraint.said()} cannot work (confidence {constraint.confidence:.0%})"
        self._listener.on(Note(text=told))

    def _under_test(self, key: str) -> bool:
        since = self.tests.get(key)
        return since is not None and since <= self._number and not self._tested(key, self._number)

    def _tested(self, key: str, before: int | None = None) -> bool:
        """Whether it has been tried since it may be: a launch that dies of something else does not tell."""
        constraint = self._standing.get(key)
        if constraint is None:
            return True
        later = [r for r in self._records if r.number >= self.tests[key] and (before is None or r.number < before)]
        tries = [r.failure for r in later if constraint.covers(self._view_of(r))]
        return len(tries) >= TRIES or any(failure is not None and failure.slug == constraint.slug for failure in tries)


def _rule_of(suspicion: Suspicion) -> Rule:
    flags = frozenset(flag for hypothesis in suspicion.hypotheses for flag, _ in hypothesis)
    return Rule(POSTPONED, (suspicion.crash.trial, suspicion.hypotheses), flags, suspicion.postpones)


def patience(constraint: LearnedConstraint) -> int:
    """How many proposals a constraint rejects before it is tried again: 4 to 15; few where no crash is known of it."""
    believed = math.ceil(2 / (1.05 - constraint.confidence))
    return min(15 if constraint.lessons else 4, believed)


def scope_of(spec: StudySpec, facts: NodeFacts) -> Scope:
    """Where what this study learns holds: engine and its version, model, GPU."""
    return Scope(
        engine=facts.engine_name or spec.engine.name,
        engine_version=facts.engine_version,
        model=spec.engine.model,
        compute_capability=facts.compute_capability,
        gpu_memory_bytes=facts.gpu_memory_bytes,
        simulated=facts.host if facts.simulated else "",
    )


def _may_hold(constraint: LearnedConstraint, concluded: Learned, launches: Sequence[Launched]) -> bool:
    """Whether what an earlier conclusion rested on stands: its crashes have no better explanation, nothing got past."""
    taught = {lesson.trial for lesson in constraint.lessons}
    unexplained = {one.crash.trial for one in concluded.suspicions} & taught
    if len(unexplained) < min(2, len(taught)):
        return False
    reached = min(one.reached for one in launches if one.trial in taught and one.crash is not None)
    return not any(one.reached > reached and constraint.covers(one.values) for one in launches)


def _worked(record: TrialRecord) -> bool:
    return record.state is TrialState.COMPLETE


def _trials(constraint: LearnedConstraint) -> str:
    numbers = sorted({lesson.trial for lesson in constraint.lessons})
    return f"trial{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _violation(key: str, constraint: LearnedConstraint) -> Violation:
    lesson = constraint.lessons[-1] if constraint.lessons else None
    whence = f"trial {lesson.trial} of study {lesson.study}" if lesson else "an import"
    return Violation(
        rule=key,
        layer=LAYER,
        flags=tuple(clause.flag for clause in constraint.forbids),
        message=f"{constraint.said()} cannot work, learned from {whence}: {constraint.message or constraint.slug}",
        source=(lesson.line if lesson else "") or f"what {whence} taught",
    )
