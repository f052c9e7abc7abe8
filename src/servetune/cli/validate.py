"""`servetune validate`."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import click

from servetune.cli._options import console, json_option
from servetune.core.node import NodeFacts
from servetune.core.space import BundleDomain, CategoricalDomain, Choice, FloatDomain, IntDomain, SearchSpace
from servetune.core.study import StudySpec
from servetune.settings import load_study
from servetune.tuner.session import open_engine, open_node

EXAMPLE = """
\b
Example:
  servetune validate studies/quickstart.yaml
"""

SAMPLE = 1000


@click.command(epilog=EXAMPLE)
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def command(file: Path, as_json: bool) -> None:
    """Read and check the study FILE and its search space; say what a study would do. Nothing is started."""
    spec = load_study(file)
    facts = open_node(spec).facts()
    summary = survey(spec, facts)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    shown = console()
    shown.print(f"{file}: valid", markup=False, soft_wrap=True)
    for line in describe(spec, facts, summary):
        shown.print(line, markup=False, soft_wrap=True)


def survey(spec: StudySpec, facts: NodeFacts) -> dict[str, Any]:
    """How many of a sample of the space each rule rejects, and what the installed version made of the space."""
    engine = open_engine(spec)
    space, notes = engine.resolve_space(spec.space, facts)
    rng, rejected, effective = random.Random(spec.seed), Counter[str](), set[str]()  # noqa: S311 - a sample, no secret
    refused = 0
    for _ in range(SAMPLE):
        assignment = space.expand(draw(space, rng))
        violations = engine.check(assignment, facts)
        refused += bool(violations)
        rejected.update({f"{v.layer} {v.rule}: {v.message}" for v in violations})
        if not violations:
            effective.add(json.dumps(dict(engine.effective(assignment, facts)), sort_keys=True))
    return {
        "study": spec.study,
        "parameters": len(space.parameters),
        "sampled": SAMPLE,
        "refused": refused,
        "distinct": len(effective),
        "rejected": dict(rejected.most_common()),
        "notes": list(notes),
        "engine_version": facts.engine_version,
        "simulated": facts.simulated,
    }


def describe(spec: StudySpec, facts: NodeFacts, summary: dict[str, Any]) -> list[str]:
    """What a study would do, in sentences."""
    budget = spec.budget
    hours = f", {budget.node_hours:g} node-hours" if budget.node_hours else ""
    patience = f", {budget.patience} trials without a better one" if budget.patience else ""
    levels = ", ".join(map(str, spec.workload.concurrency))
    confirm = spec.confirm
    version = facts.engine_version or "(version unknown)"
    lines = [
        f"study {spec.study}: {spec.engine.name} {version} serving {spec.engine.model}",
        f"node {facts.node}{' (simulated)' if facts.simulated else ''}: {facts.gpu_count} GPUs",
        f"measures {spec.objective.maximize} at concurrency {levels}, "
        f"{spec.workload.input_tokens} tokens in, {spec.workload.output_tokens} out",
        f"searches {summary['parameters']} parameters with {spec.sampler.name}, seed {spec.seed}; the baseline first",
        f"ends after {budget.trials} launched trials{hours}{patience}, whichever is first; "
        f"then {confirm.launches} more launches each of the best {confirm.top} and the baseline",
        f"of {summary['sampled']} sampled configurations {summary['refused']} are refused before any launch; "
        f"the others are {summary['distinct']} distinct ones",
    ]
    lines += [f"  {count} × {reason}" for reason, count in summary["rejected"].items()]
    return lines + [f"note: {note}" for note in summary["notes"]]


def draw(space: SearchSpace, rng: random.Random) -> dict[str, Choice]:
    """One uniform point of the space."""
    point: dict[str, Choice] = {}
    for parameter in space.parameters:
        if space.active(parameter, point):
            match parameter.domain:
                case CategoricalDomain(choices=choices):
                    point[parameter.name] = rng.choice(choices)
                case BundleDomain(options=options):
                    point[parameter.name] = rng.choice(list(options))
                case IntDomain() as d:
                    point[parameter.name] = rng.randrange(d.low, d.high + 1, d.step)
                case FloatDomain() as d:
                    point[parameter.name] = round(rng.uniform(d.low, d.high), 3)
    return point
