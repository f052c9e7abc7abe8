"""`servetune simulate`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from servetune.core.errors import UsageError
from servetune.core.study import NamedChoice
from servetune.simulation.table import SUFFIX

EXAMPLE = """
\b
Example:
  servetune simulate kimi-k2.5-int4-8x-rtx-pro-6000
  servetune simulate a.yaml b.yaml --strategy adaptive --seeds 0,1 --node-hours 24 --json -o studies.json
  servetune simulate launches.jsonl --strategy random --seeds 0,1,2
"""

SIMULATED = "SIMULATED: every number below was invented by a scenario, none was measured on hardware"


class Seeds(click.ParamType):  # type: ignore[type-arg]  # click types it only in its stubs
    """Whole numbers separated by commas."""

    name = "N,N,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Text to numbers; click tells the person when it is none."""
        try:
            return tuple(int(word) for word in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers such as 0,1", param, ctx)


@click.command(epilog=EXAMPLE)
@click.argument("scenarios", nargs=-1, required=True, metavar="SCENARIO…")
@click.option("--strategy", default="adaptive", show_default=True, help="Sampler: adaptive, tpe or random.")
@click.option("--seeds", type=Seeds(), default="0", show_default=True, help="One study for each, separated by commas.")
@click.option(
    "--node-hours",
    type=click.FloatRange(min=0, min_open=True),
    default=24.0,
    show_default=True,
    help="Virtual hours of a node that each study may use.",
)
@click.option(
    "--space",
    default="simulated",
    show_default=True,
    metavar="NAME|FILE",
    help="Search space of a scenario's study, or a study file whose space it is; a table brings its own.",
)
@click.option("--json", "as_json", is_flag=True, help="Print every trial and every recommendation as JSON.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead.")
def command(
    scenarios: tuple[str, ...],
    strategy: str,
    seeds: tuple[int, ...],
    node_hours: float,
    space: str,
    as_json: bool,
    output: Path | None,
) -> None:
    """Run whole studies on simulated nodes in virtual time: days of a node in seconds.

    SCENARIO is the name of a shipped scenario or a file. Every number is invented by the scenario; nothing is measured.

    A file that ends in .jsonl is a table of launches that were measured, as `servetune export STUDY --format table`
    writes it: the study may launch only what is in it, and each launch takes, gives and fails as it did. That tells
    which strategy would have found the table's best sooner. It tells nothing of configurations that nobody measured,
    nor how sure a lead is: most were launched once.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported: its threads would only wait
    from servetune.cli._replayed_study import sentence

    found, lines = [], list[str]()
    for scenario in scenarios:
        for seed in seeds:
            begin_s = time.monotonic()
            study = _study(scenario, NamedChoice(name=strategy), seed, node_hours, space)
            found.append(study)
            head = sentence(study["replayed"]) if "replayed" in study else SIMULATED
            lines += [*([] if head in lines else [head]), _line(study, time.monotonic() - begin_s)]
    told = json.dumps([_public(study) for study in found], indent=1) if as_json else "\n".join(lines)
    if output is None:
        click.echo(told)
        return
    try:
        output.write_text(told + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}; name another file with -o") from error


def _study(scenario: str, sampler: NamedChoice, seed: int, node_hours: float, space: str) -> dict[str, Any]:
    from servetune.cli._replayed_study import replay
    from servetune.cli._virtual_study import simulate

    if scenario.endswith(SUFFIX):
        return replay(scenario, sampler, seed, node_hours)
    return simulate(scenario, {"sampler": sampler, "seed": seed, "node_hours": node_hours, "space": space})


def _public(study: Mapping[str, Any]) -> dict[str, Any]:
    of_a_table = ("optimum", "replayed") if "replayed" in study else ()
    return {key: study[key] for key in ("scenario", "strategy", "seed", "trajectory", "recommended", *of_a_table)}


def _line(study: Mapping[str, Any], wall_s: float) -> str:
    """One study in one line: what it tried, and when it last changed its mind."""
    trials = [entry for entry in study["trajectory"] if entry["outcome"] != "rejected"]
    complete = [entry["value"] for entry in trials if entry["outcome"] == "complete"]
    head = f"{study['scenario']}, seed {study['seed']}, {study['strategy']}: {len(trials)} trials in {wall_s:.1f} s"
    if not complete:
        return f"{head}; none worked"
    last = study["recommended"][-1]["node_hours"]
    baseline = trials[0]["value"]
    gain = f", {100 * (max(complete) / baseline - 1):+.1f} % over the baseline" if baseline else ""
    best = f"{head}; best measured {max(complete):.1f} tokens/s{gain}; recommended since {last:.2f} node-hours"
    optimum = study.get("optimum")
    return best if not optimum else f"{best}; the table's best is {optimum['score']:.1f}"
