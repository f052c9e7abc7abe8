"""Layer 2: what SGLang's own checks refuse, silently change or ignore, one pure function per rule, listed by id.

`violations` and `effective` answer in well under a millisecond. Rules of layer `runtime` know what the engine's checks
accept and what dies, or does nothing, later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servetune.core.engine import Violation
from servetune.core.node import NodeFacts
from servetune.core.space import Assignment, Value
from servetune.engines.sglang.model_config import model_facts
from servetune.engines.sglang.rules import (  # importing a module registers its rules, in this order within a stage
    a2a,
    adapters,
    allreduce,
    architectures,
    attention,
    budgets,
    deterministic,
    devices,
    diffusion,
    disaggregation,
    dp_attention,
    features,
    graphs,
    hybrid,
    idle,
    kv_cache,
    megamoe,
    memory_defaults,
    misc,
    models,
    moe,
    needs,
    needs_layouts,
    overlap,
    runtime,
    runtime_kernels,
    serving,
    sizes,
    speculative,
)
from servetune.engines.sglang.rules._registry import Rule, all_rules, parse_version
from servetune.engines.sglang.rules._run import Outcome, run, spelled
from servetune.engines.sglang.rules._state import State

__all__ = ["Changed", "Effective", "NoEffect", "Rule", "all_rules", "effective", "judge", "judge_state", "violations"]
_MODULES = (
    a2a,
    adapters,
    allreduce,
    architectures,
    attention,
    budgets,
    deterministic,
    devices,
    diffusion,
    disaggregation,
    dp_attention,
    features,
    graphs,
    hybrid,
    idle,
    kv_cache,
    megamoe,
    memory_defaults,
    misc,
    models,
    moe,
    needs,
    needs_layouts,
    overlap,
    runtime,
    runtime_kernels,
    serving,
    sizes,
    speculative,
)


@dataclass(frozen=True, slots=True)
class Changed:
    """The engine replaces `before` (None: not given) of a flag by `after`."""

    flag: str
    before: Any
    after: Any
    reason: str
    source: str


@dataclass(frozen=True, slots=True)
class NoEffect:
    """The flag is accepted and does nothing on this node: it acts as `like`."""

    flag: str
    reason: str
    source: str
    field: str = ""
    like: Any = None


@dataclass(frozen=True, slots=True)
class Effective:
    """What the engine makes of an assignment.

    `assignment` is the key for duplicates: defaults and silent overrides applied, flags without effect dropped.
    `resolved` holds the engine's own view, field by field (`tp_size`), before flags without effect are dropped.
    """

    assignment: Mapping[str, Value]
    changed: tuple[Changed, ...]
    no_effect: tuple[NoEffect, ...]
    resolved: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Judgement:
    """Both answers of one pass over the rules."""

    violations: tuple[Violation, ...]
    effective: Effective


def judge(
    assignment: Assignment, facts: NodeFacts, engine_version: str, model_config: Mapping[str, Any] | None
) -> Judgement:
    """Violations and effective configuration of one assignment. Raises ValueError for a version that is no version."""
    return judge_state(State(assignment, facts, parse_version(engine_version), model_facts(model_config)))


def judge_state(state: State) -> Judgement:
    """As `judge`; the state holds afterwards what the engine makes of it."""
    outcome = run(state)
    return Judgement(outcome.violations, _effective(state, outcome))


def violations(
    assignment: Assignment, facts: NodeFacts, engine_version: str, model_config: Mapping[str, Any] | None
) -> tuple[Violation, ...]:
    """Every reason of layers `rule` and `runtime` why the assignment cannot work; empty: nothing is known."""
    return run(State(assignment, facts, parse_version(engine_version), model_facts(model_config))).violations


def effective(
    assignment: Assignment, facts: NodeFacts, engine_version: str, model_config: Mapping[str, Any] | None
) -> Effective:
    """What the engine makes of the assignment, whether it accepts it or not."""
    return judge(assignment, facts, engine_version, model_config).effective


def _effective(state: State, outcome: Outcome) -> Effective:
    values = dict(outcome.resolved)
    for flag, _, like in (effect for effect, _ in outcome.idle):
        values[flag] = like
    assignment: dict[str, Value] = {
        name.replace("_", "-"): value for name, value in values.items() if value is not None and value is not False
    }
    assignment.update({f"env.{name}": value for name, value in state.env.items()})
    return Effective(
        assignment=assignment,
        changed=tuple(Changed(spelled(c.field, state), c.before, c.after, c.reason, c.source) for c in outcome.changes),
        no_effect=tuple(
            NoEffect(spelled(i.flag, state), i.reason, source, i.flag, i.like)
            for i, source in outcome.idle
            if i.flag in state.user
        ),
        resolved=outcome.resolved,
    )
