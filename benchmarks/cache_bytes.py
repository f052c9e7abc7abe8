"""Hold the forecast's cache pools against SGLang's own arithmetic, for many architectures and layouts.

    python benchmarks/cache_bytes.py [--versions 0.5.9 0.5.13 0.5.23] [--all] [--record]

How many KV tokens 40 GiB hold: of latent, grouped, sparse and chunked attention, of windows with a pool of their own,
beside recurrent states; one to eight ranks, three cache types, with and without a radix cache. The engine's functions
answer (`cache_pools_engine.py`), with its own reading of each model's config: no GPU, no weights, two minutes for each
version. Prints what differs by more than 0.1 %, and how many agree.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from engine_verdicts import INSTALLED, MODEL_CONFIGS, PYTHON, RELEASES, ROOT, presented
from far_models import FAR_MODELS

from servetune.engines.sglang._memory_pools import cache_pools
from servetune.engines.sglang.model_config import model_facts
from servetune.engines.sglang.rules._registry import parse_version
from servetune.engines.sglang.rules._run import run
from servetune.engines.sglang.rules._state import State

TOLERANCE = 0.001
REST_BYTES = 40 << 30
_LIMITED = {"disable-radix-cache": True, "max-running-requests": 64}
QUESTIONS: tuple[tuple[int, str, dict[str, Any]], ...] = (
    *((ranks, kind, {}) for ranks in (1, 2, 4, 8) for kind in ("auto", "fp8_e4m3")),
    (2, "fp4_e2m1", {}),  # not of 0.5.20 and later, which know other four-bit types
    (2, "auto", {"swa-full-tokens-ratio": 0.5}),
    (2, "auto", {"mamba-full-memory-ratio": 0.3}),
    (2, "auto", {"max-mamba-cache-size": 40}),
    (2, "auto", _LIMITED),
)
#: Architectures with pools of different kinds, one of each; their answers are kept for the tests.
KEPT = (
    "deepseek-v3",
    "glm-5",
    "gpt-oss-120b",
    "mimo-v2-flash",
    "step-3.5-flash",
    "llama-4-scout",
    "gemma-4-31b",
    "qwen3-next-80b-a3b",
    "kimi-linear-48b",
    "nemotron-nano-9b-v2",
    "falcon-h1-34b",
    "granite-4-small",
    "lfm2-1.2b",
)
RECORDING = ROOT / "tests/recordings/cache_pools.json"
OTHER_MODELS = ROOT / "benchmarks/other_models"


def asked(version: str, configs: dict[str, dict[str, Any]], folder: Path) -> list[list[Any]]:
    for name, config in configs.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    release = None if version == INSTALLED else str(RELEASES / version)
    models = {name: str(folder / name) for name in configs}
    told = [release, version, str(ROOT / "src/servetune/engines/sglang"), models, QUESTIONS, REST_BYTES]
    done = subprocess.run(
        [str(PYTHON), str(ROOT / "benchmarks/cache_pools_engine.py")],
        input=json.dumps(told) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def forecast_tokens(version: str, config: dict[str, Any], ranks: int, kind: str, flags: dict[str, Any]) -> int:
    """As the forecast reckons; the cache type is the engine's own name for it, whatever the GPU would make of it."""
    assignment = {
        "tp-size": ranks,
        "page-size": 1,
        "chunked-prefill-size": 8192,
        "attention-backend": "triton",
        **flags,
    }
    state = State(assignment, presented(version, "9.0").facts, parse_version(version), model_facts(config))
    run(state)
    fixed = {"kv_cache_dtype": kind, "page_size": 1, "chunked_prefill_size": 8192, "disable_overlap_schedule": False}
    fixed |= {"disable_radix_cache": "disable-radix-cache" in flags, "mamba_radix_cache_strategy": "no_buffer"}
    vars(state).update(fixed)
    return cache_pools(state).tokens(REST_BYTES)


def _record(version: str, answers: list[list[Any]]) -> None:
    known = json.loads(RECORDING.read_text()) if RECORDING.exists() else {}
    kept = [answer for answer in answers if answer[0] in KEPT and isinstance(answer[2], int)]
    found = [[model, *QUESTIONS[number], tokens] for model, number, tokens in kept]
    RECORDING.write_text(json.dumps({**known, version: found}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=["0.5.9", "0.5.13", "0.5.23"])
    parser.add_argument("--all", action="store_true", help="what the engine could not answer, too")
    parser.add_argument("--record", action="store_true", help="keep answers for the tests")
    chosen = parser.parse_args()
    files = [*MODEL_CONFIGS.glob("*.json"), *OTHER_MODELS.glob("*.json")]
    configs = {path.stem: json.loads(path.read_text()) for path in sorted(files)} | FAR_MODELS
    for version in chosen.versions:
        counts = Counter[str]()
        with tempfile.TemporaryDirectory() as folder:
            answers = asked(version, configs, Path(folder))
        if chosen.record:
            _record(version, answers)
        for model, number, real in answers:
            ranks, kind, flags = QUESTIONS[number]
            if isinstance(real, str):
                counts["without the engine's answer"] += 1
                if chosen.all:
                    print(f"{version} {model} tp {ranks} {kind} {flags}: {real}")
                continue
            tokens = forecast_tokens(version, configs[model], ranks, kind, flags)
            off = tokens / real - 1 if real else float(tokens != real)
            counts["within 0.1 %" if abs(off) <= TOLERANCE else "off"] += 1
            counts["to the token"] += tokens == real
            if abs(off) > TOLERANCE:
                print(f"{version} {model:24} tp {ranks} {kind:9} {flags} engine {real} forecast {tokens} {off:+.1%}")
        print(f"{version}: {', '.join(f'{count} {what}' for what, count in counts.items())}", flush=True)


if __name__ == "__main__":
    main()
