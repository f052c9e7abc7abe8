"""The study file → StudySpec."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from servetune import plugins
from servetune.core.benchmark import Workload
from servetune.core.engine import EngineChoice
from servetune.core.errors import SpecError
from servetune.core.node import EnvRef
from servetune.core.objective import Objective
from servetune.core.space import SearchSpace
from servetune.core.study import (
    Budget,
    Confirmation,
    NamedChoice,
    NodeChoice,
    Retries,
    StudySpec,
    Timeouts,
)
from servetune.settings._adjust import fixing
from servetune.settings._checks import baseline_of, check_goodput, check_objective, check_storage, check_workload
from servetune.settings._document import Node, node_of
from servetune.settings._load import check_possible, placed
from servetune.settings._problems import Problems, one_of
from servetune.settings._sections import keys_of, section
from servetune.settings._space import Reading
from servetune.settings._spaces import read_space
from servetune.settings._values import assignment, assignment_with_secrets, environment

STUDY_KEYS = (
    "study", "engine", "node", "search_space", "fixed", "baseline", "workload", "objective", "budget", "timeouts",
    "sampler", "pruner", "load_generator", "confirm", "retries", "storage",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PLAIN_SECTIONS: dict[str, type[BaseModel]] = {
    "budget": Budget,
    "timeouts": Timeouts,
    "confirm": Confirmation,
    "retries": Retries,
}
_CHOICES = {"sampler": "search.samplers", "pruner": "search.pruners", "load_generator": "benchmarks"}
_PASSWORD = re.compile(r"(?i)(TOKEN|PASSWORD|PASSPHRASE|SECRET)$")  # a node's `…_key` is the path of a key file


def study_of(root: Node, source_file: Path) -> StudySpec:
    """The study that a file's tree describes. Raises SpecError listing its problems."""
    problems = Problems(root.place.rsplit(":", 2)[0])
    entries = keys_of(root, ["study", "engine", "search_space"], STUDY_KEYS, problems)
    parts: dict[str, Any] = {
        name: part
        for name, model in _PLAIN_SECTIONS.items()
        if name in entries and (part := section(entries[name], model, problems)) is not None
    }
    parts |= _choices(entries, problems)
    parts |= _names(entries, parts.get("node", NodeChoice()).name == "local", problems)
    parts["workload"] = workload = _workload(entries, problems)
    parts["objective"] = objective = _objective(entries, workload, problems)
    check_goodput(entries, objective, problems)
    parts |= _flags(entries, source_file.parent, problems)
    if "load_generator" in parts:
        parts["load_generator"] = placed(parts["load_generator"], source_file.parent)
        check_possible(parts["load_generator"], entries["load_generator"], problems)
    problems.raise_if_any()
    return StudySpec(**parts, source_file=str(source_file))


def _names(entries: Mapping[str, Node], local: bool, problems: Problems) -> dict[str, Any]:
    found: dict[str, Any] = {}
    study = entries.get("study")
    if study is not None and not (isinstance(study.scalar, str) and _NAME.fullmatch(study.scalar)):
        allowed = "at most 100 letters, digits, '.', '_' and '-', beginning with a letter or digit, not a bare number"
        problems.add(study.place, study.path, f"got {study.shown()}; allowed: {allowed}")
    elif study is not None:
        found["study"] = study.scalar
    if "storage" in entries:
        check_storage(entries["storage"], problems)
        found["storage"] = entries["storage"].scalar
    if "engine" in entries:
        found["engine"] = _engine(entries["engine"], problems)
        if local and found["engine"] is not None:
            found["engine"] = _at_home(found["engine"])
    return found


def _engine(node: Node, problems: Problems) -> EngineChoice | None:
    env = environment(node.entries["env"], problems) if "env" in node.entries else {}
    choice = section(node, EngineChoice, problems, {"env": env})
    if choice is not None:
        _plugin("engines", choice.name, node.entries.get("name", node), problems)
        for key in ("model", "python"):
            if not getattr(choice, key).strip():
                problems.add(node.entries[key].place, node.entries[key].path, "got empty text; allowed: a path or name")
    return choice


def _at_home(choice: EngineChoice) -> EngineChoice:
    """`~/…` of model and Python for this machine's user: neither a launch nor an exported command has a shell's `~`."""
    paths = {key: getattr(choice, key) for key in ("model", "python")}
    home = {key: str(Path(path).expanduser()) for key, path in paths.items() if path.startswith("~/")}
    return choice.model_copy(update=home)


def _choices(entries: Mapping[str, Node], problems: Problems) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "node" in entries:
        named = _named(entries["node"], "nodes", "local", problems)
        _check_no_password(entries["node"], problems)
        found["node"] = NodeChoice(name=named.name, settings=named.settings)
    for key, folder in _CHOICES.items():
        if key in entries:
            default = StudySpec.model_fields[key].default.name
            node, seed = _split_seed(entries[key], problems) if key == "sampler" else (entries[key], 0)
            found[key] = _named(node, folder, default, problems)
            if key == "sampler":
                found["seed"] = seed
    return found


def _named(node: Node, folder: str, default: str, problems: Problems) -> NamedChoice:
    """`{name: …, **settings}`, or the name alone; its settings are checked by the choice itself."""
    if node.kind == "scalar" and isinstance(node.scalar, str):
        node = Node({"name": node}, node.place, node.path, key_place=node.key_place)
    name_node = node.entries.get("name")
    name = name_node.scalar if name_node else default
    if node.kind != "mapping" or not isinstance(name, str):
        at = name_node or node
        problems.add(at.place, at.path, f"got {at.shown()}; allowed: one of {one_of(plugins.names(folder))}")
        return NamedChoice(name=default)
    rest = {key: entry for key, entry in node.entries.items() if key != "name"}
    settings = Node(rest, node.place, node.path, key_place=node.key_place)
    model = getattr(_plugin(folder, name, name_node or node, problems), "Settings", None)
    if model is not None:
        section(settings, model, problems, strict=False)
    return NamedChoice(name=name, settings={key: entry.plain() for key, entry in rest.items()})


def _plugin(folder: str, name: str, node: Node, problems: Problems) -> object:
    try:
        return plugins.for_study_file(folder, name)
    except SpecError as error:
        problems.add(node.place, node.path, str(error))
        return None


def _check_no_password(node: Node, problems: Problems) -> None:
    for key, entry in node.entries.items():
        if _PASSWORD.search(key) and entry.kind == "scalar" and isinstance(entry.scalar, str | int | float):
            text = f"a literal secret under {key!r} is refused; write {{from_env: NAME}}, or use a key or an agent"
            problems.add(entry.place, entry.path, text)


def _split_seed(node: Node, problems: Problems) -> tuple[Node, int]:
    seed = node.entries.get("seed")
    if seed is None:
        return node, 0
    if isinstance(seed.scalar, bool) or not isinstance(seed.scalar, int) or not 0 <= seed.scalar < 2**32:
        problems.add(seed.place, seed.path, f"got {seed.shown()}; allowed: a whole number from 0 to {2**32 - 1}")
    rest = {key: entry for key, entry in node.entries.items() if key != "seed"}
    value = seed.scalar if isinstance(seed.scalar, int) else 0
    return Node(rest, node.place, node.path, key_place=node.key_place), value


def _workload(entries: Mapping[str, Node], problems: Problems) -> Workload:
    node = entries.get("workload")
    if node is None:
        return Workload()
    given: dict[str, Any] = {}
    levels = node.entries.get("concurrency")
    if levels is not None and levels.kind == "scalar" and levels.scalar is not None:
        given["concurrency"] = (levels.scalar,)
    workload = section(node, Workload, problems, given)
    if workload is None:
        return Workload()
    check_workload(node, workload, problems)
    return workload


def _objective(entries: Mapping[str, Node], workload: Workload, problems: Problems) -> Objective:
    node = entries.get("objective")
    if node is None:
        return Objective()
    given: dict[str, Any] = {}
    weights = node.entries.get("weights")
    if weights is not None and weights.kind == "mapping":
        given["weights"] = {int(key) if key.isdigit() else key: value.plain() for key, value in weights.entries.items()}
    objective = section(node, Objective, problems, given)
    if objective is None:
        return Objective()
    check_objective(node, objective, workload, problems)
    return objective


def _flags(entries: Mapping[str, Node], base_dir: Path, problems: Problems) -> dict[str, Any]:
    """Space, secret flags and baseline."""
    empty = node_of({}, "", "fixed")
    fixed_node, baseline_node = entries.get("fixed", empty), entries.get("baseline", empty)
    fixed, secrets = assignment_with_secrets(fixed_node, problems)
    whole = SearchSpace(name="inline")
    if "search_space" in entries:
        reading = Reading({**fixed, **dict.fromkeys(secrets)}, problems)
        whole = read_space(entries["search_space"], base_dir, reading)
    space = fixing(whole, fixed, fixed_node, problems)
    _check_secrets(secrets, fixed_node, whole, problems)
    flags = assignment(baseline_node, problems)
    baseline = baseline_of(baseline_node, flags, whole, {**fixed, **secrets}, problems)
    return {"space": space, "secret_flags": secrets, "baseline": baseline}


def _check_secrets(secrets: Mapping[str, EnvRef], node: Node, space: SearchSpace, problems: Problems) -> None:
    for parameter in space.parameters:
        if parameter.name in secrets:
            entry = node.entries[parameter.name]
            problems.add(entry.place, entry.path, f"{parameter.name!r} is searched over; it cannot be a secret, too")


def plain_overrides(overrides: Mapping[str, object]) -> dict[str, object]:
    """Overrides with dotted keys (`budget.trials`) unfolded into nested mappings."""
    found: dict[str, Any] = {}
    for key, value in overrides.items():
        inner = found
        *path, last = key.split(".")
        for step in path:
            inner = inner.setdefault(step, {})
        inner[last] = plain_overrides(value) if isinstance(value, Mapping) else value
    return found
