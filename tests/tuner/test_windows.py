"""A level in windows, on a made generator: agreement, and the early end of what is surely below the best."""

import random

import pytest

from servetune.core.benchmark import Bar, Level, Measurement, Workload
from servetune.tuner.windows import in_windows

#: Of a whole level: relative standard deviation of its value, chance and factor of a disturbed window.
SD, DISTURBED, FACTOR = 0.01, 0.02, 0.8


class Generator:
    """Gives `true` tokens/s with noise that grows as a window gets shorter; a level takes 100 s."""

    def __init__(self, true, seed):
        self.true, self.random, self.efforts = true, random.Random(seed), []

    def hold(self, level):
        assert level.bar is None, "a window is held to its end"
        self.efforts.append(level.effort)
        sd = SD / level.effort**0.5
        rate = self.true * (1 + sd * self.random.gauss(0, 1))
        rate *= FACTOR if self.random.random() < DISTURBED else 1.0
        return Measurement(
            concurrency=10,
            output_tokens_per_s=rate,
            low=rate * (1 - 1.96 * sd),
            high=rate * (1 + 1.96 * sd),
            duration_s=100 * level.effort,
            requests_completed=10,
            requests_failed=0,
            output_tokens=1000,
        )


def held(true, bar, seed=0, effort=0.4):
    generator = Generator(true, seed)
    level = Level(concurrency=10, workload=Workload(), limit_s=600, effort=effort, bar=bar)
    return in_windows(generator.hold, level), generator


def bar(rate=1000.0, error=0.01):
    return Bar(output_tokens_per_s=rate, sd=rate * SD, error=error)


def test_a_level_far_below_the_best_ends_after_half_its_time():
    got, generator = held(700.0, bar())
    assert generator.efforts == pytest.approx([0.1, 0.1])
    assert got.duration_s == pytest.approx(20)
    assert got.low < 700 < got.high


def test_a_level_above_the_best_takes_its_whole_time():
    got, generator = held(1200.0, bar())
    assert generator.efforts == pytest.approx([0.1, 0.1, 0.2])
    assert got.duration_s == pytest.approx(40)


def test_without_a_bar_there_are_no_quarters():
    assert held(700.0, None)[1].efforts == pytest.approx([0.2, 0.2])


@pytest.mark.parametrize("error", [0.01, 0.1])
def test_a_level_as_good_as_the_best_is_ended_as_seldom_as_stated(error):
    """Disturbed windows included: it takes two of them."""
    ended = sum(len(held(1000.0, bar(error=error), seed)[1].efforts) == 2 for seed in range(4000))
    assert 0 < ended <= 4000 * error


def test_a_window_that_cannot_be_used_ends_the_level():
    level = Level(concurrency=10, workload=Workload(), limit_s=600, bar=bar())
    assert in_windows(lambda part: None, level) is None
    broken = Measurement.empty(10, ["no answer"])
    assert in_windows(lambda part: broken, level) is broken
