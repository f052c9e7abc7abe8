"""What a failure means: a value with a class, a verdict and its evidence."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from servetune.core.space import Frozen, Value


class Phase(StrEnum):
    """Where a launch was when it failed. `load` runs from process start to loaded weights; `serving` has the probe."""

    PARSE = "parse"
    VALIDATE = "validate"
    LOAD = "load"
    KV_ALLOC = "kv_alloc"
    GRAPH_CAPTURE = "graph_capture"
    WARMUP = "warmup"
    SERVING = "serving"


class Verdict(StrEnum):
    """What to do about a failure."""

    INFEASIBLE = "infeasible"  # the configuration cannot work here: teach the sampler
    RETRY = "retry"  # may pass when tried again: same assignment, at most n times
    STOP = "stop"  # the node is unusable: end the study, records intact
    NONE = "none"  # no failure, or nothing to do


class Evidence(Frozen):
    """A log line that decided: 1-based line number and its text (secrets removed, at most 2,000 characters)."""

    line: int
    text: str


class Repair(Frozen):
    """One change to a flag that may mend the failure. `value` None: leave the flag out."""

    flag: str
    value: Value | None
    reason: str


class Failure(Frozen):
    """Why a run failed. `slug` is the failure class (e.g. `kv_budget`); `unknown` when nothing decided.

    `named`: those of `blamed` that the log itself points at, by name, by value or by what its words are about; the
    others are only suspected. `advice`: what a person does next, where no change of a flag mends it.
    """

    slug: str
    phase: Phase
    verdict: Verdict
    message: str
    deterministic: bool | None = None
    evidence: tuple[Evidence, ...] = ()
    blamed: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = ()
    advice: str | None = None
    confidence: float = Field(default=0.5, ge=0, le=1)
