"""Do servetune's load generator and SGLang's own bench_serving say the same of a running server?

    python benchmarks/load/second_opinion.py URL --python PYTHON_WITH_SGLANG [--concurrency 1,10] [--rounds 3]

Both measure each level in turn, round after round, so that what changes on the machine meanwhile meets both. Printed
per level: the means over the rounds of output tokens/s in the steady part; how far the two of a round are apart, the
median of the rounds; and what
bench_serving itself reports, with ramp and tail. Lengths are uniform from half the given ones on: requests of one
length that begin together stay in step, which only bench_serving does.
"""

import argparse
import os
from statistics import fmean, median

from servetune.benchmarks import closed_loop, sglang_bench
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock

RATIO = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--python", required=True)
    parser.add_argument("--concurrency", default="1,10")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--input-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--requests", type=int, help="per level and round; without it 12 waves, at least 40")
    options = parser.parse_args()
    env = {name: os.environ[name] for name in ("SGLANG_USE_CPU_ENGINE", "HF_HUB_OFFLINE") if name in os.environ}
    lengths = {
        side: (max(1, int(tokens * RATIO)), tokens)
        for side, tokens in (("input", options.input_tokens), ("output", options.output_tokens))
    }
    settings = closed_loop.Settings.model_validate({"lengths": {"uniform": lengths}})
    second = sglang_bench.Settings(python=options.python, env=env, range_ratio=RATIO)
    tools = {"servetune": closed_loop.create(settings), "bench_serving": sglang_bench.create(second)}
    print(f"{'level':>6} {'servetune':>12} {'bench_serving':>14} {'apart':>8} {'it reports':>12}  valid rounds")
    for concurrency in map(int, options.concurrency.split(",")):
        found = {name: [] for name in tools}
        for window in range(options.rounds):
            workload = Workload(
                input_tokens=options.input_tokens,
                output_tokens=options.output_tokens,
                requests_per_level=options.requests or max(40, 12 * concurrency),
            )
            level = Level(concurrency=concurrency, workload=workload, limit_s=300, window=window)
            order = list(tools.items())[:: 1 if window % 2 else -1]
            for name, tool in order:
                measured = tool.run(options.url, level, WallClock(), lambda progress: True, {})
                print(f"  {name}, round {window}: {measured.output_tokens_per_s:.1f}", flush=True)
                found[name].append(measured)
                for warning in () if measured.valid else measured.warnings:
                    print(f"  {name}, level {concurrency}: {warning}", flush=True)
        pairs = [(a, b) for a, b in zip(*found.values(), strict=True) if a.valid and b.valid]
        if not pairs:
            print(f"{concurrency:>6} no round in which both were valid", flush=True)
            continue
        ours, theirs = (fmean(pair[side].output_tokens_per_s for pair in pairs) for side in (0, 1))
        told = fmean(b.details["reported_output_tokens_per_s"] for _, b in pairs)
        apart = median(b.output_tokens_per_s / a.output_tokens_per_s for a, b in pairs) - 1
        rounds = f"{len(pairs)} of {options.rounds}"
        print(f"{concurrency:>6} {ours:>12.1f} {theirs:>14.1f} {apart:>+8.1%} {told:>12.1f}  {rounds}", flush=True)


if __name__ == "__main__":
    main()
