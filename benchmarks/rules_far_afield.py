"""Hold the rules against the engine on models, GPUs and features far from those that they were written against.

    python benchmarks/rules_far_afield.py [--versions 0.5.9 …] [--count N] [--seed N] [--stored-only] [--all]

`--count` configurations for each version and each of the GPUs below; verdicts are asked once and stored (about 0.2 s
each). Every argument that the engine resolves and that the rules know, or that the command names, is compared.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_verdicts import BESIDE_GRAPH_CONFIG, FIELDS, STORE, Presented, answers, compared, of_the_stand
from far_configurations import draw
from far_models import FAR_MODELS

from servetune.engines.sglang.capabilities import capabilities_of
from servetune.engines.sglang.capabilities import violations as capability_violations
from servetune.engines.sglang.flags import parse_argv
from servetune.engines.sglang.rules import judge
from servetune.engines.sglang.rules._state import field_name

#: Not compared: settled for another reason than tuning, or told by `cuda_graph_config` from 0.5.14 on.
_NOT_COMPARED = frozenset(
    {"lora_target_modules", "cuda_graph_config", "remote_instance_weight_loader_start_seed_via_transfer_engine"}
)
_TOLD_BY_GRAPHS = frozenset(BESIDE_GRAPH_CONFIG)
VERSIONS = ("0.5.9", "0.5.13", "0.5.23")
CUDA = "13.0"
#: Compute capability, name, memory in MiB as nvidia-smi says it, number.
GPUS = (
    ("8.0", "NVIDIA A100-SXM4-80GB", 81920, 8),
    ("8.9", "NVIDIA L40S", 46068, 4),
    ("9.0", "NVIDIA H20", 97871, 8),
    ("9.0", "NVIDIA H100 80GB HBM3", 81559, 8),
    ("10.0", "NVIDIA B200", 183359, 8),
    ("10.3", "NVIDIA B300 SXM6 AC", 275040, 8),
    ("12.0", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, 8),
)


def _flags(assignment: dict[str, object]) -> list[str]:
    words: list[str] = []
    for flag, value in assignment.items():
        if value is True:
            words.append(f"--{flag}")
        else:
            words += [
                f"--{flag}",
                *(str(value).split() if " " in str(value) and "{" not in str(value) else [str(value)]),
            ]
    return words


def asked(version: str, gpu: tuple[str, str, int, int], seed: int, count: int) -> Path:
    """The file of verdicts, asked as far as they are not stored yet."""
    capability, name, memory_mib, gpus = gpu
    path = STORE / f"far-{version}-cc{capability}-{memory_mib}-seed{seed}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = path.read_text().count("\n") if path.exists() else 0
    source = random.Random(f"{seed} {gpu}")
    drawn = list(draw(source.randrange(1 << 30), count, capabilities_of(version)))
    models = [source.choice(sorted(FAR_MODELS)) for _ in drawn]
    todo = list(zip(models, drawn, strict=True))[max(0, stored - 1) :]
    if not todo:
        return path
    node = Presented(version, capability, name, gpus, memory_mib, CUDA)
    with path.open("a") as file, tempfile.TemporaryDirectory() as folder:
        if not stored:
            file.write(json.dumps(vars(node)) + "\n")
        for line in _verdicts(node, todo, Path(folder)):
            file.write(json.dumps(line) + "\n")
            file.flush()
    return path


def _verdicts(node: Presented, todo: Sequence[tuple[str, dict[str, object]]], folder: Path) -> Iterator[dict[str, Any]]:
    for name, config in FAR_MODELS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    commands = [
        ["--model-path", str(folder / model), *_flags({k: _path(v, folder / model) for k, v in assignment.items()})]
        for model, assignment in todo
    ]
    for (model, assignment), verdict in zip(todo, answers(node, commands), strict=True):
        yield {
            "model": model,
            "assignment": assignment,
            **{key: verdict[key] for key in ("ok", "decided", "stage", "where")},
            "message": (verdict["message"] or "").replace(str(folder), "MODELS")[:400],
            "resolved": {**(verdict["resolved"] or {}), **compared(verdict["resolved"] or {})},
        }


def _path(value: object, draft: Path) -> object:
    return str(draft) if value == "DRAFT" else value


@dataclass
class Found:
    """Counts of one file, and the disagreements by kind."""

    judged: int = 0
    refused: int = 0
    caught: int = 0
    accepted: int = 0
    agreeing: int = 0
    kinds: dict[str, Counter[str]] = field(default_factory=lambda: {k: Counter() for k in ("false", "missed", "value")})
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, kind: str, text: str, shown: str) -> None:
        self.kinds[kind][text] += 1
        self.examples.setdefault(text, shown)


def hold(path: Path, found: Found) -> None:
    with path.open() as file:
        head = file.readline()
        if not head.strip():
            return
        node = Presented(**json.loads(head))
        for line in map(json.loads, file):
            if line["stage"] != "crash" and line["decided"] and not of_the_stand(node, line):
                _hold(node, line, found)


def _hold(node: Presented, line: dict[str, Any], found: Found) -> None:
    version, model = node.engine_version, line["model"]
    capabilities = capabilities_of(version)
    shown = f"{version} cc{node.compute_capability} {model}: {' '.join(_flags(line['assignment']))}"
    told = {k: f"MODELS/{model}" if v == "DRAFT" else v for k, v in line["assignment"].items()}
    assignment, unparsed = parse_argv(_flags(told), capabilities)
    by_parser = [*unparsed, *capability_violations(assignment, capabilities)]
    wrong = {flag for violation in by_parser for flag in violation.flags}
    judgement = judge({k: v for k, v in assignment.items() if k not in wrong}, node.facts, version, FAR_MODELS[model])
    refusing = [*by_parser, *(v for v in judgement.violations if v.layer == "rule")]
    found.judged += 1
    if not line["ok"]:
        found.refused += 1
        found.caught += bool(by_parser or judgement.violations)
        if not by_parser and not judgement.violations:
            found.note("missed", f"{line['stage']} {line['message'][:160]} @ {line['where']}", shown)
        return
    found.accepted += 1
    if refusing:
        found.note("false", f"{refusing[0].rule}: {refusing[0].message[:160]}", shown)
        return
    if any(v.layer == "runtime" for v in judgement.violations):
        found.agreeing += 1  # it dies later: what becomes of its arguments until then decides nothing
        return
    ours = judgement.effective.resolved
    skipped = _NOT_COMPARED | (_TOLD_BY_GRAPHS if "cuda_graph_config" in line["resolved"] else frozenset())
    differing = [
        (name, line["resolved"][name], ours.get(name))
        for name in {*FIELDS, *map(field_name, assignment)} - skipped
        if name in line["resolved"] and not _same(line["resolved"][name], ours.get(name))
    ]
    found.agreeing += not differing
    for name, engine, rules in differing:
        found.note("value", f"{name}: engine {str(engine)[:60]!r}, rules {str(rules)[:60]!r}", f"{version}: {shown}")


def _same(engine: Any, ours: Any) -> bool:
    if isinstance(engine, str) and isinstance(ours, str) and engine.startswith("/tmp/"):
        return engine.rpartition("/")[2] == ours.rpartition("/")[2]
    if isinstance(engine, list) and isinstance(ours, str | int):
        return " ".join(map(str, engine)) == str(ours)
    if isinstance(engine, float | int) and isinstance(ours, float | int):
        return abs(engine - ours) < 1e-9
    return str(engine) == str(ours) or (engine in (None, False, [], {}) and ours in (None, False, ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS))
    parser.add_argument("--count", type=int, default=150, help="configurations per version and GPU")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--stored-only", action="store_true", help="judge stored verdicts again, ask nothing")
    parser.add_argument("--all", action="store_true", help="every kind of disagreement, with an example each")
    chosen = parser.parse_args()
    print(f"{'version':10}{'judged':>8}{'refused':>9}{'caught':>8}{'false':>7}{'accepted':>10}{'agree':>8}")
    for version in chosen.versions:
        found = Found()
        for gpu in GPUS:
            stored = STORE / f"far-{version}-cc{gpu[0]}-{gpu[2]}-seed{chosen.seed}.jsonl"
            if chosen.stored_only and not stored.exists():
                continue
            hold(stored if chosen.stored_only else asked(version, gpu, chosen.seed, chosen.count), found)
        print(
            f"{version:10}{found.judged:8}{found.refused:9}{found.caught:8}{sum(found.kinds['false'].values()):7}"
            f"{found.accepted:10}{found.agreeing:8}",
            flush=True,
        )
        for kind, counter in found.kinds.items():
            for text, times in counter.most_common(None if chosen.all else 5):
                print(f"  {kind} {times} × {text}\n      {found.examples[text]}")


if __name__ == "__main__":
    main()
