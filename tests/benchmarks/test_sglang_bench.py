"""SGLang's bench_serving as a load generator: what is made of its report, and a program that does not do its work."""

import json
import sys
from pathlib import Path

import pytest
from contracts.load_generator_contract import LoadGeneratorContract
from fakes.streaming.process import exact_rate_server

from servetune.benchmarks import sglang_bench
from servetune.benchmarks._reported import read_report, steady
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock

FAKE = Path(__file__).parents[1] / "fakes" / "bench_serving.py"


@pytest.fixture(scope="module")
def process():
    with exact_rate_server("--itl-s", 0.01, "--ttft-s", 0.05) as server:
        yield server


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter that finds the fake where SGLang's module would be."""
    path = tmp_path_factory.mktemp("bin") / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    path.chmod(0o755)
    return str(path)


def level(concurrency=4, requests=24, limit_s=60.0):
    workload = Workload(input_tokens=8, output_tokens=10, requests_per_level=requests)
    return Level(concurrency=concurrency, workload=workload, limit_s=limit_s)


def run(python, url, wanted, **settings):
    found = sglang_bench.create(sglang_bench.Settings(python=python, **settings)).run(
        url, wanted, WallClock(), lambda progress: True, {"X-Key": "a=b"}
    )
    assert found is not None
    return found


class TestContract(LoadGeneratorContract):
    @pytest.fixture
    def base_url(self, process):
        return process.url

    @pytest.fixture
    def generator(self, python):
        return sglang_bench.create(sglang_bench.Settings(python=python))

    @pytest.fixture
    def level(self):
        return level()


def test_the_steady_part_is_what_the_server_sent(process, python):
    server = process.behaving("--itl-s", 0.01, "--ttft-s", 0.05)
    found = run(python, server.url, level())
    # each of four streams gives ten tokens in 50 + 9 * 10 ms and what its client needs between two requests
    assert found.valid, found.warnings
    assert 100 < found.output_tokens_per_s < 1.02 * 4 * 10 / 0.14
    assert 0.05 <= found.ttft_s.p50 < 0.2
    assert found.itl_s.p50 == pytest.approx(0.01, rel=0.3)
    assert found.details["concurrency_held"] == pytest.approx(4, rel=0.05)
    assert found.details["reported_output_tokens_per_s"] < found.output_tokens_per_s * 1.1


def test_refusals_and_short_answers_invalidate(process, python):
    refused = run(python, process.behaving("--refuse-after", 12).url, level())
    assert not refused.valid
    assert "16 requests failed: HTTP 503" in " ".join(refused.warnings)
    short = run(python, process.behaving("--early-end-after", 5, "--every", 2, "--itl-s", 0.001).url, level())
    assert not short.valid
    assert "answers had fewer tokens than the 10 asked for" in " ".join(short.warnings)


def test_a_program_that_fails_is_a_value(process, python):
    died = run(python, process.url, level(), env={"FAKE_DIES": "1"})
    assert not died.valid
    assert "exit code 3: no module named sglang" in died.warnings[-1]
    absent = run("/no/such/python", process.url, level())
    assert "/no/such/python cannot be started" in absent.warnings[-1]


def test_begins_follow_from_the_order_of_a_closed_loop(tmp_path):
    report = {
        "max_concurrency": 2,
        "output_throughput": 4.0,
        "ttfts": [1.0, 1.0, 1.0, 1.0, 1.0],
        "itls": [[1.0], [2.0], [1.0], [1.0], []],
        "output_lens": [2, 3, 2, 2, 1],
        "errors": [""] * 5,
    }
    path = tmp_path / "report.jsonl"
    path.write_text("older\n" + json.dumps(report) + "\n")
    found = read_report(path)
    assert [request.begin_s for request in found.requests] == [0, 0, 2, 3, 4]
    assert [request.end_s for request in found.requests] == [2, 3, 4, 5, 5]
    measured = steady(found, level(concurrency=2), 1.0, (), 1)
    # from 2 (the first answer is over) to 4 (the last begins), both places are filled
    assert measured.duration_s == 2
    # place one: 2 tokens; place two: 2/2 = 1 of the three-token answer's last gap, and half of the next answer
    assert measured.output_tokens_per_s == pytest.approx((2 + 2 / 2 + 1) / 2)


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"max_concurrency": 1, "output_throughput": "x"}'])
def test_a_report_of_another_shape_is_none(tmp_path, text):
    path = tmp_path / "report.jsonl"
    path.write_text(text)
    assert read_report(path) is None
    assert read_report(tmp_path / "absent") is None
