"""Suggesting a space through Optuna, and the way back from an assignment."""

import zlib

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import Trial
from spaces import spaces

from servetune.core.space import BundleDomain, CategoricalDomain, FloatDomain, IntDomain, Parameter, SearchSpace
from servetune.search.samplers import random as random_sampler
from servetune.search.samplers import tpe
from servetune.search.sampling import Reseeded, _inside, point_of, quiet_optuna, suggest

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
    """The same in every process: Python's own hash of a text is not."""
    return sum(zlib.crc32(str(value).encode()) % 97 for value in point.values())


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


ALLREDUCE = {
    "nccl": {"disable-custom-all-reduce": True, "env.NCCL_ALGO": "Ring"},
    "nccl-tree": {"disable-custom-all-reduce": True, "env.NCCL_ALGO": "Tree"},
    "custom": {"disable-custom-all-reduce": False},
    "nvls": {"disable-custom-all-reduce": True, "enable-nccl-nvls": True},
}


@pytest.mark.parametrize("label", ALLREDUCE)
@pytest.mark.parametrize("algorithm", ["Ring", "Tree", None])
@pytest.mark.parametrize("switch", [True, False])
def test_a_default_that_one_label_names_does_not_speak_for_it(label, algorithm, switch):
    """A repair or hint is shown to the sampler as what it launches, whatever the engine's defaults are."""
    space = SearchSpace(name="s", parameters=(Parameter(name="allreduce", domain=BundleDomain(options=ALLREDUCE)),))
    defaults = {"env.NCCL_ALGO": algorithm, "disable-custom-all-reduce": switch, "enable-nccl-nvls": False}
    assert point_of(ALLREDUCE[label], space, defaults) == {"allreduce": label}


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


BOUNDED = {"none": (0.8, 0.9), "flashinfer": (0.9, 0.905), None: (0.001, 0.002)}


@pytest.mark.parametrize("sampler", [tpe, random_sampler])
def test_numbers_are_drawn_from_what_can_work_beside_the_other_parameters(sampler):
    """Where nothing on the grid can work, the proposal stays as it is: the engine says why."""

    def bounds(point):
        return {"mem-fraction-static": BOUNDED[point.get("moe-a2a-backend")]}

    wrapped = Reseeded(lambda seed: sampler.create(sampler.Settings(), seed, SPACE), 1, bounds)
    study = optuna.create_study(sampler=wrapped, direction="maximize")
    drawn = {backend: [] for backend in BOUNDED}
    for _ in range(60):
        trial = study.ask()
        point = suggest(trial, SPACE)
        assert trial.params["mem-fraction-static"] == pytest.approx(point["mem-fraction-static"])
        drawn[point["moe-a2a-backend"]].append(point["mem-fraction-static"])
        study.tell(trial, score(point))
    assert all(0.8 - 1e-9 <= value <= 0.9 + 1e-9 for value in drawn["none"])
    assert len(set(drawn["none"])) > 3
    assert set(drawn["flashinfer"]) == {0.9}
    assert any(value < 0.8 for value in drawn[None])


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 1), st.sampled_from([None, 0.005, 0.01, 0.25]))
def test_a_moved_number_lies_on_the_grid_and_inside(share, low, width, step):
    domain = optuna.distributions.FloatDistribution(0.5, 1.0, step=step)
    value = 0.5 + 0.5 * share if step is None else 0.5 + step * int(share * 0.5 / step)
    moved = _inside(value, domain, low, low + width)
    if moved is not None:
        assert max(low, 0.5) - 1e-9 <= moved <= min(low + width, 1.0) + 1e-9
        assert step is None or abs((moved - 0.5) / step - round((moved - 0.5) / step)) < 1e-6
        assert not low <= value <= low + width
