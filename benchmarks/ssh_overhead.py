"""What the SSH node adds to a trial over the local node, in one run: the same small study on both, interleaved.

    python benchmarks/ssh_overhead.py [--rounds 3]

Starts an OpenSSH server on a loopback port with keys of its own; the server of each trial is the simulated one at a
high time scale, so that what remains is the tuner's own time. Prints wall seconds per trial and their difference.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from nodes.sshd import running
from tuner.ssh_lab import SCENARIO, Happening, Lab

MOST_S = 2.0


class Trials(Happening):
    """Wall seconds from the launch of each trial to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.began = 0.0
        self.took: list[float] = []

    def on(self, event) -> None:
        super().on(event)
        if type(event).__name__ == "TrialStarted":
            self.began = time.monotonic()
        if type(event).__name__ == "RunEnded":
            self.took.append(time.monotonic() - self.began)


def measured(lab: Lab, node: dict) -> float:
    file = lab.write(node, budget={"trials": 2}, load_generator={"name": "scenario"})
    trials = Trials()
    lab.sit(file, trials)
    return statistics.median(trials.took)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "sshd") as sshd:
        lab = Lab(sshd, Path(folder))
        local = {"name": "simulated", "scenario": SCENARIO, "time_scale": 2000}
        here, there = [], []
        for _ in range(rounds):
            here.append(measured(lab, local))
            there.append(measured(lab, lab.node()))
    difference = statistics.median(there) - statistics.median(here)
    print(f"local {statistics.median(here):.2f} s, ssh {statistics.median(there):.2f} s a trial (medians of {rounds})")
    print(f"the SSH node adds {difference:+.2f} s a trial; allowed: less than {MOST_S:g} s")
    return 0 if difference < MOST_S else 1


if __name__ == "__main__":
    sys.exit(main())
