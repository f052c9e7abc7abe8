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
ATTEMPTS = 4


def measure(url, streams=STREAMS, limit_s=14.0, output_tokens=60):
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
    write and our read is late, not misread, and a client that misreads does so every time."""
    attempts = []
    for _ in range(ATTEMPTS):
        with exact_rate_server("--itl-s", 0.05, "--ttft-s", 0.2) as server:
            measurement = measure(server.url)
            stamps = server.stamps()
        if not measurement.valid:
            continue
        begin, end = window_of(measurement)
        assert near(measurement.output_tokens_per_s, stamps.tokens_per_s(begin, end), 0.01)
        if any("the client" in warning for warning in measurement.warnings):
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
        assert near(measurement.output_tokens_per_s, stamps.tokens_per_s(*window_of(measurement)), 0.01)
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
