"""Nodes and model configs that the tests of rules and memory share."""

import json
from functools import cache
from pathlib import Path

from servetune.core.node import NodeFacts
from servetune.engines.sglang.rules import judge

MODELS = sorted(path.stem for path in (Path(__file__).parent / "model_configs").glob("*.json"))
GIB = 2**30


@cache
def config(name):
    return json.loads((Path(__file__).parent / "model_configs" / f"{name}.json").read_text())


@cache
def other_config(name):
    """Of an architecture that few rules were written against."""
    return json.loads((Path(__file__).parents[3] / "benchmarks" / "other_models" / f"{name}.json").read_text())


def node(gpu, count, memory_mib, capability, interconnect=None):
    return NodeFacts(
        node="test",
        gpu_names=(gpu,) * count,
        gpu_memory_bytes=memory_mib << 20,
        compute_capability=capability,
        cuda_version="13.0",
        interconnect=interconnect,
    )


H100 = node("NVIDIA H100 80GB HBM3", 8, 81559, "9.0", "nvlink")
H200 = node("NVIDIA H200", 8, 143771, "9.0", "nvlink")
B200 = node("NVIDIA B200", 8, 183359, "10.0", "nvlink")
RTX_PRO = node("NVIDIA RTX PRO 6000 Blackwell Server Edition", 8, 97887, "12.0", "pcie")
NODES = {"H100": H100, "H200": H200, "B200": B200, "RTX PRO": RTX_PRO}
UNKNOWN_NODE = NodeFacts(node="unknown")
VERSIONS = ("0.5.2", "0.5.6", "0.5.9", "0.5.11", "0.5.12", "0.5.13", "0.5.15", "0.5.18", "0.5.20", "0.5.23")


def refused(version, facts, model, **flags):
    """Ids of the violated rules; flags with underscores."""
    return [v.rule for v in judged(version, facts, model, **flags).violations]


def judged(version, facts, model, **flags):
    assignment = {flag.replace("_", "-"): value for flag, value in flags.items()}
    return judge(assignment, facts, version, config(model) if model else None)


def resolved(version, facts, model, **flags):
    return judged(version, facts, model, **flags).effective.resolved
