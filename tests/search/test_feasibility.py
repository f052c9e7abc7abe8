"""What crashes teach: guilt by elimination, by company, and never of what has worked."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.core.space import BundleDomain, CategoricalDomain, FloatDomain, Parameter, SearchSpace
from servetune.search._grid import Grid
from servetune.search._history import PHASES, Seen
from servetune.search.feasibility import Feasibility, propagated

SPACE = SearchSpace(
    name="small",
    parameters=(
        Parameter(name="a2a", domain=CategoricalDomain(choices=("none", "deepep", "flashinfer"))),
        Parameter(name="runner", domain=CategoricalDomain(choices=("auto", "triton", "cutlass"))),
        Parameter(name="allreduce", domain=BundleDomain(options={"nccl": {}, "tree": {"env.NCCL_ALGO": "Tree"}})),
        Parameter(name="fraction", domain=FloatDomain(low=0.7, high=0.9, step=0.1)),
    ),
)
GRID = Grid(SPACE)
START = {"a2a": "none", "runner": "auto", "allreduce": "nccl", "fraction": 0.8}


def codes(**changes):
    return GRID.encode({**START, **changes})


def worked(number=0, **changes):
    return Seen(number=number, codes=codes(**changes), complete=True, baseline=number == 0)


def crashed(number, phase, slug="x", blamed=(), sure=1.0, **changes):
    told = {"slug": slug, "phase": phase, "blamed": frozenset(blamed), "confidence": sure}
    return Seen(number=number, codes=codes(**changes), complete=False, **told)


def chance(seen, **changes):
    return float(np.exp(Feasibility(GRID, seen).log_probability(codes(**changes)[None, :])[0]))


def test_what_worked_is_sure_to_work_again_and_the_new_is_not():
    seen = [worked()]
    assert chance(seen) == pytest.approx(1.0)
    assert 0.5 < chance(seen, a2a="deepep") < 0.9
    assert chance(seen, a2a="deepep", runner="triton") < chance(seen, a2a="deepep")


def test_the_only_value_that_nothing_has_cleared_is_to_blame():
    seen = [worked(), worked(1, runner="triton"), crashed(2, "load", a2a="deepep")]
    assert chance(seen, a2a="deepep", runner="triton") < 0.2
    first = Feasibility(GRID, seen).blames[0]
    assert first.suspect == (0, 1)
    assert first.trials == (2,)


def test_a_value_that_two_crashes_share_is_blamed_and_its_company_is_not():
    seen = [
        worked(),
        crashed(1, "graph_capture", a2a="deepep", allreduce="tree"),
        crashed(2, "graph_capture", runner="triton", allreduce="tree"),
    ]
    odds = {blame.suspect: blame.probability for blame in Feasibility(GRID, seen).blames}
    assert odds[(2, 1)] > 0.8
    assert odds[(0, 1)] < 0.25
    assert odds[(1, 1)] < 0.25


def test_a_phase_that_was_passed_clears_its_values_of_failing_there():
    later = crashed(1, "serving", slug="device_fault", a2a="deepep")
    seen = [worked(), later, crashed(2, "load", slug="comm_init", a2a="deepep", runner="triton")]
    blamed = {blame.suspect for blame in Feasibility(GRID, seen).blames if blame.slug == "comm_init"}
    assert (0, 1) not in blamed
    assert (1, 1) in blamed


def test_a_combination_is_blamed_once_both_values_have_worked():
    seen = [worked(), worked(1, a2a="deepep"), worked(2, runner="triton")]
    seen.append(crashed(3, "warmup", slug="invalid_combo", a2a="deepep", runner="triton"))
    assert chance(seen, a2a="deepep", runner="triton") < 0.05
    assert chance(seen, a2a="deepep") == pytest.approx(1.0)
    blame = Feasibility(GRID, seen).certain(codes(a2a="deepep", runner="triton"), least=0.9)
    assert blame is not None
    assert len(blame.suspect) == 4


def test_a_failure_of_memory_accuses_no_value():
    seen = [worked(), crashed(1, "graph_capture", slug="oom_graph", a2a="deepep", fraction=0.9)]
    assert Feasibility(GRID, seen).blames == ()


def test_flags_that_the_failure_names_weigh_more():
    def odds(blamed):
        seen = [worked(), crashed(1, "load", blamed=blamed, a2a="deepep", allreduce="tree")]
        return {blame.suspect: blame.probability for blame in Feasibility(GRID, seen).blames}

    assert odds(["env.NCCL_ALGO"])[(2, 1)] > 0.75 > odds([])[(2, 1)]


@pytest.mark.parametrize("sure", [0.2, 0.4, 0.6])
@pytest.mark.parametrize("phase", ["load", "serving"])
def test_a_value_is_no_surer_guilty_than_its_crash_was_diagnosed(sure, phase):
    seen = [worked(), worked(1, runner="triton"), crashed(2, phase, sure=sure, a2a="deepep")]
    assert 0.7 * (1 - sure) < chance(seen, a2a="deepep") <= 1 - sure + 1e-9
    again = [*seen, crashed(3, phase, sure=sure, a2a="deepep", runner="triton")]
    assert chance(again, a2a="deepep") < chance(seen, a2a="deepep")


def test_an_unsure_crash_does_not_clear_the_others_of_one_that_is_sure():
    shared = {"a2a": "deepep", "allreduce": "tree"}
    sure = [worked(), crashed(1, "load", **shared)]
    unsure = [*sure, crashed(2, "load", sure=0.3, a2a="deepep", runner="triton")]
    certain = [*sure, crashed(2, "load", a2a="deepep", runner="triton")]
    tree = [chance(seen, allreduce="tree") for seen in (sure, unsure, certain)]
    assert tree[0] < tree[1] < tree[2]


@given(st.lists(st.floats(0.01, 0.6), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_one_crash_is_judged_exactly(priors):
    prior = {(0, i): p for i, p in enumerate(priors)}
    found = propagated([list(prior)], prior)
    total = dict.fromkeys(prior, 0.0)
    mass = 0.0
    for guilty in itertools.product((False, True), repeat=len(priors)):
        weight = np.prod([p if g else 1 - p for p, g in zip(priors, guilty, strict=True)]) * any(guilty)
        mass += weight
        for suspect, g in zip(prior, guilty, strict=True):
            total[suspect] += weight * g
    for suspect in prior:
        assert found[suspect] == pytest.approx(total[suspect] / mass, abs=1e-4)


points = st.fixed_dictionaries(
    {
        "a2a": st.sampled_from(("none", "deepep", "flashinfer")),
        "runner": st.sampled_from(("auto", "triton", "cutlass")),
        "allreduce": st.sampled_from(("nccl", "tree")),
        "fraction": st.sampled_from((0.7, 0.8, 0.9)),
    }
)


@given(st.lists(st.tuples(points, st.sampled_from(PHASES)), max_size=12))
@settings(max_examples=60, deadline=None)
def test_odds_are_odds_and_what_completed_is_never_blamed(history):
    seen = [worked()]
    for number, (point, phase) in enumerate(history, 1):
        seen.append(worked(number, **point) if phase == "done" else crashed(number, phase, **point))
    found = Feasibility(GRID, seen)
    every = np.array([GRID.encode(p) for p in (START, *(point for point, _ in history))])
    assert (found.log_probability(every) <= 1e-9).all()
    for trial in seen:
        if trial.complete:
            assert found.certain(trial.codes) is None
            assert found.log_probability(trial.codes[None, :])[0] == pytest.approx(0.0, abs=1e-6)
