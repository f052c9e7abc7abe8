"""What a study's trials say, out of Optuna's rows alone: params, and the user attribute `result` of each."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from servetune.search._grid import Codes, Grid
from servetune.search.facts import FLAGS, number_of

#: Order of phases, as in `core.failure.Phase`, and the end of a complete launch.
PHASES = ("parse", "validate", "load", "kv_alloc", "graph_capture", "warmup", "serving", "done")
#: Classes that are about memory: what was asked for did not fit.
OF_MEMORY = frozenset({"oom_weights", "kv_budget", "oom_graph", "oom_runtime"})
#: Relative standard deviation of a level whose interval is not known.
UNKNOWN_SD = 0.02


@dataclass(frozen=True)
class Seen:
    """One launched trial. `log_levels`: concurrency → log tokens/s; `sd`: its standard deviation.

    `slug` None: nothing failed; `confidence`: of the diagnosis. `facts`: memory in GiB, and KV tokens, as the log said.
    `given`: the assignment, which may lie outside the space (a baseline's memory fraction, say) or leave a flag to the
    engine; `codes` is then the point nearest to what was in effect.
    """

    number: int
    codes: Codes
    complete: bool
    slug: str | None = None
    phase: str = "done"
    confidence: float = 1.0
    blamed: frozenset[str] = frozenset()
    log_levels: Mapping[int, float] = field(default_factory=dict)
    sd: Mapping[int, float] = field(default_factory=dict)
    node_s: float = 0.0
    facts: Mapping[str, float] = field(default_factory=dict)
    baseline: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> Hashable:
        """All that expected values depend on."""
        told = (self.log_levels, self.sd, self.facts, self.given)
        dicts = tuple(tuple(sorted(one.items())) for one in told)
        return self.number, self.codes.tobytes(), self.complete, self.slug, self.phase, self.baseline, *dicts


@dataclass(frozen=True)
class Context:
    """What the study measures. `weights`: level → its share of the objective, adding up to 1."""

    weights: Mapping[int, float]
    tokens: float | None  # of one request, prompt and answer
    fixed: Mapping[str, Any]

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> Context:
        """From the study's user attribute `context`; without it nothing is known about levels."""
        told = attrs.get("context", {})
        weights = {int(level): float(weight) for level, weight in told.get("weights", {}).items()}
        return cls(weights, told.get("tokens"), told.get("assumed", {}))


def history(trials: Sequence[FrozenTrial], grid: Grid) -> tuple[list[Seen], list[FrozenTrial]]:
    """Launched trials that say something about their configuration, and the trials that are running."""
    seen, running = [], []
    for trial in trials:
        if trial.state is TrialState.RUNNING:
            running.append(trial)
        elif trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and not _is_duplicate(trial):
            seen.append(_once(trial.number, trial, grid))
    return seen, running


def _is_duplicate(trial: FrozenTrial) -> bool:
    return "duplicate_of" in trial.user_attrs.get("result", {})


#: Trial number → the finished trial, which does not change any more, the grid's key, and what was made of them.
_made: dict[int, tuple[FrozenTrial, Hashable, Seen]] = {}


def _once(number: int, trial: FrozenTrial, grid: Grid) -> Seen:
    known = _made.get(number)
    if known is None or known[0] is not trial or known[1] != grid.key:
        known = (trial, grid.key, _seen(trial, grid))
        _made[number] = known
    return known[2]


def _seen(trial: FrozenTrial, grid: Grid) -> Seen:
    baseline = bool(trial.user_attrs.get("baseline"))
    complete = trial.value if trial.state is TrialState.COMPLETE else None
    given, told = trial.user_attrs.get("assignment", {}), trial.user_attrs.get("result", {})
    return seen_of(trial.number, trial.params, told, complete, baseline, grid, given)


def seen_of(
    number: int,
    point: Mapping[str, Any],
    told: Mapping[str, Any],
    value: float | None,
    baseline: bool,
    grid: Grid,
    given: Mapping[str, Any],
) -> Seen:
    """A launched trial. `told`: its attribute `result`; `value`: the objective, or None; `given`: its assignment."""
    levels = {int(level): rate for level, rate in told.get("levels", {}).items()}
    spread = {int(level): deviation for level, deviation in told.get("sd", {}).items()}
    if value is not None and not levels:
        levels = {0: value}
    return Seen(
        number=number,
        codes=_in_effect(grid.encode(point), grid, told.get("facts", {}), given),
        complete=value is not None,
        slug=told.get("class"),
        phase=told.get("phase") or "done",
        confidence=told.get("confidence", 1.0),
        blamed=frozenset(told.get("blamed", ())),
        log_levels={level: math.log(rate) for level, rate in levels.items() if rate > 0},
        sd={level: spread.get(level) or UNKNOWN_SD for level in levels},
        node_s=told.get("node_s", 0.0),
        facts=told.get("facts", {}),
        baseline=baseline,
        given=given,
    )


def _in_effect(codes: Codes, grid: Grid, facts: Mapping[str, float], given: Mapping[str, Any]) -> Codes:
    """The point, with the engine's own choice where the assignment names no number and the log told it."""
    for place, axis in enumerate(grid.axes):
        name = next((name for name, flags in FLAGS.items() if axis.name in flags), None)
        if name is None or name not in facts or axis.place is None or codes[place] < 0:
            continue
        if number_of(given, FLAGS[name]) is None:
            codes[place] = axis.index(facts[name])
    return codes
