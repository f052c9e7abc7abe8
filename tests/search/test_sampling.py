"""Suggesting a space through Optuna, and the way back from an assignment."""

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import Trial
from spaces import spaces

from servetune.core.space import BundleDomain, CategoricalDomain, FloatDomain, IntDomain, Parameter, SearchSpace
from servetune.search.samplers import random as random_sampler
from servetune.search.samplers import tpe
from servetune.search.sampling import Reseeded, point_of, quiet_optuna, suggest

quiet_optuna()

SPACE = SearchSpace(
    name="small",
    fixed={"tp-size": 8},
    parameters=(
        Parameter(name="moe-a2a-backend", domain=CategoricalDomain(choices=("none", "flashinfer", None))),
        Parameter(name="mem-fraction-static", domain=FloatDomain(low=0.7, high=0.97, step=0.01)),
        Parameter(
            name="allreduce",
            domain=BundleDomain(options={"nccl": {}, "custom": {"force": True}, "tree": {"env.NCCL_ALGO": "Tree"}}),
        ),
        Parameter(name="cuda-graph-max-bs", domain=IntDomain(low=8, high=512, log=True)),
    ),
)


def study_of(space: SearchSpace, seed: int, sampler=tpe, storage=None) -> optuna.Study:
    wrapped = Reseeded(lambda s: sampler.create(sampler.Settings(), s, space), seed)
    return optuna.create_study(storage=storage, sampler=wrapped, direction="maximize")


def score(point: dict) -> float:
    return sum(hash(str(value)) % 97 for value in point.values())


@given(space=spaces(), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_a_suggested_point_lies_in_its_space_and_covers_the_active_branch(space, seed):
    study = study_of(space, seed, random_sampler)
    point = suggest(study.ask(), space)
    for parameter in space.parameters:
        before = {name: value for name, value in point.items() if name < parameter.name}
        assert (parameter.name in point) == space.active(parameter, before)
        if parameter.name in point:
            assert_inside(parameter, point[parameter.name])


def assert_inside(parameter: Parameter, value) -> None:
    match parameter.domain:
        case CategoricalDomain(choices=choices):
            assert value in choices
        case BundleDomain(options=options):
            assert value in options
        case IntDomain(low=low, high=high) | FloatDomain(low=low, high=high):
            assert low - 1e-9 <= value <= high + 1e-9


@given(space=spaces(), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_the_point_of_an_expanded_point_is_that_point_where_flags_tell_it_apart(space, seed):
    point = suggest(study_of(space, seed, random_sampler).ask(), space)
    again = point_of(space.expand(point), space, {})
    assert space.expand(again).keys() >= {"tp-size"}
    for parameter in space.parameters:
        if parameter.name in point and isinstance(parameter.domain, IntDomain | FloatDomain):
            assert again[parameter.name] == pytest.approx(point[parameter.name])


@pytest.mark.parametrize("sampler", [tpe, random_sampler], ids=["tpe", "random"])
def test_a_study_asked_again_from_its_history_asks_the_same(sampler, tmp_path):
    """The sampler keeps nothing between asks: a fresh process with the same history proposes the same points."""
    asked = []
    study = study_of(SPACE, 3, sampler)
    for _ in range(14):
        trial = study.ask()
        asked.append(suggest(trial, SPACE))
        study.tell(trial, score(asked[-1]))
    storage = f"sqlite:///{tmp_path}/again.db"
    study_of(SPACE, 3, sampler, storage)
    name = optuna.get_all_study_names(storage)[0]
    for expected in asked:
        fresh = Reseeded(lambda s: sampler.create(sampler.Settings(), s, SPACE), 3)
        study = optuna.load_study(study_name=name, storage=storage, sampler=fresh)
        trial = study.ask()
        assert suggest(trial, SPACE) == expected
        study.tell(trial, score(expected))


def test_a_kill_in_the_middle_of_sampling_changes_nothing(tmp_path):
    whole = study_of(SPACE, 5)
    cut = study_of(SPACE, 5, storage=f"sqlite:///{tmp_path}/cut.db")
    for _ in range(10):
        for study in (whole, cut):
            trial = study.ask()
            study.tell(trial, score(suggest(trial, SPACE)))
    expected = suggest(whole.ask(), SPACE)
    first = SearchSpace(name="half", fixed=SPACE.fixed, parameters=SPACE.parameters[:2])
    trial = cut.ask()
    half = suggest(trial, first)  # … and the process dies here
    assert half == {name: expected[name] for name in half}
    again = Trial(
        optuna.load_study(study_name=cut.study_name, storage=cut._storage, sampler=cut.sampler), trial._trial_id
    )
    assert suggest(again, SPACE) == expected


def test_a_baseline_is_shown_to_the_sampler_by_the_engines_defaults():
    point = point_of({"tp-size": 8}, SPACE, {"mem-fraction-static": 0.779, "cuda-graph-max-bs": 128})
    assert point == {
        "moe-a2a-backend": None,
        "mem-fraction-static": 0.78,
        "allreduce": "nccl",
        "cuda-graph-max-bs": 128,
    }


def test_a_repair_outside_the_grid_is_shown_by_its_nearest_point():
    point = point_of({"mem-fraction-static": 0.837, "env.NCCL_ALGO": "Tree"}, SPACE, {})
    assert point["mem-fraction-static"] == 0.84
    assert point["allreduce"] == "tree"
