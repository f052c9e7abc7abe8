"""Hold layers 1 to 3 of the configuration checks against the engine itself, and measure what they cost.

    python benchmarks/rules_against_engine.py [--versions 0.5.9 …] [--compute-capabilities 9.0 …] [--count N] [--seed N]
    python benchmarks/rules_against_engine.py --models benchmarks/other_models
    python benchmarks/rules_against_engine.py --stored FILE…     judge stored verdicts again, ask nothing
    python benchmarks/rules_against_engine.py --record N         keep N verdicts per combination as recordings for tests
    python benchmarks/rules_against_engine.py --speed            milliseconds per configuration

Verdicts cost about 0.25 s each and are asked once (`engine_verdicts.py`). Violations of layer `runtime` do not count as
refusals: the engine's checks accept those configurations and the server dies, or is of no use, later.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpu_time import timed_ms
from engine_verdicts import (
    FIELDS,
    GPU,
    MODEL_CONFIGS,
    ROOT,
    Presented,
    model_config,
    presented,
    sampled,
    stored,
    verdicts,
)

from servetune.engines.sglang.capabilities import capabilities_of
from servetune.engines.sglang.capabilities import violations as capability_violations
from servetune.engines.sglang.memory import forecast, memory_violations
from servetune.engines.sglang.rules import judge
from servetune.engines.sglang.rules import violations as rule_violations

RECORDINGS = ROOT / "tests/recordings/oracle"
VERSIONS = ("0.5.9", "0.5.13", "0.5.23")
TOLERANCE = 1e-9
EXAMPLES = 5


@dataclass
class Agreement:
    """Counts of one version and compute capability. `folder`: where the models' config.json files lie."""

    node: Presented
    folder: Path
    refused: int = 0
    caught: Counter[str] = field(default_factory=Counter)  # by layer
    accepted: int = 0
    agreeing: int = 0
    runtime: Counter[str] = field(default_factory=Counter)  # by rule, of what the engine accepts
    false: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    differing: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, line: dict[str, Any]) -> None:
        assignment, version = line["assignment"], self.node.engine_version
        shown = f"{line['model']} {json.dumps(assignment)}"
        layers = [v.layer for v in capability_violations(assignment, capabilities_of(version))]
        judgement = judge(assignment, self.node.facts, version, model_config(line["model"], self.folder))
        layers += [v.layer for v in judgement.violations]
        refusing = next((layer for layer in ("capability", "rule") if layer in layers), None)
        if not line["ok"]:
            self.refused += 1
            if refusing:
                self.caught[refusing] += 1
            else:
                self.missed.append(f"{line['message']}: {shown}")
            return
        self.accepted += 1
        if refusing:
            first = next((v for v in judgement.violations if v.layer == "rule"), None)
            self.false.append(f"{first.rule if first else 'capability'}: {shown}")
        self.runtime.update({v.rule for v in judgement.violations if v.layer == "runtime"})
        differing = [
            f"{name}: engine {line['resolved'][name]!r}, rules {judgement.effective.resolved.get(name)!r}"
            for name in FIELDS
            if name in line["resolved"] and not _same(line["resolved"][name], judgement.effective.resolved.get(name))
        ]
        self.agreeing += not differing
        self.differing.update(differing)
        self.examples.update({text: shown for text in differing})

    def row(self) -> str:
        caught = sum(self.caught.values())
        return (
            f"{self.node.engine_version:8}{self.node.compute_capability:>5}{self.refused + self.accepted:9}"
            f"{self.refused:9}{caught:8}{_percent(caught, self.refused):>8}{len(self.false):7}"
            f"{self.accepted:10}{_percent(self.agreeing, self.accepted):>9}{sum(self.runtime.values()):9}"
        )

    def details(self) -> list[str]:
        lines = [f"  false rejection: {text}" for text in self.false[:EXAMPLES]]
        lines += [f"  missed: {text}" for text in self.missed[:EXAMPLES]]
        for text, count in self.differing.most_common(EXAMPLES):
            lines.append(f"  differs {count} times: {text}: {self.examples[text]}")
        return lines


def _same(engine: Any, ours: Any) -> bool:
    if isinstance(engine, float) and isinstance(ours, (int, float)):
        return abs(engine - ours) < TOLERANCE
    return bool(engine == ours)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def agreement(path: Path, count: int | None, folder: Path) -> Agreement:
    node, lines = stored(path)
    result = Agreement(node, folder)
    for line in lines[:count]:
        result.add(line)
    return result


def record(path: Path, count: int, folder: Path) -> None:
    """The first `count` verdicts, small enough to keep in the repository; on other models in a folder of their own."""
    node, lines = stored(path)
    accepted = [line["resolved"] for line in lines if line["ok"]]
    values = {name: Counter(json.dumps(resolved[name]) for resolved in accepted) for name in accepted[0]}
    common = {name: json.loads(counter.most_common(1)[0][0]) for name, counter in values.items()}
    place = RECORDINGS if folder == MODEL_CONFIGS else RECORDINGS / folder.name
    target = place / f"{node.engine_version}-cc{node.compute_capability}.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w") as file:
        file.write(json.dumps({**vars(node), "common": common}, separators=(",", ":")) + "\n")
        for line in lines[:count]:
            apart = {k: v for k, v in line["resolved"].items() if v != common.get(k)}
            file.write(json.dumps({**line, "resolved": apart}, separators=(",", ":")) + "\n")
    print(f"{target.relative_to(ROOT)}: {len(lines[:count])} verdicts, {target.stat().st_size >> 10} KiB")


def speed(versions: Sequence[str], count: int) -> None:
    """CPU milliseconds per configuration, median and 99th percentile, over fresh configurations."""
    print(f"{'':24}{'median ms':>10}{'p99 ms':>10}{'1,000 take s':>14}")
    for version in versions:
        node = presented(version, "12.0")
        facts, capabilities = node.facts, capabilities_of(version)
        configs = {name: model_config(name) for name, _ in sampled(capabilities, 3, count)}
        todo = [(assignment, configs[name]) for name, assignment in sampled(capabilities, 3, count)]

        def layers(
            assignment: Any, config: Any, version: str = version, facts: Any = facts, c: Any = capabilities
        ) -> None:
            capability_violations(assignment, c)
            rule_violations(assignment, facts, version, config)
            told = forecast(assignment, facts, version, config)
            if told is not None:
                memory_violations(told, assignment)

        def rules(assignment: Any, config: Any, version: str = version, facts: Any = facts) -> None:
            rule_violations(assignment, facts, version, config)

        _timed(f"{version} layers 1 to 3", layers, todo)
        _timed(f"{version} rules alone", rules, todo)


def _timed(title: str, call: Callable[[Any, Any], None], todo: Sequence[tuple[Any, Any]]) -> None:
    took_ms = timed_ms(call, todo)
    p99 = statistics.quantiles(took_ms, n=100)[98]
    print(f"{title:24}{statistics.median(took_ms):10.3f}{p99:10.3f}{sum(took_ms) / len(took_ms):14.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS))
    parser.add_argument("--compute-capabilities", nargs="+", default=list(GPU))
    parser.add_argument("--count", type=int, default=1000, help="configurations per combination")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--models", type=Path, default=MODEL_CONFIGS, metavar="FOLDER", help="of NAME.json configs")
    parser.add_argument("--stored", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--record", type=int, metavar="N")
    parser.add_argument("--speed", action="store_true")
    chosen = parser.parse_args()
    if chosen.speed:
        speed(chosen.versions, chosen.count)
        return
    print(
        f"{'version':8}{'cc':>5}{'sampled':>9}{'refused':>9}{'caught':>8}{'':>8}{'false':>7}"
        f"{'accepted':>10}{'agree':>9}{'runtime':>9}"
    )
    runtime: Counter[str] = Counter()
    paths = chosen.stored or (
        verdicts(presented(version, capability), chosen.seed, chosen.count, folder=chosen.models)
        for version in chosen.versions
        for capability in chosen.compute_capabilities
    )
    for path in paths:
        if chosen.record:
            record(path, chosen.record, chosen.models)
            continue
        result = agreement(path, None if chosen.stored else chosen.count, chosen.models)
        print("\n".join([result.row(), *result.details()]), flush=True)
        runtime += result.runtime
    if runtime:
        print("accepted by the engine's checks, and a violation of layer runtime all the same:")
        for rule, times in runtime.most_common():
            print(f"  {times:5} {rule}")


if __name__ == "__main__":
    main()
