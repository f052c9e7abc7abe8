"""What a proposal of the adaptive sampler costs as a study grows: CPU seconds of asking, by the trials told before.

    python benchmarks/search/asking.py [--scenario generated-13] [--trials 1000]

The study runs in virtual time and does not end by itself. Printed for each tenth of the trials: median and worst.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import optuna

sys.path.insert(0, str(Path(__file__).parent))

import arena

from servetune.cli._virtual_study import simulate
from servetune.core.space import Choice, SearchSpace
from servetune.core.study import NamedChoice
from servetune.search import sampling


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="generated-13")
    parser.add_argument("--trials", type=int, default=1000)
    options = parser.parse_args()
    costs: list[float] = []
    original = sampling.suggest
    step = max(1, options.trials // 10)

    def suggest(trial: optuna.Trial, space: SearchSpace) -> dict[str, Choice]:
        begin = time.process_time()
        point = original(trial, space)
        costs.append(time.process_time() - begin)
        if len(costs) % step == 0:
            last = costs[-step:]
            print(f"{len(costs):>6} proposals: median {median(last):.3f} s, worst {max(last):.3f} s", flush=True)
        return point

    sampler = NamedChoice(name="adaptive", settings={"stop_gain": 0.0})
    with arena.changed({("cli._virtual_study", "TRIALS"): options.trials, ("search.sampling", "suggest"): suggest}):
        simulate(options.scenario, {"sampler": sampler, "seed": 0, "node_hours": 1e6})
    print(f"{len(costs)} proposals in all; worst {max(costs):.3f} CPU seconds")


if __name__ == "__main__":
    main()
