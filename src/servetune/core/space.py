"""Search space: which flags and environment variables may take which values.

A **parameter** is what is sampled. A **bundle** is a categorical parameter whose choices set several flags at once.
A **point** maps parameter names to sampled values; the **assignment** is what it expands to: flag name without dashes
(or `env.NAME`) → value. `None` in an assignment's source means "flag absent" and is dropped on expansion.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Value: TypeAlias = bool | int | float | str
Assignment: TypeAlias = Mapping[str, Value]
Choice: TypeAlias = bool | int | float | str | None
Point: TypeAlias = Mapping[str, Choice]


class Frozen(BaseModel):
    """Base of all data: immutable, unknown keys refused, no silent coercion of strings to numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, arbitrary_types_allowed=False)


class Condition(Frozen):
    """A conjunction: every named parameter or flag must have one of the listed values. Empty: always true."""

    any_of: Mapping[str, tuple[Choice, ...]] = Field(default_factory=dict)

    def holds(self, values: Mapping[str, Choice]) -> bool:
        """Whether `values` satisfies every clause. A name that is absent from `values` counts as None."""
        for name, wanted in self.any_of.items():
            value = values.get(name)
            if not any(same_value(value, want) for want in wanted):
                return False
        return True


class CategoricalDomain(Frozen):
    """Unordered values. `None` means that the flag is left out."""

    kind: Literal["categorical"] = "categorical"
    choices: tuple[Choice, ...]


class IntDomain(Frozen):
    """Integers low, low+step, … up to and including high. With `log`, sampled uniformly in the logarithm (step 1)."""

    kind: Literal["int"] = "int"
    low: int
    high: int
    step: int = 1
    log: bool = False


class FloatDomain(Frozen):
    """Floats in [low, high], on a grid when `step` is given. `log` and `step` exclude each other."""

    kind: Literal["float"] = "float"
    low: float
    high: float
    step: float | None = None
    log: bool = False


class BundleDomain(Frozen):
    """A named choice that sets several flags and environment variables at once: label → partial assignment."""

    kind: Literal["bundle"] = "bundle"
    options: Mapping[str, Mapping[str, Choice]]


Domain: TypeAlias = Annotated[CategoricalDomain | IntDomain | FloatDomain | BundleDomain, Field(discriminator="kind")]


class Parameter(Frozen):
    """One thing that is sampled. `name` is a flag without dashes, `env.NAME`, or the name of a bundle."""

    name: str
    domain: Domain
    when: Condition = Condition()
    why: str = ""


class SearchSpace(Frozen):
    """Parameters in the order of sampling; a condition may only name earlier parameters or fixed flags."""

    name: str
    parameters: tuple[Parameter, ...] = ()
    fixed: Mapping[str, Value] = Field(default_factory=dict)
    hints: tuple[Mapping[str, Choice], ...] = ()

    def active(self, parameter: Parameter, point: Point) -> bool:
        """Whether `parameter` is sampled, given the values of the parameters before it."""
        return parameter.when.holds({**self.fixed, **self.expand(point), **point})

    def expand(self, point: Point) -> dict[str, Value]:
        """Point → assignment: fixed flags, then each parameter in order; bundles unfold; None drops the flag."""
        merged: dict[str, Choice] = dict(self.fixed)
        for parameter in self.parameters:
            if parameter.name in point:
                merged.update(_flags_of(parameter, point[parameter.name]))
        return {flag: value for flag, value in merged.items() if value is not None}

    def fingerprint(self) -> str:
        """Hex digest of everything that decides what can be sampled; stored with a study, compared on resume."""
        text = json.dumps(self.model_dump(mode="json", exclude={"hints"}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _flags_of(parameter: Parameter, value: Choice) -> Mapping[str, Choice]:
    if isinstance(parameter.domain, BundleDomain):
        return parameter.domain.options[str(value)]
    return {parameter.name: value}


def flags_of(parameter: Parameter) -> frozenset[str]:
    """The flags and variables that a parameter may set."""
    if isinstance(parameter.domain, BundleDomain):
        return frozenset(flag for option in parameter.domain.options.values() for flag in option)
    return frozenset({parameter.name})


def same_value(left: Any, right: Any) -> bool:
    """Equality that keeps True and 1 apart (Python says True == 1) and 8 and 8.0 together."""
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)
