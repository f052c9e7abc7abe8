"""Makes scenarios in the schema of simulated nodes, wider than the shipped ones, and finds their optimum.

`tuning` scenarios are for choosing constants, `judging` ones only for the tables: their seeds never meet.

    python benchmarks/search/scenarios.py FOLDER      writes all of them, with their optimum
"""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from pathlib import Path

import yaml

from servetune.simulation.configuration import configure, memory
from servetune.simulation.model import noise_free_score
from servetune.simulation.rates import running
from servetune.simulation.scenario import Scenario, load_scenario

SEEDS = {
    "tuning": range(100, 112),
    "seen": range(9000, 9024),
    "earlier": range(9100, 9124),  # judged earlier versions; a few of their runs were looked at
    "judging": range(9200, 9220),
    "ideas": range(9300, 9320),  # for trying ideas against the present code
}
LEVELS = (1, 10, 256, 1024)

A2A = ("deepep", "flashinfer", "mooncake")
RUNNERS = ("triton", "flashinfer_cutlass", "flashinfer_trtllm", "deep_gemm", "cutlass")
ALLREDUCE = {
    "nccl": {"disable-custom-all-reduce": True, "env.NCCL_ALGO": "Ring"},
    "nccl-tree": {"disable-custom-all-reduce": True, "env.NCCL_ALGO": "Tree"},
    "custom": {"disable-custom-all-reduce": False},
    "mscclpp": {"disable-custom-all-reduce": True, "enable-mscclpp": True},
    "torch-symm-mem": {"disable-custom-all-reduce": True, "enable-torch-symm-mem": True},
    "nvls": {"disable-custom-all-reduce": True, "enable-nccl-nvls": True},
    "flashinfer-fusion": {"disable-custom-all-reduce": True, "enable-flashinfer-allreduce-fusion": True},
}
KEY_OF = {
    "nccl-tree": {"env.NCCL_ALGO": "Tree"},
    "custom": {"disable-custom-all-reduce": False},
    "mscclpp": {"enable-mscclpp": True},
    "torch-symm-mem": {"enable-torch-symm-mem": True},
    "nvls": {"enable-nccl-nvls": True},
    "flashinfer-fusion": {"enable-flashinfer-allreduce-fusion": True},
}
CHUNKS = (2048, 4096, 8192, 16384)
GRAPHS = (8, 16, 32, 64, 128, 256, 512)
FRACTIONS = tuple(round(0.70 + 0.005 * i, 3) for i in range(55))


def scenario(seed: int) -> dict:
    """One scenario as a document. Everything varies: memory, pace, sizes of effects, how many things crash, where."""
    rng = random.Random(seed)
    pre = rng.choice((78.0, 94.0, 139.0, 178.0, 186.0))
    weights = round(pre * rng.uniform(0.45, 0.82), 1)
    width = rng.choice((0.08, 0.15, 0.25, 0.35))  # of the effects
    crashing = rng.choice((0.1, 0.3, 0.45))
    base = [rng.uniform(30, 150)]
    for growth in (rng.uniform(4.5, 8.5), rng.uniform(4.0, 9.0), rng.uniform(1.15, 2.1)):
        base.append(base[-1] * growth)
    extra = [{"when": {"moe-a2a-backend": name}, "add": round(pre * rng.uniform(0.0, 0.07), 1)} for name in A2A]
    return {
        "name": f"made-{seed}",
        "engine_version": "0.5.9",
        "node": {
            "gpu_name": "GPU",
            "compute_capability": rng.choice(("9.0", "10.0", "12.0")),
            "gpu_count": 8,
            "gpu_memory_mib": round(pre * 1.04 * 1024),
            "interconnect": rng.choice(("nvlink", "pcie")),
        },
        "model": {"path": "/models/m", "architecture": "DeepseekV3ForCausalLM", "quantization": "compressed-tensors"},
        "flags": {
            "mem-fraction-static": round(min(0.93, weights / pre + rng.uniform(0.06, 0.12)), 3),
            "cuda-graph-max-bs": rng.choice((64, 128, 160)),
            "moe-a2a-backend": "none",
            "moe-runner-backend": "auto",
            "chunked-prefill-size": rng.choice((4096, 8192)),
            "disable-custom-all-reduce": True,
            "enable-mscclpp": False,
            "enable-torch-symm-mem": False,
            "enable-flashinfer-allreduce-fusion": False,
            "enable-nccl-nvls": False,
            "enable-single-batch-overlap": False,
            "enable-piecewise-cuda-graph": False,
            "env.NCCL_ALGO": "Ring",
        },
        "memory_gib": {
            "free_before_weights": pre,
            "weights": weights,
            "extra": extra,
            "activation": round(pre * rng.uniform(0.008, 0.03), 2),
            "activation_per_1k_chunk": round(pre * rng.uniform(0.0005, 0.002), 3),
            "graph_base": round(pre * rng.uniform(0.003, 0.008), 2),
            "graph_per_batch_size": round(pre * rng.uniform(0.00008, 0.0003), 4),
        },
        "kv_tokens_per_gib": rng.choice((3000, 6000, 12000, 20000)),
        "startup_s": {
            "init": rng.randint(15, 40),
            "load_weights": rng.randint(180, 720),
            "kv_pool": 5,
            "graph_base": rng.randint(10, 30),
            "graph_per_batch_size": round(rng.uniform(0.3, 3.0), 1),
            "warmup": rng.randint(10, 40),
        },
        "throughput": dict(zip(LEVELS, (round(v, 1) for v in base), strict=True)),
        "curves": [
            {
                "flag": "chunked-prefill-size",
                "optimum": rng.choice(CHUNKS),
                "penalty": round(rng.uniform(0.01, 0.09), 3),
            }
        ],
        "eager_factor": {
            1: 0.35,
            10: round(rng.uniform(0.35, 0.5), 2),
            256: round(rng.uniform(0.65, 0.85), 2),
            1024: round(rng.uniform(0.8, 0.97), 2),
        },
        "output_tokens": rng.choice((128, 256, 512)),
        "input_tokens": rng.choice((256, 512, 1024)),
        "noise": {"cv": rng.choice((0.005, 0.01, 0.02)), "outlier_probability": 0.02, "outlier_factor": 0.8},
        "effects": effects(rng, width),
        **failures(rng, crashing),
    }


def effects(rng: random.Random, width: float) -> list[dict]:
    """Per level and value: a common part and a part of the level's own; a few pairs; overlap only with all-to-all."""

    def table(size: float) -> dict:
        common = rng.gauss(0, 0.7)
        return {level: round(math.exp(size * (common + 0.7 * rng.gauss(0, 1)) * 0.8), 3) for level in LEVELS}

    found = [{"when": {"moe-a2a-backend": name}, "factor": table(width)} for name in A2A]
    found += [{"when": {"moe-runner-backend": name}, "factor": table(width)} for name in RUNNERS]
    found += [{"when": when, "factor": table(width * 0.8)} for when in KEY_OF.values()]
    for _ in range(rng.randint(0, 3)):
        pair = {"moe-a2a-backend": rng.choice(("none", *A2A)), "moe-runner-backend": rng.choice(RUNNERS)}
        found.append({"when": pair, "factor": round(rng.uniform(0.8, 1.2), 3)})
    found.append({"when": {"enable-piecewise-cuda-graph": True}, "factor": table(0.05)})
    found.append({"when": {"enable-single-batch-overlap": True, "moe-a2a-backend": list(A2A)}, "factor": table(0.08)})
    return found


def failures(rng: random.Random, crashing: float) -> dict:
    """Values that crash, each in a phase of its kind; pairs that crash; nonsense; switches without effect."""
    found, nonsense, idle = [], [], []
    device = {"class": "device_fault", "log": "CUDA error: an illegal memory access was encountered"}
    capture = {
        "phase": "graph_capture",
        "class": "graph_capture",
        "log": "Capture cuda graph failed: operation not permitted when stream is capturing",
    }
    for name in A2A:
        if rng.random() < crashing:
            when = {"moe-a2a-backend": name}
            found.append(
                rng.choice(
                    (
                        {"when": when, "at_concurrency": rng.choice((10, 256, 1024)), "phase": "serving", **device},
                        {
                            "when": when,
                            "phase": "load",
                            "class": "comm_init",
                            "log": "RuntimeError: all-to-all initialisation failed",
                        },
                        {"when": when, "phase": "warmup", **device},
                    )
                )
            )
    for name in RUNNERS:
        if rng.random() < crashing:
            when = {"moe-runner-backend": name}
            if rng.random() < 0.3:
                nonsense.append({"when": when})
            else:
                found.append(
                    rng.choice(
                        (
                            {
                                "when": when,
                                "phase": "validate",
                                "class": "arch_unsupported",
                                "log": "no kernel image is available for execution on the device",
                            },
                            {
                                "when": when,
                                "phase": "load",
                                "class": "arch_unsupported",
                                "log": "no kernel image is available for execution on the device",
                            },
                            {"when": when, "phase": "warmup", **device},
                        )
                    )
                )
    for name, when in KEY_OF.items():
        if rng.random() < crashing:
            found.append({"when": when, **capture})
        elif rng.random() < 0.25:
            idle.append({"when": when, "log": f"{name} is not available on this device; falling back"})
    for _ in range(rng.randint(0, 2)):
        pair = {"moe-a2a-backend": rng.choice(("none", *A2A)), "moe-runner-backend": rng.choice(RUNNERS)}
        found.append(
            {
                "when": pair,
                "phase": rng.choice(("validate", "warmup")),
                "class": "invalid_combo",
                "log": "NotImplementedError: requires a fused func for a2a backend, but none is registered",
            }
        )
    if rng.random() < crashing:
        found.append(
            {
                "when": {"enable-piecewise-cuda-graph": True},
                "phase": "graph_capture",
                "class": "graph_capture",
                "log": "Piecewise CUDA Graph failed with error",
            }
        )
    return {"failures": found, "wrong_output": nonsense, "no_effect": idle}


def optimum(made: Scenario) -> tuple[float, dict]:
    """The best noise-free score over the simulated space. All-reduce and piecewise graphs are chosen on their own:
    in these scenarios nothing depends on them but their own factor. Then all the rest together, coarse fractions first.
    """
    ranked: list[tuple[float, tuple]] = []
    plain = [("none", runner, "nccl", False, False, 8192, 64) for runner in ("auto", *RUNNERS)]
    fine = [c for c in plain if any(score(made, c, f) for f in FRACTIONS[::4])]
    base = fine[0]
    fraction = next(f for f in FRACTIONS[::2] if score(made, base, f))
    allreduce = max(ALLREDUCE, key=lambda name: score(made, (*base[:2], name, *base[3:]), fraction) or 0)
    piecewise = max((False, True), key=lambda on: score(made, (*base[:4], on, *base[5:]), fraction) or 0)
    combos = itertools.product(("none", *A2A), ("auto", *RUNNERS), (False, True), CHUNKS, GRAPHS)
    for a2a, runner, overlap, chunk, graph in combos:
        combo = (a2a, runner, allreduce, overlap, piecewise, chunk, graph)
        best = max((s for f in FRACTIONS[3::6] if (s := score(made, combo, f))), default=None)
        if best is not None:
            ranked.append((best, combo))
    ranked.sort(key=lambda entry: -entry[0])
    best: tuple[float, dict] = (0.0, {})
    for head in list(dict.fromkeys(combo[:6] for _, combo in ranked))[:15]:
        for fraction in FRACTIONS:
            for graph in sizes_that_matter(made, head, fraction):
                found = score(made, (*head, graph), fraction)
                if found and found > best[0]:
                    best = (found, assignment((*head, graph), fraction))
    return best


def sizes_that_matter(made: Scenario, head: tuple, fraction: float) -> set[int]:
    """Graphs help up to the requests that run at a level, and cost memory: only the least size per level counts."""
    effective, _ = configure(made, assignment((*head, 8), fraction))
    if memory(made, effective).kv_gib <= 0:
        return set()
    held = (running(made, effective, level) for level in made.levels)
    return {min(512, max(8, 8 * math.ceil(requests / 8))) for requests in held}


def assignment(combo: tuple, fraction: float) -> dict:
    """A combination as flags."""
    a2a, runner, allreduce, overlap, piecewise, chunk, graph = combo
    return {
        "moe-a2a-backend": a2a,
        "moe-runner-backend": runner,
        **ALLREDUCE[allreduce],
        "enable-single-batch-overlap": overlap,
        "enable-piecewise-cuda-graph": piecewise,
        "chunked-prefill-size": chunk,
        "cuda-graph-max-bs": graph,
        "mem-fraction-static": fraction,
    }


def score(made: Scenario, combo: tuple, fraction: float) -> float | None:
    """Noise-free score of one point."""
    return noise_free_score(made, assignment(combo, fraction))


def make(folder: Path, kind: str) -> list[Path]:
    """The scenario files of a kind, made when they are not there; a baseline that crashes disqualifies a seed."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for seed in SEEDS[kind]:
        path = folder / f"{kind}-{seed}.yaml"
        if not path.exists():
            document = scenario(seed)
            attempt = 0
            path.write_text(yaml.safe_dump(document, sort_keys=False))
            while baseline_score(path) is None:
                attempt += 1
                document = {**scenario(seed + 100_000 * attempt), "name": f"made-{seed}"}
                path.write_text(yaml.safe_dump(document, sort_keys=False))
        paths.append(path)
    return paths


def baseline_score(path: Path) -> float | None:
    """Of the engine's defaults on this node."""
    made = load_scenario(str(path))
    return noise_free_score(made, {flag: value for flag, value in made.flags.items() if value is True})


def best_of(path: Path) -> float:
    """The optimum's score, kept beside the scenario once it is known."""
    kept = path.with_suffix(".optimum.json")
    if not kept.exists():
        found, config = optimum(load_scenario(str(path)))
        kept.write_text(json.dumps({"score": found, "config": config}))
    return float(json.loads(kept.read_text())["score"])


if __name__ == "__main__":
    for kind in SEEDS:
        for path in make(Path(sys.argv[1]), kind):
            print(path, baseline_score(path), best_of(path), flush=True)
