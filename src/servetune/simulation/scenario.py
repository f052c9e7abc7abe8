"""A scenario: one node serving one model with one engine version, as data. Everything in it is invented.

Keys and their meaning: docs/simulated-node.md.
"""

from __future__ import annotations

import difflib
import importlib.resources
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from servetune.core.errors import SpecError
from servetune.core.node import NodeFacts
from servetune.core.space import Frozen, Value
from servetune.simulation._yaml_places import PlacedYaml
from servetune.simulation.model_configs import model_config, names
from servetune.simulation.sheets import (
    Curve,
    Effect,
    FailureRule,
    MemorySheet,
    ModelSheet,
    NodeSheet,
    NoEffect,
    Noise,
    Optimum,
    Positive,
    StartupSheet,
    Table,
    Text,
    WrongOutput,
)

#: Flags that the model reads by name and therefore needs a default of.
REQUIRED_FLAGS = ("mem-fraction-static", "cuda-graph-max-bs", "chunked-prefill-size")


class Scenario(Frozen):
    """The whole scenario. `engine_rules` False: the scenario is the only authority on what works.

    Nothing here says what the best configuration is: `load_optimum` reads that, for judging results only.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    engine_version: Text
    engine_rules: bool = False
    node: NodeSheet
    model: ModelSheet
    flags: Mapping[str, Value]
    memory_gib: MemorySheet
    kv_tokens_per_gib: Positive
    startup_s: StartupSheet
    throughput: Table
    effects: tuple[Effect, ...] = ()
    curves: tuple[Curve, ...] = ()
    eager_factor: Table
    output_tokens: int = Field(ge=1)
    input_tokens: int = Field(ge=1)
    noise: Noise = Noise()
    failures: tuple[FailureRule, ...] = ()
    wrong_output: tuple[WrongOutput, ...] = ()
    no_effect: tuple[NoEffect, ...] = ()

    @field_validator("flags")
    @classmethod
    def _has_what_the_model_reads(cls, flags: Mapping[str, Value]) -> Mapping[str, Value]:
        for flag in REQUIRED_FLAGS:
            if not isinstance(flags.get(flag), int | float) or isinstance(flags.get(flag), bool):
                raise ValueError(f"needs a number for {flag!r}, the model reads it")
        return flags

    @field_validator("model")
    @classmethod
    def _has_a_config(cls, sheet: ModelSheet) -> ModelSheet:
        if isinstance(sheet.config, str) and sheet.config not in names():
            raise ValueError(f"config {sheet.config!r} does not come with servetune; allowed: {', '.join(names())}")
        return sheet

    @property
    def levels(self) -> tuple[int, ...]:
        """Concurrency levels, ascending: the keys of `throughput`."""
        return tuple(sorted(self.throughput))


class _ScenarioFile(Scenario):
    optimum: Optimum | None = None


def load_scenario(name_or_path: str, base_dir: Path | None = None) -> Scenario:
    """A shipped scenario by name, or a file by path (relative to `base_dir`).

    Raises SpecError naming file, line, key, value got and values allowed.
    """
    file = _load(name_or_path, base_dir)
    return Scenario.model_construct(**{name: getattr(file, name) for name in Scenario.model_fields})


def load_optimum(name_or_path: str, base_dir: Path | None = None) -> Optimum | None:
    """The best configuration and its score, where the file states one. For judging results; no strategy may read it."""
    return _load(name_or_path, base_dir).optimum


def facts(scenario: Scenario) -> NodeFacts:
    """The node as the tuner would find it, marked as simulated."""
    sheet = scenario.node
    return NodeFacts(
        node="simulated",
        host=scenario.name,
        simulated=True,
        gpu_names=(sheet.gpu_name,) * sheet.gpu_count,
        gpu_memory_bytes=sheet.gpu_memory_mib * 2**20,
        compute_capability=sheet.compute_capability,
        interconnect=sheet.interconnect,
        engine_name="sglang",
        engine_version=scenario.engine_version,
        engine_rules=scenario.engine_rules,
        config_json=model_config(scenario.model) if scenario.engine_rules else {},
        flag_defaults={flag: value for flag, value in scenario.flags.items() if not isinstance(value, bool)},
    )


def shipped_names() -> tuple[str, ...]:
    """Scenarios that come with servetune, sorted."""
    folder = importlib.resources.files("servetune.simulation") / "scenarios"
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def _load(name_or_path: str, base_dir: Path | None) -> _ScenarioFile:
    return _parsed(*_read(name_or_path, base_dir))


@lru_cache(maxsize=4)
def _parsed(text: str, file: str) -> _ScenarioFile:
    document = PlacedYaml(text, file)
    if not isinstance(document.data, Mapping):
        raise SpecError(f"{file}, line 1: a scenario is a mapping of keys, got {type(document.data).__name__}")
    if "study" in document.data and "name" not in document.data:
        raise SpecError(
            f"{file} is a study file, not a scenario; name a scenario ({', '.join(shipped_names())}), and for the "
            f"study's search space add --space {file}"
        )
    try:
        return _ScenarioFile.model_validate(document.data)
    except ValidationError as error:
        raise SpecError("\n".join(_sentences(error, document))) from error


def _read(name_or_path: str, base_dir: Path | None) -> tuple[str, str]:
    if name_or_path in shipped_names():
        folder = importlib.resources.files("servetune.simulation") / "scenarios"
        return (folder / f"{name_or_path}.yaml").read_text(encoding="utf-8"), f"{name_or_path}.yaml"
    path = (base_dir or Path()) / Path(name_or_path).expanduser()
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except UnicodeDecodeError as error:
        raise SpecError(f"scenario {path}: not UTF-8 text: {error}") from error
    except OSError as error:
        near = difflib.get_close_matches(name_or_path, shipped_names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SpecError(
            f"no scenario {name_or_path!r}: neither a readable file ({path}: {error.strerror}) nor one of the shipped "
            f"scenarios, which are: {', '.join(shipped_names())}{hint}"
        ) from error


def _sentences(error: ValidationError, document: PlacedYaml) -> list[str]:
    """One sentence per wrong key; of the alternatives of a union only the complaint that goes deepest."""
    found: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        path = _path_in_file(detail["loc"], document.data)
        key = _dotted(path)
        found.setdefault(key, f"{document.file}, line {document.line(path)}: {key}: {_complaint(detail)}")
    return [text for key, text in found.items() if not any(other.startswith((f"{key}.", f"{key}[")) for other in found)]


def _path_in_file(loc: Sequence[int | str], data: Any) -> list[int | str]:
    """The part of pydantic's location that exists in the file (the rest names union members or missing keys)."""
    path: list[int | str] = []
    for step in loc:
        if step in ("any_of", "[key]"):
            continue
        path.append(step)
        if isinstance(data, Mapping):
            keys = {str(key): key for key in data}
            if str(step) not in keys:
                if not _is_type_name(step):
                    return path
                path.pop()
                continue
            data = data[keys[str(step)]]
        elif isinstance(data, Sequence) and not isinstance(data, str) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return path[:-1]
    return path


def _is_type_name(step: int | str) -> bool:
    """Union members appear in a location as `float`, `int`, `function-after[…]`, `constrained-…`."""
    return isinstance(step, str) and (step in ("bool", "int", "float", "str", "none") or "[" in step)


def _dotted(path: Sequence[int | str]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".") or "scenario"


def _complaint(detail: ErrorDetails) -> str:
    if detail["type"] == "missing":
        return "this key is missing"
    if detail["type"] == "extra_forbidden":
        key = str(detail["loc"][-1])
        allowed = _keys_beside(detail["loc"])
        near = difflib.get_close_matches(key, allowed, n=1)
        return f"unknown key; allowed: {', '.join(allowed)}" + (f"; did you mean {near[0]!r}?" if near else "")
    got = detail["input"]
    allowed_text = detail.get("ctx", {}).get("expected")
    if allowed_text:
        return f"got {got!r}, allowed: {allowed_text}"
    shown = f"got {got!r}: " if not isinstance(got, Mapping) else ""
    return shown + detail["msg"].removeprefix("Value error, ").removeprefix("Input ")


def _keys_beside(loc: Sequence[int | str]) -> list[str]:
    """Keys of the mapping in which the last step of `loc` stands."""
    model: type[BaseModel] = _ScenarioFile
    for step in loc[:-1]:
        if isinstance(step, str) and step in model.model_fields:
            model = _model_in(model.model_fields[step].annotation) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part))), None)
