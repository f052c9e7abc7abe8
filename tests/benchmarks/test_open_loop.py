"""The open loop: requests at their own times, and what is said when they come faster than they can be answered."""

import itertools
import json

import pytest
from contracts.load_generator_contract import LoadGeneratorContract
from fakes.streaming.process import exact_rate_server

from servetune.benchmarks import open_loop
from servetune.benchmarks._lengths import PoissonArrivals, TraceArrivals, read_trace
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock
from servetune.core.errors import SpecError

FAST = ("--itl-s", 0.005, "--ttft-s", 0.02)


@pytest.fixture(scope="module")
def process():
    with exact_rate_server(*FAST) as server:
        yield server


def level(concurrency=64, requests=80, limit_s=60.0, output_tokens=20):
    workload = Workload(input_tokens=16, output_tokens=output_tokens, requests_per_level=requests, warmup=4)
    return Level(concurrency=concurrency, workload=workload, limit_s=limit_s)


def run(url, wanted, **settings):
    generator = open_loop.create(open_loop.Settings(**settings))
    found = generator.run(url, wanted, WallClock(), lambda progress: True, {})
    assert found is not None
    return found


def trace_of(tmp_path, *rows):
    path = tmp_path / "traffic.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


class TestContract(LoadGeneratorContract):
    @pytest.fixture
    def base_url(self, process):
        return process.url

    @pytest.fixture
    def generator(self):
        return open_loop.create(open_loop.Settings(rate="poisson:60"))

    @pytest.fixture
    def level(self):
        return level()


def test_requests_arrive_at_the_server_at_the_traces_own_times(process, tmp_path):
    server = process.behaving(*FAST)
    gaps_s = (0.0, 0.3, 0.1, 0.2)
    rows = [{"input": 8, "output": 4, "arrival": 7 + sum(gaps_s[: i + 1])} for i in range(4)]
    found = run(server.url, level(requests=8), rate="trace", lengths={"trace": trace_of(tmp_path, *rows)})
    assert found.requests_failed == 0
    received = server.stamps().received
    # the machine may delay a request, which shifts two gaps; not the sum over a period of the trace (0.6 s and 0.2)
    periods = received[4::4][:2] - received[0::4][: len(received[4::4][:2])]
    assert list(periods) == pytest.approx([0.8] * len(periods), abs=0.15)


def test_requests_beyond_the_most_in_flight_wait_in_the_client_and_the_server_is_not_blamed(process):
    server = process.behaving("--itl-s", 0.05, "--ttft-s", 0.05, "--metrics")
    found = run(server.url, level(concurrency=4, requests=40, limit_s=8.0), rate="poisson:50")
    told = " ".join(found.warnings)
    assert server.counts()["peak"] <= 4
    assert "requests on average waited in the client: at most 4 were in flight" in told
    assert "the server falls behind: " in told
    assert "requests at most in" not in told  # 4 is what the client held there
    assert found.ttft_s.p90 > 1  # from when they came, not from when they were sent


def test_a_rate_that_no_client_can_send_does_not_hang(process):
    found = run(process.url, level(concurrency=8, requests=100_000, limit_s=2.0, output_tokens=5), rate="poisson:1e9")
    assert found.requests_completed > 0
    assert "waited in the client" in " ".join(found.warnings)


def test_a_trace_is_taken_in_the_order_of_its_arrivals(tmp_path):
    rows = ({"input": 1, "output": 10, "arrival": 5.0}, {"input": 2, "output": 20, "arrival": 3.5})
    trace = read_trace(trace_of(tmp_path, *rows))
    assert trace.pairs == ((2, 20), (1, 10))
    assert trace.arrivals_s == (0.0, 1.5)
    untimed = read_trace(trace_of(tmp_path, {"input": 1, "output": 2}, {"input": 3, "output": 4, "arrival": 0}))
    assert (untimed.pairs, untimed.arrivals_s) == (((1, 2), (3, 4)), None)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"input": 8, "output": 4, "arrival": 5}] * 3, "has one time only"),
        ([{"input": 8, "output": 4}], "needs an 'arrival' in every line"),
        ([{"input": 8, "output": 4, "arrival": float("nan")}], "'arrival' must be seconds, got nan"),
        ([{"input": 8, "output": 4, "arrival": 10**400}], "'arrival' must be seconds"),
        ([{"input": 8, "output": 4, "arrival": "5"}], "'arrival' must be seconds, got '5'"),
        ([{"input": 0, "output": 4, "arrival": 5}], "'input' must be a number of tokens from 1 on, got 0"),
        ([[8, 4]], "line 1: 'input' must be a number of tokens"),
        ([], "holds no request"),
    ],
)
def test_traces_that_cannot_be(tmp_path, rows, words):
    with pytest.raises(SpecError, match=words):
        open_loop.create(open_loop.Settings(rate="trace", lengths={"trace": trace_of(tmp_path, *rows)}))


def test_arrivals_go_on_after_the_traces_end():
    found = list(itertools.islice(TraceArrivals((0.0, 1.0, 4.0)).times_s(), 7))
    assert found == [0.0, 1.0, 4.0, 6.0, 7.0, 10.0, 12.0]


def test_poisson_arrivals_have_their_rate_and_are_the_same_each_time():
    times = list(itertools.islice(PoissonArrivals(20.0, seed=3).times_s(), 20_000))
    assert times == list(itertools.islice(PoissonArrivals(20.0, seed=3).times_s(), 20_000))
    assert len(times) / times[-1] == pytest.approx(20, rel=0.03)  # 4 standard errors
