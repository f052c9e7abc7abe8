"""What a server's log says that samplers use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Flags whose number decides what fits into memory, by the name under which `memory_facts` says what was in effect.
FLAGS: Mapping[str, tuple[str, ...]] = {
    "fraction": ("mem-fraction-static",),
    "batch": ("cuda-graph-max-bs", "cuda-graph-max-bs-decode"),
    "chunk_tokens": ("chunked-prefill-size",),
}


def memory_facts(log: Mapping[str, object]) -> dict[str, float]:
    """What a log's facts say of memory: GiB before (`pre`) and after (`avail`) the weights, `graph`, `kv_tokens`.

    Also what the server worked with, whoever chose it: its memory `fraction`, the largest captured decode `batch`, and
    `chunk_tokens`. Where a configuration leaves the choice to the engine, this is all that says what was chosen.
    """
    memory, graphs = log.get("memory_gib"), log.get("graph_gib")
    found: dict[str, float] = {}
    if isinstance(memory, Mapping):
        for name, key in (("pre", "before_load_gib"), ("avail", "after_load_gib")):
            if isinstance(memory.get(key), int | float):
                found[name] = float(memory[key])
    if isinstance(graphs, Mapping) and graphs:
        found["graph"] = float(sum(value for value in graphs.values() if isinstance(value, int | float)))
    tokens = log.get("kv_tokens")
    if isinstance(tokens, int | float) and not isinstance(tokens, bool):
        found["kv_tokens"] = float(tokens)
    return found | _in_effect(log)


def _in_effect(log: Mapping[str, Any]) -> dict[str, float]:
    served, pool, captured = (_mapping(log.get(key)) for key in ("server_args", "pool", "captured_sizes"))
    told = {name: number_of(served, flags) for name, flags in FLAGS.items()}
    sizes = [max(each) for what, each in captured.items() if each and "prefill" not in what]
    told["batch"] = float(max(sizes)) if sizes else told["batch"]
    told["chunk_tokens"] = number_of(pool, ("chunked_prefill_size",)) or told["chunk_tokens"]
    return {name: value for name, value in told.items() if value is not None and value > 0}


def _mapping(told: object) -> Mapping[str, Any]:
    return told if isinstance(told, Mapping) else {}


def number_of(flags: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    """The number that an assignment gives one of these flags."""
    found = (flags.get(name) for name in names)
    return next((float(v) for v in found if isinstance(v, int | float) and not isinstance(v, bool)), None)
