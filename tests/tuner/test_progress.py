"""How many proposals that cost nothing show that a space has nothing new."""

import math
import random

import pytest

from servetune.cli._virtual_study import simulate
from servetune.core.space import CategoricalDomain, FloatDomain, Parameter, SearchSpace
from servetune.core.study import NamedChoice
from servetune.tuner.progress import FREE_ASKS, asks_to_see_all


def space(*sizes):
    return SearchSpace(
        name="s",
        parameters=tuple(
            Parameter(name=f"p{i}", domain=CategoricalDomain(choices=tuple(range(size))))
            for i, size in enumerate(sizes)
        ),
    )


def test_a_space_of_one_point_needs_few_asks_and_a_large_one_never_more_than_the_most():
    assert asks_to_see_all(SearchSpace(name="s")) == 5
    assert asks_to_see_all(space(1)) == 5
    assert asks_to_see_all(space(8, 8, 8)) == FREE_ASKS
    assert (
        asks_to_see_all(SearchSpace(name="s", parameters=(Parameter(name="f", domain=FloatDomain(low=0, high=1)),)))
        > 200
    )


@pytest.mark.parametrize("sizes", [(2,), (2, 3), (4, 5)])
def test_uniform_draws_have_then_seen_every_point(sizes):
    rng, points = random.Random(0), range(asks_to_see_all(space(*sizes)))
    missed = 0
    for _ in range(1000):
        seen = {tuple(rng.randrange(size) for size in sizes) for _ in points}
        missed += len(seen) < math.prod(sizes)
    assert missed <= 20


@pytest.mark.parametrize("strategy", ["adaptive", "random", "tpe"])
def test_a_study_of_four_configurations_sees_them_and_ends_soon(tmp_path, strategy):
    path = tmp_path / "space.yaml"
    path.write_text(
        "space: small\nparameters:\n  chunked-prefill-size: {values: [4096, 8192]}\n"
        "  enable-single-batch-overlap: [null, true]\n"
    )
    keys = {"sampler": NamedChoice(name=strategy), "seed": 0, "node_hours": 24.0, "space": str(path)}
    trials = simulate("generated-12", keys)["trajectory"]
    own = {(t["flags"]["chunked-prefill-size"], t["flags"]["enable-single-batch-overlap"]) for t in trials[1:]}
    assert own == {(4096, False), (4096, True), (8192, False), (8192, True)}
    assert len(trials) < 40
