"""Hold the forecast's KV-cache bytes per token against SGLang's own function, for many architectures and layouts.

    python benchmarks/cache_bytes.py [--version 0.5.9]

Asks `model_executor/model_runner_kv_cache_mixin.py:get_cell_size_per_token` of an installed release up to 0.5.9
(`tools/sglang_oracle/install.sh`) with the engine's own reading of each model's config: no GPU, no weights. Prints
layouts whose forecast differs by more than 2 %, and how many agree. Where layers have a sliding window the forecast is
per token of the full layers: the others keep `--swa-full-tokens-ratio` as many, which SGLang reckons with afterwards.
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

from engine_verdicts import MODEL_CONFIGS, PYTHON, RELEASES, ROOT, presented
from far_models import FAR_MODELS

from servetune.engines.sglang.memory import forecast

TOLERANCE = 0.02
SIZES = (1, 2, 4, 8)
TYPES = ("auto", "fp8_e4m3", "fp4_e2m1")
#: Runs with the engine's Python: models' folders on standard input, bytes per token on standard output.
ENGINE = """
import json, sys, types
release, program, models = json.loads(sys.stdin.readline())
sys.path[:0] = [release, program]
import _preflight_program, torch
gpus = {"count": 8, "capability": "9.0", "memory_mib": 143771, "cuda": "13.0"}
_preflight_program.prepare({"gpus": gpus, "path": [release]})
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.model_executor import model_runner_kv_cache_mixin as mixin
from sglang.srt.configs.model_config import AttentionArch
types_of = {"auto": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn, "fp4_e2m1": torch.float4_e2m1fn_x2}
for name, folder in models.items():
    try:
        config = ModelConfig(folder, trust_remote_code=True)
    except Exception as error:
        print(json.dumps([name, None, None, repr(error)[:200]]), flush=True)
        continue
    for size in SIZES:
        mixin.get_attention_tp_size = lambda: size
        for dtype, kind in types_of.items():
            runner = types.SimpleNamespace(
                model_config=config, kv_cache_dtype=kind, use_mla_backend=config.attention_arch == AttentionArch.MLA
            )
            count = mixin.ModelRunnerKVCacheMixin.get_cell_size_per_token(runner, config.num_hidden_layers)
            print(json.dumps([name, size, dtype, count]), flush=True)
"""


def asked(version: str, configs: dict[str, dict[str, Any]], folder: Path) -> list[list[Any]]:
    for name, config in configs.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    program = str(ROOT / "src/servetune/engines/sglang")
    told = [str(RELEASES / version), program, {name: str(folder / name) for name in configs}]
    done = subprocess.run(
        [str(PYTHON), "-c", ENGINE.replace("SIZES", str(SIZES))],
        input=json.dumps(told) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="0.5.9")
    version = parser.parse_args().version
    configs = {path.stem: json.loads(path.read_text()) for path in sorted(MODEL_CONFIGS.glob("*.json"))} | FAR_MODELS
    facts, counts = presented(version, "9.0").facts, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        lines = asked(version, configs, Path(folder))
    for name, size, dtype, real in lines:
        if size is None:
            print(f"{name:24} the engine cannot read its config: {real}")
            continue
        flags = {"tp-size": size, **({} if dtype == "auto" else {"kv-cache-dtype": dtype})}
        found = forecast(flags, facts, version, configs[name])
        if found is None:
            counts["not forecast"] += 1
            if size == 1 and dtype == "auto":
                print(f"{name:24} is not forecast")
            continue
        off = found.kv_bytes_per_token / real - 1
        counts["within 2 %" if abs(off) <= TOLERANCE else "off"] += 1
        counts["to the byte"] += abs(off) < 1e-9
        if abs(off) > TOLERANCE:
            print(
                f"{name:24} tp {size} {dtype:9} engine {real:9} forecast {found.kv_bytes_per_token:11.1f} {off:+8.1%}"
            )
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main()
