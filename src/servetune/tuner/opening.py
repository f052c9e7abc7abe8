"""A study's node, engine and other parts, made from what its file says. Loads neither Optuna nor a database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servetune import plugins
from servetune.core.engine import Engine
from servetune.core.node import Node, NodeFacts
from servetune.core.preflight import OffersConversation, ReadsInstallation
from servetune.core.space import flags_of
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


@contextmanager
def at_node(spec: StudySpec) -> Iterator[Node]:
    """The study's node for a few questions; its connection is let go of afterwards."""
    node = open_node(spec)
    try:
        yield node
    finally:
        if hasattr(node, "close"):
            node.close()


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


def read_installation(spec: StudySpec, node: Node, engine: Engine, facts: NodeFacts) -> Sequence[str]:
    """Let the engine read which flags its installation on the node takes; what it says of that. Seconds at most once.

    Raises NodeUnreachableError.
    """
    if facts.simulated or not isinstance(node, OffersConversation) or not isinstance(engine, ReadsInstallation):
        return ()
    return engine.read_installation(node.converse, facts, named_flags(spec))


def named_flags(spec: StudySpec) -> Sequence[str]:
    """Every flag that the study fixes, searches over or gives its baseline; no environment variables."""
    named = {*spec.space.fixed, *spec.baseline, *(f for p in spec.space.parameters for f in flags_of(p))}
    return sorted(f for f in named if not f.startswith("env."))
