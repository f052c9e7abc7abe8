"""The table of a study: one line of JSON for each launch, which outlives the database that it was read from.

Flags are named as on the command line without dashes, environment variables as `env.NAME`. Seconds are node seconds,
memory is GiB per GPU, throughput is output tokens/s of the server.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from servetune.core.benchmark import Measurement, Percentiles
from servetune.core.failure import Phase, Verdict
from servetune.core.node import EnvRef
from servetune.core.space import Frozen, Value
from servetune.core.trial import RunPurpose, TrialState


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: what was measured as one of these is not known."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


Number: TypeAlias = Annotated[float | None, BeforeValidator(_finite)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
FlagValue: TypeAlias = Value | EnvRef  # a secret is the name of a variable


class EngineFacts(Frozen):
    """What served."""

    name: str | None = None
    version: str | None = None
    python_version: str | None = None
    model: str


class GpuFacts(Frozen):
    """What it ran on. `memory_bytes`: of one GPU."""

    names: tuple[str, ...] = ()
    memory_bytes: int | None = None
    compute_capability: str | None = None
    interconnect: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None


class Load(Frozen):
    """What each request asked for, and the levels that were to be held. `generator`: its name and settings."""

    input_tokens: int
    output_tokens: int
    concurrency: tuple[int, ...]
    generator: Mapping[str, Any]


class LevelRow(Frozen):
    """One concurrency level as measured: throughput with its 95 % interval, latency percentiles in seconds."""

    concurrency: int = Field(ge=1)
    output_tokens_per_s: Number
    low: Number
    high: Number
    duration_s: Number
    requests_completed: int
    requests_failed: int
    output_tokens: int
    valid: bool
    warnings: tuple[str, ...] = ()
    ttft_s: Mapping[str, Number] | None = None
    tpot_s: Mapping[str, Number] | None = None
    itl_s: Mapping[str, Number] | None = None
    e2e_s: Mapping[str, Number] | None = None
    details: Mapping[str, Number] = {}

    def measurement(self) -> Measurement | None:
        """As the load generator gave it; None when its throughput is not a number."""
        rate, low, high = self.output_tokens_per_s, self.low, self.high
        if rate is None:
            return None
        known = self.model_dump(exclude={"ttft_s", "tpot_s", "itl_s", "e2e_s", "details", "low", "high", "duration_s"})
        times = {name: _percentiles(getattr(self, name)) for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s")}
        details = {name: value for name, value in self.details.items() if value is not None}
        low, high = rate if low is None else low, rate if high is None else high
        return Measurement(**known, **times, low=low, high=high, duration_s=self.duration_s or 0.0, details=details)


def _percentiles(told: Mapping[str, float | None] | None) -> Percentiles | None:
    if told is None or any(value is None for value in told.values()):
        return None
    return Percentiles.model_validate(told)


class FailureRow(Frozen):
    """Why a launch failed. `line`: the deciding line of its log, secrets removed."""

    slug: str = Field(alias="class")
    phase: Phase
    message: str
    verdict: Verdict
    line: str = ""
    blamed: tuple[str, ...] = ()


class LaunchRow(Frozen):
    """One launch. `finished_at` None: it was interrupted, and says nothing about its configuration.

    `flags`: what the command line and its environment set. `in_effect`: the engine's own word, where its log gives it,
    for every flag that some launch of the study sets. `phase_s`: ready, probe, `level:<concurrency>`, answers, stop;
    `startup_s`: phases up to readiness by the log's clock (whole seconds). `trial_state`: what became of the trial.
    """

    schema_: Literal[1] = Field(default=1, alias="schema")
    study: str
    trial: int
    attempt: int
    purpose: RunPurpose
    baseline: bool
    trial_state: TrialState
    started_at: str
    finished_at: str | None
    simulated: bool
    engine: EngineFacts
    gpu: GpuFacts
    load: Load
    flags: Mapping[str, FlagValue]
    in_effect: Mapping[str, Value | None] = {}
    node_s: Seconds
    phase_s: Mapping[str, Seconds]
    startup_s: Mapping[str, Seconds] = {}
    memory: Mapping[str, Number] = {}
    levels: tuple[LevelRow, ...] = ()
    log_warnings: tuple[str, ...] = ()
    failure: FailureRow | None

    def line(self) -> str:
        """The row as one line of strict JSON, with its line end."""
        told = self.model_dump(mode="json", by_alias=True)
        return json.dumps(told, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n"
