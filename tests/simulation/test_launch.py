"""Seeds: the same launch gives the same numbers, in whatever order they are asked for, and another launch others."""

import pytest

from servetune.simulation.launch import launch_seed, plan, planned
from servetune.simulation.scenario import load_scenario

SCENARIO = load_scenario("kimi-k2.5-int4-8x-rtx-pro-6000")
PROGRAM = ["python3", "-m", "sglang.launch_server", "--model-path", "/models/k", "--disable-custom-all-reduce"]


def launch(seed="0", *words):
    return plan(SCENARIO, [*PROGRAM, *words], {}, seed)


def test_noise_does_not_depend_on_order_or_port():
    one, other = launch(), launch("0", "--port", "31234", "--host", "0.0.0.0")
    levels = (1, 10, 256)
    assert [one.noise(level) for level in levels] == [other.noise(level) for level in reversed(levels)][::-1]
    assert len({one.noise(level) for level in levels}) == 3


def test_another_seed_or_another_flag_gives_other_noise():
    noises = {
        launch().noise(1),
        launch("1").noise(1),
        launch("0", "--cuda-graph-max-bs", "64").noise(1),
        launch().noise(1, seed=7),
    }
    assert len(noises) == 4


def test_what_is_spelled_out_is_the_same_launch():
    assert launch().noise(1) == launch("0", "--cuda-graph-max-bs", "128").noise(1)


def test_an_assignment_read_back_is_the_same_launch():
    first = launch("3", "--moe-runner-backend", "triton")
    again = planned(SCENARIO, first.command.assignment, "3")
    assert again.noise(10) == first.noise(10)
    assert (again.startup, again.configuration, again.struck) == (first.startup, first.configuration, first.struck)


@pytest.mark.parametrize(
    ("log_dir", "seed"), [("studies/s/trials/7", "5:0"), ("trials/7/launch-2", "5:2"), ("trials/7/launch-10/", "5:10")]
)
def test_the_seed_of_a_launch_comes_from_its_log_folder(log_dir, seed):
    assert launch_seed(5, log_dir) == seed
