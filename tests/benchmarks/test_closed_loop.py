"""The closed loop against real servers that behave, and against every way in which one can misbehave."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from contracts.load_generator_contract import LoadGeneratorContract, trusted
from fakes.streaming.process import exact_rate_server

from servetune.benchmarks import closed_loop
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock

FAST = ("--itl-s", 0.005, "--ttft-s", 0.02)


@pytest.fixture(scope="module")
def process():
    with exact_rate_server(*FAST) as server:
        yield server


def create(**settings):
    return closed_loop.create(closed_loop.Settings(**settings))


def level(concurrency=8, output_tokens=20, requests=40, limit_s=60.0, **workload):
    load = Workload(
        input_tokens=32, output_tokens=output_tokens, requests_per_level=requests, warmup=concurrency, **workload
    )
    return Level(concurrency=concurrency, workload=load, limit_s=limit_s)


def run(url, wanted, clock=None, **settings):
    begin = time.monotonic()
    measurement = create(**settings).run(url, wanted, clock or WallClock(), lambda progress: True, {})
    assert time.monotonic() - begin < 20, "hung"
    assert measurement is not None
    return measurement


class TestContract(LoadGeneratorContract):
    @pytest.fixture
    def base_url(self, process):
        return process.url

    @pytest.fixture
    def generator(self):
        return create()

    @pytest.fixture
    def clock(self):
        return WallClock(10.0)

    @pytest.fixture
    def level(self):
        return level()


ODD = [
    ("sglang", ()),
    ("sglang", ("--duplicate",)),
    ("sglang", ("--tokens-per-event", 3)),
    ("sglang", ("--utf8", "--split", 61)),
    ("sglang", ("--utf8", "--split", 13, "--itl-s", 0.02)),
    ("sglang", ("--trickle",)),
    ("sglang", ("--gzip",)),
    ("sglang", ("--close",)),
    ("sglang", ("--ids",)),
    ("sglang", ("--slow-first-s", 0.3, "--slow-first-every", 5)),
    ("openai", ()),
    ("openai", ("--utf8", "--split", 11, "--itl-s", 0.02)),
    ("openai", ("--running-usage",)),
    ("openai", ("--running-usage", "--duplicate", "--tokens-per-event", 4)),
    ("openai", ("--gzip", "--tokens-per-event", 3)),
]


def words(value):
    return " ".join(str(item) for item in value) or "plain" if isinstance(value, tuple) else None


@pytest.mark.parametrize(("api", "behaviour"), ODD, ids=words)
def test_odd_but_right_answers_are_counted_exactly(process, api, behaviour):
    server = process.behaving(*FAST, *behaviour)
    measurement = run(server.url, level(api=api))
    stamps = server.stamps()
    assert trusted(measurement), measurement.warnings
    assert measurement.requests_failed == 0
    assert measurement.requests_completed >= 30  # 40, but for those that ended in the last moment
    # every token that the server sent was received and counted once, but for what was cut at the end
    sent, cut = stamps.tokens.sum(), 8 * 4
    assert 0.97 * sent - cut <= measurement.details["tokens_in_all"] <= sent


EVERY_OTHER = ("--every", 2)
CUT = "connection closed before the end of the answer"
WRONG = [
    ("sglang", ("--refuse-after", 12), 'HTTP 503: {"error":"overloaded"}'),
    ("sglang", (*EVERY_OTHER, "--reset-after", 5), "connection"),
    ("sglang", (*EVERY_OTHER, "--early-end-after", 5, "--early-end", "done"), "5 of 20 tokens, finish reason none"),
    ("sglang", (*EVERY_OTHER, "--early-end-after", 5, "--early-end", "cut"), CUT),
    ("sglang", ("--wrong-count", 3), "23 of 20 tokens, finish reason length"),
    ("openai", (*EVERY_OTHER, "--early-end-after", 5, "--early-end", "done"), "5 of 20 tokens, finish reason none"),
    ("openai", ("--wrong-count", 30), "50 of 20 tokens, finish reason length"),
]


@pytest.mark.parametrize(("api", "behaviour", "reason"), WRONG, ids=words)
def test_wrong_answers_are_failures_and_make_the_measurement_invalid(process, api, behaviour, reason):
    server = process.behaving(*FAST, *behaviour)
    measurement = run(server.url, level(api=api, limit_s=1.5))
    assert not measurement.valid
    told = " ".join(warning for warning in measurement.warnings if "requests failed" in warning)
    assert reason in told


def test_nothing_but_refusals_is_never_a_fast_success(process):
    server = process.behaving(*FAST, "--refuse-after", 0)
    measurement = run(server.url, level(limit_s=10.0))
    requests = server.counts()["requests"]
    assert (measurement.output_tokens_per_s, measurement.requests_completed, measurement.valid) == (0.0, 0, False)
    assert requests < 200, "a refusing server is not hammered"
    assert "ended early" in " ".join(measurement.warnings)


def test_stalled_streams_are_given_up(process):
    server = process.behaving(*FAST, "--stall-after", 5, "--every", 4)
    measurement = run(server.url, level(limit_s=6.0), stall_s=0.5)
    assert "stalled in the middle of an answer" in " ".join(measurement.warnings)
    assert not measurement.valid
    assert measurement.requests_completed > 0


def test_streams_that_stall_for_good_do_not_outlast_the_limit(process):
    server = process.behaving(*FAST, "--stall-after", 5)
    begin = time.monotonic()
    measurement = run(server.url, level(limit_s=2.0))
    assert time.monotonic() - begin < 5
    assert not measurement.valid
    assert "answers under way at the end had given no token" in " ".join(measurement.warnings)


def test_a_level_too_short_for_an_answer_says_how_long_one_takes(process):
    found = run(process.url, level(output_tokens=4000, requests="auto", limit_s=2.0))
    assert not found.valid
    assert found.output_tokens > 0
    told = next(warning for warning in found.warnings if warning.startswith("no request was completed"))
    assert "at this pace an answer takes about " in told
    assert "and the level may last 2 s" in told
    assert 15 < float(told.split("about ")[1].split()[0]) < 60  # 20 s, and a busy machine's part


def test_it_empties_the_cache_and_holds_the_concurrency_on_the_same_connections(process):
    server = process.behaving(*FAST, "--ids")  # counts of its own
    measurement = run(server.url, level(concurrency=16, requests=100))
    counts = server.counts()
    assert counts["flushed"] == 1
    assert counts["peak"] == 16
    assert measurement.details["concurrency_held"] == pytest.approx(16, rel=0.05)


def test_server_counters_that_disagree_invalidate(process):
    automatic = level(requests="auto")
    server = process.behaving(*FAST, "--metrics")
    honest = run(server.url, automatic, WallClock(20.0))
    assert honest.details["server_output_tokens_per_s"] == pytest.approx(honest.output_tokens_per_s, rel=0.1)
    assert trusted(honest), honest.warnings
    server = process.behaving(*FAST, "--metrics", "--metrics-factor", 1.5)
    cheated = run(server.url, automatic, WallClock(20.0))
    assert not cheated.valid
    assert "the server counted" in " ".join(cheated.warnings)


def test_a_server_that_is_started_anew_during_a_level_is_noticed():
    load = level(concurrency=4, requests="auto", limit_s=9.0)
    with ThreadPoolExecutor(1) as elsewhere:
        with exact_rate_server(*FAST, "--metrics") as first:
            measuring = elsewhere.submit(run, first.url, load)
            time.sleep(3.5)  # a reading every two seconds
        with exact_rate_server(*FAST, "--metrics", "--port", first.url.rpartition(":")[2]):
            measured = measuring.result()
    assert not measured.valid
    told = " ".join(measured.warnings)
    assert "the server was started anew during the level: its count of output tokens fell from " in told
    assert "the server counted -" not in told


def test_compressed_time_is_node_time(process):
    server = process.behaving(*FAST)
    slow = run(server.url, level(requests=100), WallClock(1.0))
    fast = run(server.url, level(requests=100), WallClock(50.0))
    assert slow.output_tokens_per_s == pytest.approx(50 * fast.output_tokens_per_s, rel=0.15)
    assert fast.ttft_s.p50 == pytest.approx(50 * slow.ttft_s.p50, rel=0.3)


def test_headers_and_prompts_reach_the_server_and_are_the_same_each_time(tmp_path):
    bodies = []
    for name in ("first", "second"):
        with exact_rate_server(*FAST, "--record", tmp_path / name) as server:
            create().run(server.url, level(concurrency=1, requests=4), WallClock(), lambda p: True, {"X-Key": "abc"})
        rows = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        assert all(row["headers"].get("x-key") == "abc" for row in rows)
        bodies.append([row["body"] for row in rows if row["path"] == "/generate"][:5])
    assert bodies[0] == bodies[1]
    assert len({json.dumps(body["input_ids"]) for body in bodies[0]}) == 5
    assert all(len(body["input_ids"]) == 32 and body["stream"] is True for body in bodies[0])
    assert bodies[0][0]["sampling_params"] == {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True}


def test_prompts_that_the_server_reads_otherwise_are_told(process):
    server = process.behaving(*FAST, "--prompt-tokens", 500)
    found = run(server.url, level())
    assert "the server read 500.0 prompt tokens where 32.0 were sent" in found.warnings
