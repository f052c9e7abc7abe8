"""Fit a scenario of the simulated node to tables of measured launches, and say how wrong it is.

    servetune export STUDY --format table -o launches.jsonl
    python benchmarks/fit/run.py launches.jsonl --name NAME --architecture CLASS -o NAME.yaml

Tables of several studies are taken together: of one engine, model, GPU and load, with one baseline.

The scenario plays that engine on that node; docs/simulated-node.md says what its numbers are worth.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from effects import EAGER, Column, Launch, LevelFit, fit_level, grouped, leave_one_out, relative_sd
from sheets import memory_of, memory_sheet, startup_sheet

from servetune.core.space import Value
from servetune.core.table import LaunchRow
from servetune.simulation.configuration import configure, memory
from servetune.simulation.model import level_fault, startup
from servetune.simulation.rates import throughput
from servetune.simulation.scenario import Scenario, load_scenario
from servetune.simulation.story import kv_tokens
from servetune.simulation.table import MeasuredTable, load_table

#: Flags that the model reads by name: it says itself what they do.
MODELLED = ("mem-fraction-static", "cuda-graph-max-bs", "cuda-graph-max-bs-decode", "max-running-requests")
OF_MEMORY = ("oom_weights", "kv_budget", "oom_graph", "oom_runtime")


def defaults_of(row: LaunchRow, graph: float) -> dict[str, Value]:
    """What the baseline used, by its own log; the largest captured batch under the name that scenarios use."""
    told = {flag: value for flag, value in row.in_effect.items() if value is not None and flag not in MODELLED}
    fraction, chunk = (row.in_effect.get(flag) for flag in ("mem-fraction-static", "chunked-prefill-size"))
    if fraction is None or chunk is None or not graph:
        raise SystemExit("the log of the baseline does not say its memory fraction, chunk size and captured batches")
    return {"mem-fraction-static": fraction, "cuda-graph-max-bs": int(graph), "chunked-prefill-size": chunk, **told}


def graph_of(row: LaunchRow, otherwise: float) -> float:
    if row.flags.get("disable-cuda-graph") is True:
        return 0.0
    found = [v for k, v in row.memory.items() if k.startswith("largest_graph.") and "prefill" not in k and v]
    return max(found, default=otherwise)


def launches_of(table: MeasuredTable, defaults: Mapping[str, Value], graph: float) -> list[Launch]:
    """Every launch that was measured whole."""
    rows = [row for found in table.configurations for row in found.launches if row.failure is None]
    varied = {flag for found in table.configurations for flag in found.flags} - set(MODELLED)
    return [
        Launch(
            row,
            frozenset(
                (flag, value)
                for flag, value in row.flags.items()
                if flag in varied and isinstance(value, bool | int | float | str) and value != defaults.get(flag)
            ),
            graph_of(row, graph),
        )
        for row in rows
    ]


def effects_of(fits: Mapping[int, LevelFit], columns: Sequence[Column]) -> Iterator[dict[str, Any]]:
    for column in columns:
        factors = {level: round(math.exp(fit.effects.get(column, 0.0)), 4) for level, fit in fits.items()}
        if any(factor != 1.0 for factor in factors.values()):
            yield {"when": dict(column), "factor": factors}


def failures_of(table: MeasuredTable) -> Iterator[tuple[str, dict[str, Any]]]:
    """`failures` and `wrong_output`: what failed for another reason than memory, by what it set beside the baseline.

    A configuration that some launches survived fails with the share of those that did not.
    """
    own = table.baseline().flags
    for found in table.configurations:
        when = {flag: value for flag, value in found.flags.items() if own.get(flag) != value}
        told = [row for row in found.launches if row.failure is not None and row.failure.slug not in OF_MEMORY]
        if not told or not when:
            continue
        failure, share = told[0].failure, len(told) / len(found.launches)
        assert failure is not None
        if failure.slug == "wrong_output":
            yield "wrong_output", {"when": when}
            continue
        entry = {"when": when, "phase": failure.phase.value, "class": failure.slug, "log": failure.line}
        reached = [level for level in told[0].load.concurrency if f"level:{level}" in told[0].phase_s]
        entry |= {"at_concurrency": reached[-1]} if reached else {}
        yield "failures", entry | ({"probability": round(share, 3)} if share < 1 else {})


def document(
    table: MeasuredTable, launches: Sequence[Launch], fits: Mapping[int, LevelFit], told: Any
) -> dict[str, Any]:
    row, columns = table.first, grouped(launches)
    sheet, tokens_per_gib = memory_sheet(launches, float(told.defaults["chunked-prefill-size"]))
    spread = statistics.median(relative_sd(level) for launch in launches for level in launch.row.levels)
    eager = {level: round(math.exp(fit.effects[EAGER]), 4) for level, fit in fits.items() if EAGER in fit.effects}
    return {
        "name": told.name,
        "engine_version": row.engine.version,
        "engine_rules": True,
        "node": {
            "gpu_name": row.gpu.names[0],
            "compute_capability": row.gpu.compute_capability,
            "gpu_count": len(row.gpu.names),
            "gpu_memory_mib": (row.gpu.memory_bytes or 0) // 2**20,
            "interconnect": row.gpu.interconnect or "none",
        },
        "model": {"path": row.engine.model, "architecture": told.architecture},
        "flags": told.defaults,
        "memory_gib": sheet,
        "kv_tokens_per_gib": tokens_per_gib,
        "startup_s": startup_sheet(launches),
        "throughput": {level: round(math.exp(fit.base), 1) for level, fit in fits.items()},
        "effects": list(effects_of(fits, columns)),
        "eager_factor": eager or {min(fits): 1.0},
        "output_tokens": row.load.output_tokens,
        "input_tokens": row.load.input_tokens,
        "noise": {"cv": round(spread, 4)},
        **{name: [e for kind, e in failures_of(table) if kind == name] for name in ("failures", "wrong_output")},
    }


def percent(errors: Sequence[float] | np.ndarray[Any, Any]) -> str:
    """Root mean square and largest, of logarithms, as a percentage."""
    if not len(errors):
        return "–"
    values = np.abs(np.asarray(errors, dtype=float))
    typical, worst = math.sqrt(float(np.mean(values**2))), float(values.max())
    return f"{100 * typical:.1f} % (at most {100 * (math.exp(worst) - 1):.0f} %)"


def report(scenario: Scenario, launches: Sequence[Launch]) -> list[str]:
    """How far the scenario, as the simulated node computes it, is from each launch; the rows of a Markdown table."""
    lines = ["| level | in-sample | leave one out, all | … launches without a setting of their own | measured spread |"]
    lines.append("|---|---|---|---|---|")
    for level in scenario.levels:
        own = []
        for launch in launches:
            configuration, _ = configure(scenario, assignment_of(launch))
            own.append(
                math.log(
                    (launch.level(level).output_tokens_per_s or math.nan) / throughput(scenario, configuration, level)
                )
            )
        left = leave_one_out(launches, level)
        spread = statistics.median(relative_sd(launch.level(level)) for launch in launches)
        known = f"{percent(left.known)}, {len(left.known)} launches"
        lines.append(f"| {level} | {percent(own)} | {percent(left.every)} | {known} | {100 * spread:.1f} % |")
    return [*lines, "", *of_the_start(scenario, launches)]


def of_the_start(scenario: Scenario, launches: Sequence[Launch]) -> Iterator[str]:
    ready, tokens, graphs, refused = [], [], [], []
    for launch in launches:
        configuration, _ = configure(scenario, assignment_of(launch))
        never = [False] * len(scenario.failures)
        begun, room = startup(scenario, configuration, never), memory(scenario, configuration)
        ready.append(begun.seconds - launch.row.phase_s["ready"])
        if (count := memory_of(launch, "kv_tokens")) is not None:
            tokens.append(kv_tokens(scenario, room) / count - 1)
        if (used := memory_of(launch, "graph_gib.")) is not None:
            chunks = float(configuration["chunked-prefill-size"]) / 1024
            graphs.append(room.graph + scenario.memory_gib.activation_per_1k_chunk * chunks - used)
        if begun.fault or any(level_fault(scenario, configuration, level, never) for level in scenario.levels):
            refused.append(launch.row.trial)
    yield f"Ready after: median error {statistics.median(map(abs, ready)):.1f} s, worst {max(ready, key=abs):+.1f} s."
    yield f"KV tokens: at most {100 * max(map(abs, tokens)):.2f} % off."
    typical, worst = statistics.median(map(abs, graphs)), max(graphs, key=abs)
    yield f"Memory of graphs: median error {typical:.2f} GiB, worst {worst:+.2f} GiB."
    yield f"Measured launches that the scenario would refuse: {', '.join(map(str, refused)) or 'none'}."


def assignment_of(launch: Launch) -> dict[str, Value]:
    """Of a launch, with what its own log says of memory where the command left it to the engine."""
    told = {flag: value for flag, value in launch.row.flags.items() if isinstance(value, bool | int | float | str)}
    for flag in ("mem-fraction-static", "chunked-prefill-size"):
        value = launch.row.in_effect.get(flag)
        if value is not None:
            told[flag] = value
    told.pop("cuda-graph-max-bs-decode", None)
    return {**told, "cuda-graph-max-bs": int(launch.graph)}


def together(tables: Sequence[Path]) -> MeasuredTable:
    """One table of all their launches."""
    with tempfile.TemporaryDirectory() as folder:
        joined = Path(folder) / "launches.jsonl"
        joined.write_text("".join(table.read_text(encoding="utf-8") for table in tables), encoding="utf-8")
        return load_table(str(joined))


def header(table: MeasuredTable, lines: Sequence[str]) -> str:
    rows = [row for found in table.configurations for row in found.launches]
    first, days = table.first, sorted({row.started_at[:10] for row in rows})
    studies = ", ".join(sorted({row.study for row in rows}))
    said = [
        f"Fitted by benchmarks/fit/run.py to {len(rows)} launches ({studies}) of "
        f"{', '.join(days)}: {', '.join(first.gpu.names)}, {first.engine.name} {first.engine.version}.",
        "Its numbers are a model's; only those of the table were measured. How far it is from them:",
        *lines,
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE")
    parser.add_argument("--name", required=True)
    parser.add_argument("--architecture", required=True, help="the model's class, as in its config.json")
    parser.add_argument("-o", "--output", type=Path, required=True)
    told = parser.parse_args()
    table = together(told.tables)
    baseline = next(row for row in table.baseline().launches if row.failure is None)
    graph = graph_of(baseline, 0.0)
    told.defaults = defaults_of(baseline, graph)
    launches = launches_of(table, told.defaults, graph)
    columns = grouped(launches)
    fits = {level: fit_level(launches, columns, level) for level in table.first.load.concurrency}
    text = yaml.safe_dump(document(table, launches, fits, told), sort_keys=False, default_flow_style=None, width=118)
    told.output.write_text(text, encoding="utf-8")
    lines = report(load_scenario(str(told.output)), launches)
    told.output.write_text(header(table, lines) + text, encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
