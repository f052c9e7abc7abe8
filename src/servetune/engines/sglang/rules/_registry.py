"""The registry of rules: one pure generator function per rule, listed by id.

A rule reads the state of the engine's argument resolution and yields effects. It never changes the state itself; the
runner (`_run.py`) applies each effect before the rule goes on, so that a rule sees what it has just assigned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from servetune.engines.sglang.rules._state import State

Version: TypeAlias = tuple[int, int, int]
Layer: TypeAlias = Literal["rule", "runtime"]


class Refuse(NamedTuple):
    """The engine ends here. `flags`: which of the flags exclude each other; `alternatives`: what may be."""

    message: str
    flags: tuple[str, ...]
    alternatives: tuple[str, ...] = ()


class Assign(NamedTuple):
    """The engine gives `field` (a flag with underscores) another value, silently or with a warning."""

    field: str
    value: Any
    reason: str


class Fill(NamedTuple):
    """The engine's default for a field that was not given. Not a change that anybody needs to hear of."""

    field: str
    value: Any


class Idle(NamedTuple):
    """The flag is accepted and does nothing here: the same server runs without it (`like`: the value it acts as)."""

    flag: str
    reason: str
    like: Any = None


Effect: TypeAlias = Refuse | Assign | Fill | Idle
Effects: TypeAlias = Iterator[Effect]


class Stage(Enum):
    """Steps of the engine's resolution; their order per version stands in `_run.PIPELINES`."""

    SIZES = "sizes"
    EARLY = "early"
    MODEL_CONFIG = "model_config"
    GRAPHS = "graphs"
    GRAPHS_ROLE = "graphs_role"
    MEMORY = "memory"
    MODEL = "model"
    ALLREDUCE = "allreduce"
    SAMPLING = "sampling"
    DETERMINISTIC = "deterministic"
    ATTENTION = "attention"
    GRAPHS_LATE = "graphs_late"
    LINEAR_ATTENTION = "linear_attention"
    KV_CACHE = "kv_cache"
    PAGE = "page"
    HIERARCHICAL_CACHE = "hierarchical_cache"
    DATA_PARALLEL = "data_parallel"
    CONTEXT_PARALLEL = "context_parallel"
    MOE_RUNNER = "moe_runner"
    A2A = "a2a"
    EPLB = "eplb"
    PIPELINE_PARALLEL = "pipeline_parallel"
    SPECULATIVE = "speculative"
    BUDGET = "budget"
    CACHE = "cache"
    DIFFUSION = "diffusion"
    CHECK = "check"
    IDLE = "idle"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `since`, `until`: first and last version it holds for; `majors`: compute capability majors, or all."""

    id: str
    stage: Stage
    layer: Layer
    since: Version
    until: Version
    majors: frozenset[int] | None
    source: str
    summary: str
    check: Callable[[State], Effects]
    architectures: frozenset[str] | None = None
    final: bool = False  # what it refuses makes every later rule meaningless
    named: str | None = None  # the field without which it has nothing to say

    def holds_for(self, version: Version, major: int | None, architecture: str) -> bool:
        """Whether the rule can say anything for this version, GPU and model architecture."""
        if not self.since <= version <= self.until:
            return False
        if self.architectures is not None and architecture not in self.architectures:
            return False
        return self.majors is None or major in self.majors

    @property
    def versions(self) -> str:
        """For people: `0.5.13 and later`, `0.5.9 to 0.5.12`, `all`."""
        first, last = ".".join(map(str, self.since)), ".".join(map(str, self.until))
        if self.until == LAST:
            return "all" if self.since == FIRST else f"{first} and later"
        return f"up to {last}" if self.since == FIRST else f"{first} to {last}"


FIRST: Version = (0, 0, 0)
LAST: Version = (99, 0, 0)
_rules: dict[str, Rule] = {}


@lru_cache(maxsize=256)
def parse_version(text: str) -> Version:
    """`0.5.9`, `0.5.10rc0`, `0.5.6.post2` → (0, 5, 9) …; a shorter text is filled with zeros. Raises ValueError."""
    numbers = []
    for part in text.lstrip("v").split(".")[:3]:
        digits = part[: next((i for i, c in enumerate(part) if not c.isdigit()), len(part))]
        if not digits:
            break
        numbers.append(int(digits))
    if len(numbers) < 2:
        raise ValueError(f"SGLang version {text!r} is not of the form 0.5.9; give engine_version in full")
    major, minor, patch = (*numbers, 0)[:3]
    return major, minor, patch


def rule(
    id: str,
    stage: Stage,
    *,
    source: str,
    since: str | None = None,
    until: str | None = None,
    majors: tuple[int, ...] | None = None,
    architectures: frozenset[str] | None = None,
    layer: Layer = "rule",
    final: bool = False,
    named: str | None = None,
) -> Callable[[Callable[[State], Effects]], Callable[[State], Effects]]:
    """Register the decorated generator as the rule `id`. Its docstring's first line is the rule's summary.

    Within a stage rules run in the order in which they are registered. Raises ValueError for an id used twice.
    """

    def register(check: Callable[[State], Effects]) -> Callable[[State], Effects]:
        if id in _rules:
            raise ValueError(f"rule id {id!r} is used twice")
        _rules[id] = Rule(
            id=id,
            stage=stage,
            layer=layer,
            since=parse_version(since) if since else FIRST,
            until=parse_version(until) if until else LAST,
            majors=frozenset(majors) if majors else None,
            source=source,
            summary=(check.__doc__ or "").strip().partition("\n")[0],
            check=check,
            architectures=architectures,
            final=final,
            named=named,
        )
        return check

    return register


def all_rules() -> tuple[Rule, ...]:
    """Every rule, in order of registration."""
    return tuple(_rules.values())
