"""SGLang's own verdicts on sampled configurations: asked of `tools/sglang_oracle`, stored as JSONL, read again.

One file per version, compute capability and seed. Its first line says which node was presented; every further line
holds `model`, `assignment`, `ok`, `stage`, `message` and the resolved arguments that are compared.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sampled_configurations import argv, draw

from servetune.core.node import NodeFacts
from servetune.engines.sglang.capabilities import Capabilities, capabilities_of

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "servetune"
PYTHON = Path(os.environ.get("SERVETUNE_SGLANG_CPU_DIR", CACHE / "sglang-cpu")) / "current/venv/bin/python"
RELEASES = Path(os.environ.get("SERVETUNE_SGLANG_ORACLE_DIR", CACHE / "sglang-oracle"))
INSTALLED = "0.5.23"  # the release of the environment itself (tools/sglang_cpu)
STORE = CACHE / "oracle"
MODEL_CONFIGS = ROOT / "tests/engines/sglang/model_configs"
#: Models of the two journeys come more often than the others.
MODELS = ("qwen3-235b-a22b-fp8", "kimi-k2.5", "glm-5-nvfp4")
OTHER_MODELS = ("deepseek-v3", "qwen3-30b-a3b", "gpt-oss-120b", "glm-4.5-air", "llama-3.1-8b")
CUDA = "13.0"
GPUS = 8
#: Compute capability → GPU and its memory in MiB, as nvidia-smi says it.
GPU = {
    "9.0": ("NVIDIA H200", 143771),
    "10.0": ("NVIDIA B200", 183359),
    "12.0": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887),
}
#: Resolved arguments that are compared; an argument that a version does not have is left out.
_FIELDS = """
    tp_size ep_size pp_size dp_size attn_dp_size attn_cp_size moe_dp_size enable_dp_attention enable_dp_lm_head
    moe_dense_tp_size moe_a2a_backend moe_runner_backend deepep_mode flashinfer_a2a_dispatch_type
    disable_shared_experts_fusion enforce_shared_experts_fusion enable_eplb ep_dispatch_algorithm
    expert_distribution_recorder_mode enable_two_batch_overlap enable_single_batch_overlap disable_custom_all_reduce
    enable_mscclpp enable_torch_symm_mem enable_symm_mem enable_nccl_nvls enable_flashinfer_allreduce_fusion
    flashinfer_allreduce_fusion_backend mem_fraction_static max_running_requests max_total_tokens max_prefill_tokens
    chunked_prefill_size schedule_policy schedule_conservativeness page_size disable_radix_cache enable_mixed_chunk
    disable_overlap_schedule cuda_graph_max_bs disable_cuda_graph disable_cuda_graph_padding enable_torch_compile
    disable_piecewise_cuda_graph enable_piecewise_cuda_graph piecewise_cuda_graph_max_tokens attention_backend
    prefill_attention_backend decode_attention_backend dsa_prefill_backend dsa_decode_backend kv_cache_dtype
    quantization dtype sampling_backend fp8_gemm_runner_backend speculative_algorithm speculative_num_steps
    speculative_eagle_topk speculative_num_draft_tokens speculative_moe_runner_backend speculative_moe_a2a_backend
    enable_hierarchical_cache hicache_io_backend hicache_mem_layout enable_deterministic_inference
    cuda_graph_backend_decode cuda_graph_backend_prefill cuda_graph_max_bs_decode cuda_graph_max_bs_prefill
"""
FIELDS = tuple(_FIELDS.split())
#: From 0.5.14 on graphs are told by `cuda_graph_config`; these older names are no longer kept up to date with it.
BESIDE_GRAPH_CONFIG = (
    "disable_cuda_graph",
    "enable_flashinfer_allreduce_fusion",
    "cuda_graph_max_bs",
    "enable_dp_attention",
    "disable_piecewise_cuda_graph",
)
_PHASE = r"{}=PhaseConfig\(backend='(\w+)', max_bs=([-\w]+)"
#: What the presented engine says and a real installation would not, by (message or model, version), with the reason.
OF_THE_STAND = (
    ("InfiniBand sysfs path not found", "", "the stand has no InfiniBand"),
    ("Unknown quantization method: gptq", "", "Marlin's types are those of a placeholder for the kernels"),
    ("(awq) does not match the quantization method specified in the `quantization` argument (marlin)", "", "the same"),
    ("the 'nvidia_megakernel' plugin is not installed", "", "a package that is not on the stand"),
    ("requires the 'granian' package", "", "the same"),
    ("deepseek-v3.2", "0.5.9", "its own transformers does not know the type, and loads it as DeepSeek-V3"),
    ("qwen3.5-35b-a3b", "0.5.9", "the stand's transformers reads its config otherwise, and the release fails on it"),
    ("granite-4-small", "0.5.9", "the stand's transformers names its layers otherwise"),
)
_REPLACED = {"nsa_prefill_backend": "dsa_prefill_backend", "nsa_decode_backend": "dsa_decode_backend"}


@dataclass(frozen=True)
class Presented:
    """The node that the engine was made to see."""

    engine_version: str
    compute_capability: str
    gpu: str
    gpus: int
    memory_mib: int
    cuda: str

    @property
    def facts(self) -> NodeFacts:
        return NodeFacts(
            node="presented",
            gpu_names=(self.gpu,) * self.gpus,
            gpu_memory_bytes=self.memory_mib << 20,
            compute_capability=self.compute_capability,
            cuda_version=self.cuda,
        )


def presented(engine_version: str, compute_capability: str) -> Presented:
    gpu, memory_mib = GPU[compute_capability]
    return Presented(engine_version, compute_capability, gpu, GPUS, memory_mib, CUDA)


@cache
def model_config(name: str, folder: Path = MODEL_CONFIGS) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())  # type: ignore[no-any-return]


def sampled(
    capabilities: Capabilities, seed: int, count: int, folder: Path = MODEL_CONFIGS
) -> list[tuple[str, dict[str, object]]]:
    """(model, assignment); the same seed, version and folder of models give the same list."""

    def choices(flag: str) -> Sequence[str] | None:
        spec = capabilities.spellings.get(flag)
        return None if spec is None or spec.kind == "removed" else [str(c) for c in spec.choices or ()]

    source = random.Random(seed + 1)
    found = tuple(sorted(path.stem for path in folder.glob("*.json")))
    often, rest = (MODELS, OTHER_MODELS) if folder == MODEL_CONFIGS else (found, found)
    return [
        (source.choice(often if source.random() < 0.6 else rest), assignment)
        for assignment in draw(seed, count, choices)
    ]


def verdicts(node: Presented, seed: int, count: int, store: Path = STORE, folder: Path = MODEL_CONFIGS) -> Path:
    """The file of verdicts, asked as far as they are not stored yet. `folder`: the models' config.json files."""
    models = "" if folder == MODEL_CONFIGS else f"{folder.name}-"
    path = store / f"{models}{node.engine_version}-cc{node.compute_capability}-seed{seed}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = path.read_text().count("\n") if path.exists() else 0
    todo = sampled(capabilities_of(node.engine_version), seed, count, folder)[max(0, stored - 1) :]
    if todo:
        with path.open("a") as file, tempfile.TemporaryDirectory() as place:
            if not stored:
                file.write(json.dumps(vars(node)) + "\n")
            for line in _ask(node, todo, Path(place), folder):
                file.write(json.dumps(line) + "\n")
                file.flush()
    return path


def _ask(
    node: Presented, todo: Sequence[tuple[str, dict[str, object]]], folder: Path, configs: Path
) -> Iterator[dict[str, Any]]:
    for name in {model for model, _ in todo}:
        (folder / name).mkdir()
        (folder / name / "config.json").write_text((configs / f"{name}.json").read_text())
    commands = [
        ["--model-path", str(folder / model), "--trust-remote-code", *argv(assignment)] for model, assignment in todo
    ]
    for (model, assignment), verdict in zip(todo, answers(node, commands), strict=True):
        message = (verdict["message"] or "").replace(str(folder), "MODELS") or None
        yield {
            "model": model,
            "assignment": assignment,
            "ok": verdict["ok"],
            "stage": verdict["stage"],
            "decided": verdict["decided"],
            "message": message and message[:300],
            "resolved": compared(verdict.get("resolved") or {}),
        }


def answers(node: Presented, commands: Sequence[Sequence[str]]) -> Iterator[dict[str, Any]]:
    """What the engine's own checks say of each command on the presented node, one process for all of them."""
    oracle = [
        *("nice", "-n", "10", str(PYTHON), str(ROOT / "tools/sglang_oracle/oracle.py")),
        *("--compute-capability", node.compute_capability, "--gpus", str(node.gpus)),
        *("--memory-mib", str(node.memory_mib), "--cuda", node.cuda, "--gpu-name", node.gpu),
    ]
    if node.engine_version != INSTALLED:
        oracle += ["--release", str(RELEASES / node.engine_version)]
    with subprocess.Popen(
        oracle, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as engine:
        assert engine.stdin is not None
        assert engine.stdout is not None
        for words in commands:
            print(json.dumps(words), file=engine.stdin, flush=True)
            answer = engine.stdout.readline()
            if not answer:
                raise SystemExit(f"the oracle ended on {words}; run it by hand: {' '.join(oracle)}")
            yield json.loads(answer)
        engine.stdin.close()


def compared(resolved: dict[str, Any]) -> dict[str, Any]:
    """The resolved arguments under one name each, whatever the version calls them; absent ones are left out."""
    view = dict(resolved)
    for old, new in _REPLACED.items():
        if old in view:
            view[new] = view[old]
    config = view.get("cuda_graph_config")
    if config is not None:
        for phase in ("decode", "prefill"):
            if isinstance(config, str):  # an object, as the oracle writes it
                found = re.search(_PHASE.format(phase), config)
                assert found is not None, config
                backend, largest = found[1], None if found[2] == "None" else int(found[2])
            else:
                backend, largest = config[phase]["backend"], config[phase]["max_bs"]
            view[f"cuda_graph_backend_{phase}"], view[f"cuda_graph_max_bs_{phase}"] = backend, largest
        for name in BESIDE_GRAPH_CONFIG:
            view.pop(name, None)
    return {name: view[name] for name in FIELDS if name in view}


def of_the_stand(node: Presented, line: dict[str, Any]) -> bool:
    """Whether a verdict is due to the stand and says nothing about the engine."""
    told = f"{line['model']} {line['message']}"
    return any(text in told and node.engine_version.startswith(version) for text, version, _ in OF_THE_STAND)


def stored(path: Path) -> tuple[Presented, list[dict[str, Any]]]:
    """The presented node and its verdicts; a crash of the oracle is none, and what is due to the stand says nothing.

    A recording keeps the values that most verdicts resolve to in its first line (`common`), and differences after it.
    """
    with path.open() as file:
        head = json.loads(file.readline())
        common = head.pop("common", {})
        lines = [json.loads(line) for line in file]
    for line in lines:
        if line["ok"]:
            line["resolved"] = {**common, **line["resolved"]}
    node = Presented(**head)
    kept = [line for line in lines if line["stage"] != "crash" and line.get("decided", True)]
    return node, [line for line in kept if not of_the_stand(node, line)]
