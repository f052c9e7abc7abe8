"""Each honesty check on both sides of its threshold: what it says, and whether the figures may be used."""

from collections import Counter

import numpy as np
import pytest

from servetune.benchmarks._checks import (
    Comparison,
    Effort,
    ServerView,
    Window,
    concurrency_held,
    effort_between,
    of_client,
    of_concurrency,
    of_counters,
    of_delays,
    of_prompts,
    of_requests,
    of_restart,
    of_server,
    of_silence,
    of_steadiness,
    server_view,
)
from servetune.benchmarks._holder import EffortSeries
from servetune.benchmarks._metrics import Events, Requests, TimeMap
from servetune.benchmarks._observer import Reading
from servetune.benchmarks._records import Outcome, Records
from servetune.core.benchmark import Percentiles

WINDOW = Window(0.0, 10.0)
WALL = TimeMap(0.0, 0.0, 1.0)


def told(findings):
    """Sentences, those that make the measurement invalid with a `!` before them."""
    return [("!" if finding.fatal else "") + finding.text for finding in findings]


def requests(*rows):
    """Rows of sent, ended, outcome."""
    sent, ended, outcome = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    return Requests(sent, ended, np.ones(len(rows), int), outcome.astype(int), np.ones(len(rows)))


def steady_events(rates, per_s=10):
    """One stream that makes so many tokens in each second."""
    edges = np.arange(len(rates) * per_s + 1) / per_s
    count = len(edges) - 1
    tokens = np.repeat(np.array(rates, float), per_s) / per_s
    return Events(edges[1:], edges[:-1], np.zeros(count, bool), tokens, np.zeros(count, int))


def effort(cpu_s=0.0, waiting_s=0.0, mean_lag_s=0.0, p99_lag_s=0.0):
    return Effort(cpu_s, waiting_s, 10.0, mean_lag_s, p99_lag_s, 2 * p99_lag_s, cpu_s, 0.0)


def latency(seconds):
    return Percentiles(mean=seconds, p50=seconds, p90=seconds, p95=seconds, p99=seconds)


def test_more_than_one_failure_in_a_hundred_invalidates():
    rows = [(0, 1, Outcome.COMPLETED)] * 199
    few = requests(*rows, (0, 2, Outcome.FAILED))
    assert told(of_requests(few, Counter({"HTTP 503": 1}), WINDOW)) == [
        "1 request failed, 1 of 200 in the measured part: 1 × HTTP 503"
    ]
    more = requests(*rows, *[(0, 2, Outcome.FAILED)] * 3)
    assert told(of_requests(more, Counter({"HTTP 503": 3}), WINDOW))[0].startswith("!3 requests failed, 3 of 202")
    outside = requests(*rows, *[(0, 12, Outcome.FAILED)] * 3)
    assert told(of_requests(outside, Counter({"x": 3}), WINDOW))[0].startswith("3 requests failed, 0 of 199")


@pytest.mark.parametrize(
    ("cpu_s", "waiting_s", "said"),
    [
        (6.0, 0.5, []),
        (7.5, 0.5, ["the client was near its limit: its event loop was busy 80% of the time"]),
        (5.0, 4.5, ["!the client was saturated: its event loop was busy 95% of the time"]),
    ],
)
def test_a_busy_client(cpu_s, waiting_s, said):
    found = told(of_client(effort(cpu_s, waiting_s), None))
    assert [text.partition(" (")[0] for text in found] == said


def test_a_late_client():
    assert told(of_client(effort(mean_lag_s=0.004), 0.1)) == []
    late = told(of_client(effort(mean_lag_s=0.006), 0.1))
    assert late == [
        "!the client's event loop was 6 ms late on average (at worst 0 ms) while an answer took 100 ms: "
        "that is 6.0%, and 5% is the most",
    ]


def test_delays_in_latencies_are_told_where_time_is_not_compressed():
    assert told(of_delays(effort(p99_lag_s=0.0011), latency(0.002), 1.0)) == [], "the timer's own step"
    slow = effort(p99_lag_s=0.005)
    assert told(of_delays(slow, latency(0.03), 1.0)) == []
    assert "5.0 ms late at p99, where ITL p99 is 20.0 ms" in told(of_delays(slow, latency(0.02), 1.0))[0]
    assert told(of_delays(slow, latency(0.02), 60.0)) == []


def test_the_busiest_worker_decides():
    idle, busy = EffortSeries(), EffortSeries()
    for second in range(11):
        for one, share in ((idle, 0.1), (busy, 0.95)):
            one.wall_s.append(float(second))
            one.cpu_s.append(second * share)
            one.waiting_s.append(0.0)
            one.lag_s.append(0.001)
            one.queued.append(2)
    found = effort_between([idle, busy], 0.0, 10.0)
    assert found.busy_share == pytest.approx(0.95)
    assert (found.total_cpu_s, found.queued) == (pytest.approx(10.5), pytest.approx(4))


def test_requests_in_flight_against_what_was_asked():
    half_open = requests(*[(0, 10, Outcome.COMPLETED)] * 8, (5, 0, Outcome.IN_FLIGHT), (-3, -1, Outcome.COMPLETED))
    assert concurrency_held(half_open, WINDOW) == pytest.approx(8.5)
    assert told(of_concurrency(8.5, 9)) == []
    assert told(of_concurrency(8.5, 10)) == ["!only 8.5 of 10 requests were in flight on average; 90% is the least"]


def test_what_the_server_says_of_its_load():
    assert told(of_server(ServerView(running=9, most=10, queued=0.1, retracted=0, readings=5), 10.0)) == []
    assert told(of_server(ServerView(most=6, readings=5), 10.0)) == [
        "the server counted 6 requests at most in 5 readings where the client held 10.0"
    ]
    assert told(of_server(ServerView(most=6, readings=2), 10.0)) == []  # two readings say little
    assert told(of_server(ServerView(running=8.0, queued=4.0, readings=5), 12.0)) == [
        "4.0 of 12.0 requests waited in the server's queue on average, 8.0 ran"
    ]
    assert told(of_server(ServerView(retracted=3.0, outside_graphs=0.4), 12.0)) == [
        "the server retracted 3 requests: its KV pool was full",
        "40% of the decode steps ran outside captured graphs",
    ]


def test_gauges_are_averaged_and_counters_subtracted_inside_the_window():
    values = (
        {"running": 1.0, "queued": 50.0, "decodes": 5.0, "eager_decodes": 5.0},
        {"running": 10.0, "queued": 0.0, "decodes": 10.0, "eager_decodes": 5.0},
        {"running": 8.0, "queued": 4.0, "decodes": 110.0, "eager_decodes": 30.0, "retracted": 2.0},
        {"running": 0.0, "queued": 0.0, "decodes": 999.0, "eager_decodes": 999.0},
    )
    at_s = (-1.0, 1.0, 9.0, 11.0)
    readings = [Reading(s, value) for s, value in zip(at_s, values, strict=True)]
    found = server_view(readings, WINDOW, WALL)
    assert (found.running, found.queued, found.most, found.readings) == (9.0, 2.0, 12.0, 2)
    assert (found.retracted, found.outside_graphs) == (2.0, 0.25)  # that counter began when it was first counted


def test_counters_two_percent_apart():
    assert told(of_counters(Comparison(server=1000, client=981, slack=0, span_s=10))) == []
    assert told(of_counters(Comparison(server=1000, client=970, slack=0, span_s=10))) == [
        "!the server counted 1000 output tokens where the client received 970 in the same 10.0 s: more than 2 % apart"
    ]
    assert told(of_counters(Comparison(server=1000, client=970, slack=20, span_s=10))) == []
    assert told(of_counters(None)) == []


def test_a_counter_that_falls_is_another_process():
    counts = [Reading(s, {"generated": value}) for s, value in enumerate((100.0, 900.0, 40.0, 500.0))]
    assert told(of_restart(counts)) == [
        "!the server was started anew during the level: its count of output tokens fell from 900 to 40"
    ]
    assert told(of_restart([*counts[:2], Reading(2.5, {})])) == []


def test_prompts_out_of_the_cache_or_of_another_length():
    part = Records()
    part.prompts_counted, part.input_tokens, part.prompt_tokens, part.cached_tokens = 10, 1000, 1009, 20
    assert told(of_prompts([part])) == []
    part.cached_tokens = 120
    assert told(of_prompts([part])) == ["11.9% of the prompt tokens came out of the server's prefix cache"]
    part.prompt_tokens, part.cached_tokens = 1300, 0
    assert told(of_prompts([part])) == ["the server read 130.0 prompt tokens where 100.0 were sent"]


def test_halves_that_differ_beyond_noise_and_a_start_too_early():
    drifting = steady_events([100.0] * 5 + [120.0] * 5)
    assert told(of_steadiness(drifting, WINDOW, half_width=5.0, settled=True)) == [
        "the halves of the measured part differ: 100.0 and 120.0 output tokens/s"
    ]
    assert told(of_steadiness(drifting, WINDOW, half_width=8.0, settled=True)) == []  # noise explains it
    assert told(of_steadiness(steady_events([100.0] * 10), WINDOW, 1.0, settled=False)) == [
        "the load had not settled when measuring began: two windows before it differed by over 5 %"
    ]


def test_answers_that_fell_silent():
    events = steady_events([10.0] * 10)  # request 0 gives a token each tenth of a second until second 10
    open_ = requests((0, 0, Outcome.IN_FLIGHT))
    assert told(of_silence(open_, events, 11.0)) == []
    assert told(of_silence(open_, events, 13.0)) == [
        "!1 of 1 answers under way at the end had given no token for 3.0 to 3.0 s"
    ]
