"""What launches teach: constraints that are true of a hidden cause, and nothing that has worked forbidden."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.core.failure import Evidence, Failure, Phase, Verdict
from servetune.core.knowledge import Clause, LearnedConstraint, Scope
from servetune.search.launched import END, Launched, position, settled
from servetune.search.learning import SURE, Subject, implies, learned

FLAGS = {
    "moe-a2a-backend": ("moe-a2a-backend",),
    "moe-runner-backend": ("moe-runner-backend",),
    "allreduce": ("disable-custom-all-reduce", "enable-mscclpp", "env.NCCL_ALGO"),
    "enable-mixed-chunk": ("enable-mixed-chunk",),
}
FIXED = {"tp-size": 8, "host": "somewhere"}
SUBJECT = Subject("study", Scope(engine="sglang"), FLAGS, FIXED, ("cuda-graph-max-bs",))
TP = Clause(flag="tp-size", any_of=(8,))
ALLREDUCE = {
    "nccl": {"disable-custom-all-reduce": True, "env.NCCL_ALGO": "Ring"},
    "tree": {"disable-custom-all-reduce": True, "env.NCCL_ALGO": "Tree"},
    "custom": {"disable-custom-all-reduce": False, "env.NCCL_ALGO": "Ring"},
    "mscclpp": {"disable-custom-all-reduce": True, "env.NCCL_ALGO": "Ring", "enable-mscclpp": True},
}
BASE = {"moe-a2a-backend": "none", "moe-runner-backend": "auto", **ALLREDUCE["nccl"], "tp-size": 8}


def failure(
    slug="model_artifact", phase=Phase.LOAD, named=(), deterministic=True, line="AssertionError", sure=0.9, **more
):
    return Failure(
        slug=slug,
        phase=phase,
        verdict=Verdict.INFEASIBLE,
        message="it died",
        deterministic=deterministic,
        evidence=(Evidence(line=1, text=line),),
        blamed=tuple(named),
        named=tuple(named),
        confidence=sure,
        **more,
    )


def worked(trial, **values):
    return Launched(trial, {**BASE, **written(values)}, END)


def crashed(trial, told=None, levels=0, facts=None, **values):
    told = told or failure()
    reached = position(told.phase, levels, told.slug)
    return Launched(trial, {**BASE, **written(values)}, reached, told, facts or {})


def written(values):
    """`allreduce` is a bundle; other names are flags written with underscores."""
    bundle = ALLREDUCE[values.pop("allreduce")] if "allreduce" in values else {}
    return {**{name.replace("_", "-"): value for name, value in values.items()}, **bundle}


def clauses(constraint):
    return {c.flag: c.any_of[0] if c.any_of else (c.above, c.below) for c in constraint.forbids if c != TP}


def only(launches):
    found = learned(SUBJECT, launches).constraints
    assert len(found) == 1, found
    return found[0]


def test_a_value_that_the_log_names_is_forbidden_after_one_crash():
    told = failure("comm_init", named=["moe-a2a-backend"], line="ImportError: DeepEP is not available")
    found = only([worked(0), crashed(1, told, moe_a2a_backend="deepep", allreduce="mscclpp")])
    assert clauses(found) == {"moe-a2a-backend": "deepep"}
    assert found.confidence == 0.9
    assert found.lessons[0].trial == 1
    assert found.lessons[0].line == "ImportError: DeepEP is not available"
    assert TP in found.forbids, "what a study keeps fixed and crashes depend on goes with it"
    assert not any(clause.flag == "host" for clause in found.forbids)


@pytest.mark.parametrize("named", [(), ("moe-a2a-backend",)])
@pytest.mark.parametrize("sure", [0.2, 0.3, 0.55, 0.6])
def test_nothing_is_surer_than_the_one_diagnosis_that_it_rests_on(sure, named):
    found = only([worked(0), crashed(1, failure("engine_bug", named=named, sure=sure), moe_a2a_backend="deepep")])
    assert found.confidence == sure < SURE


def test_crashes_that_blame_the_same_make_up_for_unsure_diagnoses():
    unsure = failure("engine_bug", sure=0.4)
    launches, told = [worked(0)], []
    for number, chunk in enumerate((2048, 4096, 16384), 1):
        launches.append(crashed(number, unsure, allreduce="tree", chunked_prefill_size=chunk))
        told.append(only(launches).confidence)
    assert told == [0.4, 0.64, 0.78]


def test_two_values_that_the_log_names_are_forbidden_together():
    told = failure("invalid_combo", Phase.VALIDATE, ["moe-a2a-backend", "moe-runner-backend"])
    found = only([worked(0), crashed(1, told, moe_a2a_backend="flashinfer", moe_runner_backend="triton")])
    assert clauses(found) == {"moe-a2a-backend": "flashinfer", "moe-runner-backend": "triton"}


def test_a_combination_of_which_the_log_names_one_value_keeps_its_partner():
    told = failure("invalid_combo", Phase.WARMUP, ["moe-a2a-backend"])
    found = only([worked(0), crashed(1, told, moe_a2a_backend="deepep", moe_runner_backend="cutlass")])
    assert clauses(found) == {"moe-a2a-backend": "deepep", "moe-runner-backend": "cutlass"}


@pytest.mark.parametrize(
    ("line", "alone"),
    [
        ("ValueError: moe_runner_backend=cutlass is not supported with this model", True),
        ("NotImplementedError: cutlass is not implemented for the current architecture", True),
        ("ValueError: cutlass is not available on this GPU.", True),
        ("ValueError: cutlass is not supported with the model runner of this backend", False),
        ("ValueError: cutlass is not supported with expert parallelism", False),
        ("ValueError: cutlass cannot be used. See the model card for this model", False),
    ],
)
def test_what_does_not_go_with_the_model_needs_no_partner(line, alone):
    """It would be launched once more in another company."""
    told = failure("invalid_combo", Phase.LOAD, ["moe-runner-backend"], line=line)
    launches = [worked(0), crashed(1, told, moe_a2a_backend="deepep", moe_runner_backend="cutlass")]
    partner = {} if alone else {"moe-a2a-backend": "deepep"}
    assert clauses(only(launches)) == {"moe-runner-backend": "cutlass", **partner}


def test_a_value_that_worked_elsewhere_is_not_forbidden_whatever_its_log_says():
    line = "ValueError: moe_runner_backend=cutlass is not supported with this model"
    told = failure("invalid_combo", Phase.LOAD, ["moe-runner-backend"], line=line)
    crash = crashed(2, told, moe_a2a_backend="deepep", moe_runner_backend="cutlass")
    for one in learned(SUBJECT, [worked(0), worked(1, moe_runner_backend="cutlass"), crash]).constraints:
        assert not one.covers({**BASE, "moe-runner-backend": "cutlass"})


def test_without_a_name_what_differs_from_all_that_worked_is_forbidden():
    launches = [worked(0), worked(1, enable_mixed_chunk=True), crashed(2, allreduce="tree", enable_mixed_chunk=True)]
    found = only(launches)
    assert clauses(found) == {"env.NCCL_ALGO": "Tree"}
    assert 0.7 <= found.confidence < 0.9


def test_a_switch_that_is_off_can_be_guilty():
    found = only([worked(0), crashed(1, allreduce="custom")])
    assert found.covers({**BASE, **ALLREDUCE["custom"]})
    without = {flag: value for flag, value in BASE.items() if flag != "disable-custom-all-reduce"}
    assert found.covers(without)
    assert not found.covers(BASE)


def test_kernels_are_blamed_in_company_until_they_crash_in_another_one():
    launches = [worked(0), crashed(1, moe_runner_backend="cutlass")]
    assert clauses(only(launches)) == {"moe-runner-backend": "cutlass", "moe-a2a-backend": "none"}
    launches.append(worked(2, moe_a2a_backend="deepep"))
    launches.append(crashed(3, moe_runner_backend="cutlass", moe_a2a_backend="deepep"))
    assert clauses(only(launches)) == {"moe-runner-backend": "cutlass"}


def test_a_crash_with_several_suspects_forbids_nothing_and_is_remembered():
    found = learned(SUBJECT, [worked(0), crashed(1, allreduce="tree", enable_mixed_chunk=True)])
    assert not found.constraints
    (suspicion,) = found.suspicions
    assert suspicion.postpones({**BASE, **ALLREDUCE["tree"], "enable-mixed-chunk": True})
    assert not suspicion.postpones({**BASE, **ALLREDUCE["tree"]})


def test_the_suspect_that_two_crashes_share_is_forbidden():
    launches = [
        worked(0),
        crashed(1, allreduce="tree", enable_mixed_chunk=True),
        crashed(2, allreduce="tree", moe_runner_backend="triton"),
    ]
    found = only(launches)
    assert clauses(found) == {"env.NCCL_ALGO": "Tree"}
    assert [lesson.trial for lesson in found.lessons] == [1, 2]


def test_crashes_of_another_kind_share_nothing():
    other = failure("arch_unsupported", line="no kernel image")
    launches = [
        worked(0),
        crashed(1, allreduce="tree", enable_mixed_chunk=True),
        crashed(2, other, allreduce="tree", moe_runner_backend="triton"),
    ]
    assert not learned(SUBJECT, launches).constraints


def test_values_that_each_work_are_forbidden_as_a_pair():
    launches = [
        worked(0),
        worked(1, enable_mixed_chunk=True),
        worked(2, moe_runner_backend="triton"),
        crashed(3, moe_runner_backend="triton", enable_mixed_chunk=True),
    ]
    assert clauses(only(launches)) == {"moe-runner-backend": "triton", "enable-mixed-chunk": True}


def test_a_later_success_narrows_what_was_forbidden():
    launches = [worked(0), crashed(1, failure(named=["moe-runner-backend"]), moe_runner_backend="triton")]
    assert clauses(only(launches)) == {"moe-runner-backend": "triton"}
    launches.append(worked(2, moe_runner_backend="triton", allreduce="tree"))
    assert clauses(only(launches)) == {"moe-runner-backend": "triton", "env.NCCL_ALGO": "Ring"}
    launches.append(worked(3, moe_runner_backend="triton"))
    assert not learned(SUBJECT, launches).constraints, "the same worked: the crash was a whim"


def test_a_launch_that_failed_later_clears_too():
    dead_early = failure(named=["moe-runner-backend"])
    dead_late = failure("wrong_output", Phase.SERVING, line="nonsense")
    launches = [worked(0), crashed(1, dead_early, moe_runner_backend="triton")]
    launches.append(crashed(2, dead_late, moe_runner_backend="triton", enable_mixed_chunk=True))
    forbidden = [clauses(one) for one in learned(SUBJECT, launches).constraints]
    assert {"moe-runner-backend": "triton"} not in forbidden


@pytest.mark.parametrize(
    "told",
    [
        failure("limit_exceeded", Phase.SERVING),
        failure("device_fault", Phase.SERVING, deterministic=None),
        failure("jit_autotune", deterministic=False),
        failure("hang", deterministic=True),
    ],
)
def test_what_may_pass_or_is_no_crash_forbids_nothing(told):
    assert not learned(SUBJECT, [worked(0), crashed(1, told, allreduce="tree")]).constraints


def test_what_may_pass_is_forbidden_with_doubt_once_it_crashed_twice():
    told = failure("device_fault", Phase.SERVING, deterministic=None)
    launches = [
        worked(0),
        crashed(1, told, allreduce="tree"),
        crashed(2, told, allreduce="tree", enable_mixed_chunk=True),
    ]
    assert clauses(only(launches)) == {"env.NCCL_ALGO": "Tree"}
    assert only(launches).confidence < 0.7


def test_the_fraction_that_leaves_a_pool_is_computed():
    told = failure("kv_budget", Phase.KV_ALLOC, ["mem-fraction-static"])
    light, heavy = {"pre": 94.0, "avail": 21.7}, {"pre": 94.0, "avail": 16.3}
    launches = [Launched(0, BASE, END, None, light), crashed(1, told, facts=heavy, moe_a2a_backend="flashinfer")]
    launches[1].values["mem-fraction-static"] = 0.779
    found = only(launches)
    assert clauses(found) == {"moe-a2a-backend": "flashinfer", "mem-fraction-static": (None, 0.8266)}
    assert found.said().startswith("mem-fraction-static below 0.8266 with moe-a2a-backend flashinfer")
    heavier = {**BASE, "moe-a2a-backend": "flashinfer", "mem-fraction-static": 0.82}
    assert found.covers(heavier)
    assert not found.covers({**heavier, "mem-fraction-static": 0.827})
    assert not found.covers({**heavier, "moe-a2a-backend": "none"})


def test_what_needs_more_room_than_a_crash_is_forbidden():
    told = failure("oom_graph", Phase.GRAPH_CAPTURE, ["mem-fraction-static"])
    numbers = {"mem-fraction-static": 0.92, "cuda-graph-max-bs": 256, "chunked-prefill-size": 8192}
    crash = crashed(1, told)
    crash.values.update(numbers)
    found = only([worked(0), crash])
    assert found.covers({**BASE, **numbers, "chunked-prefill-size": 2048})
    assert found.covers({**BASE, "mem-fraction-static": 0.95, "cuda-graph-max-bs": 300})
    assert not found.covers({**BASE, **numbers, "mem-fraction-static": 0.91})
    assert not found.covers({**BASE, **numbers, "cuda-graph-max-bs": 248})


# -- a hidden cause --------------------------------------------------------------------------------------------------

VALUES = {
    "moe-a2a-backend": ["none", "deepep", "flashinfer"],
    "moe-runner-backend": ["auto", "triton", "cutlass"],
    "allreduce": list(ALLREDUCE),
    "enable-mixed-chunk": [False, True],
}
POINTS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})


def flags_of(point):
    plain = {name: value for name, value in point.items() if name != "allreduce"}
    return {**BASE, **plain, **ALLREDUCE[point["allreduce"]]}


@st.composite
def causes(draw):
    """One or two values that crash together; the baseline does not have them all."""
    names = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=2, unique=True))
    cause = {name: draw(st.sampled_from(VALUES[name])) for name in names}
    base = {name: values[0] for name, values in VALUES.items()}
    return cause if any(base[name] != value for name, value in cause.items()) else {names[0]: VALUES[names[0]][1]}


@settings(deadline=None, max_examples=150)
@given(cause=causes(), points=st.lists(POINTS, max_size=12))
def test_nothing_that_worked_is_ever_forbidden(cause, points):
    launches = [worked(0)]
    for number, point in enumerate(points, 1):
        hit = all(point[name] == value for name, value in cause.items())
        values = flags_of(point)
        launches.append(
            Launched(number, values, position(Phase.LOAD, 0), failure()) if hit else Launched(number, values, END)
        )
        found = learned(SUBJECT, launches)
        for one in launches:
            covering = [c for c in found.constraints if c.covers(one.values)]
            assert one.crash is not None or not covering, (cause, covering)
    assert learned(SUBJECT, launches) == learned(SUBJECT, list(launches))


def random_cause(source):
    """One value or a pair of values, not all of them the baseline's."""
    while True:
        names = source.sample(list(VALUES), source.choice([1, 1, 2]))
        cause = {name: source.choice(VALUES[name]) for name in names}
        if any(VALUES[name][0] != value for name, value in cause.items()):
            return cause


@pytest.mark.parametrize("seed", range(40))
def test_a_cause_whose_name_no_log_says_crashes_at_most_twice(seed):
    """Whoever proposes: what a constraint covers, and what would not tell suspects apart, is not launched."""
    source = random.Random(seed)
    cause, launches, crashes = random_cause(source), [worked(0)], 0
    for number in range(1, 60):
        point = {name: source.choice(values) for name, values in VALUES.items()}
        values, found = flags_of(point), learned(SUBJECT, launches)
        if any(c.covers(values) for c in found.constraints) or any(s.postpones(values) for s in found.suspicions):
            continue
        hit = all(point[name] == value for name, value in cause.items())
        crashes += hit
        launches.append(
            Launched(number, values, position(Phase.LOAD, 0), failure()) if hit else Launched(number, values, END)
        )
    assert crashes <= 2, cause
    assert len(launches) > 10, "most points are still tried"


def test_a_wider_constraint_implies_a_narrower_one():
    def constraint(*forbids):
        return LearnedConstraint(slug="oom", forbids=forbids, confidence=0.9)

    wide = constraint(Clause(flag="a", any_of=("x", "y")), Clause(flag="f", above=0.8))
    assert implies(wide, constraint(Clause(flag="a", any_of=("x",)), Clause(flag="f", above=0.9), TP))
    assert not implies(wide, constraint(Clause(flag="a", any_of=("x",)), Clause(flag="f", above=0.7)))
    assert not implies(wide, constraint(Clause(flag="a", any_of=("x",))))


def test_off_and_left_out_are_the_same():
    assert settled({"a": False, "b": None, "c": 0, "d": "x"}) == {"c": 0, "d": "x"}
