"""What each layer of the configuration checks costs.

    python benchmarks/checks_cost.py [--versions 0.5.9 …] [--count N] [--candidates N]

Layers 1 to 3: CPU milliseconds for one configuration, median and 99th percentile over fresh ones. `validate --batch`:
wall seconds of the whole command for 1,000 command lines, start-up included, median of three. Preflight: wall
milliseconds for one candidate in a warm process (`make sglang-cpu`, `tools/sglang_oracle/install.sh`), with 8 presented
GPUs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpu_time import timed_ms
from engine_verdicts import INSTALLED, MODEL_CONFIGS, PYTHON, RELEASES, model_config, presented, sampled
from sampled_configurations import argv

from servetune.engines.sglang._sent_program import argv_of
from servetune.engines.sglang.capabilities import capabilities_of
from servetune.engines.sglang.capabilities import violations as capability_violations
from servetune.engines.sglang.memory import forecast, memory_violations
from servetune.engines.sglang.preflight import SglangPreflight, preparation
from servetune.engines.sglang.rules import violations as rule_violations
from servetune.nodes import local

CAPABILITY = "12.0"
SEED = 3
MODEL = "kimi-k2.5"


def layers(version: str, count: int) -> None:
    """CPU time of layers 1, 2 and 3, and of all of them."""
    facts, capabilities = presented(version, CAPABILITY).facts, capabilities_of(version)
    todo = [(assignment, model_config(name)) for name, assignment in sampled(capabilities, SEED, count)]

    def capability(assignment: Any, config: Any) -> None:
        capability_violations(assignment, capabilities)

    def rules(assignment: Any, config: Any) -> None:
        rule_violations(assignment, facts, version, config)

    def memory(assignment: Any, config: Any) -> None:
        memory_violations(forecast(assignment, facts, version, config), assignment)

    def together(assignment: Any, config: Any) -> None:
        for layer in (capability, rules, memory):
            layer(assignment, config)

    named = {"capabilities": capability, "rules": rules, "memory": memory, "layers 1 to 3": together}
    for title, call in named.items():
        _row(f"{version} {title}", timed_ms(call, todo), "CPU ms")


def batch(version: str, count: int) -> None:
    """The whole command, as a person runs it."""
    node = presented(version, CAPABILITY)
    facts = {
        "gpu_name": node.gpu,
        "gpu_count": node.gpus,
        "gpu_memory_mib": node.memory_mib,
        "compute_capability": CAPABILITY,
        "engine": {"version": version},
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "node.json").write_text(json.dumps(facts))
        commands = [argv(assignment) for _, assignment in sampled(capabilities_of(version), SEED, count)]
        (Path(folder) / "batch.jsonl").write_text("".join(json.dumps(command) + "\n" for command in commands))
        words = [sys.executable, "-m", "servetune", "validate", "--json", "--node-facts", f"{folder}/node.json"]
        words += ["--model-config", str(MODEL_CONFIGS / f"{MODEL}.json"), "--batch", f"{folder}/batch.jsonl"]
        took_s = []
        for _ in range(3):
            begin_s = time.monotonic()
            done = subprocess.run(words, capture_output=True, check=True)
            took_s.append(time.monotonic() - begin_s)
            assert done.stdout.count(b"\n") == count
    print(f"{f'{version} validate --batch, {count:,} commands':40}{statistics.median(took_s):10.2f} wall s")


def preflight(version: str, count: int) -> None:
    """Warm questions; the first ones, which import what they need, are told apart."""
    release = RELEASES / version
    if not PYTHON.exists() or (version != INSTALLED and not release.exists()):
        print(f"{version} preflight: not installed here")
        return
    facts = presented(version, CAPABILITY).facts
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text((MODEL_CONFIGS / f"{MODEL}.json").read_text())
        talk = local.create(local.Settings(), Path()).converse(argv_of(str(PYTHON)), {"HF_HUB_OFFLINE": "1"})
        path = [] if version == INSTALLED else [str(release)]
        begin_s = time.monotonic()
        asked = SglangPreflight(talk, preparation(facts, described=True, path=path), lambda _: _no_command())
        assert asked.version == version
        print(f"{f'{version} preflight, start-up':40}{time.monotonic() - begin_s:10.1f} wall s")
        took_ms, own_ms = [], []
        for _, assignment in sampled(capabilities_of(version), SEED, count + 5):
            begin_s = time.monotonic()
            words = ["--model-path", folder, "--trust-remote-code", *argv(assignment)]
            own_ms.append(asked.judge(words, {}).took_ms)
            took_ms.append(1000 * (time.monotonic() - begin_s))
        _row(f"{version} preflight, first question", took_ms[:1] * 3, "wall ms")
        _row(f"{version} preflight, warm", took_ms[5:], "wall ms")
        asked.close()


def _no_command() -> Any:
    raise AssertionError("questions are asked as command lines here")


def _row(title: str, took: Sequence[float], unit: str) -> None:
    p99 = statistics.quantiles(took, n=100)[98]
    print(f"{title:40}{statistics.median(took):10.3f} {unit} median {p99:10.3f} p99", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=["0.5.9", "0.5.13", "0.5.23"])
    parser.add_argument("--count", type=int, default=1000, help="configurations for layers 1 to 3")
    parser.add_argument("--candidates", type=int, default=50, help="for the preflight")
    chosen = parser.parse_args()
    for version in chosen.versions:
        layers(version, chosen.count)
        batch(version, chosen.count)
        preflight(version, chosen.candidates)


if __name__ == "__main__":
    main()
