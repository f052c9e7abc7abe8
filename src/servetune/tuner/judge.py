"""What a run means for its trial: complete with a value, infeasible, or a fault that teaches nothing."""

from __future__ import annotations

from collections.abc import Sequence

from servetune.core.benchmark import Measurement
from servetune.core.failure import Failure, Phase, Verdict
from servetune.core.objective import Objective
from servetune.core.study import StudySpec
from servetune.core.trial import Outcome, TrialState

#: Classes that say something about the node or the load, never about the configuration.
NOT_THE_CONFIGURATION = frozenset({"host_env", "overload", "invalid_measurement"})

#: Told with every trial that could have been infeasible and was not.
FEASIBLE = -1.0

_ORDER = tuple(Phase)


def gave_nothing(measurement: Measurement) -> bool:
    """Whether a server under load gave neither an answer nor a token.

    One whose tokens flow while no answer ends within the level's time does not hang: the measurement's own warning says
    how long an answer takes.
    """
    return measurement.requests_completed == 0 and measurement.output_tokens == 0


def outcome_of(spec: StudySpec, failure: Failure | None, measurements: Sequence[Measurement], pruned: bool) -> Outcome:
    """The outcome of a trial whose last run ended like this."""
    levels = spec.objective.contributions(measurements)
    if failure is None and pruned:
        return Outcome(
            state=TrialState.PRUNED,
            levels=levels,
            constraint=FEASIBLE,
            message="ended early: it could not come to the top",
        )
    if failure is None:
        return Outcome(
            state=TrialState.COMPLETE, value=spec.objective.value(levels), levels=levels, constraint=FEASIBLE
        )
    message = f"{failure.slug} in {failure.phase.value}: {failure.message}"
    if failure.verdict is Verdict.STOP or not is_the_configurations(failure):
        return Outcome(state=TrialState.FAIL, levels=levels, message=message)
    return Outcome(
        state=TrialState.PRUNED, levels=levels, constraint=constraint_of(spec, failure, len(levels)), message=message
    )


def beyond_limits(objective: Objective, measurement: Measurement) -> tuple[str, ...]:
    """Why a measurement is infeasible: a limit that is exceeded, or limits that a load search found no load to keep."""
    if measurement.valid and measurement.details.get("concurrency_found") == 0:
        return measurement.warnings
    return objective.beyond_limits(measurement)


def is_the_configurations(failure: Failure) -> bool:
    """Whether a failure says something about its configuration; so may a class that usually does not."""
    return failure.verdict is Verdict.INFEASIBLE or failure.slug not in NOT_THE_CONFIGURATION


def constraint_of(spec: StudySpec, failure: Failure, levels_done: int) -> float:
    """How infeasible: 1 for a command that does not even parse, towards 0 the later it failed; always above 0."""
    steps = len(_ORDER) + len(spec.workload.concurrency)
    reached = _ORDER.index(failure.phase) + levels_done
    return 1.0 - reached / (steps + 1)
