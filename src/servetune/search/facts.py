"""What a server's log says that samplers use."""

from __future__ import annotations

from collections.abc import Mapping


def memory_facts(log: Mapping[str, object]) -> dict[str, float]:
    """What a log's facts say of memory: GiB before (`pre`) and after (`avail`) the weights, `graph`, `kv_tokens`."""
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
    return found
