"""Choices that a study file may name: the folder is the registry.

A module `servetune.<folder>.<name>` (name without leading underscore) is a choice. It exposes `Settings`, a pydantic
model of the keys it takes beside `name`, and `create`, whose arguments depend on the folder:

- engines:          create(choice: EngineChoice, secret_flags: Mapping[str, EnvRef]) -> Engine
- nodes:            create(settings, base_dir: Path) -> Node
- benchmarks:       create(settings) -> LoadGenerator
- search.samplers:  create(settings, seed: int, space: SearchSpace) -> optuna.samplers.BaseSampler
- search.pruners:   create(settings) -> optuna.pruners.BasePruner
- exports:          render(launch: LaunchSpec, header: Sequence[str]) -> str, of one launch; or
                    render_study(stored: StoredStudy, records: Sequence[TrialRecord]) -> str; no Settings, no create
"""

from __future__ import annotations

import difflib
import importlib
import importlib.resources
from types import ModuleType

from servetune.core.errors import SpecError

#: Words for people, by folder.
KINDS = {
    "engines": "engine",
    "nodes": "node",
    "benchmarks": "load generator",
    "search.samplers": "sampler",
    "search.pruners": "pruner",
    "exports": "export format",
}

#: Choices that servetune makes by itself, by folder, and why no study file may: how the refusal goes on.
INTERNAL = {
    "nodes": {
        "virtual": "is what `servetune simulate` uses inside: its servers exist in no process, so that nothing can be "
        "asked of them; write `node: {name: simulated, scenario: …}`, or run `servetune simulate SCENARIO`",
    },
}


def names(folder: str) -> tuple[str, ...]:
    """Every choice in `folder` that a study file may name, sorted."""
    return tuple(sorted(_all(folder) - set(INTERNAL.get(folder, {}))))


def _all(folder: str) -> set[str]:
    package = importlib.resources.files(f"servetune.{folder}")
    return {entry.name.removesuffix(".py") for entry in package.iterdir() if _is_choice(entry.name, entry.is_dir())}


def for_study_file(folder: str, name: str) -> ModuleType:
    """As `load`. Raises SpecError for an internal choice, too."""
    if why := INTERNAL.get(folder, {}).get(name):
        raise SpecError(f"the {KINDS[folder]} {name!r} {why}")
    return load(folder, name)


def load(folder: str, name: str) -> ModuleType:
    """Import the choice. Raises SpecError, naming the nearest choice, when there is none of that name."""
    known = names(folder)
    if name not in _all(folder):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SpecError(f"unknown {KINDS[folder]} {name!r}; allowed: {', '.join(known)}{hint}")
    return importlib.import_module(f"servetune.{folder}.{name}")


def _is_choice(entry: str, is_dir: bool) -> bool:
    return not entry.startswith(("_", ".")) and (entry.endswith(".py") or is_dir)
