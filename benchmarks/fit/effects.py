"""Throughput factors of flags from measured launches: weighted least squares on the logarithm, level by level.

A column is a flag with a value other than the default; columns that were only ever set together are one. Each launch
weighs by its own measured spread and by how much launches of one configuration differ (LAUNCH_SD). A weak prior keeps
what one launch says of a factor from being believed whole. Factors come in one at a time, the one that explains most
first, and go again when another one explains it better, while Akaike's criterion falls: with as many flags as launches,
a fit that begins with all of them explains noise by factors that cancel each other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servetune.core.space import Value
from servetune.core.table import LaunchRow, LevelRow

Floats = NDArray[np.float64]
Setting = tuple[str, Value]
Column = tuple[Setting, ...]  # settings that stand for one effect

#: Relative standard deviation between launches of one configuration, beside what each level's interval says.
LAUNCH_SD = 0.02
#: Standard deviation of the logarithm of a factor before anything is measured.
PRIOR_SD = 0.5
#: What a factor has to take off the weighted squares to be kept (Akaike).
WORTH = 2.0
EAGER: Column = (("decode beyond the captured graphs", True),)


class LevelFit(NamedTuple):
    """One level: log tokens/s of the defaults, and the log factor of each column that is kept."""

    base: float
    effects: Mapping[Column, float]

    def log_rate(self, columns: Sequence[Column]) -> float:
        return self.base + sum(self.effects.get(column, 0.0) for column in columns)


class Launch(NamedTuple):
    """A launch as the fit sees it: what it sets beside the defaults, and its largest captured decode batch."""

    row: LaunchRow
    settings: frozenset[Setting]
    graph: float

    def level(self, concurrency: int) -> LevelRow:
        return next(level for level in self.row.levels if level.concurrency == concurrency)


def grouped(launches: Sequence[Launch]) -> list[Column]:
    """Settings that the same launches have are one column."""
    where: dict[Setting, list[int]] = defaultdict(list)
    for index, launch in enumerate(launches):
        for setting in sorted(launch.settings, key=str):
            where[setting].append(index)
    columns: dict[tuple[int, ...], list[Setting]] = defaultdict(list)
    for setting, found in where.items():
        if len(found) < len(launches):
            columns[tuple(found)].append(setting)
    return [tuple(settings) for settings in columns.values()]


def columns_of(launch: Launch, columns: Sequence[Column], level: int) -> list[Column]:
    """The columns that count for a launch at a level."""
    held = [column for column in columns if launch.settings.issuperset(column)]
    return [*held, EAGER] if level > launch.graph else held


def relative_sd(level: LevelRow) -> float:
    """Of one measured level, by its own 95 % interval."""
    rate, low, high = level.output_tokens_per_s, level.low, level.high
    if not rate or low is None or high is None:
        return math.inf  # a value whose spread is not known counts for nothing
    return (high - low) / (2 * 1.96 * rate)


class Data(NamedTuple):
    """Of one level: log tokens/s, weight and columns of each launch."""

    target: Floats
    weight: Floats
    held: Sequence[set[Column]]

    def solve(self, kept: Sequence[Column]) -> tuple[float, Floats]:
        """Akaike's criterion, and base and factors, with these columns."""
        design = np.array([[1.0, *(float(column in had) for column in kept)] for had in self.held])
        prior = np.diag([0.0, *(1 / PRIOR_SD**2 for _ in kept)])
        found: Floats = np.linalg.solve(
            design.T @ (self.weight[:, None] * design) + prior, design.T @ (self.weight * self.target)
        )
        squares = self.weight @ (self.target - design @ found) ** 2 + found[1:] @ found[1:] / PRIOR_SD**2
        return float(squares) + WORTH * len(kept), found


def fit_level(launches: Sequence[Launch], columns: Sequence[Column], level: int) -> LevelFit:
    """The factors of one level."""
    rates = [launch.level(level).output_tokens_per_s or math.nan for launch in launches]
    weight = np.array([1 / (relative_sd(x.level(level)) ** 2 + LAUNCH_SD**2) for x in launches])
    data = Data(np.log(np.array(rates)), weight, [set(columns_of(launch, columns, level)) for launch in launches])
    known = [c for c in (*columns, EAGER) if 0 < sum(c in had for had in data.held) < len(launches)]
    kept: list[Column] = []
    best, found = data.solve(kept)
    while moves := [[*(k for k in kept if k != c), *([] if c in kept else [c])] for c in known]:
        step = min(moves, key=lambda move: data.solve(move)[0])
        criterion, factors = data.solve(step)
        if criterion >= best:
            break
        kept, best, found = step, criterion, factors
    return LevelFit(float(found[0]), dict(zip(kept, map(float, found[1:]), strict=True)))


class LeftOut(NamedTuple):
    """Log errors of predictions for launches that the fit had not seen; `known`: those with no effect of their own."""

    every: Floats
    known: Floats


def leave_one_out(launches: Sequence[Launch], level: int) -> LeftOut:
    """Everything is done again without the launch: columns, elimination, factors."""
    every, known = [], []
    for index, launch in enumerate(launches):
        others = [*launches[:index], *launches[index + 1 :]]
        columns = grouped(others)
        fit = fit_level(others, columns, level)
        rate = launch.level(level).output_tokens_per_s or math.nan
        error = math.log(rate) - fit.log_rate(columns_of(launch, columns, level))
        every.append(error)
        if launch.settings <= {setting for other in others for setting in other.settings}:
            known.append(error)
    return LeftOut(np.array(every), np.array(known))
