"""The config.json of a scenario's model, for the engine's rules and memory model."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from servetune.simulation.sheets import ModelSheet


def model_config(sheet: ModelSheet) -> Mapping[str, Any]:
    """What the scenario states, else the shipped config of that architecture and quantization, else these two alone.

    Raises ValueError for a name that is not among `names()`.
    """
    if isinstance(sheet.config, str):
        return _shipped()[sheet.config]
    if sheet.config is not None:
        return sheet.config
    for config in _shipped().values():
        if config["architectures"] == [sheet.architecture] and _quantization(config) == sheet.quantization:
            return config
    method = {} if sheet.quantization is None else {"quantization_config": {"quant_method": sheet.quantization}}
    return {"architectures": [sheet.architecture], **method}


def names() -> tuple[str, ...]:
    """Configs that come with servetune, sorted."""
    return tuple(sorted(_shipped()))


@cache
def _shipped() -> Mapping[str, Mapping[str, Any]]:
    folder = importlib.resources.files("servetune.simulation") / "models"
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".json")), key=lambda entry: entry.name)
    return {entry.name.removesuffix(".json"): json.loads(entry.read_text(encoding="utf-8")) for entry in files}


def _quantization(config: Mapping[str, Any]) -> str | None:
    """The method as scenarios name it: ModelOpt's FP4 checkpoints say only `modelopt`."""
    stated = config.get("quantization_config") or config.get("text_config", {}).get("quantization_config") or {}
    method = stated.get("quant_method")
    return "modelopt_fp4" if "FP4" in str(stated.get("quant_algo")) else method
