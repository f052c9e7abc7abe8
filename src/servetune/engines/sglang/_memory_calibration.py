"""What launches on this node have shown about memory, per class of configurations.

A class holds the configurations that put the same weights on a GPU: parallel layout, all-to-all backend, quantization,
draft. Numbers come from the engine's log in GiB with two decimals, the smallest over the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from servetune.core.space import Assignment, Frozen, Value
from servetune.engines.sglang.rules._state import field_name

_GIB = 2**30
#: Flags that decide a class, with the value that an absent flag stands for.
_CLASS_FLAGS: Mapping[str, Value] = {
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "attn_dp_size": 1,
    "enable_dp_attention": False,
    "ep_size": 1,
    "moe_a2a_backend": "none",
    "moe_dense_tp_size": "none",
    "enable_dp_lm_head": False,
    "quantization": "none",
    "speculative_algorithm": "none",
    "enable_symm_mem": False,
}


class ClassMemory(Frozen):
    """Seen for one class, in bytes. None: no launch of the class has come that far."""

    assignment: Mapping[str, Value]
    before_load_bytes: int
    weights_bytes: int | None = None
    decode_graph_bytes: int | None = None
    decode_graph_sizes: int = 0
    prefill_graph_bytes: int | None = None
    launches: int = 1


class Calibration(Frozen):
    """Class → what was seen. Belongs to one node, model and engine version; JSON-able."""

    classes: Mapping[str, ClassMemory] = Field(default_factory=dict)


def class_key(assignment: Assignment) -> str:
    """The class of an assignment. With an all-to-all backend the expert-parallel size is the tensor-parallel size."""
    values = dict(_CLASS_FLAGS)
    for flag, value in assignment.items():
        name = field_name(flag)
        if name in values:
            values[name] = value
    if values["moe_a2a_backend"] != "none":
        values["ep_size"] = values["tp_size"]
    groups = (
        values["attn_dp_size"]
        if values["attn_dp_size"] != 1
        else values["dp_size"]
        if values["enable_dp_attention"]
        else 1
    )
    replicas = 1 if values["enable_dp_attention"] or values["attn_dp_size"] != 1 else values["dp_size"]
    values |= {"attn_dp_size": groups, "dp_size": replicas, "enable_dp_attention": False}
    return ",".join(f"{name}={value}" for name, value in values.items() if value != _CLASS_FLAGS[name]) or "plain"


def calibrate(calibration: Calibration, assignment: Assignment, log_facts: Mapping[str, Any]) -> Calibration:
    """Add what one launch's log showed. A log without memory numbers changes nothing.

    `log_facts` as the log reader gives them: `memory_gib` (before_load_gib, after_load_gib), `graph_gib` (by what was
    captured), `captured_sizes`. A launch that got
    further than the earlier ones of its class replaces what it knows better; memory before load is the smallest seen.
    """
    seen = _seen(assignment, log_facts)
    if seen is None:
        return calibration
    key = class_key(assignment)
    old = calibration.classes.get(key)
    return Calibration(classes={**calibration.classes, key: seen if old is None else _merged(old, seen)})


def _seen(assignment: Assignment, log_facts: Mapping[str, Any]) -> ClassMemory | None:
    memory: Mapping[str, Any] = log_facts.get("memory_gib") or {}
    before, after = memory.get("before_load_gib"), memory.get("after_load_gib")
    if before is None:
        return None
    graphs: Mapping[str, Any] = log_facts.get("graph_gib") or {}
    sizes: Mapping[str, Any] = log_facts.get("captured_sizes") or {}
    decode = [gib for what, gib in graphs.items() if "prefill" not in what]
    prefill = [gib for what, gib in graphs.items() if "prefill" in what]
    captured = [len(found) for what, found in sizes.items() if "prefill" not in what]
    return ClassMemory(
        assignment=dict(assignment),
        before_load_bytes=_bytes(before),
        weights_bytes=None if after is None else _bytes(before - after),
        decode_graph_bytes=_bytes(sum(decode)) if decode else None,
        decode_graph_sizes=max(captured, default=0),
        prefill_graph_bytes=_bytes(sum(prefill)) if prefill else None,
    )


def _merged(old: ClassMemory, new: ClassMemory) -> ClassMemory:
    better = new.model_dump(exclude={"assignment", "before_load_bytes", "launches"}, exclude_none=True)
    if new.decode_graph_sizes <= old.decode_graph_sizes and old.decode_graph_bytes is not None:
        better.pop("decode_graph_bytes", None)
        better.pop("decode_graph_sizes", None)
    weights = [size for size in (old.weights_bytes, new.weights_bytes) if size is not None]
    return old.model_copy(
        update={
            **better,
            "weights_bytes": max(weights, default=None),
            "before_load_bytes": min(old.before_load_bytes, new.before_load_bytes),
            "launches": old.launches + 1,
        }
    )


def _bytes(gib: float) -> int:
    return max(0, int(gib * _GIB))
