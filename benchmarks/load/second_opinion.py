"""Do servetune's load generator and SGLang's own bench_serving say the same of a server?

    python benchmarks/load/second_opinion.py [URL] --python PYTHON_WITH_SGLANG [--loads mixed,in-step,staggered]
        [--concurrency 10] [--rounds 6]

Both measure each load in turn, round after round in changing order. Loads: `mixed`, lengths uniform from half the given
ones on; `in-step`, all lengths alike and all requests begun together, as bench_serving does; `staggered`, the same
lengths, of which servetune begins one after the other (bench_serving cannot, and stays in step).

The third witness is the server, in each tool's own measured part: its count of output tokens of finished answers
(`/metrics`, so start it with --enable-metrics), read four times a second; without URL the tests' server of exactly
known rate, by the stamps of what it sent. A machine whose speed changes between two runs moves the tools apart, not a
tool from its witness. Printed per load: medians over the rounds of output tokens/s; `apart`, the ratio of the two tools
in a round; each tool's ratio to its witness; `by witness`, the ratio of these two ratios in a round, which says whether
the tools agree whatever the machine did meanwhile; and the requests in flight that each held (a client that needs long
from one answer to the next request holds another load than was asked).
"""

import argparse
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

import httpx
import numpy as np

from servetune.benchmarks import closed_loop, sglang_bench
from servetune.core.benchmark import Level, LoadGenerator, Measurement, Workload
from servetune.core.clock import WallClock

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from fakes.streaming.process import exact_rate_server

RATIO = 0.5
EXACT = ("--itl-s", 0.02, "--ttft-s", 0.2)
LOADS = ("mixed", "in-step", "staggered")
COUNTER = re.compile(r"^sglang:generation_tokens_total\S*\s+(\S+)", re.MULTILINE)
EVERY_S = 0.25


class Witness(Protocol):
    """What the server says of a run."""

    def __enter__(self) -> "Witness": ...

    def __exit__(self, *_: object) -> None: ...

    def rate(self, begin_s: float, end_s: float) -> float:
        """Output tokens per second between two times of the monotonic clock."""

    def end_s(self) -> float:
        """When the run's last token was made."""


class Counter:
    """A real server's count of output tokens of finished answers, read from begin to end."""

    def __init__(self, url: str) -> None:
        self._url, self._over = f"{url}/metrics", threading.Event()
        self._times: list[float] = []
        self._tokens: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Counter":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with httpx.Client(timeout=30) as client:
            while True:
                over = self._over.is_set()
                before = time.monotonic()
                text = client.get(self._url).text
                self._times.append((before + time.monotonic()) / 2)
                self._tokens.append(sum(map(float, COUNTER.findall(text))))
                if over:
                    return
                self._over.wait(EVERY_S)

    def _rises(self) -> np.ndarray:
        """Readings in which the counter has risen."""
        return np.flatnonzero(np.diff(self._tokens) > 0) + 1

    def rate(self, begin_s: float, end_s: float) -> float:
        """From one rise to another, those nearest to both times: answers that end together make it rise in steps.

        Only those inside would leave out a wave at either end, and with it how fast the machine was then.
        """
        times, tokens, rises = np.array(self._times), np.array(self._tokens), self._rises()
        if len(rises) < 2:
            return 0.0
        first, last = (rises[np.argmin(np.abs(times[rises] - edge_s))] for edge_s in (begin_s, end_s))
        return float((tokens[last] - tokens[first]) / (times[last] - times[first])) if last > first else 0.0

    def end_s(self) -> float:
        return self._times[int(self._rises()[-1])] - EVERY_S / 2


class StampedServer:
    """The tests' server: when it sent how many tokens. One run."""

    def __init__(self, server) -> None:
        self._server = server

    def __enter__(self) -> "StampedServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._stamps = self._server.stamps()

    def rate(self, begin_s: float, end_s: float) -> float:
        return self._stamps.tokens_per_s(begin_s, end_s)

    def end_s(self) -> float:
        return float(self._stamps.time[-1])


@dataclass(frozen=True)
class Tool:
    name: str
    generator: LoadGenerator
    window_s: Callable[[Measurement, Witness], tuple[float, float]]


def own_window_s(measured: Measurement, witness: Witness) -> tuple[float, float]:
    return measured.details["window_begin_s"], measured.details["window_end_s"]


def reported_window_s(measured: Measurement, witness: Witness) -> tuple[float, float]:
    """bench_serving does not tell the time of day; its run ended when the server's counter last rose."""
    begin_s = witness.end_s() - measured.details["window_begin_to_end_of_run_s"]
    return begin_s, begin_s + measured.duration_s


def tools_for(load: str, options: argparse.Namespace) -> tuple[Tool, Tool]:
    env = {name: os.environ[name] for name in ("SGLANG_USE_CPU_ENGINE", "HF_HUB_OFFLINE") if name in os.environ}
    ratio = RATIO if load == "mixed" else 1.0
    lengths = {
        side: (max(1, int(tokens * ratio)), tokens)
        for side, tokens in (("input", options.input_tokens), ("output", options.output_tokens))
    }
    settings = closed_loop.Settings.model_validate(
        {"lengths": {"uniform": lengths}, "in_step": load != "staggered", "stall_s": 300}
    )
    second = sglang_bench.Settings(python=options.python, tokenizer=options.tokenizer, env=env, range_ratio=ratio)
    return (
        Tool("servetune", closed_loop.create(settings), own_window_s),
        Tool("bench_serving", sglang_bench.create(second), reported_window_s),
    )


@dataclass(frozen=True)
class Run:
    measured: Measurement
    witnessed: float

    @property
    def to_witness(self) -> float:
        """What the tool measured over what the server counted in the same seconds."""
        return self.measured.output_tokens_per_s / self.witnessed


def run(tool: Tool, options: argparse.Namespace, level: Level) -> Run:
    exact = nullcontext() if options.url else exact_rate_server(*EXACT)
    with exact as server:
        url = options.url or server.url
        with Counter(url) if options.url else StampedServer(server) as witness:
            measured = tool.generator.run(url, level, WallClock(), lambda progress: True, {})
    assert measured is not None
    witnessed = witness.rate(*tool.window_s(measured, witness)) if measured.duration_s else 0.0
    print(
        f"  {tool.name}, round {level.window}: {measured.output_tokens_per_s:.1f} in {measured.duration_s:.0f} s, the "
        f"server counted {witnessed:.1f}; {measured.details.get('concurrency_held', 0):.2f} in flight"
        f"{'' if measured.valid else ', not valid'}",
        flush=True,
    )
    for warning in measured.warnings:
        print(f"    {warning}", flush=True)
    return Run(measured, witnessed)


def study(load: str, concurrency: int, options: argparse.Namespace) -> None:
    tools = tools_for(load, options)
    found: list[list[Run]] = [[], []]
    for window in range(options.rounds):
        workload = Workload(
            input_tokens=options.input_tokens,
            output_tokens=options.output_tokens,
            requests_per_level=options.requests or max(40, 20 * concurrency),
        )
        level = Level(concurrency=concurrency, workload=workload, limit_s=300, window=window + options.first_window)
        for side in (0, 1) if window % 2 else (1, 0):
            found[side].append(run(tools[side], options, level))
    both = zip(*found, strict=True)
    pairs = [(a, b) for a, b in both if all(one.measured.valid and one.witnessed for one in (a, b))]
    if not pairs:
        print(f"{load:>10} {concurrency:>6} no round in which both were valid and the server counted", flush=True)
        return
    apart = median(b.measured.output_tokens_per_s / a.measured.output_tokens_per_s for a, b in pairs) - 1
    by_witness = median(b.to_witness / a.to_witness for a, b in pairs) - 1
    rates, own, held = [], [], []
    for runs in zip(*pairs, strict=True):
        rates.append(median(run.measured.output_tokens_per_s for run in runs))
        own.append(median(run.to_witness for run in runs) - 1)
        held.append(median(run.measured.details["concurrency_held"] for run in runs))
    print(
        f"{load:>10} {concurrency:>6} {rates[0]:>10.1f} {rates[1]:>14.1f} {apart:>+8.1%} {own[0]:>+12.1%} "
        f"{own[1]:>+14.1%} {by_witness:>+11.1%} {held[0]:>8.2f} {held[1]:>8.2f}  {len(pairs)} of {options.rounds}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="without it, the tests' server of exactly known rate")
    parser.add_argument("--python", required=True)
    parser.add_argument("--tokenizer", help="a folder of one; needed without URL")
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--concurrency", default="10")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--input-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--requests", type=int, help="per load and round; without it 20 waves, at least 40")
    parser.add_argument("--first-window", type=int, default=0, help="a repeated study takes other prompts")
    options = parser.parse_args()
    print(
        f"{'load':>10} {'level':>6} {'servetune':>10} {'bench_serving':>14} {'apart':>8} {'to witness':>12} "
        f"{'its to witness':>14} {'by witness':>11} {'held':>8} {'its held':>8}  valid rounds"
    )
    for load in options.loads.split(","):
        for concurrency in map(int, options.concurrency.split(",")):
            study(load, concurrency, options)


if __name__ == "__main__":
    main()
