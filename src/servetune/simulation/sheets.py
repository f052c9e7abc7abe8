"""The parts of a scenario. Keys: docs/simulated-node.md. Numbers are per GPU unless said otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field

from servetune.core.failure import Phase
from servetune.core.space import Condition, Frozen, Value


def _as_text(value: Any) -> Any:
    """YAML reads an unquoted 12.0 as a number."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _as_condition(value: Any) -> Any:
    """`{flag: value or list of values}` to a Condition."""
    if isinstance(value, Condition) or not isinstance(value, Mapping):
        return value
    return {"any_of": {str(flag): want if isinstance(want, list | tuple) else [want] for flag, want in value.items()}}


Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Gib: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Level: TypeAlias = Annotated[int, Field(ge=1)]
Text: TypeAlias = Annotated[str, BeforeValidator(_as_text)]
When: TypeAlias = Annotated[Condition, BeforeValidator(_as_condition)]
Table: TypeAlias = Annotated[Mapping[Level, Positive], Field(min_length=1)]  # concurrency → number


class NodeSheet(Frozen):
    """The invented machine."""

    gpu_name: str
    compute_capability: Text
    gpu_count: int = Field(ge=1, le=1024)
    gpu_memory_mib: int = Field(ge=1)
    interconnect: str


class ModelSheet(Frozen):
    """The invented model."""

    path: str
    architecture: str
    quantization: str | None = None
    config: str | Mapping[str, Any] | None = None  # a shipped config.json by name, or one written out


class Extra(Frozen):
    """GiB added to (or, negative, taken from) the weights while `when` holds."""

    when: When
    add: Number


class MemorySheet(Frozen):
    """GiB per GPU."""

    free_before_weights: Positive
    weights: Gib
    extra: tuple[Extra, ...] = ()
    activation: Gib = 0.0
    activation_per_1k_chunk: Gib = 0.0
    graph_base: Gib = 0.0
    graph_per_batch_size: Gib = 0.0


class StartupSheet(Frozen):
    """Seconds of each part of a start. `graph_per_batch_size`: for each captured size, one per eight of the largest."""

    init: Seconds
    load_weights: Seconds
    kv_pool: Seconds
    graph_base: Seconds
    graph_per_batch_size: Seconds
    warmup: Seconds


class Effect(Frozen):
    """Multiplies the throughput while `when` holds: one number, or a table over concurrency."""

    when: When
    factor: Positive | Table


class Curve(Frozen):
    """Throughput factor of a numeric flag: 1 at its optimum, less by `penalty` for each doubling or halving."""

    flag: str
    optimum: Positive
    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Noise(Frozen):
    """Of one measured level: coefficient of variation, and rare outliers."""

    cv: float = Field(default=0.0, ge=0, le=1)
    outlier_probability: float = Field(default=0.0, ge=0, le=1)
    outlier_factor: Positive = 1.0


class FailureRule(Frozen):
    """A failure of the engine. `class` is the failure class. `at_concurrency`: only once that load is reached."""

    when: When
    phase: Phase
    slug: str = Field(alias="class")
    log: str
    at_concurrency: Level | None = None
    probability: float = Field(default=1.0, ge=0, le=1)


class WrongOutput(Frozen):
    """While `when` holds the server runs and answers nonsense. `at_concurrency`: only while so many requests are there.

    A load generator that sends no load never sees the latter.
    """

    when: When
    at_concurrency: Level | None = None


class NoEffect(Frozen):
    """While `when` holds its flags behave as if they were absent, and `log` is warned."""

    when: When
    log: str = ""


class Optimum(Frozen):
    """For judging results only: never read by a strategy, and not part of a Scenario."""

    score: Positive
    config: Mapping[str, Value]
