"""One command, judged as it is written: capabilities, rules and memory in one pass."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from servetune.core.engine import Violation
from servetune.core.errors import SpecError
from servetune.core.judgement import Changed, Judgement, NoEffect
from servetune.core.node import NodeFacts
from servetune.core.space import Assignment, Value
from servetune.engines.sglang import rules
from servetune.engines.sglang._config_file import with_config
from servetune.engines.sglang.capabilities import Capabilities, version_key, violations
from servetune.engines.sglang.flags import parse_argv
from servetune.engines.sglang.memory import Calibration, MemoryForecast, forecast_of, memory_violations
from servetune.engines.sglang.model_config import model_facts
from servetune.engines.sglang.rules._registry import parse_version
from servetune.engines.sglang.rules._state import State

_GIB = 2**30


def judged(
    argv: Sequence[str],
    env: Mapping[str, str],
    facts: NodeFacts,
    capabilities: Capabilities,
    model_config: Mapping[str, Any] | None,
    calibration: Calibration,
) -> Judgement:
    """The judgement on `argv`. `env`: variables that hold for every launch; those before the command win over them.

    What the parser cannot take is left out of the other layers, so that one mistake does not hide the rest.
    """
    words, problems, unread = with_config(argv, capabilities)
    written, found = parse_argv(words, capabilities)
    found = [*problems, *found, *violations(written, capabilities)]
    wrong = {flag for violation in found for flag in violation.flags}
    flags = {flag: value for flag, value in written.items() if flag not in wrong}
    told = {**{f"env.{name}": value for name, value in env.items()}, **flags}
    config = _overridden(model_config, flags.get("json-model-override-args"))
    state = State(told, facts, parse_version(capabilities.version), model_facts(config))
    made = rules.judge_state(state)
    memory = forecast_of(state, told, facts, capabilities.version, config, calibration)
    found += [*made.violations, *memory_violations(memory, flags)]
    return Judgement(
        verdict="refused" if found else "ok",
        violations=tuple(found),
        effective=_effective(made.effective, flags, told),
        no_effect=tuple(
            NoEffect(flag=idle.flag, reason=idle.reason, source=idle.source) for idle in made.effective.no_effect
        ),
        changed=tuple(
            Changed(flag=c.flag, before=c.before, after=c.after, reason=c.reason, source=c.source)
            for c in made.effective.changed
        ),
        memory=memory_report(memory, memory_violations(memory, flags, named_only=False), facts, config),
        notes=(*version_notes(capabilities), *((unread,) if unread else ())),
    )


def version_notes(capabilities: Capabilities) -> tuple[str, ...]:
    """That another release's table of flags answers for this version; empty where the version has its own."""
    version, table = capabilities.version, capabilities.table
    if not table or version_key(version) == version_key(table):
        return ()
    side = "a newer" if version_key(version) > version_key(table) else "an older"
    return (
        f"SGLang {version} is not in the tables of flags: those of {table} answer for it; "
        f"{side} release may take other flags and check them otherwise",
    )


def _effective(made: rules.Effective, flags: Assignment, told: Assignment) -> dict[str, Value]:
    """The engine's own view, with what it says nothing about left out; a named flag without effect as if not named.

    Without the variables that the study's own environment adds to every command.
    """
    values = {**made.resolved, **{idle.field: idle.like for idle in made.no_effect}}
    found = {
        name.replace("_", "-"): value for name, value in values.items() if value is not None and value is not False
    }
    env = {name: value for name, value in made.assignment.items() if name.startswith("env.")}
    return {**found, **{name: value for name, value in env.items() if name in flags or name not in told}}


def _overridden(config: Mapping[str, Any] | None, text: Value | None) -> Mapping[str, Any] | None:
    """`--json-model-override-args` replaces entries of the model's config."""
    if config is None or not isinstance(text, str):
        return config
    return _merged(_Held(config), text)


class _Held:
    """A mapping as a key of a cache: equal only to itself."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and other.config is self.config

    def __hash__(self) -> int:
        return id(self.config)


@lru_cache(maxsize=32)
def _merged(held: _Held, text: str) -> Mapping[str, Any]:
    try:
        changes = json.loads(text)
        merged = {**held.config, **changes} if isinstance(changes, dict) else held.config
        model_facts(merged)
    except (ValueError, RecursionError, SpecError):
        return held.config  # the engine cannot use them either
    return merged


def memory_report(
    found: MemoryForecast | None,
    problems: Sequence[Violation],
    facts: NodeFacts,
    model_config: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """A forecast for people and scripts, in GiB of one GPU; `known_from` None with a `reason` where there is none."""
    if found is None:
        return {"known_from": None, "reason": _why_unknown(facts, model_config)}
    free = found.before_load_bytes - found.weights_bytes
    return {
        "known_from": found.known_from,
        "fits": found.fits,
        "problems": [problem.message for problem in problems],
        "fraction": found.fraction,
        "fraction_named": found.fraction_named,
        "fraction_low": _rounded(found.fraction_low),
        "fraction_needed": _rounded(found.fraction_needed),
        "fraction_high": _rounded(found.fraction_high),
        "before_load_gib": _gib(found.before_load_bytes),
        "weights_gib": _gib(found.weights_bytes),
        "weights_parts_gib": {part: _gib(size) for part, size in found.weights.items()},
        "free_after_load_gib": _gib(free),
        "workspace_gib": _gib(found.workspace_bytes),
        "kv_bytes_per_token": found.kv_bytes_per_token,
        "kv_tokens": found.kv_tokens,
        "table_gib": _gib(found.table_bytes),
        "graph_gib": _gib(found.graph_bytes),
        "activation_gib": _gib(found.activation_bytes),
    }


def _why_unknown(facts: NodeFacts, model_config: Mapping[str, Any] | None) -> str:
    if model_config is None:
        return "the model's config.json is not known"
    if facts.gpu_memory_bytes is None:
        return "the GPU's memory is not known"
    return "layers of other kinds than attention and recurrent states, or a config without layers, are not modelled"


def _gib(size_bytes: int) -> float:
    return round(size_bytes / _GIB, 3)


def _rounded(fraction: float) -> float:
    return round(fraction, 6)
