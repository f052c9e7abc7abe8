"""The loop: ask, check, launch, measure, judge, tell; then confirm. Every step is stored before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import Trial
from optuna.trial import TrialState as OptunaState

from servetune import plugins
from servetune.core.benchmark import Measurement
from servetune.core.engine import Engine, LearnsFromLogs
from servetune.core.errors import NodeUnusableError
from servetune.core.events import ConfirmationStarted, Listener, Note, Step, TrialEnded
from servetune.core.failure import Failure, Verdict
from servetune.core.node import NodeFacts
from servetune.core.space import Assignment, Choice, SearchSpace, Value, flags_of
from servetune.core.study import StudySpec
from servetune.core.trial import Outcome, TrialState
from servetune.search import sampling
from servetune.search._history import OF_MEMORY
from servetune.search.objections import Objections
from servetune.search.refusals import Refusals
from servetune.storage import Store
from servetune.tuner.checks import NodeChecks, refused_on_node, rejection, stored
from servetune.tuner.confirm import Candidate, next_launch
from servetune.tuner.judge import outcome_of
from servetune.tuner.knowledge import Knowledge, Tests
from servetune.tuner.launches import Launches, OnLevel
from servetune.tuner.progress import Progress, asks_to_see_all, configuration_key
from servetune.tuner.repair import repaired
from servetune.tuner.telling import context_of, told_of

MakeSampler: TypeAlias = Callable[[int, SearchSpace], BaseSampler]
"""Seed and space to a sampler: what a comparison puts in the place of the study's `sampler`."""

#: Proposals in a row that promise too little before the search ends; the last of them is not launched.
IDLE_PROPOSALS = 5
#: Origins of trials that somebody asked for: nothing postpones them.
WANTED = ("baseline", "hint:", "again:")


class Tuner:
    """Carries one study to its end, or to the next interruption. One process and one thread per study."""

    def __init__(
        self,
        spec: StudySpec,
        store: Store,
        engine: Engine,
        facts: NodeFacts,
        launches: Launches,
        listener: Listener,
        make_sampler: MakeSampler | None = None,
        checks: NodeChecks | None = None,
    ) -> None:
        sampling.quiet_optuna()
        self._spec, self._store, self._engine, self._facts = spec, store, engine, facts
        self._launches, self._listener = launches, listener
        self._space, notes = engine.resolve_space(spec.space, facts)
        for note in notes:
            listener.on(Note(text=note))
        self._defaults = engine.defaults(facts)
        self._make_sampler = make_sampler
        self._sampler_module = plugins.load("search.samplers", spec.sampler.name)
        self._settings = self._sampler_module.Settings.model_validate(dict(spec.sampler.settings))
        self._expected_gain: float | None = None
        self.refusals = Refusals(self._space, self._reasons)
        self.objections = Objections(self._space, self._view)
        self._keys: dict[tuple[tuple[str, Choice], ...], str] = {}
        self._fine: dict[tuple[tuple[str, Choice], ...], bool] = {}
        self._checks = checks
        self._refused = {configuration_key(self._effective(a)) for a in refused_on_node(store.trials(spec.study))}
        self._study = self._load_study()
        tests = Tests(self._study.user_attrs.get("tests", {}), lambda kept: self._study.set_user_attr("tests", kept))
        self._knowledge = Knowledge(spec, store, self._defaults, facts, self._space, listener, tests)
        self._progress = Progress(spec, store)
        launches.guided = isinstance(self._new_sampler(0), sampling.Guided)
        self._study.set_user_attr("context", context_of(spec, {**self._defaults, **self._space.fixed}))
        self._faults_in_a_row = 0

    def run(self) -> str:
        """Search until the budget is spent, then confirm. Returns why it ended, in one sentence.

        Raises Interrupted (the study can be resumed) or NodeUnusableError (a person has to look at the node).
        """
        self._knowledge.resume([t.user_attrs.get("blocked", ()) for t in self._study.get_trials(deepcopy=False)])
        self._recover()
        self._enqueue_start()
        free_asks, most = 0, asks_to_see_all(self._space)
        while (reason := self._progress.over()) is None:
            empty = free_asks >= most
            nothing_new = f"the last {most} proposals were rejected or known: the space has nothing new"
            reason = self._exhausted() or (nothing_new if empty else None)
            if reason is not None and not self._knowledge.last_resort(empty):
                break
            free_asks = 0 if empty else free_asks
            self._listener.on(Step(name="sampling"))
            self._knowledge.prepare()
            free_asks = 0 if self._carry_out(self._study.ask()) else free_asks + 1
        self._confirm(reason)
        self._listener.on(Step(name="done"))
        return reason

    def _suggest(self, trial: Trial) -> Mapping[str, Choice]:
        """The trial's point; what it promises is kept with it, so that a resumed study stops where it would."""
        self._expected_gain = None
        point = sampling.suggest(trial, self._space)
        if self._expected_gain is not None:
            trial.set_user_attr("expected_gain", self._expected_gain)
        if blocked := self._knowledge.blocked:
            trial.set_user_attr("blocked", blocked)
        return point

    def _exhausted(self) -> str | None:
        """Why more search is not worth its time, when the last proposals all promised too little."""
        told = [t.user_attrs.get("expected_gain") for t in self._study.get_trials(deepcopy=False)]
        promised = [gain for gain in told if gain is not None][-IDLE_PROPOSALS:]
        least = getattr(self._settings, "stop_gain", 0.0)
        if len(promised) < IDLE_PROPOSALS or max(promised) >= least:
            return None
        return (
            f"the last {IDLE_PROPOSALS} proposals each promised less than {100 * least:g} % per node-hour, "
            f"at most {100 * max(promised):.2g} %: more search is not worth its time"
        )

    # -- one trial -----------------------------------------------------------------------------------------------

    def _carry_out(self, trial: Trial) -> bool:
        """Take a trial from its suggestion to its end; False when it cost no launch."""
        self._knowledge.asked(trial.number)
        self.objections.rules = self._knowledge.rules()
        point = self._suggest(trial)
        assignment = self._assignment(trial, point)
        free = self._not_worth_it(trial) or self._free_outcome(trial.number, assignment)
        if free is not None:
            self._finish(trial.number, assignment, free, None)
            return False
        baseline = self._is_baseline(trial.number)
        if self._checks is not None and baseline:
            self._checks.warm_up()
        result = self._launches.search(trial.number, assignment, self._reporter(trial), baseline)
        self._forget_checks()  # the engine has learned from the log
        outcome = outcome_of(self._spec, result.failure, result.measurements, result.pruned)
        self._finish(trial.number, assignment, outcome, result.failure)
        self._heed(outcome, result.failure)
        return True

    def _not_worth_it(self, trial: Trial) -> Outcome | None:
        """The end of the search: what earlier launches taught has been heeded, and this one promises too little too."""
        if trial.user_attrs.get("expected_gain") is None or self._exhausted() is None:
            return None
        return Outcome(state=TrialState.REJECTED, message="not launched: it promises too little for its node time")

    def _heed(self, outcome: Outcome, failure: Failure | None) -> None:
        """End the study when the node itself is at fault; the records are intact and `resume` goes on afterwards."""
        self._faults_in_a_row = self._faults_in_a_row + 1 if outcome.state is TrialState.FAIL else 0
        limit = self._spec.retries.node_faults
        if failure is not None and (failure.verdict is Verdict.STOP or self._faults_in_a_row >= limit):
            times = (
                f"{self._faults_in_a_row} launches in a row failed" if failure.verdict is not Verdict.STOP else "failed"
            )
            raise NodeUnusableError(
                f"the node {self._facts.node!r} is unusable: {times} with {failure.slug} ({failure.message}); "
                f"mend it, then run `servetune resume {self._spec.study}`"
            )

    def _assignment(self, trial: Trial, point: Mapping[str, Choice]) -> dict[str, Value]:
        """What is launched: given with an enqueued trial, else the point expanded. Stored before anything is judged."""
        given = trial.user_attrs.get("assignment")
        assignment: dict[str, Value] = self._space.expand(point) if given is None else dict(given)
        if given is None:
            trial.set_user_attr("assignment", assignment)
        return assignment

    def _free_outcome(self, number: int, assignment: Assignment) -> Outcome | None:
        """An outcome that costs nothing: known not to work, or measured before. The baseline is always launched."""
        if self._is_baseline(number):
            return None
        violations = self._engine.check(assignment, self._facts)
        if violations:
            return rejection(violations)
        seen = self._progress.seen(number, self._effective(assignment), self._effective)
        return seen or self._learned_against(number, assignment) or self._asked(number, assignment)

    def _learned_against(self, number: int, assignment: Assignment) -> Outcome | None:
        """What crashes taught."""
        wanted = str(self._attrs(number).get("origin", "")).startswith(WANTED)
        objection = self._knowledge.objection(self._knowledge.view(assignment), wanted)
        return None if objection is None else rejection([objection])

    def _asked(self, number: int, assignment: Assignment) -> Outcome | None:
        """A refusal by the engine's own checks on the node. What they said is kept with the trial."""
        verdict = None if self._checks is None else self._checks.verdict(assignment)
        if self._checks is None or verdict is None:
            return None
        self._trial(number).set_user_attr("preflight", stored(verdict))
        if verdict.ok:
            return None
        self._refused.add(configuration_key(self._effective(assignment)))
        self._forget_checks()
        return rejection([self._checks.violation(assignment, verdict)])

    def _effective(self, assignment: Assignment) -> Assignment:
        return self._engine.effective(assignment, self._facts)

    def _reporter(self, trial: Trial) -> OnLevel:
        """Report each level to Optuna as a step. A trial that is run again overwrites what its first run reported."""
        storage, steps = self._store.optuna_storage, self._spec.workload.concurrency

        def on_level(measurement: Measurement) -> bool:
            trial_id = storage.get_trial_id_from_study_id_trial_number(self._study_id, trial.number)
            step = steps.index(measurement.concurrency)
            storage.set_trial_intermediate_value(trial_id, step, self._spec.objective.of(measurement))
            return self._is_baseline(trial.number) or not trial.should_prune()

        return on_level

    # -- telling -------------------------------------------------------------------------------------------------

    def _finish(self, number: int, assignment: Assignment, outcome: Outcome, failure: Failure | None) -> None:
        """Store the outcome, enqueue what may mend it, then tell the sampler: in this order, each idempotent."""
        self._store.save_outcome(self._spec.study, number, outcome)
        if outcome.state is not TrialState.REJECTED and outcome.duplicate_of is None:
            self._knowledge.learn()
        if failure is not None:
            self._follow_up(number, assignment, outcome, failure)
        self._listener.on(Step(name="telling", trial=number))
        self._tell(number, outcome)
        record = self._store.trials(self._spec.study)[number]
        self._listener.on(TrialEnded(record=record, state=record.state))

    def _follow_up(self, number: int, assignment: Assignment, outcome: Outcome, failure: Failure) -> None:
        """A fault of the node: the same again, a bounded number of times. Else: what may mend the configuration."""
        attrs = self._attrs(number)
        if outcome.state is TrialState.FAIL:
            root, count = attrs.get("again_of", number), attrs.get("again", 0) + 1
            if count <= self._spec.retries.transient:
                self._enqueue(f"again:{root}:{count}", assignment, {"again_of": root, "again": count})
            return
        depth = attrs.get("repair_depth", 0) + 1
        for index, mended in enumerate(repaired(assignment, failure, self._space, depth, self._repairs(failure))):
            origin = f"repair:{number}:{index}"
            self._enqueue(origin, mended, {"repaired_from": number, "repair_depth": depth})

    def _repairs(self, failure: Failure) -> int:
        """A guided sampler knows itself what to do without a value that crashes; it is helped with numbers only."""
        return 0 if self._launches.guided and failure.slug not in OF_MEMORY else self._spec.retries.repairs

    def _tell(self, number: int, outcome: Outcome) -> None:
        """COMPLETE with a value; infeasible as PRUNED with a constraint; faults and rejections as FAIL (invisible)."""
        trial = self._trial(number)
        trial.set_user_attr("result", told_of(outcome, self._launches.last_search(number), self._spec.objective))
        if outcome.constraint is not None:
            trial.set_constraint("feasible", outcome.constraint)
        match outcome.state:
            case TrialState.COMPLETE:
                self._study.tell(number, outcome.value, OptunaState.COMPLETE)
            case TrialState.PRUNED:
                self._study.tell(number, state=OptunaState.PRUNED)
            case TrialState.REJECTED:
                trial.set_user_attr("rejected", outcome.message[:1000])
                self._study.tell(number, state=OptunaState.FAIL)
            case _:
                self._study.tell(number, state=OptunaState.FAIL)

    # -- starting and resuming -------------------------------------------------------------------------------------

    def _load_study(self) -> optuna.Study:
        pruner = plugins.load("search.pruners", self._spec.pruner.name)
        self._study_id = self._store.optuna_storage.get_study_id_from_name(self._spec.study)
        return optuna.load_study(
            study_name=self._spec.study,
            storage=self._store.optuna_storage,
            sampler=sampling.Reseeded(self._new_sampler, self._spec.seed, self._within),
            pruner=pruner.create(pruner.Settings.model_validate(dict(self._spec.pruner.settings))),
        )

    def _new_sampler(self, seed: int) -> BaseSampler:
        if self._make_sampler is not None:
            return self._make_sampler(seed, self._space)
        made: BaseSampler = self._sampler_module.create(self._settings, seed, self._space)
        if isinstance(made, sampling.Guided):
            made.heed(self)
        return made

    def _within(self, point: Mapping[str, Choice]) -> Mapping[str, tuple[float, float]]:
        """Bounds of numbers that the engine knows for a point, or for the part of it that is suggested so far."""
        if not isinstance(self._engine, LearnsFromLogs):
            return {}
        return self._engine.bounds(self._space.expand(point), self._facts)

    def expects(self, gain_per_node_hour: float) -> None:
        """Of the proposal that is being made, by a guided sampler."""
        self._expected_gain = gain_per_node_hour

    def key(self, point: Mapping[str, Choice]) -> str | None:
        """For samplers: None for a point that the engine would refuse, else the key of its effective configuration."""
        told = tuple(point.items())
        if told not in self._fine:
            self._fine[told] = not self._engine.check(self._space.expand(point), self._facts)
        key = self.effective_key(point) if self._fine[told] else None
        return None if key in self._refused else key

    def blocks(self, rule: str, point: Mapping[str, Choice]) -> bool:
        """For samplers: whether a rule of `objections` is all that is against proposing a point."""
        return self._knowledge.blocks(rule, self._view(point), lambda: self.key(point) is not None)

    def _view(self, point: Mapping[str, Choice]) -> Mapping[str, Choice]:
        return self._knowledge.view(self._space.expand(point))

    def effective_key(self, point: Mapping[str, Choice]) -> str:
        """The key of a point's effective configuration, whether it would be rejected or not."""
        told = tuple(point.items())
        if told not in self._keys:
            self._keys[told] = configuration_key(self._effective(self._space.expand(point)))
        return self._keys[told]

    def _forget_checks(self) -> None:
        """Where the engine's rules hold, what it refuses may have changed."""
        if self._facts.engine_rules:
            self._fine.clear()
            self.refusals = Refusals(self._space, self._reasons)

    def _reasons(self, point: Mapping[str, Choice]) -> Sequence[tuple[str, ...]]:
        """The flags that each violation of a point names."""
        return [v.flags for v in self._engine.check(self._space.expand(point), self._facts)]

    def _recover(self) -> None:
        """Finish what a killed tuner left: a trial with an outcome is told, one without is run again."""
        for frozen in self._study.get_trials(deepcopy=False, states=(OptunaState.RUNNING,)):
            outcome = self._store.outcome(self._spec.study, frozen.number)
            if outcome is None:
                self._listener.on(Note(text=f"trial {frozen.number} was interrupted: it is run again"))
                self._carry_out(self._trial(frozen.number))
            else:
                self._retell(frozen, outcome)

    def _retell(self, frozen: optuna.trial.FrozenTrial, outcome: Outcome) -> None:
        """The outcome was stored, the kill came before it was told."""
        failure = None if outcome.duplicate_of is not None else self._launches.last_failure(frozen.number)
        self._finish(frozen.number, frozen.user_attrs["assignment"], outcome, failure)

    def _enqueue_start(self) -> None:
        """The baseline first, then the space's hints; a kill in between is made good by the next call."""
        baseline = {**self._space.fixed, **self._spec.baseline}
        self._enqueue("baseline", baseline, {"baseline": True})
        for index, hint in enumerate(self._space.hints):
            self._enqueue(f"hint:{index}", hinted(baseline, hint, self._space), {})

    def _enqueue(self, origin: str, assignment: Assignment, attrs: Mapping[str, Any]) -> None:
        if any(trial.user_attrs.get("origin") == origin for trial in self._study.get_trials(deepcopy=False)):
            return
        point = sampling.point_of(assignment, self._space, self._defaults)
        self._study.enqueue_trial(
            point, user_attrs={"origin": origin, "assignment": dict(assignment), **attrs}, skip_if_exists=False
        )

    def _trial(self, number: int) -> Trial:
        trial_id = self._store.optuna_storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
        return Trial(self._study, trial_id)

    def _is_baseline(self, number: int) -> bool:
        return bool(self._attrs(number).get("baseline"))

    def _attrs(self, number: int) -> Mapping[str, Any]:
        return self._study.get_trials(deepcopy=False)[number].user_attrs

    # -- confirmation ----------------------------------------------------------------------------------------------

    def _confirm(self, reason: str) -> None:
        """Launch the best and the baseline again, interleaved; what an earlier process has done is not done again."""
        begun = False
        while (candidate := self._next_launch()) is not None:
            if not begun:
                begun, contenders = True, 1 + self._spec.confirm.top
                count = contenders * self._spec.confirm.launches
                self._listener.on(ConfirmationStarted(reason=reason, launches=count))
            self._launches.confirm(candidate)
            self._knowledge.learn()

    def _next_launch(self) -> Candidate | None:
        trials = self._store.trials(self._spec.study)
        return next_launch(self._spec, trials, self._progress.time_for_more(trials))


def hinted(baseline: Assignment, hint: Mapping[str, Choice], space: SearchSpace) -> dict[str, Value]:
    """A hint is laid over the baseline: its parameters and plain flags replace the baseline's, bundles as a whole."""
    named = [parameter for parameter in space.parameters if parameter.name in hint]
    replaced = {flag for parameter in named for flag in flags_of(parameter)} | hint.keys()
    names = {parameter.name for parameter in named}
    plain = {flag: value for flag, value in hint.items() if flag not in names and value is not None}
    set_by_hint = space.model_copy(update={"fixed": {}}).expand({name: hint[name] for name in names})
    return {**{flag: value for flag, value in baseline.items() if flag not in replaced}, **set_by_hint, **plain}
