"""Numbers that a configuration leaves to the engine: the models take what the log says was in effect."""

from pathlib import Path

import numpy as np
import pytest

from servetune.core.space import CategoricalDomain, FloatDomain, Parameter, SearchSpace
from servetune.engines.sglang.logs import SglangLogReader
from servetune.search._grid import Grid
from servetune.search._history import Context, Seen, seen_of
from servetune.search._memory import Memory
from servetune.search._values import Values
from servetune.search.facts import memory_facts

RECORDINGS = Path(__file__).parents[1] / "recordings"
FACTS = {"pre": 139.0, "avail": 131.6, "kv_tokens": 5_161_919.0, "graph": 1.4, "fraction": 0.903, "batch": 256.0}
CONTEXT = Context({1: 0.25, 10: 0.25, 256: 0.25, 1024: 0.25}, 384, {})


def space() -> SearchSpace:
    fractions = FloatDomain(low=0.5, high=0.98, step=0.02)
    graphs = CategoricalDomain(choices=(None, 512, 1024))
    streams = CategoricalDomain(choices=(None, 8))
    axes = {"mem-fraction-static": fractions, "cuda-graph-max-bs-decode": graphs, "stream-interval": streams}
    return SearchSpace(name="x", parameters=tuple(Parameter(name=name, domain=d) for name, d in axes.items()))


def seen(number: int, grid: Grid, gain: float = 1.0, facts: dict[str, float] | None = None, **given: int) -> Seen:
    """A launch that was faster than the baseline by `gain` at 256 and 1024; its point has a fraction nobody set."""
    named = {flag.replace("_", "-"): value for flag, value in given.items()}
    point = {"mem-fraction-static": 0.74, "cuda-graph-max-bs-decode": None, "stream-interval": None, **named}
    levels = {"1": 780.0, "10": 3700.0, "256": 19000.0 * gain, "1024": 12700.0 * gain}
    told = {"levels": levels, "sd": dict.fromkeys(levels, 0.03), "facts": {**FACTS, **(facts or {})}}
    return seen_of(number, point, told, 5000.0, number == 0, grid, named)


@pytest.mark.parametrize("log", ["h200/run1_base_m0.5_g256.log", "h200/run2_moe30b_m0.9_g256.log"])
def test_a_log_says_what_the_server_worked_with(log):
    reader = SglangLogReader({})
    reader.feed((RECORDINGS / log).read_bytes())
    told = memory_facts(reader.facts())
    assert told["fraction"] == (0.5 if "m0.5" in log else 0.9)
    assert (told["batch"], told["chunk_tokens"]) == (256, 8192)


def test_a_launch_lies_where_the_engine_put_it_not_where_its_point_says():
    grid = Grid(space())
    assert grid.axes[0].values[seen(1, grid).codes[0]] == 0.9
    told = seen(1, grid, mem_fraction_static=0.6)
    assert grid.axes[0].values[told.codes[0]] == 0.6


def test_a_value_that_leaves_the_batch_to_the_engine_is_the_batch_that_its_logs_tell():
    grid = Grid(space())
    launches = [seen(0, grid), seen(1, grid, facts={"batch": 1024.0}, cuda_graph_max_bs_decode=1024)]
    memory = Memory(grid, launches, CONTEXT)
    every = np.array([[20, code, 0] for code in range(3)])
    assert memory.batch(every).tolist() == [256, 512, 1024]
    assert memory.launched(launches)[0].tolist() == [0.903, 0.903]
    assert memory.launched(launches)[1].tolist() == [256, 1024]


def test_without_a_word_of_the_log_the_default_stands_in_and_then_a_middle_value():
    grid = Grid(space())
    silent = seen(0, grid)
    silent.facts.pop("batch")
    at = np.array([[20, 0, 0]])
    assert Memory(grid, [silent], CONTEXT).batch(at).tolist() == [768]
    told = Context(CONTEXT.weights, 384, {"cuda-graph-max-bs": 160})
    assert Memory(grid, [silent], told).batch(at).tolist() == [160]


def test_a_fast_launch_with_larger_graphs_than_the_engines_own_is_expected_to_be_fast():
    grid = Grid(space())
    fast = seen(2, grid, 2.0, {"batch": 1024.0}, cuda_graph_max_bs_decode=1024, stream_interval=8)
    gains = Values(grid, [seen(0, grid), seen(1, grid, 1.2, stream_interval=8), fast], CONTEXT).gains()
    assert gains[2] == pytest.approx(0.5 * np.log(2.0), rel=0.15)
    assert gains[2] > gains[1] > gains[0] == pytest.approx(0, abs=0.02)
