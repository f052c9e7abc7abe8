"""Ask the engine about commands that were written for one rule each, and keep its answers for the tests.

    python benchmarks/directed_verdicts.py            asks lines of tests/recordings/directed.jsonl that have no answer
    python benchmarks/directed_verdicts.py --again    asks every line, and prints those whose answer changed

A line: version, compute capability, model (of tests/engines/sglang/model_configs or benchmarks/other_models), flags,
and the engine's `ok` and `message` (both null in a new line). About 0.3 s each, and 10 s for each version and GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

from engine_verdicts import MODEL_CONFIGS, ROOT, answers, argv, presented

RECORDING = ROOT / "tests/recordings/directed.jsonl"
OTHER_MODELS = ROOT / "benchmarks/other_models"


def config_file(model: str) -> Path:
    return next(path for folder in (MODEL_CONFIGS, OTHER_MODELS) if (path := folder / f"{model}.json").is_file())


def _node(line: dict[str, Any]) -> tuple[str, str]:
    return line["version"], line["cc"]


def asked(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines with the engine's answers, in the order of version and compute capability."""
    found = []
    for (version, capability), group in groupby(sorted(lines, key=_node), key=_node):
        todo = list(group)
        with tempfile.TemporaryDirectory() as folder:
            for model in {line["model"] for line in todo}:
                (Path(folder) / model).mkdir()
                (Path(folder) / model / "config.json").write_text(config_file(model).read_text())
            commands = [_words(line, Path(folder)) for line in todo]
            for line, verdict in zip(todo, answers(presented(version, capability), commands), strict=True):
                if not verdict["decided"]:
                    sys.exit(f"no judgement on {line}: {verdict['message']}")
                message = (verdict["message"] or "").replace(folder, "MODELS")[:160] or None
                found.append({**line, "ok": verdict["ok"], "message": message})
    return found


def _words(line: dict[str, Any], folder: Path) -> list[str]:
    model = str(folder / line["model"])
    told = {name: model if value == "DRAFT" else value for name, value in line["flags"].items()}
    return ["--model-path", model, "--trust-remote-code", *argv(told)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true")
    again = parser.parse_args().again
    lines = [json.loads(text) for text in RECORDING.read_text().splitlines()]
    todo = [line for line in lines if again or line["ok"] is None]
    found = asked(todo)
    known = {json.dumps(line) for line in lines}
    changed = [line for line in found if json.dumps(line) not in known]
    for line in changed:
        print(json.dumps(line))
    kept = [line for line in lines if line not in todo]
    RECORDING.write_text("".join(json.dumps(line) + "\n" for line in sorted([*kept, *found], key=_node)))
    print(f"{len(found)} asked, {sum(not line['ok'] for line in found)} refused, {len(changed)} answers changed or new")


if __name__ == "__main__":
    main()
