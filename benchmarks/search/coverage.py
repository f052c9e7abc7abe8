"""The winner's curse: in how many of 100 simulated studies does the reported interval cover the true gain?

    python benchmarks/search/coverage.py [--studies 100]

Noise of 2 %, the adaptive sampler, two node-hours (fifteen launches and the confirmation), each with its own seed.
Every study whose report states an interval counts, also where its verdict is that the baseline stands.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
from pathlib import Path

import yaml

from servetune.cli._virtual_study import run_virtual
from servetune.core.study import NamedChoice
from servetune.core.trial import RunPurpose
from servetune.simulation.model import noise_free_score
from servetune.simulation.scenario import load_scenario
from servetune.tuner.confirm import baselines, lead, winner

HERE = Path(__file__).parent


def noisy(folder: Path) -> Path:
    """A shipped scenario with noise of 2 %."""
    from servetune.simulation import scenario

    document = yaml.safe_load((Path(scenario.__file__).parent / "scenarios" / "generated-13.yaml").read_text())
    document["noise"] = {"cv": 0.02, "outlier_probability": 0.02, "outlier_factor": 0.8}
    folder.mkdir(exist_ok=True)
    file = folder / "noisy.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=100)
    parser.add_argument("--strategy", default="adaptive")
    args = parser.parse_args()
    file = noisy(HERE / ".results")
    made = load_scenario(str(file))
    covered = told = 0
    for seed in range(args.studies):
        keys = {"sampler": NamedChoice(name=args.strategy), "seed": seed, "node_hours": 2.0}
        spec, store, _, _ = run_virtual(str(file), keys)
        trials = store.trials(spec.study)
        best, base = winner(trials, spec), baselines(trials)[0]
        confirmed = [t for t in trials if not t.baseline and any(run.purpose is RunPurpose.CONFIRM for run in t.runs)]
        if best is not None and best.number == base.number and confirmed:
            best = confirmed[0]
        found = None if best is None else lead(best, base, spec)
        if best is None or found is None or found.low is None or found.high is None:
            print(f"seed {seed}: no interval")
            continue
        true = noise_free_score(made, best.assignment) / noise_free_score(made, base.assignment) - 1
        told += 1
        covered += found.low <= true <= found.high
        print(
            f"seed {seed}: reported {found.low:+.3f} to {found.high:+.3f}, true {true:+.3f}; {covered} of {told}",
            flush=True,
        )


if __name__ == "__main__":
    main()
