"""Runs the rules over one assignment in the engine's own order.

Order matters: a rule sees what earlier steps of the engine's resolution have made of the flags. `flashinfer_cutlass`
is checked against the user's expert-parallel size before an all-to-all backend rewrites it, for instance.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from servetune.core.engine import Violation
from servetune.engines.sglang.rules._registry import Assign, Fill, Idle, Refuse, Rule, Stage, Version, all_rules
from servetune.engines.sglang.rules._state import DEFAULTS, State

_S = Stage
#: `ServerArgs.__post_init__` followed by `check_server_args` up to 0.5.11.
_TO_0_5_11 = (
    _S.SIZES, _S.EARLY, _S.MODEL_CONFIG, _S.GRAPHS, _S.MEMORY, _S.MODEL, _S.ALLREDUCE, _S.SAMPLING, _S.ATTENTION,
    _S.LINEAR_ATTENTION, _S.KV_CACHE, _S.PAGE, _S.HIERARCHICAL_CACHE, _S.DATA_PARALLEL, _S.CONTEXT_PARALLEL,
    _S.MOE_RUNNER, _S.A2A, _S.EPLB, _S.PIPELINE_PARALLEL, _S.SPECULATIVE, _S.BUDGET, _S.CACHE, _S.DETERMINISTIC,
    _S.DIFFUSION, _S.CHECK, _S.RUNTIME, _S.IDLE,
)  # fmt: skip
#: From 0.5.12 on deterministic inference settles the attention backend before its automatic choice; 0.5.19 and later
#: run the same order in `arg_groups/pipeline.run_resolution_pipeline`.
_FROM_0_5_12 = (
    _S.SIZES, _S.EARLY, _S.MODEL_CONFIG, _S.GRAPHS, _S.GRAPHS_ROLE, _S.MEMORY, _S.MODEL, _S.ALLREDUCE, _S.SAMPLING,
    _S.DETERMINISTIC, _S.ATTENTION, _S.GRAPHS_LATE, _S.LINEAR_ATTENTION, _S.KV_CACHE, _S.PAGE, _S.HIERARCHICAL_CACHE,
    _S.DATA_PARALLEL, _S.CONTEXT_PARALLEL, _S.MOE_RUNNER, _S.A2A, _S.EPLB, _S.PIPELINE_PARALLEL, _S.SPECULATIVE,
    _S.BUDGET, _S.CACHE, _S.DIFFUSION, _S.CHECK, _S.RUNTIME, _S.IDLE,
)  # fmt: skip


#: The first version whose rules were held against the engine's own checks. Below it, a refusal that rests on a value
#: which the engine itself chose is not reported: older versions choose differently.
CHECKED_SINCE: Version = (0, 5, 9)


class Change(NamedTuple):
    """One field that the engine rewrote, in the order in which it happened."""

    field: str
    before: Any
    after: Any
    reason: str
    source: str


class Outcome(NamedTuple):
    """What the rules say about one state. `resolved`: every known field after the engine's resolution."""

    violations: tuple[Violation, ...]
    changes: tuple[Change, ...]
    idle: tuple[tuple[Idle, str], ...]
    resolved: dict[str, Any]


@lru_cache(maxsize=256)
def _plan(version: Version, major: int | None, architecture: str) -> tuple[Rule, ...]:
    order = _FROM_0_5_12 if version >= (0, 5, 12) else _TO_0_5_11
    rank = {stage: place for place, stage in enumerate(order)}
    holding = [r for r in all_rules() if r.stage in rank and r.holds_for(version, major, architecture)]
    return tuple(sorted(holding, key=lambda r: rank[r.stage]))


def run(state: State) -> Outcome:
    """Apply every rule that holds for the state's version, GPU and model; every violation is collected."""
    violations: list[Violation] = []
    changes: list[Change] = []
    idle: list[tuple[Idle, str]] = []
    values = state.__dict__
    chosen: set[str] | None = set() if state.version < CHECKED_SINCE else None
    major = state.gpu.major if state.gpu.known else None
    for rule in _plan(state.version, major, state.model.architecture):
        if rule.named is not None and rule.named not in state.user:
            continue
        for effect in rule.check(state):
            if isinstance(effect, Refuse):
                if chosen and not chosen.isdisjoint(effect.flags):
                    continue
                violations.append(_violation(rule, effect, state))
            elif isinstance(effect, Idle):
                idle.append((effect, rule.source))
            else:
                before = values.get(effect.field)
                values[effect.field] = effect.value
                if chosen is not None:
                    chosen.add(effect.field)
                if isinstance(effect, Assign) and before != effect.value:
                    changes.append(Change(effect.field, before, effect.value, effect.reason, rule.source))
        if rule.final and violations:
            break
    resolved = {name: values[name] for name in (*DEFAULTS, *state.user)}
    return Outcome(tuple(violations), tuple(changes), tuple(idle), resolved)


def _violation(rule: Rule, effect: Refuse, state: State) -> Violation:
    return Violation(
        rule=rule.id,
        layer=rule.layer,
        flags=tuple(spelled(name, state) for name in effect.flags),
        message=effect.message,
        alternatives=effect.alternatives or _without(effect.flags, state),
        source=rule.source,
    )


def _without(flags: tuple[str, ...], state: State) -> tuple[str, ...]:
    """What may be where a rule knows nothing better: without one of the flags that were named."""
    return tuple(f"leave out --{spelled(name, state)}" for name in flags if name in state.user)


def spelled(field: str, state: State) -> str:
    """A field of ServerArgs as the user wrote it, else as the command line spells it; `env.NAME` stays as it is."""
    return state.spelling.get(field, field if field.startswith("env.") else field.replace("_", "-"))


__all__ = ["CHECKED_SINCE", "Change", "Fill", "Outcome", "run", "spelled"]
