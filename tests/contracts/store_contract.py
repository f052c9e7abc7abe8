"""What must hold of a study store, in memory or in a database. A test module subclasses it and gives the store."""

from __future__ import annotations

import math

import optuna
import pytest
from contracts.storage_examples import (
    FACTS,
    FAILURE,
    LAUNCH,
    a_constraint,
    a_measurement,
    a_spec,
    complete,
    some_answers,
)

from servetune.core.engine import Violation
from servetune.core.errors import StorageError, UsageError
from servetune.core.knowledge import Lesson
from servetune.core.study import Budget, StudyRunState
from servetune.core.trial import Outcome, RunPurpose, TrialState


class StoreContract:
    @pytest.fixture
    def store(self):
        """Of no study yet."""
        raise NotImplementedError

    @pytest.fixture
    def study(self, store):
        """Optuna's side of a study `quick`."""
        store.create_study(a_spec(), "study: quick\n")
        return optuna.load_study(study_name="quick", storage=store.optuna_storage)

    def test_the_state_of_a_study(self, store, study):
        store.set_state("quick", StudyRunState.STOPPED, "three node faults in a row")
        stored = store.study("quick")
        assert (stored.state, stored.reason) == (StudyRunState.STOPPED, "three node faults in a row")
        store.set_state("quick", StudyRunState.RUNNING)
        assert store.study("quick").reason == ""

    def test_the_settings_that_a_study_goes_on_with(self, store, study):
        before = store.study("quick")
        revised = before.spec.model_copy(update={"budget": Budget(trials=77)})
        store.revise(revised)
        assert store.study("quick") == before.model_copy(update={"spec": revised})
        with pytest.raises(UsageError, match="second"):
            store.revise(a_spec("second"))

    # runs

    def test_a_run_comes_back_as_it_was_saved(self, store, study):
        store.begin_run("quick", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        store.save_phase("quick", 0, 1, "start", 0.1 + 0.2)
        store.save_phase("quick", 0, 1, "ready", 300.0)
        store.save_measurement("quick", 0, 1, a_measurement(256))
        store.save_measurement("quick", 0, 1, a_measurement(1))
        facts = {"kv_tokens": 12, "memory": {"free_gb": 0.1}, "args": ["a", None, True]}
        store.finish_run("quick", 0, 1, node_s=400.25, failure=FAILURE, log_facts=facts, log_warnings=["slow"])
        (run,) = store.runs("quick")
        assert (run.trial, run.attempt, run.purpose, run.launch, run.facts) == (0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        assert list(run.phase_s.items()) == [("start", 0.1 + 0.2), ("ready", 300.0)]
        assert run.measurements == (a_measurement(256), a_measurement(1))
        assert (run.failure, run.log_facts, run.log_warnings, run.node_s) == (FAILURE, facts, ("slow",), 400.25)
        assert run.started_at <= run.finished_at

    def test_runs_are_ordered_by_trial_and_attempt(self, store, study):
        for trial, attempt in ((3, 1), (1, 2), (1, 1)):
            store.begin_run("quick", trial, attempt, RunPurpose.CONFIRM, LAUNCH, FACTS)
        assert [(run.trial, run.attempt) for run in store.runs("quick")] == [(1, 1), (1, 2), (3, 1)]
        assert [(run.trial, run.attempt) for run in store.runs("quick", 1)] == [(1, 1), (1, 2)]

    def test_saved_again_the_last_phase_and_measurement_stand(self, store, study):
        store.begin_run("quick", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        for rate in (1.0, 2.0):
            store.save_phase("quick", 0, 1, "level:1", rate)
            store.save_phase("quick", 0, 1, "stop", 5.0)
            store.save_measurement("quick", 0, 1, a_measurement(1, rate))
        (run,) = store.runs("quick")
        assert run.phase_s == {"level:1": 2.0, "stop": 5.0}
        assert run.measurements == (a_measurement(1, 2.0),)

    def test_an_interrupted_run_is_replaced_and_its_time_is_charged(self, store, study):
        store.begin_run("quick", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        store.save_phase("quick", 0, 1, "start", 40.0)
        store.save_measurement("quick", 0, 1, a_measurement(1))
        store.begin_run("quick", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        (run,) = store.runs("quick")
        assert (run.phase_s, run.measurements, run.finished_at) == ({}, (), None)
        assert store.ledger("quick") == {"interrupted": 40.0}

    def test_progress_counts_where_the_interrupted_phase_was_never_saved(self, store, study):
        store.begin_run("quick", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        store.save_phase("quick", 0, 1, "start", 40.0)
        store.save_progress("quick", 0, 1, 55.0)
        store.begin_run("quick", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        assert store.ledger("quick") == {"interrupted": 55.0}

    def test_a_finished_run_is_final(self, store, study):
        store.begin_run("quick", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        store.finish_run("quick", 0, 1, node_s=1.0, charges={"launch": 1.0})
        for call in (
            lambda: store.begin_run("quick", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS),
            lambda: store.finish_run("quick", 0, 1, node_s=2.0, charges={"launch": 2.0}),
            lambda: store.save_phase("quick", 0, 1, "stop", 1.0),
            lambda: store.save_progress("quick", 0, 1, 1.0),
            lambda: store.save_measurement("quick", 0, 1, a_measurement(1)),
        ):
            with pytest.raises(StorageError, match="attempt 1 of trial 0 of study 'quick' is finished"):
                call()
        assert store.ledger("quick") == {"launch": 1.0}

    def test_a_run_that_was_never_begun_takes_nothing(self, store, study):
        with pytest.raises(StorageError, match="was never begun"):
            store.save_phase("quick", 7, 1, "start", 1.0)

    @pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
    def test_node_seconds_are_finite(self, store, study, seconds):
        store.begin_run("quick", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        for call in (
            lambda: store.save_phase("quick", 0, 1, "start", seconds),
            lambda: store.save_progress("quick", 0, 1, seconds),
            lambda: store.finish_run("quick", 0, 1, node_s=seconds),
            lambda: store.charge("quick", "launch", seconds),
        ):
            with pytest.raises(ValueError, match="must be finite and at least 0"):
                call()

    def test_odd_numbers_of_a_measurement_are_kept(self, store, study):
        odd = a_measurement(1).model_copy(
            update={"output_tokens_per_s": math.nan, "low": -math.inf, "high": math.inf, "details": {"x": math.inf}}
        )
        store.begin_run("quick", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        store.save_measurement("quick", 0, 1, odd)
        ((back,),) = (run.measurements for run in store.runs("quick"))
        assert math.isnan(back.output_tokens_per_s)
        assert (back.low, back.high, back.details) == (-math.inf, math.inf, {"x": math.inf})

    # outcomes and trials

    # answers

    def test_answers_come_back_as_they_were_saved_once_their_run_is_finished(self, store, study):
        for trial, attempt in ((1, 0), (0, 1), (0, 0)):
            store.begin_run("quick", trial, attempt, RunPurpose.SEARCH, LAUNCH, FACTS)
            store.save_answers("quick", some_answers(trial, attempt))
            store.finish_run("quick", trial, attempt, node_s=1.0)
        assert store.answers("quick") == tuple(some_answers(*key) for key in ((0, 0), (0, 1), (1, 0)))
        assert store.answers("quick", 0) == (some_answers(0, 0), some_answers(0, 1))

    def test_answers_of_an_interrupted_run_are_none(self, store, study):
        store.begin_run("quick", 0, 0, RunPurpose.SEARCH, LAUNCH, FACTS)
        store.save_answers("quick", some_answers(0, 0, wrong=True))
        assert store.answers("quick") == ()
        store.begin_run("quick", 0, 0, RunPurpose.SEARCH, LAUNCH, FACTS)
        store.finish_run("quick", 0, 0, node_s=1.0)
        assert store.answers("quick") == ()

    def test_answers_belong_to_an_open_run(self, store, study):
        with pytest.raises(StorageError, match="never begun"):
            store.save_answers("quick", some_answers(0, 0))

    def test_an_outcome_is_final(self, store, study):
        assert store.outcome("quick", 0) is None
        store.save_outcome("quick", 0, complete(message="fine"))
        store.save_outcome("quick", 0, complete(message="fine"))
        with pytest.raises(StorageError, match="has the outcome complete, cannot become fail"):
            store.save_outcome("quick", 0, Outcome(state=TrialState.FAIL))
        assert store.outcome("quick", 0) == complete(message="fine")

    def test_trials_join_optunas_rows_with_ours(self, store, study):
        study.enqueue_trial({"tp-size": None}, user_attrs={"baseline": True, "assignment": {"mem": 0.9}})
        baseline = study.ask()
        baseline.suggest_categorical("tp-size", [1, 2, None])
        store.begin_run("quick", 0, 1, RunPurpose.SEARCH, LAUNCH, FACTS)
        store.save_measurement("quick", 0, 1, a_measurement(1))
        store.finish_run("quick", 0, 1, node_s=3.0)
        store.save_outcome("quick", 0, complete(12.5, constraint=-1.0, message="m"))
        study.tell(0, 12.5)
        study.enqueue_trial({"tp-size": 2}, user_attrs={"repaired_from": 0, "assignment": {"tp-size": 2}})
        first, second = store.trials("quick")
        assert (first.number, first.state, first.value, first.constraint) == (0, TrialState.COMPLETE, 12.5, -1.0)
        assert (first.point, first.assignment, first.baseline) == ({"tp-size": None}, {"mem": 0.9}, True)
        assert first.measurements == (a_measurement(1),)
        assert first.runs == store.runs("quick", 0)
        assert (second.state, second.repaired_from, second.assignment) == (TrialState.WAITING, 0, {"tp-size": 2})

    def test_a_rejected_trial_is_rejected_though_optuna_says_fail(self, store, study):
        violation = Violation(rule="ep", layer="rule", flags=("ep-size",), message="ep must divide tp")
        study.ask()
        store.save_outcome("quick", 0, Outcome(state=TrialState.REJECTED, violations=(violation,), duplicate_of=4))
        study.tell(0, state=optuna.trial.TrialState.FAIL)
        (trial,) = store.trials("quick")
        assert (trial.state, trial.rejected, trial.duplicate_of) == (TrialState.REJECTED, (violation,), 4)

    def test_an_outcome_decides_before_the_sampler_is_told(self, store, study):
        study.ask()
        assert store.trials("quick")[0].state is TrialState.RUNNING
        store.save_outcome("quick", 0, complete())
        assert store.trials("quick")[0].state is TrialState.COMPLETE
        assert study.trials[0].state is optuna.trial.TrialState.RUNNING

    # ledger

    def test_the_ledger_adds_up_by_purpose(self, store, study):
        for purpose, node_s in (("launch", 30.5), ("measure", 10.0), ("launch", 0.25)):
            store.charge("quick", purpose, node_s, 0)
        store.charge("quick", "stop", 2.0)
        assert store.ledger("quick") == {"launch": 30.75, "measure": 10.0, "stop": 2.0}

    # learned constraints

    def test_a_constraint_comes_back_as_it_was_learned(self, store):
        learned = a_constraint(message="wants 0.837", lessons=(Lesson(study="quick", trial=3, line="ValueError: ü"),))
        assert store.learn(learned) == learned
        assert store.learned() == (learned,)

    def test_learned_again_it_gains_lessons_and_confidence(self, store):
        lessons = tuple(Lesson(study="quick", trial=trial) for trial in range(3))
        store.learn(a_constraint(confidence=0.7, lessons=lessons[:2]))
        merged = store.learn(a_constraint(confidence=0.4, lessons=lessons[1:]))
        assert (merged.confidence, merged.lessons) == (0.7, lessons)
        assert store.learned() == (merged,)

    def test_a_withdrawn_constraint_stays_withdrawn(self, store):
        key = store.learn(a_constraint()).key
        store.learn(a_constraint(slug="oom"))
        store.withdraw_constraint(key, "trial 9 of study quick ran with it")
        assert [constraint.slug for constraint in store.learned()] == ["oom"]
        assert store.learn(a_constraint()).withdrawn == "trial 9 of study quick ran with it"
        assert [constraint.slug for constraint in store.learned(withdrawn=True)] == ["kv_budget", "oom"]

    def test_a_constraint_counts_the_launches_it_saved(self, store):
        key = store.learn(a_constraint()).key
        store.touch_constraint(key)
        store.touch_constraint(key)
        assert store.learned()[0].rejections == 2
        for call in (store.touch_constraint, lambda key: store.withdraw_constraint(key, "why")):
            with pytest.raises(UsageError, match="no learned constraint 'none'"):
                call("none")
