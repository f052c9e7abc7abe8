"""SGLang: what its installed version accepts, its command line, its logs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from servetune.core.engine import EngineChoice, LogReader, Violation
from servetune.core.node import EnvRef, LaunchSpec, NodeFacts
from servetune.core.space import Assignment, Frozen, SearchSpace, Value, same_value
from servetune.engines.sglang import rules
from servetune.engines.sglang._resolve import resolved
from servetune.engines.sglang.capabilities import (
    RESERVED,
    Capabilities,
    capabilities_of,
    read_capabilities,
    translate,
    violation_of,
    violations,
)
from servetune.engines.sglang.flags import launch_spec
from servetune.engines.sglang.logs import SglangLogReader

_MAX_CONFIG_BYTES = 1 << 22


class Settings(Frozen):
    """SGLang takes no keys beyond those that every engine has."""


def create(choice: EngineChoice, secret_flags: Mapping[str, EnvRef]) -> SglangEngine:
    """SGLang for one study. The model's config.json is read where the model lies on this machine."""
    return SglangEngine(choice, secret_flags, _model_config(Path(choice.model).expanduser()))


class SglangEngine:
    """Implements `core.engine.Engine`. `model_config`: the model's config.json, where it is known."""

    def __init__(
        self,
        choice: EngineChoice,
        secret_flags: Mapping[str, EnvRef],
        model_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._choice = choice
        self._secrets = dict(secret_flags)
        self._model_config = model_config
        self._known: dict[tuple[str, bool], Capabilities] = {}

    def capabilities(self, facts: NodeFacts) -> Capabilities | None:
        """Of the version that the study or the node names; None when neither does.

        Read from the installed package where the study's Python lies on this machine and holds that very version.
        """
        version = self._version(facts)
        if version is None:
            return None
        key = (version, facts.simulated)
        if key not in self._known:
            self._known[key] = self._installed(version, facts) or capabilities_of(version)
        return self._known[key]

    def resolve_space(self, space: SearchSpace, facts: NodeFacts) -> tuple[SearchSpace, Sequence[str]]:
        """The space in the spelling of the installed version, and one sentence per thing translated or dropped."""
        capabilities = self.capabilities(facts)
        if capabilities is None:
            return space, ("the engine's version is not known: flags are launched as they are written",)

        def judge(flags: Mapping[str, Value]) -> Sequence[Violation]:
            return self._accepted(flags, facts, capabilities)

        return resolved(space, capabilities, judge)

    def translated(self, assignment: Assignment, facts: NodeFacts) -> dict[str, Value]:
        """The assignment in the spelling of the installed version, where an exact equivalent exists."""
        capabilities = self.capabilities(facts)
        return dict(assignment) if capabilities is None else translate(assignment, capabilities)[0]

    def check(self, assignment: Assignment, facts: NodeFacts) -> Sequence[Violation]:
        """Every reason why it cannot work that is known without the node."""
        capabilities = self.capabilities(facts)
        if capabilities is None:
            return ()
        flags, _ = translate(assignment, capabilities)
        found = self._accepted(flags, facts, capabilities)
        if facts.engine_rules and not found:
            found += rules.violations(flags, facts, capabilities.version, self._config(facts))
        return found

    def defaults(self, facts: NodeFacts) -> Assignment:
        """Defaults of valued flags that the version declares, and those that the node knows."""
        capabilities = self.capabilities(facts)
        flags = capabilities.flags.values() if capabilities is not None else ()
        declared = {flag.name: flag.default for flag in flags if flag.valued and flag.default is not None}
        return {**declared, **facts.flag_defaults}

    def effective(self, assignment: Assignment, facts: NodeFacts) -> Assignment:
        """The key for duplicates: defaults, false switches and variables without effect dropped, overrides applied."""
        capabilities = self.capabilities(facts)
        if capabilities is None:
            return dict(sorted(assignment.items()))
        flags, _ = translate(assignment, capabilities)
        flags = {name: value for name, value in flags.items() if not _is_idle(name, capabilities)}
        if facts.engine_rules:
            flags = dict(rules.effective(flags, facts, capabilities.version, self._config(facts)).assignment)
        defaults = self.defaults(facts)
        return {name: flags[name] for name in sorted(flags) if not _is_default(name, flags[name], defaults)}

    def launch(self, assignment: Assignment, facts: NodeFacts, port: int) -> LaunchSpec:
        """The command. Pure: same input, same argv."""
        choice, flags = self._choice, self.translated(assignment, facts)
        secrets, env = self._secrets, choice.env
        return launch_spec(flags, secrets, env, choice.python, choice.model, port, self.capabilities(facts))

    def log_reader(self, assignment: Assignment) -> LogReader:
        """A fresh reader for the log of a server started with `assignment`."""
        return SglangLogReader(assignment)

    def _version(self, facts: NodeFacts) -> str | None:
        named = facts.engine_version if facts.engine_name in (None, "sglang") else None
        return self._choice.version or named

    def _installed(self, version: str, facts: NodeFacts) -> Capabilities | None:
        """From the source of the package itself; None when it is not here, another version, or of an unknown shape."""
        if facts.simulated:
            return None
        for site_dir in (
            Path(self._choice.python).expanduser().absolute().parent.parent.glob("lib/python3*/site-packages")
        ):
            try:
                read = read_capabilities(site_dir)
            except (OSError, SyntaxError, KeyError):
                continue
            if read.version == version:
                return read
        return None

    def _accepted(self, flags: Assignment, facts: NodeFacts, capabilities: Capabilities) -> list[Violation]:
        """Layer 1. Where the engine's rules do not hold the node decides about values; only spelling is judged."""
        found = [_reserved(name, capabilities) for name in flags if name in RESERVED]
        found += violations(flags, capabilities)
        return [violation for violation in found if facts.engine_rules or violation.rule != "unknown-choice"]

    def _config(self, facts: NodeFacts) -> Mapping[str, Any] | None:
        return self._model_config or facts.config_json or None


def _reserved(name: str, capabilities: Capabilities) -> Violation:
    way = "engine.model in the study file" if name == "model-path" else "nothing: servetune chooses it"
    return violation_of("reserved-flag", name, f"--{name} is set by servetune; write {way}", capabilities)


def _is_default(name: str, value: Value, defaults: Assignment) -> bool:
    """A switch that is false is left out; a variable has no default but one that the node names."""
    return same_value(value, defaults.get(name, None if name.startswith("env.") else False))


def _is_idle(name: str, capabilities: Capabilities) -> bool:
    return name.startswith("env.") and capabilities.has_no_effect(name.removeprefix("env."))


def _model_config(model: Path) -> Mapping[str, Any] | None:
    path = model / "config.json"
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            return None
        loaded = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return loaded if isinstance(loaded, dict) else None
