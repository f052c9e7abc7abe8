"""Stated 95 % intervals cover the truth 95 times in 100, on noise that is correlated, skewed and has outliers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import signal, stats

from servetune.benchmarks._intervals import Interval, batch_count, batch_means, quantile_errors, student_97_5
from servetune.benchmarks._metrics import Events, throughput

STEPS = 600  # of a tenth of a second


def noisy_rates(random, runs, cv, memory, outliers, factor):
    """Rates around 1 in each step: autoregressive noise, and outliers that slow a step down; and their true mean."""
    shocks = random.standard_normal((runs, STEPS + 200)) * np.sqrt(1 - memory**2)
    rates = 1 + cv * signal.lfilter([1.0], [1.0, -memory], shocks)[:, 200:]
    slow = random.random((runs, STEPS)) < outliers
    return np.where(slow, rates * factor, rates), 1 - outliers * (1 - factor)


NOISE = [
    pytest.param(0.01, 0.0, 0.02, 0.8, id="the simulated node's noise in each step"),
    pytest.param(0.03, 0.8, 0.02, 0.8, id="half a second of memory"),
    pytest.param(0.02, 0.5, 0.05, 0.5, id="often half as fast"),
    pytest.param(0.05, 0.0, 0.0, 1.0, id="no outliers"),
]


@pytest.mark.parametrize(("cv", "memory", "outliers", "factor"), NOISE)
def test_throughput_intervals_cover_930_to_970_of_1000(cv, memory, outliers, factor):
    rates, truth = noisy_rates(np.random.default_rng(7), 1000, cv, memory, outliers, factor)
    covered = 0
    for run in rates:
        found = batch_means(run.reshape(10, -1).mean(axis=1))
        covered += found.low <= truth <= found.high
    assert 930 <= covered <= 970


def test_the_whole_way_from_events_covers_too():
    rates, truth = noisy_rates(np.random.default_rng(11), 1000, 0.02, 0.5, 0.02, 0.8)
    edges = np.arange(STEPS + 1) / 10
    covered = 0
    for run in rates:
        # one event per step brings the tokens of that step
        events = Events(edges[1:], edges[:-1], np.zeros(STEPS, bool), run * 100, np.zeros(STEPS, int))
        found = throughput(events, 0.0, edges[-1])
        covered += found.low <= 1000 * truth <= found.high
    assert 930 <= covered <= 970


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30))
def test_the_value_lies_in_its_interval(values):
    found = batch_means(np.array(values))
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(np.mean(values))


def test_no_spread_no_width():
    assert batch_means(np.full(10, 5.0)) == Interval(5.0, 5.0, 5.0)


def test_slow_moments_stretch_the_interval_downwards():
    found = batch_means(np.array([100.0] * 9 + [60.0]) + np.arange(10) / 10)
    assert found.value - found.low > 1.2 * (found.high - found.value)


def test_a_batch_holds_a_request():
    assert [batch_count(completed) for completed in (0, 3, 7, 500)] == [5, 5, 7, 10]


def test_quantile_intervals_cover_930_to_970_of_1000():
    random = np.random.default_rng(3)
    quantiles = np.array([0.5, 0.9, 0.99])
    truth = stats.gamma.ppf(quantiles, 4.0, scale=0.01)
    covered = np.zeros(3)
    batch = np.repeat(np.arange(10), 300)
    for _ in range(500):
        values = random.gamma(4.0, 0.01, 3000)
        half = quantile_errors(values, batch, quantiles)
        covered += np.abs(np.quantile(values, quantiles) - truth) <= half
    assert np.all((covered >= 0.93 * 500) & (covered <= 0.97 * 500))


def test_quantile_errors_of_nothing_and_of_one_value():
    assert list(quantile_errors(np.array([]), np.array([], dtype=int), np.array([0.5]))) == [0.0]
    assert list(quantile_errors(np.full(10, 2.0), np.arange(10) % 5, np.array([0.5]))) == [0.0]


@pytest.mark.parametrize("freedom", [1, 2, 5, 9, 10, 15, 30, 100])
def test_student_quantiles(freedom):
    assert student_97_5(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=2e-3)
