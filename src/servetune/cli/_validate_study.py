"""`servetune validate STUDY`: what a study would do, and what each layer of checks refuses of its space."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from servetune import plugins
from servetune.cli._options import console
from servetune.cli._sampled import Tally, sampled
from servetune.cli._validate_commands import Asked
from servetune.cli._validation import Setting, fitted, setting, version_notes
from servetune.core.engine import Violation
from servetune.core.quantities import counted
from servetune.core.space import Assignment
from servetune.core.study import StudySpec
from servetune.tuner.opening import named_flags

#: Reasons and layouts that people are shown, the most frequent first.
SHOWN = 20
#: Of checks, cheapest first; the engine's own word (preflight) is asked with --preflight.
LAYERS = ("capability", "rule", "runtime", "memory")
#: Distinct configurations that the engine itself is asked about: a tenth of a second each.
MOST_ASKED = 300


def validate_study(study: str, sample: int, as_json: bool, asked: Asked) -> None:
    """Print what the study would do; raises SpecError for whatever is wrong with it."""
    against = setting(asked.study, asked.stand_ins)
    assert against.spec is not None
    if asked.preflight:
        from servetune.cli._validate_preflight import engine_word

        with engine_word(against, asked.engine_python) as word:
            summary = survey(against.spec, against, sample, word.refusal)
    else:
        summary = survey(against.spec, against, sample)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
        return
    shown = console()
    verdict = ", but ".join(filter(None, ("valid", summary["nothing_launched"])))
    for line in (f"{study}: {verdict}", *describe(against.spec, against, summary)):
        shown.print(line, markup=False, soft_wrap=True)


def survey(
    spec: StudySpec,
    against: Setting,
    sample: int,
    engine_refusal: Callable[[Assignment], Violation | None] | None = None,
) -> dict[str, Any]:
    """How many of a sample of the space each layer refuses and why, and what the installed version made of the space.

    `layers` counts each refused configuration once, under the first layer that refuses it.
    """
    engine, facts = against.engine, against.facts
    space, notes = fitted(spec, engine, facts)
    reasons, layers, tally = Counter[str](), Counter[str](), Tally()
    effective: dict[str, list[Assignment]] = {}
    drawn = []
    for assignment in sampled(space, sample, spec.seed):
        violations = engine.check(assignment, facts)
        tally.take(violations)
        layers.update([violations[0].layer] if violations else [])
        reasons.update({reason(violation) for violation in violations})
        if not any(violation.layer != "memory" for violation in violations):
            drawn.append(assignment)
        if not violations:
            key = json.dumps(dict(engine.effective(assignment, facts)), sort_keys=True)
            effective.setdefault(key, []).append(assignment)
    asked = list(effective.items())[:MOST_ASKED] if engine_refusal is not None else []
    for key, same in asked:
        assert engine_refusal is not None
        violation = engine_refusal(same[0])
        if violation is not None:
            tally.refuse([violation], len(same))
            layers["preflight"] += len(same)
            reasons[reason(violation)] += len(same)
            del effective[key]
    shown: tuple[str, ...] = LAYERS if engine_refusal is None else (*LAYERS, "preflight")
    tell = getattr(engine, "layouts", None)
    baseline = engine.check({**space.fixed, **spec.baseline}, facts)
    return {
        "study": spec.study,
        "parameters": len(space.parameters),
        "sampled": sample,
        "refused": tally.refused,
        "nothing_launched": tally.nothing_launched(space.fixed),
        "layers": {layer: layers[layer] for layer in shown},
        "distinct": len(effective),
        "asked": len(asked),
        "rejected": dict(reasons.most_common()),
        "baseline": [violation.model_dump(mode="json") for violation in baseline],
        "memory": [] if tell is None else tell(drawn, facts),
        "warnings": [
            *(f"the baseline is launched although it is refused: {violation.message}" for violation in baseline),
            *warnings(spec, against),
        ],
        "notes": [*version_notes(against), *notes, *remarks(spec)],
        "engine_version": facts.engine_version,
        "simulated": facts.simulated,
    }


def warnings(spec: StudySpec, against: Setting) -> Iterator[str]:
    """What is not checked, and what makes the counts say little about the node that the study would run on."""
    facts = against.facts
    yield from against.warnings
    unchecked = getattr(against.engine, "unchecked", None)
    if unchecked is not None:
        yield from unchecked(named_flags(spec), facts)
    if facts.gpu_names or facts.simulated or _on_cpu(spec):
        return
    described = facts.node == "described"
    what = "the description names no GPU" if described else f"node {facts.node} has no GPU that nvidia-smi knows of"
    yield (
        f"{what}: no rule about GPUs, parallel sizes and memory is checked, and this study cannot run there; "
        f"{'name gpu_name and gpu_count' if described else 'validate where it will run, or describe it (--node-facts)'}"
    )


def _on_cpu(spec: StudySpec) -> bool:
    """Whether the study is meant for a machine without a GPU."""
    return {**spec.space.fixed, **spec.baseline}.get("device") not in (None, "cuda")


def remarks(spec: StudySpec) -> tuple[str, ...]:
    """What the load generator has to say of its settings, such as what drop its tasks would show."""
    module = plugins.load("benchmarks", spec.load_generator.name)
    generator = module.create(module.Settings.model_validate(dict(spec.load_generator.settings)))
    found: tuple[str, ...] = getattr(generator, "remarks", ())
    return found


def reason(violation: Violation) -> str:
    """What configurations are counted under. Numbers of the memory layer differ from one to the next."""
    if violation.layer == "memory":
        return f"memory {violation.rule}"
    return f"{violation.layer} {violation.rule}: {violation.message}"


def describe(spec: StudySpec, against: Setting, summary: Mapping[str, Any]) -> list[str]:
    """What a study would do, in sentences."""
    budget, facts = spec.budget, against.facts
    hours = f", {budget.node_hours:g} node-hours" if budget.node_hours else ""
    patience = f", {counted(budget.patience, 'trial')} without a better one" if budget.patience else ""
    levels = ", ".join(map(str, spec.workload.concurrency))
    confirm = spec.confirm
    version = facts.engine_version or "(version unknown)"
    gpus = "GPU" if facts.gpu_count == 1 else "GPUs"
    lines = [f"WARNING: {text}" for text in summary["warnings"]]
    lines += [
        f"study {spec.study}: {spec.engine.name} {version} serving {spec.engine.model}",
        f"node {facts.node}{' (simulated)' if facts.simulated else ''}: {facts.gpu_count} {gpus}",
        f"measures {spec.objective.maximize} at concurrency {levels}, "
        f"{spec.workload.input_tokens} tokens in, {spec.workload.output_tokens} out",
        f"searches {summary['parameters']} parameters with {spec.sampler.name}, seed {spec.seed}; the baseline first",
        f"ends after {counted(budget.trials, 'launched trial')}{hours}{patience}, whichever is first; "
        f"then {counted(confirm.launches, 'more launch')} each of the best {confirm.top} and the baseline",
        f"of {summary['sampled']} sampled configurations {summary['refused']} are refused before any launch"
        f"{_by_layer(summary['layers'])}; the others are {summary['distinct']} distinct ones",
    ]
    if summary["asked"]:
        lines.append(f"  the engine itself was asked about {summary['asked']} distinct ones that nothing else refuses")
    reasons = list(summary["rejected"].items())
    lines += [f"  {count} × {text}" for text, count in reasons[:SHOWN]]
    lines += _more(len(reasons), "reasons")
    lines += _layouts(summary["memory"])
    return lines + [f"note: {note}" for note in summary["notes"]]


def _by_layer(layers: Mapping[str, int]) -> str:
    told = ", ".join(f"{count} by {layer}" for layer, count in layers.items() if count)
    return f" ({told})" if told else ""


def _layouts(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    if rows:
        yield "memory fractions that can work, by parallel layout:"
    for row in rows[:SHOWN]:
        needed, high, automatic = row["fraction_needed"], row["fraction_high"], row["fraction_automatic"]
        last = "" if automatic is None else f"; the automatic fraction is {_range(automatic)}"
        weights = f"{_range(row['weights_gib'], '.1f')} GiB taken of each GPU"
        yield f"  {row['layout']}: {_range(needed)} to {_range(high)} ({weights}, known from {row['known_from']}{last})"
    yield from _more(len(rows), "layouts")


def _more(count: int, what: str) -> list[str]:
    return [f"  … and {count - SHOWN} more {what}: `--json` has them all"] if count > SHOWN else []


def _range(pair: list[float], form: str = ".3f") -> str:
    low, high = (format(number, form) for number in pair)
    return low if low == high else f"{low}…{high}"
