"""1,024 streams and 20,000 events/s against the server's own stamps; what the client costs; what it says when it fails.

The machine may be busy with other work. So the claim that always holds is tested always: figures that are called valid
are right. How much of it this machine can do is measured by `make bench-load`.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fakes.streaming.process import exact_rate_server

from servetune.benchmarks import closed_loop
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock

STREAMS = 1024
ITL_S, TTFT_S, OUTPUT_TOKENS = 0.05, 0.2, 60
#: Tokens per second of the server where the machine lets it keep its schedule.
SCHEDULED = STREAMS * OUTPUT_TOKENS / (TTFT_S + (OUTPUT_TOKENS - 1) * ITL_S)
ATTEMPTS = 4


def measure(url, streams=STREAMS, limit_s=14.0, output_tokens=OUTPUT_TOKENS):
    workload = Workload(input_tokens=64, output_tokens=output_tokens, warmup=streams)
    level = Level(concurrency=streams, workload=workload, limit_s=limit_s)
    generator = closed_loop.create(closed_loop.Settings())
    measurement = generator.run(url, level, WallClock(), lambda progress: True, {})
    assert measurement is not None
    return measurement


def window_of(measurement):
    """Wall times of the measured part."""
    return measurement.details["window_begin_s"], measurement.details["window_end_s"]


def near(found, true, share):
    return abs(found - true) <= share * true


def late_at_most(measurement, stamps, begin, end):
    """Whether the tokens of the window are those that the server sent in it, give or take what was on its way at its
    edges: as late as the loop was at worst, and spread over the gap before it."""
    edge_s = measurement.details["client_worst_lag_s"] + measurement.itl_s.p99
    span_s = end - begin
    fewest = stamps.tokens_per_s(begin, end - edge_s) * (span_s - edge_s)
    most = stamps.tokens_per_s(begin - edge_s, end) * (span_s + edge_s)
    return 0.99 * fewest <= measurement.output_tokens_per_s * span_s <= 1.01 * most


def wrong_times(measurement, stamps, begin, end):
    """Percentiles of TTFT and ITL that are not what the server's own stamps say."""
    wrong = []
    for name, true in (("ttft_s", stamps.ttft(begin, end)), ("itl_s", stamps.itl(begin, end))):
        for percentile, share in ((50, 0.05), (90, 0.05), (99, 0.15)):
            found = getattr(getattr(measurement, name), f"p{percentile}")
            if not near(found, np.percentile(true, percentile), share):
                wrong.append((name, percentile, found, float(np.percentile(true, percentile))))
    return wrong


@pytest.mark.slow
def test_valid_figures_are_right_at_20000_events_per_second():
    """Tokens per second in every valid attempt; times once: what the machine's other work delays between the server's
    write and our read is late, not misread, and a client that misreads does so every time. Where the server itself
    cannot keep its schedule, its rate jumps, and what is late at the window's edges may be more than 1 %."""
    attempts = []
    for _ in range(ATTEMPTS):
        with exact_rate_server("--itl-s", ITL_S, "--ttft-s", TTFT_S) as server:
            measurement = measure(server.url)
            stamps = server.stamps()
        if not measurement.valid:
            continue
        begin, end = window_of(measurement)
        true = stamps.tokens_per_s(begin, end)
        starved = true < 0.97 * SCHEDULED
        assert near(measurement.output_tokens_per_s, true, 0.01) or (
            starved and late_at_most(measurement, stamps, begin, end)
        )
        if starved or any("the client" in warning for warning in measurement.warnings):
            continue
        attempts.append(wrong_times(measurement, stamps, begin, end))
        if not attempts[-1]:
            return
    assert not attempts, attempts
    pytest.skip(f"this machine was too busy in {ATTEMPTS} attempts: {measurement.warnings}")


@pytest.mark.slow
@pytest.mark.parametrize("times", [3, 8])
def test_a_saturated_client_says_so_and_is_never_silently_low(times):
    with exact_rate_server("--itl-s", 0.05 / times, "--ttft-s", 0.2) as server:
        measurement = measure(server.url, limit_s=8.0, output_tokens=60 * times)
        stamps = server.stamps()
    if measurement.valid:
        begin, end = window_of(measurement)
        true = stamps.tokens_per_s(begin, end)
        assert near(measurement.output_tokens_per_s, true, 0.01) or late_at_most(measurement, stamps, begin, end)
    else:
        assert any("client" in warning for warning in measurement.warnings)


def cost_against_aiohttp(server):
    """CPU per event of ours against a plain aiohttp client's, side by side: both suffer alike from other work."""
    program = Path(__file__).parent / "plain_aiohttp.py"
    command = [sys.executable, str(program), server.url, str(STREAMS), "5", "read"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        ours = measure(server.url, limit_s=10.0, output_tokens=256)
        theirs = json.loads(other.communicate(timeout=60)[0])
    own = ours.details["client_cpu_s"] / ours.details["events_in_window"]
    return own / (theirs["cpu_s"] / theirs["events"])


@pytest.mark.slow
def test_an_event_costs_at_most_seven_tenths_of_plain_aiohttp():
    with exact_rate_server("--itl-s", 0.1, "--ttft-s", 0.2) as server:
        ratios = []
        while len(ratios) < ATTEMPTS and min(ratios, default=1.0) > 0.7:
            ratios.append(cost_against_aiohttp(server))
    assert min(ratios) <= 0.7, ratios
