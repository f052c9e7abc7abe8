"""The interval of memory fractions per parallel layout, over configurations of a space."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from servetune.core.space import Assignment
from servetune.engines.sglang._memory_calibration import class_key
from servetune.engines.sglang.memory import MemoryForecast

_GIB = 2**30


def layouts(forecasts: Iterable[tuple[Assignment, MemoryForecast]]) -> list[dict[str, Any]]:
    """One row per class of configurations that put the same weights on a GPU, most frequent first.

    Pairs are (smallest, largest) over the configurations of the class: they differ in graphs, chunks and workspaces.
    """
    found: dict[str, list[MemoryForecast]] = {}
    for assignment, forecast in forecasts:
        found.setdefault(class_key(assignment), []).append(forecast)
    rows = [_row(key, members) for key, members in found.items()]
    return sorted(rows, key=lambda row: (-row["configurations"], row["layout"]))


def _row(key: str, members: list[MemoryForecast]) -> dict[str, Any]:
    automatic = [member.fraction for member in members if not member.fraction_named and member.fraction is not None]
    return {
        "layout": _words(key),
        "configurations": len(members),
        "refused": sum(not member.fits for member in members),
        "known_from": members[0].known_from,
        "weights_gib": _pair([member.weights_bytes / _GIB for member in members], 2),
        "fraction_needed": _pair([member.fraction_needed for member in members], 4),
        "fraction_high": _pair([member.fraction_high for member in members], 4),
        "fraction_automatic": _pair(automatic, 4) if automatic else None,
        "kv_tokens_at_high": _pair([member.kv_tokens_at(member.fraction_high) for member in members], 0),
    }


def _pair(values: list[float] | list[int], digits: int) -> list[float]:
    low, high = min(values), max(values)
    return [round(low, digits) if digits else int(low), round(high, digits) if digits else int(high)]


def _words(key: str) -> str:
    return key if key == "plain" else key.replace("_", "-").replace(",", " ")
