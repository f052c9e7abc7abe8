"""Crashes teach: in whole studies in virtual time, whatever the sampler, and nothing wrong lasts."""

import pytest
from replays import EXPERT_PARALLEL, GLM, KIMI, changed, launches_by_cause, named_by_its_log, replay, spec_of

from servetune.core.knowledge import Clause, LearnedConstraint, Lesson, Scope
from servetune.core.study import Budget
from servetune.core.trial import TrialState
from servetune.simulation.scenario import load_scenario
from servetune.storage import MemoryStore
from servetune.tuner.knowledge import EXPLAINED, patience


def forbids(**flags):
    """A constraint; `above_` and `below_` begin the names of bounds."""
    clauses = []
    for name, value in flags.items():
        word, _, rest = name.partition("_")
        flag = (rest if word in ("above", "below") else name).replace("_", "-")
        clauses.append(
            Clause(flag=flag, **{word: value}) if word in ("above", "below") else Clause(flag=flag, any_of=(value,))
        )
    return tuple(clauses)


def planted(confidence=0.9, lessons=(), scope=None, **flags):
    return LearnedConstraint(
        slug="invalid_combo", forbids=forbids(**flags), confidence=confidence, lessons=lessons, scope=scope or Scope()
    )


def test_the_first_journey(tmp_path):
    """The first repair is computed, the second error shows, and neither is met again."""
    place = changed(tmp_path, KIMI, engine_rules=False)
    spec = spec_of(place, node_hours=2, hints=[EXPERT_PARALLEL])
    store, notes = replay(spec)
    trials = store.trials(spec.study)
    first = trials[1].failure
    assert (first.slug, first.repairs[0].flag) == ("kv_budget", "mem-fraction-static")
    assert first.repairs[0].value == pytest.approx(0.837)
    assert "at least 0.827" in first.repairs[0].reason
    repair = next(trial for trial in trials if trial.repaired_from == 1)
    assert repair.number == 2
    assert repair.assignment["mem-fraction-static"] == pytest.approx(0.837)
    assert repair.failure.slug == "invalid_combo"
    (bound,) = [one for one in store.learned() if one.slug == "kv_budget"]
    assert Clause(flag="mem-fraction-static", below=0.8266) in bound.forbids
    assert bound.covers({**trials[1].assignment, "mem-fraction-static": 0.8})
    assert any("learned from trial 1: mem-fraction-static below 0.8266" in text for text in notes.texts)


@pytest.mark.parametrize("sampler", ["adaptive", "tpe", "random"])
@pytest.mark.parametrize("name", [KIMI, GLM])
def test_each_cause_costs_one_launch_or_two(tmp_path, name, sampler):
    place = changed(tmp_path, name, engine_rules=False)
    spec = spec_of(place, sampler, node_hours=5, hints=[EXPERT_PARALLEL])
    store, _ = replay(spec)
    scenario = load_scenario(place)
    for cause, trials in launches_by_cause(store, spec, scenario).items():
        assert len(trials) <= (1 if named_by_its_log(cause, scenario) else 2), (cause, trials)


def test_what_runs_out_of_memory_whatever_the_room_is_left_alone(tmp_path):
    """The log blames the fraction; lowering it never helps: the setting that all these launches share is to blame."""
    rule = {"when": {"env.NCCL_ALGO": "Tree"}, "at_concurrency": 256, "phase": "serving", "class": "oom_runtime"}
    rule["log"] = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB"
    spec = spec_of(changed(tmp_path, KIMI, engine_rules=False, failures=[rule]), "random", node_hours=12)
    store, _ = replay(spec)
    tried = [t for t in store.trials(spec.study) if t.runs and t.assignment.get("env.NCCL_ALGO") == "Tree"]
    assert 1 <= len(tried) <= 4
    (blamed,) = [one for one in store.learned() if Clause(flag="env.NCCL_ALGO", any_of=("Tree",)) in one.forbids]
    assert blamed.slug == "oom_runtime"


@pytest.mark.parametrize("sampler", ["adaptive", "random"])
def test_no_launch_falls_under_a_constraint_that_a_crash_established(tmp_path, sampler):
    spec = spec_of(changed(tmp_path, KIMI, engine_rules=False), sampler, node_hours=6, hints=[EXPERT_PARALLEL])
    store, _ = replay(spec)
    trials = store.trials(spec.study)
    learned = [one for one in store.learned() if one.confidence >= 0.7]
    assert len(learned) >= 5
    for constraint in learned:
        last = max(lesson.trial for lesson in constraint.lessons)
        for trial in trials[last + 1 :]:
            assert not (
                trial.runs
                and constraint.covers({**load_scenario(spec.node.settings["scenario"]).flags, **trial.assignment})
            )
    if sampler == "random":
        turned_down = [trial for trial in trials if trial.rejected]
        assert turned_down
        assert all(v.layer == "learned" for trial in turned_down for v in trial.rejected)
        told = next(v for trial in turned_down for v in trial.rejected if v.rule != "postponed")
        assert "learned from trial" in told.message
        assert sum(one.rejections for one in store.learned()) > 0


def test_a_constraint_that_the_baseline_contradicts_is_withdrawn_at_once():
    spec = spec_of("generated-12", node_hours=2)
    wrong = planted(moe_a2a_backend="none", confidence=1.0)
    store, notes = replay_with(spec, wrong)
    one = next(one for one in store.learned(withdrawn=True) if one.key == wrong.key)
    assert one.withdrawn == f"trial 0 of study {spec.study} worked with it"
    assert any("no longer forbidden: moe-a2a-backend none" in text for text in notes.texts)


def replay_with(spec, *constraints):
    """A study in a database that holds these constraints already."""
    store = MemoryStore()
    for constraint in constraints:
        store.learn(constraint)
    store.create_study(spec, "")
    return replay(spec, store)


@pytest.mark.parametrize(("sampler", "confidence"), [("adaptive", 1.0), ("tpe", 0.6), ("random", 1.0)])
def test_a_wrong_constraint_is_found_out(sampler, confidence):
    """Planted: the fast chunk size cannot work. It is tried again, and withdrawn."""
    wrong = planted(confidence, chunked_prefill_size=4096)
    spec = spec_of("generated-12", sampler, node_hours=10 if sampler == "tpe" else 6)
    store, notes = replay_with(spec, wrong)
    kept = {one.key: one for one in store.learned(withdrawn=True)}[wrong.key]
    assert "worked with it" in kept.withdrawn
    assert any("trying again whether chunked-prefill-size 4096" in text for text in notes.texts)
    said = [text for text in notes.texts if "no longer forbidden: chunked-prefill-size 4096" in text]
    assert len(said) == 1, "it is out of force"
    tried = int(kept.withdrawn.split()[1])
    later = [t for t in store.trials(spec.study) if t.number > tried]
    assert not any(why.rule == wrong.key for t in later for why in t.rejected), "it rejects nothing any longer"
    again = [t for t in later if t.runs and t.assignment.get("chunked-prefill-size") == 4096]
    assert again, "what was forbidden is searched again"


@pytest.mark.parametrize("sampler", ["adaptive", "random"])
def test_a_wrong_constraint_cannot_end_a_study(sampler):
    """Planted: no fraction works but the baseline's. Everything else is covered, and still gets tried."""
    spec = spec_of("generated-12", sampler, node_hours=6)
    spec = spec.model_copy(update={"budget": Budget(trials=20, node_hours=6)})
    baseline = load_scenario("generated-12").flags["mem-fraction-static"]
    every = tuple(round(0.7 + 0.005 * step, 3) for step in range(55))
    others = Clause(flag="mem-fraction-static", any_of=tuple(value for value in every if value != baseline))
    wrong = LearnedConstraint(slug="invalid_combo", forbids=(others,), confidence=0.9)
    store, _ = replay_with(spec, wrong)
    launched = [t for t in store.trials(spec.study) if t.runs]
    assert len(launched) >= 15
    assert "worked with it" in next(one for one in store.learned(withdrawn=True) if one.key == wrong.key).withdrawn


def test_what_is_known_elsewhere_does_not_hold_here():
    elsewhere = planted(1.0, chunked_prefill_size=4096, scope=Scope(engine_version="0.4.6"))
    spec = spec_of("generated-12", "random", node_hours=3)
    store, _ = replay_with(spec, elsewhere)
    assert elsewhere.key in {one.key for one in store.learned()}
    launched = [t for t in store.trials(spec.study) if t.runs]
    assert any(t.assignment.get("chunked-prefill-size") == 4096 for t in launched)


def test_the_next_study_begins_where_this_one_ended(tmp_path):
    """The same study again with what the first one learned: hardly a crash."""
    place = changed(tmp_path, KIMI, engine_rules=False)
    first, _ = replay(spec_of(place, "random", node_hours=8))
    spec = spec_of(place, "random", node_hours=8, seed=1)
    crashes = {}
    for name, taught in (("cold", ()), ("warm", first.learned())):
        store, _ = replay_with(spec, *[relearned(one) for one in taught])
        crashes[name] = sum(t.failure is not None for t in store.trials(spec.study) if t.runs)
    assert crashes["warm"] < 0.6 * crashes["cold"], crashes


def relearned(constraint):
    """As if another study had taught it."""
    lessons = tuple(Lesson(study="earlier", trial=lesson.trial, line=lesson.line) for lesson in constraint.lessons)
    return constraint.model_copy(update={"lessons": lessons})


def test_the_surer_a_constraint_the_longer_it_is_believed():
    lesson = Lesson(study="earlier", trial=3)
    waits = [patience(planted(confidence, lessons=(lesson,), tp=8)) for confidence in (0.5, 0.7, 0.9, 1.0)]
    assert waits == sorted(set(waits))
    assert patience(planted(1.0, tp=8)) < waits[1], "nobody has seen it crash"


def test_rejected_trials_cost_nothing_and_are_told_apart(tmp_path):
    spec = spec_of(changed(tmp_path, KIMI, engine_rules=False), "random", node_hours=5)
    store, _ = replay(spec)
    rejected = [t for t in store.trials(spec.study) if t.state is TrialState.REJECTED]
    assert rejected
    assert not any(t.runs for t in rejected)


def test_a_crash_by_chance_forbids_nothing_for_good(tmp_path):
    """One launch in seven dies of what no value causes: what that taught of good values is withdrawn."""
    rules = [{"when": {}, "probability": 0.15, "phase": "serving", "class": "engine_bug", "log": "RuntimeError: x"}]
    spec = spec_of(changed(tmp_path, "generated-12", failures=rules), node_hours=10)
    store, notes = replay(spec)
    assert all(one.confidence < 0.8 for one in store.learned(withdrawn=True))
    unsure = [one for one in store.learned(withdrawn=True) if one.confidence < 0.65]
    assert unsure
    assert any("worked with it" in one.withdrawn or EXPLAINED in one.withdrawn for one in unsure)
    launches = sum(bool(trial.runs) for trial in store.trials(spec.study))
    assert sum("trying again" in text for text in notes.texts) * 8 <= launches
