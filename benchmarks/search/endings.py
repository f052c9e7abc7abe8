"""What ending levels and trials early is worth: node time saved, wrong stops, hours to 95 and 98 % of the optimum.

    python benchmarks/search/endings.py --count 12 usual ended full full-ended racing-2 racing-10 racing-30

`ended` ends a level that is surely below the best one's (`budget.level_error`, 1 %); in `full` and
`full-ended` levels are not shortened otherwise. `racing-N`: trials end by the pruner `racing` with an error of N %.
`highest-first`: the highest load first. A stop is wrong when the level, or the trial, was in truth as good as the best
one's. Resumable like `run.py`, whose scenarios and hours it takes.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

import arena
import run

from servetune.cli._virtual_study import run_virtual
from servetune.core.benchmark import Level, Measurement
from servetune.core.study import NamedChoice
from servetune.simulation.model import noise_free_score
from servetune.simulation.scenario import Scenario, load_scenario
from servetune.tuner.windows import in_windows

#: No deviation is small enough: every level takes its usual time, and may end early.
FULL = 1e-6
ENDED = {"level_error": 0.01}
KEYS: dict[str, dict] = {
    "usual": {},
    "ended": ENDED,
    "full": {"level_sd": FULL},
    "full-ended": {"level_sd": FULL, **ENDED},
    **{f"racing-{n}": {"pruner": NamedChoice(name="racing", settings={"error": n / 100})} for n in (2, 10, 30)},
    "highest-first": {},
}


@dataclass
class Counted:
    """Takes the place of `in_windows` and counts what it ends early."""

    stops: int = 0
    wrong: int = 0
    saved_s: float = 0.0
    true: dict[float, float] = field(default_factory=dict)  # measured → free of noise, tokens/s

    def __call__(self, hold: Callable[[Level], Measurement | None], level: Level) -> Measurement | None:
        """One level."""
        windows: list[Measurement | None] = []

        def counting(part: Level) -> Measurement | None:
            windows.append(hold(part))
            return windows[-1]

        got = in_windows(counting, level)
        if got is None or not got.valid:
            return got
        self.true[got.output_tokens_per_s] = got.details["model_output_tokens_per_s"]
        if level.bar is not None and len(windows) == 2:
            self.stops += 1
            self.saved_s += got.duration_s
            self.wrong += self.true[got.output_tokens_per_s] >= self.true[level.bar.output_tokens_per_s]
        return got


def study(name: str, path: Path, seed: int) -> dict:
    """One study, as a line of the results."""
    made = load_scenario(str(path))
    endings = Counted()
    constants: dict = {("tuner.trial_runner", "in_windows"): endings}
    if name == "highest-first":
        constants[("simulation.scenario", "Scenario.levels")] = made.levels[::-1]
    keys = {"seed": seed, "node_hours": run.HOURS, "sampler": NamedChoice(name="adaptive"), **KEYS[name]}
    with arena.changed(constants):
        spec, store, recorded, _ = run_virtual(str(path), keys)
    ledger = store.ledger(spec.study)
    told = [(r["node_hours"], noise_free_score(made, r["flags"]) or 0.0) for r in recorded.recommended]
    stops, wrong = pruned(recorded.trajectory, made)
    return {
        "recommended": told,
        "stops": endings.stops + stops,
        "wrong": endings.wrong + wrong,
        "saved_s": endings.saved_s,
        "measure_s": ledger.get("measure", 0.0),
        "total_s": sum(ledger.values()),
        "trials": len(recorded.trajectory),
    }


def pruned(trajectory: list[dict], made: Scenario) -> tuple[int, int]:
    """Trials that the pruner ended, and how many of them were in truth above the best complete one so far."""
    best, stops, wrong = 0.0, 0, 0
    for trial in trajectory:
        value = noise_free_score(made, trial["flags"]) or 0.0
        if trial["outcome"] == "complete":
            best = max(best, value)
        elif trial["outcome"] == "pruned" and trial["class"] is None:
            stops, wrong = stops + 1, wrong + (value > best)
    return stops, wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+", choices=list(KEYS))
    parser.add_argument("--set", dest="kind", default="ideas")
    parser.add_argument("--count", type=int, default=12)
    args = parser.parse_args()
    run.FOLDER.mkdir(exist_ok=True)
    file = run.FOLDER / "endings.jsonl"
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    cache = {line["key"]: line for line in lines}
    paths = run.scenario_files(args.kind)[: args.count]
    for path in paths:
        for name in args.names:
            key = f"{name}|{path.stem}"
            if key not in cache:
                cache[key] = {"key": key, **study(name, path, 0)}
                with file.open("a") as out:
                    out.write(json.dumps(cache[key]) + "\n")
    print("| | 95 %: median, mean, worst h | 98 %: … | final, worst | measuring | saved | stops | wrong |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name in args.names:
        print(row(name, [(path, cache[f"{name}|{path.stem}"]) for path in paths]))


def row(name: str, found: list[tuple[Path, dict]]) -> str:
    """One line of the table; shares are of all node time."""
    tops = {path: run.best_score(path) for path, _ in found}
    cells = []
    for share in (0.95, 0.98):
        hours = [run.hours_to(one["recommended"], share * tops[path]) or run.HOURS for path, one in found]
        cells.append(f"{median(hours):.1f}, {fmean(hours):.1f}, {max(hours):.1f}")
    total = sum(one["total_s"] for _, one in found)
    cells.append(f"{min(run.final(one['recommended']) / tops[path] for path, one in found):.3f}")
    cells += [f"{100 * sum(one[key] for _, one in found) / total:.1f} %" for key in ("measure_s", "saved_s")]
    cells += [str(sum(one[key] for _, one in found)) for key in ("stops", "wrong")]
    return f"| {name} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
