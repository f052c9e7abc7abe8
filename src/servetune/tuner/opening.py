"""A study's node, engine and other parts, made from what its file says. Loads neither Optuna nor a database."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servetune import plugins
from servetune.core.engine import Engine
from servetune.core.node import Node, NodeFacts
from servetune.core.study import StudySpec


def plugin(folder: str, name: str, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    """The module of a choice and its checked settings."""
    module = plugins.load(folder, name)
    return module, module.Settings.model_validate(dict(settings))


def open_node(spec: StudySpec) -> Node:
    """The study's node; relative paths in its settings resolve against the study file's folder."""
    module, settings = plugin("nodes", spec.node.name, _node_settings(spec))
    base_dir = Path(spec.source_file).parent if spec.source_file else Path.cwd()
    node: Node = module.create(settings, base_dir)
    return node


def _node_settings(spec: StudySpec) -> Mapping[str, Any]:
    """A node that asks the engine's interpreter or reads the model's files is told which, unless the study says so."""
    fields = plugins.load("nodes", spec.node.name).Settings.model_fields
    asked = {"engine_python": spec.engine.python, "engine_model": spec.engine.model}
    return {**{key: value for key, value in asked.items() if key in fields}, **spec.node.settings}


def open_engine(spec: StudySpec) -> Engine:
    """The study's engine, bound to its `engine:` mapping and secret flags."""
    engine: Engine = plugins.load("engines", spec.engine.name).create(spec.engine, spec.secret_flags)
    return engine


def known_facts(spec: StudySpec, node: Node) -> NodeFacts:
    """Facts of the node; the study file may name the engine's version where it cannot be asked."""
    facts = node.facts()
    if spec.engine.version is not None:
        return facts.model_copy(update={"engine_name": spec.engine.name, "engine_version": spec.engine.version})
    return facts
