"""What the sampler is told of a study and of each trial, beside values and states: plain JSON in user attributes."""

from __future__ import annotations

from typing import Any

from servetune.core.benchmark import Measurement
from servetune.core.objective import Objective
from servetune.core.space import Assignment
from servetune.core.study import StudySpec
from servetune.core.trial import Outcome, RunRecord
from servetune.search.facts import memory_facts


def context_of(spec: StudySpec, assumed: Assignment) -> dict[str, Any]:
    """The study's user attribute `context`: level → weight in the objective, tokens of a request, assumed flags."""
    load = spec.workload
    return {
        "weights": _weights(spec.objective, load.concurrency),
        "tokens": load.input_tokens + load.output_tokens,
        "assumed": {flag: value for flag, value in assumed.items() if isinstance(value, int | float)},
    }


def _weights(objective: Objective, levels: tuple[int, ...]) -> dict[str, float]:
    if objective.level is not None:
        return {str(level): float(level == objective.level) for level in levels}
    told = objective.weights
    return {str(level): told.get(level, 0.0 if told else 1.0) for level in levels}


def told_of(outcome: Outcome, run: RunRecord | None, objective: Objective) -> dict[str, Any]:
    """The trial's attribute `result`: failure (class, phase, confidence, blamed flags), levels, node seconds, memory.

    Levels are what each contributes to the objective; its relative deviation is taken to be the throughput's.
    """
    if outcome.duplicate_of is not None:
        return {"duplicate_of": outcome.duplicate_of}
    if run is None:
        return {}
    failure = run.failure
    measured = {str(m.concurrency): m for m in run.measurements if m.valid and objective.of(m) > 0}
    return {
        "class": None if failure is None else failure.slug,
        "phase": None if failure is None else failure.phase.value,
        "confidence": 1.0 if failure is None else failure.confidence,
        "blamed": [] if failure is None else list(failure.blamed),
        "levels": {level: objective.of(m) for level, m in measured.items()},
        "sd": {level: _relative_sd(m) for level, m in measured.items()},
        "node_s": run.node_s,
        "facts": memory_facts(run.log_facts),
    }


def _relative_sd(measurement: Measurement) -> float:
    """Of a 95 % interval."""
    return (measurement.high - measurement.low) / (2 * 1.96 * measurement.output_tokens_per_s)
