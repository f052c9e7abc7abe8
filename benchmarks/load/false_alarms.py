"""Does the correctness gate raise false alarms? One running server against itself, two hundred times.

    python benchmarks/load/false_alarms.py URL [--sets 12] [--verdicts 200] [--concurrency 10] [--random-weights]

The server answers the gate's prompts `sets` times, alone and under load. Each verdict draws three of the sets: two as
the baseline's, one as a candidate's. Every alarm is a false one, and at most one verdict in a hundred may raise one.
Printed too: how much of an answer agrees between two sets, and the seconds that one set costs.
"""

import argparse
import itertools
import random
import time
from statistics import fmean

from servetune.benchmarks import closed_loop
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--sets", type=int, default=12)
    parser.add_argument("--verdicts", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--random-weights", action="store_true")
    options = parser.parse_args()
    generator = closed_loop.create(closed_loop.Settings())
    level = Level(concurrency=options.concurrency, workload=Workload(input_tokens=64, output_tokens=64), limit_s=600)
    sets, begin = [], time.monotonic()
    for number in range(options.sets):
        found = generator.answers(options.url, level, WallClock(), lambda progress: True, {})
        late = sum(answer.error is not None for answer in (*found.idle, *found.loaded))
        print(
            f"set {number}: {late} answers missing, {(time.monotonic() - begin) / (number + 1):.1f} s each", flush=True
        )
        sets.append(found)
    chance, alarms, agreeing = random.Random(0), 0, []
    triples = list(itertools.permutations(range(options.sets), 3))
    for one, two, three in chance.choices(triples, k=options.verdicts):
        verdict = generator.agreement([sets[one], sets[two]], sets[three], options.random_weights)
        agreeing.append(verdict.figures["under_load_match"])
        alarms += verdict.wrong
        if verdict.wrong:
            print(verdict.findings)
    print(f"{alarms} false alarms in {options.verdicts} verdicts; {fmean(agreeing):.1%} of an answer agrees under load")


if __name__ == "__main__":
    main()
