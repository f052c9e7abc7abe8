"""A model's own files: its config.json and the size of its checkpoint, where they lie on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servetune.engines.sglang.model_config import CHECKPOINT_BYTES

_MAX_CONFIG_BYTES = 1 << 24


def model_config(model: str) -> Mapping[str, Any] | None:
    """The config.json of a model's folder, or of a model in the Hugging Face cache; None when it is not here.

    With `model.safetensors.index.json` (or one `model.safetensors`) beside it, the checkpoint's size is added.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        folder = _cached(model) or folder
    config = _object(folder / "config.json")
    size = None if config is None else _checkpoint_bytes(folder)
    return config if config is None or size is None else {**config, CHECKPOINT_BYTES: size}


def _object(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            return None
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, dict) else None


def _checkpoint_bytes(folder: Path) -> int | None:
    index = _object(folder / "model.safetensors.index.json")
    if index is not None:
        size = (index.get("metadata") or {}).get("total_size")
        return int(size) if isinstance(size, int | float) and size > 0 else None
    try:
        return (folder / "model.safetensors").stat().st_size
    except OSError:
        return None


def _cached(model: str) -> Path | None:
    """The snapshot of `organisation/name` that the Hugging Face cache calls main."""
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    folder = hub / f"models--{model.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return folder / "snapshots" / commit
