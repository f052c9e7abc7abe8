"""The highest throughput under a limit: found on a server whose latency rises with the load."""

import time

import pytest
from contracts.load_generator_contract import LoadGeneratorContract
from fakes.streaming.process import exact_rate_server
from pydantic import ValidationError

from servetune.benchmarks import load_search
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock

#: TTFT is 10 ms and 5 ms more for each request in flight: 40 in flight give 210 ms. Answers last 0.4 s or more, so that
#: the client may be 20 ms late on average: a load that a busy machine keeps it from measuring bounds a search.
RISING = ("--itl-s", 0.02, "--ttft-s", 0.01, "--ttft-per-running-s", 0.005)


@pytest.fixture(scope="module")
def process():
    with exact_rate_server(*RISING) as server:
        yield server


def create(**settings):
    return load_search.create(load_search.Settings(**settings))


def level(concurrency, limit_s=600.0):
    return Level(concurrency=concurrency, workload=Workload(input_tokens=16, output_tokens=20), limit_s=limit_s)


def search(process, limits, concurrency=64, *behaviour, limit_s=600.0, scale=8.0, go_on=lambda progress: True):
    # node time runs fast: a load is measured for nine node seconds
    limits = {name: bound * scale for name, bound in limits.items()}
    server = process.behaving(*RISING, *behaviour)
    found = create(limits=limits, tolerance=0.2).run(
        server.url, level(concurrency, limit_s), WallClock(scale), go_on, {}
    )
    assert found is not None
    return found


class TestContract(LoadGeneratorContract):
    @pytest.fixture
    def base_url(self, process):
        return process.url

    @pytest.fixture
    def generator(self):
        return create(limits={"ttft_p50_s": 1000.0})

    @pytest.fixture
    def clock(self):
        return WallClock(10.0)

    @pytest.fixture
    def level(self):
        return level(8)


def test_it_finds_the_load_at_which_the_limit_is_reached(process):
    found = search(process, {"ttft_p50_s": 0.110})
    assert 10 <= found.details["concurrency_found"] <= 26  # 20 by the server's rule, and what this machine adds
    assert found.concurrency == 64
    assert found.output_tokens_per_s > 0
    assert any("ttft_p50_s is" in warning for warning in found.warnings)


def test_a_limit_that_all_loads_keep_costs_one_measurement(process):
    found = search(process, {"ttft_p50_s": 10.0}, concurrency=8)
    assert (found.details["concurrency_found"], found.details["loads_tried"]) == (8, 1)


def test_a_limit_that_no_load_keeps_gives_nothing(process):
    found = search(process, {"ttft_p50_s": 0.001}, concurrency=8)
    assert (found.output_tokens_per_s, found.details["concurrency_found"], found.valid) == (0.0, 0.0, True)
    assert "no load keeps the limits (tried 1, 3, 8): ttft_p50_s is" in found.warnings[0]


def test_a_server_that_refuses_part_of_the_load_bounds_it(process):
    found = search(process, {"ttft_p50_s": 10.0}, 16, "--refuse-above", 6, scale=20.0)
    assert 4 <= found.details["concurrency_found"] <= 6
    assert found.valid
    assert any("HTTP 503" in warning for warning in found.warnings)


def test_a_server_that_answers_nothing_is_no_result(process):
    found = search(process, {"ttft_p50_s": 10.0}, 8, "--refuse-after", 0, scale=20.0)
    assert (found.output_tokens_per_s, found.details["concurrency_found"], found.valid) == (0.0, 0.0, False)
    assert any("could not be measured" in warning for warning in found.warnings)


def test_time_that_ends_the_search_is_told(process):
    """The first load takes all of it."""
    begun = []

    def delayed(progress):
        if not begun:
            begun.append(progress)
            time.sleep(13.0 / 8.0)
        return True

    found = search(process, {"ttft_p50_s": 0.110}, limit_s=12.0, go_on=delayed)
    assert found.details["loads_tried"] == 1
    assert any("the time was over before the load was found" in warning for warning in found.warnings)


@pytest.mark.parametrize("limits", [{}, {"ttft_s": 1.0}, {"speed_p50_s": 1.0}, {"ttft_p99": 1.0}, {"ttft_p99_s": 0.0}])
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(ValidationError):
        load_search.Settings(limits=limits)
