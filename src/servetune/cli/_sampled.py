"""A sample of a study's space: its points, and what is against launching any of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from servetune.core.engine import Engine, Violation
from servetune.core.node import NodeFacts
from servetune.core.space import (
    Assignment,
    BundleDomain,
    CategoricalDomain,
    Choice,
    FloatDomain,
    IntDomain,
    SearchSpace,
)


class Tally:
    """Which rule refuses how many of the configurations that were taken."""

    def __init__(self) -> None:
        self.taken, self.refused = 0, 0
        self._rules = Counter[tuple[str, str]]()
        self._first: dict[tuple[str, str], Violation] = {}

    def take(self, violations: Sequence[Violation]) -> None:
        """One configuration, and everything that refuses it."""
        self.taken += 1
        self.refuse(violations)

    def refuse(self, violations: Sequence[Violation], times: int = 1) -> None:
        """Something against configurations that have been taken, and that nothing has refused."""
        self.refused += times if violations else 0
        for key, violation in {(v.layer, v.rule): v for v in violations}.items():
            self._rules[key] += times
            self._first.setdefault(key, violation)

    def nothing_launched(self, fixed: Assignment) -> str | None:
        """Why none of them can be launched, with the flags of the study's `fixed` that are named; None if one can."""
        if self.refused < self.taken or not self._rules:
            return None
        (key, count), *_ = self._rules.most_common(1)
        violation, rule = self._first[key], " ".join(key)
        set_by_study = ", ".join(f"{flag}: {fixed[flag]}" for flag in violation.flags if flag in fixed)
        why = f"{violation.message}{f' (fixed: {{{set_by_study}}})' if set_by_study else ''}"
        if count == self.taken:
            return f"nothing can be launched: {rule} refuses each of {count} sampled configurations: {why}"
        return (
            f"nothing can be launched: each of {self.taken} sampled configurations is refused, "
            f"{count} of them by {rule}, such as: {why}"
        )


def sampled(space: SearchSpace, count: int, seed: int) -> Iterator[Assignment]:
    """`count` uniform points of the space as assignments."""
    rng = random.Random(seed)  # noqa: S311 - a sample, no secret
    yield from (space.expand(draw(space, rng)) for _ in range(count))


def tally_of(space: SearchSpace, engine: Engine, facts: NodeFacts, count: int, seed: int) -> Tally:
    """What the engine refuses of a sample, below a millisecond a point."""
    tally = Tally()
    for assignment in sampled(space, count, seed):
        tally.take(engine.check(assignment, facts))
    return tally


def draw(space: SearchSpace, rng: random.Random) -> dict[str, Choice]:
    """One uniform point of the space."""
    point: dict[str, Choice] = {}
    for parameter in space.parameters:
        if space.active(parameter, point):
            match parameter.domain:
                case CategoricalDomain(choices=choices):
                    point[parameter.name] = rng.choice(choices)
                case BundleDomain(options=options):
                    point[parameter.name] = rng.choice(list(options))
                case IntDomain() as d:
                    point[parameter.name] = rng.randrange(d.low, d.high + 1, d.step)
                case FloatDomain() as d:
                    point[parameter.name] = round(rng.uniform(d.low, d.high), 3)
    return point
