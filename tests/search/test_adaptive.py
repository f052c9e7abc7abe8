"""The adaptive sampler on Optuna studies: what it proposes, what it learns, how long it takes."""

import dataclasses
import math
import time

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState
from spaces import spaces

from servetune.core.space import CategoricalDomain, FloatDomain, IntDomain, Parameter, SearchSpace
from servetune.search._grid import Grid
from servetune.search._history import Context, Seen
from servetune.search._memory import Memory
from servetune.search._room import Room
from servetune.search._values import values_of
from servetune.search.objections import Objections, Rule
from servetune.search.refusals import Refusals
from servetune.search.samplers import adaptive
from servetune.search.sampling import Reseeded, quiet_optuna, suggest

quiet_optuna()

SPACE = SearchSpace(
    name="toy",
    parameters=(
        Parameter(name="a2a", domain=CategoricalDomain(choices=("none", "deepep", "flashinfer", "mooncake"))),
        Parameter(name="runner", domain=CategoricalDomain(choices=("auto", "triton", "cutlass", "deep_gemm"))),
        Parameter(name="overlap", domain=CategoricalDomain(choices=(False, True))),
        Parameter(name="chunk", domain=CategoricalDomain(choices=(2048, 4096, 8192, 16384))),
        Parameter(name="mem-fraction-static", domain=FloatDomain(low=0.7, high=0.97, step=0.01)),
        Parameter(name="cuda-graph-max-bs", domain=IntDomain(low=8, high=512, log=True)),
    ),
)
BASE = {"a2a": "none", "runner": "auto", "overlap": False, "chunk": 4096, "mem-fraction-static": 0.85}
BASE["cuda-graph-max-bs"] = 128
GAINS = {("a2a", "mooncake"): 0.2, ("a2a", "deepep"): -0.1, ("runner", "cutlass"): 0.15, ("runner", "triton"): -0.1,
         ("overlap", True): 0.05, ("chunk", 8192): 0.06, ("chunk", 16384): 0.02}  # fmt: skip


def truth(point):
    return 1000 * math.exp(sum(gain for (name, value), gain in GAINS.items() if point.get(name) == value))


class Loop:
    """A guide, and the part of the loop that tells."""

    def __init__(self, seed=0, space=SPACE, rejected=lambda point: False):
        self.space, self.rejected, self.promises = space, rejected, []
        self.refusals = Refusals(space, lambda point: [tuple(point)] if rejected(point) else [])
        self.objections, self.blocked = Objections(space, dict), []

        def made(seed):
            sampler = adaptive.create(adaptive.Settings(), seed, space)
            sampler.heed(self)
            return sampler

        self.study = optuna.create_study(direction="maximize", sampler=Reseeded(made, seed))

    def key(self, point):
        return None if self.rejected(point) else repr(sorted(point.items()))

    def effective_key(self, point):
        return repr(sorted(point.items()))

    def blocks(self, rule, point):
        self.blocked.append((rule, point))
        return True

    def expects(self, gain_per_node_hour):
        self.promises.append(gain_per_node_hour)

    def tell(self, trial, point, crash=None):
        trial.set_user_attr("result", {"class": crash, "phase": crash and "load", "node_s": 600.0})
        if crash:
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, truth(point))

    def baseline(self):
        self.study.enqueue_trial(BASE, user_attrs={"baseline": True})
        self.step()

    def step(self, crash=lambda point: None):
        trial = self.study.ask()
        point = suggest(trial, self.space)
        self.tell(trial, point, crash(point))
        return point


def test_it_finds_the_best_of_an_additive_space_in_a_fraction_of_it():
    loop = Loop()
    loop.baseline()
    for _ in range(22):
        loop.step()
    best = truth({"a2a": "mooncake", "runner": "cutlass", "overlap": True, "chunk": 8192})
    assert loop.study.best_value > 0.97 * best


def test_a_value_that_crashes_is_not_tried_again_and_again():
    loop = Loop()
    loop.baseline()
    points = [loop.step(lambda point: "arch_unsupported" if point["a2a"] == "mooncake" else None) for _ in range(20)]
    assert sum(point["a2a"] == "mooncake" for point in points) <= 3


def test_the_same_history_gives_the_same_proposal():
    first, second = Loop(seed=3), Loop(seed=3)
    for loop in (first, second):
        loop.baseline()
    assert [first.step() for _ in range(4)] == [second.step() for _ in range(4)]


def test_what_the_engine_rejects_and_what_was_seen_is_not_proposed():
    loop = Loop(rejected=lambda point: point["runner"] == "cutlass" or point["overlap"])
    loop.baseline()
    points = [loop.step() for _ in range(8)]
    assert not any(point["runner"] == "cutlass" or point["overlap"] for point in points)
    assert len({repr(point) for point in [BASE, *points]}) == 9


def rule(name, **clauses):
    holds = lambda view: all(view.get(flag) == value for flag, value in clauses.items())  # noqa: E731
    return Rule(name, name, frozenset(clauses), holds)


def test_what_a_learned_rule_forbids_is_not_proposed_and_the_rule_hears_of_it():
    loop = Loop()
    loop.objections.rules = [rule("no-mooncake", a2a="mooncake"), rule("no-pair", runner="cutlass", overlap=True)]
    loop.baseline()
    points = [loop.step() for _ in range(12)]
    assert not any(point["a2a"] == "mooncake" for point in points)
    assert not any(point["runner"] == "cutlass" and point["overlap"] for point in points)
    assert {name for name, _ in loop.blocked} == {"no-mooncake", "no-pair"}
    assert all(point["a2a"] == "mooncake" for name, point in loop.blocked if name == "no-mooncake")


@given(space=spaces(), seed=st.integers(0, 2**16))
@settings(max_examples=20, deadline=None)
def test_objections_to_many_points_are_those_to_each(space, seed):
    grid, rng = Grid(space), np.random.default_rng(seed)
    rows = grid.random(40, rng)
    objections = Objections(space, space.expand)
    wanted = [space.expand(grid.decode(row)) for row in grid.random(3, rng)]
    rules = [rule(str(i), **dict(list(flags.items())[-2:])) for i, flags in enumerate(wanted)]
    for _ in range(2):  # the second time out of what is kept
        objections.rules = [*rules, rule("all", **{"tp-size": 8})]
        for row, place in zip(rows, objections.first(rows).tolist(), strict=True):
            holding = [r.name for r in objections.rules if r.holds(space.expand(grid.decode(row)))]
            assert objections.rules[place].name == holding[0]
    objections.rules = []
    assert (objections.first(rows) == -1).all()


def test_ten_workers_that_ask_at_once_get_ten_points():
    loop = Loop()
    loop.baseline()
    trials = [loop.study.ask() for _ in range(10)]  # all are running before any has a point
    points = [suggest(trial, SPACE) for trial in trials]
    assert len({repr(point) for point in points}) == 10
    more = [suggest(loop.study.ask(), SPACE) for _ in range(5)]
    assert len({repr(point) for point in points + more}) == 15


def test_proposals_promise_less_and_less():
    loop = Loop()
    loop.baseline()
    for _ in range(25):
        loop.step()
    assert loop.promises[-1] < 0.2 * loop.promises[0]


def test_asking_in_a_study_of_a_thousand_trials_takes_less_than_a_second():
    loop = Loop()
    loop.baseline()
    grid = Grid(SPACE)
    rng = np.random.default_rng(0)
    distributions = {axis.name: adaptive.distribution(axis.parameter.domain) for axis in grid.axes}
    for row in grid.random(1000, rng):
        point = grid.decode(row)
        crash = point["a2a"] == "deepep" or rng.random() < 0.2
        trial = optuna.trial.create_trial(
            params=point,
            distributions=distributions,
            value=None if crash else truth(point),
            state=TrialState.PRUNED if crash else TrialState.COMPLETE,
            user_attrs={"result": {"class": "x" if crash else None, "phase": "load" if crash else None}},
        )
        loop.study.add_trial(trial)
    loop.step()
    begin_s = time.process_time()
    loop.step()
    assert time.process_time() - begin_s < 1.0


@given(space=spaces(), seed=st.integers(0, 2**16))
@settings(max_examples=10, deadline=None)
def test_any_space_with_conditions_can_be_searched(space, seed):
    study = optuna.create_study(
        direction="maximize",
        sampler=Reseeded(lambda s: adaptive.create(adaptive.Settings(), s, space), seed),
    )
    for number in range(4):
        trial = study.ask()
        point = suggest(trial, space)
        for parameter in space.parameters:
            assert (parameter.name in point) == space.active(
                parameter, {name: point[name] for name in point if name != parameter.name}
            ) or parameter.when.any_of
        study.tell(trial, float(100 + number))


def loaded(number, fraction, batch, slug=None, phase="done", complete=True):
    """A launch on a node of 100 GiB, 60 of weights, graphs 0.5 + 0.02 per batch size, activations 2 GiB."""
    graph = 0.5 + 0.02 * batch
    facts = {"pre": 100.0, "avail": 40.0, "graph": graph, "kv_tokens": 5000 * (40 - 100 * (1 - fraction))}
    grid = Grid(SPACE)
    point = {**BASE, "mem-fraction-static": fraction, "cuda-graph-max-bs": batch}
    return Seen(number=number, codes=grid.encode(point), complete=complete, slug=slug, phase=phase, facts=facts,
                log_levels={256: 7.0} if complete else {})  # fmt: skip


def test_a_baseline_outside_the_space_is_taken_as_it_was_launched():
    """Its point is the nearest one of the space; its memory is not that point's."""
    grid, context = Grid(SPACE), Context({256: 1.0}, 1000.0, {"mem-fraction-static": 0.62})
    inside = loaded(0, 0.85, 128)
    baseline = dataclasses.replace(
        inside,
        codes=grid.encode({**BASE, "mem-fraction-static": 0.7}),
        baseline=True,
        given={"cuda-graph-max-bs": 128},
        facts={**inside.facts, "kv_tokens": 5000 * (40 - 38)},
    )
    memory = Memory(grid, [baseline], context)
    assert memory.launched([baseline])[0] == pytest.approx([0.62])
    assert memory.held([baseline]) == pytest.approx([10.0])
    held = memory.requests(np.array([grid.encode(BASE)]))
    assert held[0] == pytest.approx(5 * 25, rel=0.02)


def chances(seen, *points):
    grid = Grid(SPACE)
    rows = np.array([grid.encode({**BASE, "mem-fraction-static": f, "cuda-graph-max-bs": b}) for f, b in points])
    return np.exp(Room(Memory(grid, seen, Context({256: 1.0}, 1000.0, {})), seen, 0).log_probability(rows))


def test_memory_follows_from_one_log_and_gets_sharper_with_each_crash():
    seen = [loaded(0, 0.85, 128)]
    low, kept, high = chances(seen, (0.70, 128), (0.85, 128), (0.97, 128))
    assert high < 0.2 < 0.9 < kept
    assert low > 0.9  # 40 GiB are left, 30 stay outside the pool
    assert chances(seen, (0.90, 400))[0] < chances(seen, (0.90, 64))[0]
    crash = loaded(1, 0.93, 128, "oom_runtime", "serving", complete=False)
    assert chances([*seen, crash], (0.93, 128))[0] < 0.2
    assert chances([*seen, crash], (0.94, 128))[0] < 0.1
    assert chances([*seen, crash], (0.85, 128))[0] > 0.9
    grid = Grid(SPACE)
    memory = Memory(grid, seen, Context({256: 1.0}, 1000.0, {}))
    held = memory.requests(np.array([grid.encode(BASE)]))
    assert held[0] == pytest.approx(5 * 25, rel=0.02)


def test_expected_values_are_made_once_for_one_history_and_anew_for_another():
    """What is recommended after a launch and what is asked next rest on the same values."""
    grid, context = Grid(SPACE), Context({256: 1.0}, 1000.0, {"mem-fraction-static": 0.85, "port": 30000})
    seen = [dataclasses.replace(loaded(0, 0.85, 128), baseline=True), loaded(1, 0.88, 64)]
    made = values_of(grid, seen, context)
    elsewhere = dataclasses.replace(context, fixed={"mem-fraction-static": 0.85})
    assert values_of(Grid(SPACE), [dataclasses.replace(one) for one in seen], elsewhere) is made
    faster = dataclasses.replace(seen[1], log_levels={256: 7.5})
    assert values_of(grid, [seen[0], faster], context).gains()[1] > made.gains()[1] + 0.1
    assert values_of(grid, seen, dataclasses.replace(context, fixed={"mem-fraction-static": 0.8})) is not made


def test_points_alike_in_all_but_order_are_of_one_kind():
    """And in a space of too many categories for one number each point is its own kind."""
    grid = Grid(SPACE)
    points = [BASE, {**BASE, "mem-fraction-static": 0.9}, {**BASE, "runner": "cutlass"}]
    rows = np.array([grid.encode(point) for point in points])
    kinds, which = grid.kinds(rows)
    assert len(kinds) == 2
    assert which[0] == which[1] != which[2]
    wide = Grid(SearchSpace(name="wide", parameters=tuple(
        Parameter(name=f"p{i}", domain=CategoricalDomain(choices=("a", "b", "c"))) for i in range(40)
    )))  # fmt: skip
    rows = wide.random(50, np.random.default_rng(0))
    kinds, which = wide.kinds(rows)
    assert (kinds[which] == rows).all()
