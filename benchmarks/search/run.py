"""Strategies in the same arena: same scenarios, space, clock and information; recommendations judged free of noise.

    python benchmarks/search/run.py --set judging --seeds 0,1 adaptive tpe-fail tpe-pruned random

Resumable: each study is one line of a JSON-lines file (git-ignored), and is run again only when it is not there.
`--label` keeps the results of a changed strategy apart; `--table` prints only.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
FOLDER = HERE / ".results"
HOURS = 24.0
#: Fitted to our own measurements, in a space of its own.
FITTED = "moe4b-bf16-1x-h200"


def handed() -> list[Path]:
    """The shipped scenarios that were handed to us."""
    from servetune.simulation import scenario

    paths = sorted((Path(scenario.__file__).parent / "scenarios").glob("*.yaml"))
    return [path for path in paths if path.stem != FITTED]


def scenario_files(kind: str) -> list[Path]:
    import scenarios

    return handed() if kind == "handed" else scenarios.make(FOLDER / "scenarios", kind)


def best_score(path: Path) -> float:
    """The optimum that the file states, or the one that we found, whichever is higher."""
    import scenarios

    from servetune.simulation.scenario import load_optimum

    stated = load_optimum(str(path))
    if stated is not None:
        return stated.score
    if path.parent == FOLDER / "scenarios":
        return scenarios.best_of(path)
    kept = FOLDER / f"{path.stem}.optimum.json"
    if not kept.exists():
        from servetune.simulation.scenario import load_scenario

        kept.write_text(json.dumps({"score": scenarios.optimum(load_scenario(str(path)))[0]}))
    return float(json.loads(kept.read_text())["score"])


def run_one(strategy: str, path: Path, seed: int, hours: float) -> dict:
    """One study, as a line of the results: recommendations with their noise-free value."""
    import arena

    from servetune.simulation.model import noise_free_score
    from servetune.simulation.scenario import load_scenario

    begin = time.monotonic()
    study = arena.study(strategy, path, seed, hours)
    made = load_scenario(str(path))
    told = [(r["node_hours"], noise_free_score(made, r["flags"]) or 0.0) for r in study["recommended"]]
    states = {}
    for entry in study["trajectory"]:
        word = entry["outcome"] if entry["class"] is None else entry["class"]
        states[word] = states.get(word, 0) + 1
    return {
        "recommended": told,
        "states": states,
        "wall_s": round(time.monotonic() - begin, 1),
        "reason": study["reason"],
        "ended_h": study["trajectory"][-1]["node_hours"],
    }


def hours_to(told: list, value: float) -> float | None:
    """Node-hours from which on the recommendation is at least `value`, and stays so."""
    reached = None
    for hours, score in told:
        reached = (hours if reached is None else reached) if score >= value - 1e-09 else None
    return reached


def final(told: list) -> float:
    return told[-1][1] if told else 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("strategies", nargs="+")
    parser.add_argument("--set", dest="kinds", default="handed,judging")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--count", type=int, default=1000, help="only so many scenarios of each set")
    parser.add_argument("--label", default="")
    parser.add_argument("--hours", type=float, default=HOURS)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    cache_file = FOLDER / "results.jsonl"
    cache = {}
    if cache_file.exists():
        for line in cache_file.read_text().splitlines():
            entry = json.loads(line)
            cache[entry["key"]] = entry
    paths = [path for kind in args.kinds.split(",") for path in scenario_files(kind)[: args.count]]
    seeds = [int(seed) for seed in args.seeds.split(",")]
    rows: dict[str, dict] = {name: {} for name in args.strategies}
    for path in paths:
        for seed in seeds:
            for name in args.strategies:
                key = f"{name}{args.label}|{path.stem}|{seed}|{args.hours:g}"
                if key not in cache and not args.table:
                    cache[key] = {"key": key, **run_one(name, path, seed, args.hours)}
                    with cache_file.open("a") as file:
                        file.write(json.dumps(cache[key]) + "\n")
                    top = best_score(path)
                    told = cache[key]["recommended"]
                    print(
                        f"{key:55s} 95%: {hours_to(told, 0.95 * top)} 98%: {hours_to(told, 0.98 * top)} "
                        f"final {final(told) / top:.3f} {cache[key]['states']} {cache[key]['wall_s']} s",
                        flush=True,
                    )
                if key in cache:
                    rows[name][path, seed] = cache[key]["recommended"]
    print(table(rows, args.strategies))


def table(rows: dict[str, dict], strategies: list[str]) -> str:
    """One line for each strategy, over the runs that every strategy has."""
    common = sorted(set.intersection(*(set(found) for found in rows.values())))
    if not common:
        return "no run is there for every strategy yet"
    lines = [
        f"{len(common)} runs",
        "| strategy | reach 95 % | median h | worst h | reach 98 % | median h | final, median | final, worst "
        "| best peer's hours ÷ ours |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in strategies:
        to95, to98, last, ratio = [], [], [], []
        for path, seed in common:
            top = best_score(path)
            told = rows[name][path, seed]
            to95.append(hours_to(told, 0.95 * top))
            to98.append(hours_to(told, 0.98 * top))
            last.append(final(told) / top)
            peers = [rows[other][path, seed] for other in strategies if not other.startswith("adaptive")]
            if name.startswith("adaptive") and peers:
                peer = max(peers, key=final)
                value = final(peer)
                ratio.append((hours_to(peer, value) or HOURS) / max(0.05, hours_to(told, value) or HOURS))
        cells = [
            f"{sum(h is not None for h in to95)} of {len(common)}",
            _hours(to95, median),
            _hours(to95, max),
            f"{sum(h is not None for h in to98)} of {len(common)}",
            _hours(to98, median),
            f"{median(last):.3f}",
            f"{min(last):.3f}",
            f"{median(ratio):.1f}" if ratio else "",
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _hours(found: list, statistic) -> str:
    value = statistic([HOURS if hours is None else hours for hours in found])
    return "–" if value >= HOURS else f"{value:.1f}"


if __name__ == "__main__":
    main()
