"""What crashes taught, in a form that outlives a study: combinations of flags that cannot work, and where so."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from servetune.core.node import NodeFacts
from servetune.core.space import Choice, Frozen, same_value


class Clause(Frozen):
    """About one flag: its value is one of `any_of` (None: the flag is absent), or a number beyond a bound.

    Bounds are exclusive; a flag that is absent or no number is beyond none.
    """

    flag: str
    any_of: tuple[Choice, ...] = ()
    above: float | None = Field(default=None, allow_inf_nan=False)
    below: float | None = Field(default=None, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.any_of) == (self.above is not None or self.below is not None):
            raise ValueError(f"a clause about {self.flag!r} has either values (`any_of`) or bounds (`above`, `below`)")
        return self

    def said(self) -> str:
        """In words: `moe-a2a-backend deepep`, `mem-fraction-static below 0.827`, `cuda-graph-max-bs ≥ 440`."""
        if self.any_of:
            return f"{self.flag} {' or '.join(_word(value) for value in self.any_of)}"
        bounds = [_above(self.above)] if self.above is not None else []
        bounds += [f"below {self.below:g}"] if self.below is not None else []
        return f"{self.flag} {' and '.join(bounds)}"

    def holds(self, assignment: Mapping[str, Choice]) -> bool:
        """Whether the assignment's value of the flag is one that the clause names."""
        value = assignment.get(self.flag)
        if self.any_of:
            return any(same_value(value, wanted) for wanted in self.any_of)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return (self.above is None or value > self.above) and (self.below is None or value < self.below)


def _word(value: Choice) -> str:
    if value is None:
        return "left out"
    if isinstance(value, bool):
        return "on" if value else "off"
    return value if isinstance(value, str) else f"{value:g}"


def _above(bound: float) -> str:
    """A bound that a crash taught lies just below what was tried, which is what a person knows: that stands there.

    Whole numbers are one apart, and half a thousandth is kept below a share.
    """
    if bound >= 1 and bound == int(bound):
        return f"≥ {int(bound) + 1}"
    tried = round(bound + 5e-4, 3)
    return f"≥ {tried:g}" if abs(tried - bound - 5e-4) < 1e-9 else f"above {bound:g}"


class Scope(Frozen):
    """Where a constraint is known to hold; None: everywhere. `simulated`: the scenario; empty on real hardware."""

    engine: str | None = None
    engine_version: str | None = None
    model: str | None = None
    compute_capability: str | None = None
    gpu_memory_bytes: int | None = None
    gpu_count: int | None = None
    simulated: str | None = None

    def covers(self, facts: NodeFacts, model: str) -> bool:
        """Whether it includes this node and model."""
        here = {
            "engine": facts.engine_name,
            "engine_version": facts.engine_version,
            "model": model,
            "compute_capability": facts.compute_capability,
            "gpu_memory_bytes": facts.gpu_memory_bytes,
            "gpu_count": facts.gpu_count,
            "simulated": facts.host if facts.simulated else "",
        }
        return all(wanted is None or wanted == here[name] for name, wanted in self)


class Lesson(Frozen):
    """One crash that taught a constraint. `line`: the deciding line of its log, secrets removed."""

    study: str
    trial: int
    line: str = ""


class LearnedConstraint(Frozen):
    """A combination that cannot work: an assignment that satisfies every clause of `forbids`, within `scope`.

    `withdrawn`: why it no longer applies (a success contradicted it); empty while it does. `rejections`: trials that
    it has saved a launch.
    """

    slug: str  # class of the failure
    forbids: tuple[Clause, ...] = Field(min_length=1)
    scope: Scope = Scope()
    confidence: float = Field(ge=0, le=1)
    lessons: tuple[Lesson, ...] = ()
    message: str = ""
    withdrawn: str = ""
    rejections: int = Field(default=0, ge=0)

    @property
    def key(self) -> str:
        """Hex digest of what it says, whatever taught it and however sure it is."""
        said = self.model_dump(mode="json", include={"slug", "forbids", "scope"})
        said["forbids"] = sorted(said["forbids"], key=lambda clause: json.dumps(clause, sort_keys=True))
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    def said(self) -> str:
        """The combination in words."""
        first, *others = (clause.said() for clause in self.forbids)
        return f"{first} with {' and '.join(others)}" if others else first

    def covers(self, assignment: Mapping[str, Choice]) -> bool:
        """Whether the assignment is forbidden by it. The scope is the caller's to check, once per study."""
        return not self.withdrawn and all(clause.holds(assignment) for clause in self.forbids)

    def merged(self, again: LearnedConstraint) -> LearnedConstraint:
        """What two of one key say together: lessons of both, the higher confidence; withdrawn when either is."""
        return self.model_copy(
            update={
                "lessons": tuple(dict.fromkeys((*self.lessons, *again.lessons))),
                "confidence": max(self.confidence, again.confidence),
                "message": again.message or self.message,
                "withdrawn": self.withdrawn or again.withdrawn,
            }
        )
