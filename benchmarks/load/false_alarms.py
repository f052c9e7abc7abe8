"""Does the correctness gate raise false alarms, and does it raise the right ones?

    python benchmarks/load/false_alarms.py [URL] [--verdicts 200] [--sets 12] [--concurrency 10] [--random-weights]
        [--first-seed 0] [--faulty 40]

With URL: one running server against itself. It answers the gate's prompts `sets` times, alone and under load; each
verdict draws three of the sets, two as the baseline's, one as a candidate's. Every alarm is a false one.

Without: two hundred small random models whose answers differ in their low bits with the batch
(tests/fakes/small_model), each launched three times; then the same with faults, which have to be found. At most two of
the honest may be alarms. `--first-seed` takes other models, `--faulty` so many for each fault.
"""

import argparse
import itertools
import random
import sys
import time
from pathlib import Path
from statistics import fmean

from servetune.benchmarks import closed_loop
from servetune.benchmarks._agreement import compare
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from fakes.small_model import Fault, SmallModel

FAULTS = {
    "another request's state is read for 1 token in 50, under load": Fault(crosstalk=0.02),
    "for 1 token in 200": Fault(crosstalk=0.005),
    "logits 1.5 times as large, under load": Fault(scale=1.5),
    "weights without any mantissa": Fault(low_bits=7, only_loaded=False),
    "(no fault: weights of 4 bits of mantissa)": Fault(low_bits=3, only_loaded=False),
}


def of_server(options: argparse.Namespace) -> None:
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
    chance, verdicts = random.Random(0), []
    triples = list(itertools.permutations(range(options.sets), 3))
    for one, two, three in chance.choices(triples, k=options.verdicts):
        verdicts.append(generator.agreement([sets[one], sets[two]], sets[three], options.random_weights))
    tell("one server against itself", verdicts)


def of_models(name: str, seeds: range, fault: Fault | None) -> None:
    verdicts = []
    for seed in seeds:
        model = SmallModel(seed, sharpness=3.0)
        launches = [model.answers(3 * seed), model.answers(3 * seed + 1), model.answers(3 * seed + 2, fault)]
        verdicts.append(compare(launches[:2], launches[2]))
    tell(name, verdicts)


def tell(name: str, verdicts: list) -> None:
    alarms = [verdict for verdict in verdicts if verdict.wrong]
    agrees = fmean(verdict.figures["under_load_match"] for verdict in verdicts)
    print(f"{name}: {len(alarms)} of {len(verdicts)} wrong; {agrees:.0%} of an answer agrees under load", flush=True)
    for verdict in alarms[:1]:
        print("  " + "; ".join(verdict.findings), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--sets", type=int, default=12)
    parser.add_argument("--verdicts", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=10)
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--faulty", type=int, default=40)
    options = parser.parse_args()
    if options.url:
        of_server(options)
        return
    begin = options.first_seed
    of_models("honest", range(begin, begin + options.verdicts), None)
    for name, fault in FAULTS.items() if options.faulty else ():
        of_models(name, range(begin, begin + options.faulty), fault)


if __name__ == "__main__":
    main()
