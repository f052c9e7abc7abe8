"""Files that stand in for a node and a model: node facts in YAML or JSON, a model's config.json."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from servetune import plugins
from servetune.core.errors import SpecError
from servetune.core.node import NodeFacts
from servetune.core.space import Frozen
from servetune.settings._document import Node, node_of, parse_document, place_within, read_text
from servetune.settings._problems import Problems, one_of
from servetune.settings._sections import section

#: Lists of unquantized modules make a config.json long; a batch holds thousands of commands.
_CONFIG_BYTES, BATCH_BYTES = 1 << 24, 1 << 28
#: A release as PEP 440 writes it, with what images and local builds put behind it (`0.5.9-cu126`, `0.5.9+g1a2b3c`).
_VERSION = r"v?\d+\.\d+(\.\d+)?((a|b|rc)\d+)?(\.?post\d+)?(\.?dev\d+)?([+-][A-Za-z0-9]+([._-][A-Za-z0-9]+)*)?"


class _Engine(Frozen):
    name: str = "sglang"
    version: str | None = Field(default=None, pattern=f"^{_VERSION}$")


class _NodeFile(Frozen):
    """Keys of a node-facts file. What is left out is not known."""

    gpu_name: str | None = None
    gpu_count: int | None = Field(default=None, ge=1, le=100_000)
    gpu_memory_mib: int | None = Field(default=None, ge=1)
    compute_capability: str | None = Field(default=None, pattern=r"^\d{1,2}\.\d$")
    interconnect: Literal["pcie", "nvlink"] | None = None
    cuda_version: str | None = Field(default=None, pattern=r"^\d{1,2}\.\d{1,2}(\.\d+)?$")
    driver_version: str | None = None
    host: str = ""
    engine: _Engine = _Engine()


def load_node_facts(path: Path) -> NodeFacts:
    """The node that a YAML or JSON file describes. Raises SpecError with file, line and key."""
    root = _document(path)
    problems = Problems(str(path))
    given: dict[str, Any] = {key: _text(root.entries[key]) for key in _TEXTS if key in root.entries}
    interconnect = root.entries.get("interconnect")
    if interconnect is not None and isinstance(interconnect.scalar, str):
        given["interconnect"] = interconnect.scalar.lower()
    engine = root.entries.get("engine")
    if engine is not None and engine.kind == "mapping":
        version = engine.entries.get("version")
        known = section(engine, _Engine, problems, {} if version is None else {"version": _text(version)})
        given["engine"] = known or _Engine()
        if given["engine"].name not in plugins.names("engines"):
            at = engine.entries["name"]
            problems.add(at.place, at.path, f"got {at.shown()}; allowed: {one_of(plugins.names('engines'))}")
    found = section(root, _NodeFile, problems, given)
    problems.raise_if_any()
    assert found is not None
    return _node(found)


_TEXTS = ("compute_capability", "cuda_version", "driver_version", "host", "gpu_name")


def _text(node: Node) -> object:
    """YAML reads an unquoted 12.0 as a number; what was written counts. `9` stands for `9.0`."""
    if isinstance(node.scalar, bool) or not isinstance(node.scalar, int | float):
        return node.plain()
    whole = node.path.endswith("compute_capability") and re.fullmatch(r"\d+", node.text)
    return f"{node.text}.0" if whole else node.text


def _node(file: _NodeFile) -> NodeFacts:
    named = file.gpu_count if file.gpu_count is not None else (1 if file.gpu_name else 0)
    return NodeFacts(
        node="described",
        host=file.host,
        gpu_names=(file.gpu_name or "GPU",) * named,
        gpu_memory_bytes=None if file.gpu_memory_mib is None else file.gpu_memory_mib << 20,
        compute_capability=file.compute_capability,
        interconnect=file.interconnect,
        driver_version=file.driver_version,
        cuda_version=file.cuda_version,
        engine_name=file.engine.name,
        engine_version=None if file.engine.version is None else file.engine.version.removeprefix("v"),
    )


def load_model_config(path: Path) -> Mapping[str, Any]:
    """A model's config.json as a mapping. Raises SpecError with file and line when it is none."""
    loaded = _json(read_text(path, _CONFIG_BYTES), path)
    if not isinstance(loaded, dict):
        raise SpecError(f"{path}: a model's config.json holds one JSON object, got {_json_kind(loaded)}")
    if not (loaded.get("architectures") or loaded.get("model_type")):
        raise SpecError(f"{path}: this is no model's config.json: neither 'architectures' nor 'model_type' is in it")
    return loaded


def load_commands(path: Path) -> list[list[str]]:
    """The commands of a file; see `read_commands`."""
    return read_commands(read_text(path, BATCH_BYTES), str(path))


def read_commands(text: str, name: str) -> list[list[str]]:
    """Argument lists, one JSON list of words a line; empty lines are passed over. Raises SpecError with the line."""
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            words = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, ValueError) else "nested too deeply"
            raise SpecError(f"{name}:{number}: not JSON ({reason}); a line holds one list of arguments") from error
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            wrong = (
                next((word for word in words if not isinstance(word, str)), None) if isinstance(words, list) else words
            )
            shown = json.dumps(wrong)[:60]
            raise SpecError(f'{name}:{number}: got {shown}; a line holds one list of words such as ["--tp-size", "8"]')
        found.append(words)
    return found


def check_version(text: str, place: str) -> str:
    """An engine version such as 0.5.9 or 0.5.6.post2. Raises SpecError."""
    if not re.fullmatch(_VERSION, text):
        raise SpecError(f"{place}: got {text!r}; allowed: a version such as 0.5.9")
    return text.removeprefix("v")


def _document(path: Path) -> Node:
    text = read_text(path)
    if path.suffix not in (".yaml", ".yml") and text.lstrip().startswith(("{", "[")):
        return node_of(_json(text, path), str(path))
    return parse_document(text, str(path))


def _json(text: str, path: Path) -> Any:
    if not text.strip():
        raise SpecError(f"{path}: the file is empty; write one JSON object")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line, column = place_within(text, error.lineno, error.colno)
        raise SpecError(f"{path}:{line}:{column}: not valid JSON: {error.msg}") from error
    except RecursionError as error:
        raise SpecError(f"{path}: nested too deeply") from error


def _json_kind(value: object) -> str:
    """A JSON value's kind in JSON's own words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict):
        return "an object"
    return "an array" if isinstance(value, list) else "a string" if isinstance(value, str) else "a number"
