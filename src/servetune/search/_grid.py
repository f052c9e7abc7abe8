"""A search space as small grids: a point is a row of indices, so that models work on arrays.

Index −1 stands for a parameter that is not active. A wide range is thinned to at most GRID values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from servetune.core.space import (
    BundleDomain,
    CategoricalDomain,
    Choice,
    Domain,
    FloatDomain,
    IntDomain,
    Parameter,
    SearchSpace,
)

#: Values of a range that are told apart.
GRID = 64
#: A range whose ends differ by this factor is looked at in logarithms, whatever it says itself.
WIDE = 8.0

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Axis:
    """One parameter. `place`: where each value lies in [0, 1] when the values have an order, else None."""

    parameter: Parameter
    values: tuple[Choice, ...]
    place: NDArray[np.float64] | None

    @cached_property
    def _places(self) -> dict[tuple[bool, Choice], int]:
        """Value → index; True and 1 are kept apart, 8 and 8.0 together."""
        return {(isinstance(value, bool), value): index for index, value in enumerate(self.values)}

    @cached_property
    def name(self) -> str:
        """Name of the parameter."""
        return self.parameter.name

    def index(self, value: Choice) -> int:
        """Index of a value, or of the nearest one of a range; −1 for a value that is none of them."""
        exact = self._places.get((isinstance(value, bool), value))
        if exact is not None:
            return exact
        if self.place is None or isinstance(value, bool | str) or value is None:
            return -1
        return int(np.argmin([abs(float(known) - value) for known in self.values]))  # type: ignore[arg-type]

    def flags(self, index: int) -> Sequence[str]:
        """Flags and variables that the value sets."""
        domain = self.parameter.domain
        if isinstance(domain, BundleDomain) and index >= 0:
            return tuple(domain.options[str(self.values[index])])
        return (self.name,)


class Grid:
    """The axes of a space, in its order."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.axes = tuple(_axis(parameter) for parameter in space.parameters)
        self.sizes = tuple(len(axis.values) for axis in self.axes)
        self.key = tuple((axis.name, axis.values) for axis in self.axes)
        self._conditional = [i for i, axis in enumerate(self.axes) if axis.parameter.when.any_of]

    def encode(self, point: Mapping[str, Choice]) -> Codes:
        """A point as indices."""
        return np.array([a.index(point[a.name]) if a.name in point else -1 for a in self.axes], dtype=np.int64)

    def decode(self, codes: Codes) -> dict[str, Choice]:
        """Indices as a point; parameters whose condition does not hold are left out."""
        point: dict[str, Choice] = {}
        for axis, code in zip(self.axes, codes.tolist(), strict=True):
            if code >= 0 and (not axis.parameter.when.any_of or self.space.active(axis.parameter, point)):
                point[axis.name] = axis.values[code]
        return point

    def settle(self, codes: Codes, rng: np.random.Generator) -> Codes:
        """Rows with every condition heeded: inactive parameters become −1, active ones that were −1 get a value."""
        if not self._conditional:
            return codes
        return np.array([self._settled(row, rng) for row in codes], dtype=np.int64)

    def _settled(self, row: Codes, rng: np.random.Generator) -> Codes:
        point: dict[str, Choice] = {}
        settled = row.copy()
        for i, axis in enumerate(self.axes):
            if not self.space.active(axis.parameter, point):
                settled[i] = -1
                continue
            if settled[i] < 0:
                settled[i] = rng.integers(self.sizes[i])
            point[axis.name] = axis.values[int(settled[i])]
        return settled

    def random(self, count: int, rng: np.random.Generator) -> Codes:
        """Points drawn evenly from the grids."""
        drawn = np.stack([rng.integers(size, size=count) for size in self.sizes], axis=1).astype(np.int64)
        return self.settle(drawn, rng)

    def neighbours(self, row: Codes, rng: np.random.Generator) -> Codes:
        """Every point that differs from `row` in one parameter."""
        moved = []
        for i, size in enumerate(self.sizes):
            if row[i] < 0:
                continue
            block = np.repeat(row[None, :], size, axis=0)
            block[:, i] = np.arange(size)
            moved.append(block)
        return self.settle(np.concatenate(moved), rng)

    def categories(self, rows: Codes) -> NDArray[np.float64]:
        """Rows as ones and zeros: one column for each value of each parameter without an order."""
        plain = [p for p, axis in enumerate(self.axes) if axis.place is None]
        return (
            np.concatenate([rows[:, p, None] == np.arange(self.sizes[p]) for p in plain] or [rows[:, :0]], axis=1) * 1.0
        )

    def kinds(self, rows: Codes) -> tuple[Codes, Codes]:
        """One row for each that differs in the parameters without an order; and for each row, which of them it is."""
        if self._radix is None or len(rows) < 2:
            return rows, np.arange(len(rows))
        _, first, which = np.unique((rows + 1) @ self._radix, return_index=True, return_inverse=True)
        return rows[first], which

    @cached_property
    def _radix(self) -> Codes | None:
        """Weights that make one number of the parameters without an order; None where 63 bits are too few."""
        plain = [1 if axis.place is not None else size + 1 for axis, size in zip(self.axes, self.sizes, strict=True)]
        if math.prod(plain) >= 2**63:
            return None
        weights = np.cumprod([1, *plain[:-1]], dtype=np.int64)
        found: Codes = weights * np.array([axis.place is None for axis in self.axes])
        return found

    def different(self, rows: Codes) -> Codes:
        """The rows without repetitions, in an order that depends on the rows alone."""
        weights = np.cumprod([1, *(size + 1 for size in self.sizes[:-1])], dtype=np.int64)  # wraps round in huge spaces
        _, first = np.unique((rows + 1) @ weights, return_index=True)
        return rows[first]

    def reordered(self, row: Codes, count: int, rng: np.random.Generator) -> Codes:
        """Points that differ from `row` in their ordered parameters, all drawn anew."""
        moved = np.repeat(row[None, :], count, axis=0)
        for i, axis in enumerate(self.axes):
            if axis.place is not None and row[i] >= 0:
                moved[:, i] = rng.integers(self.sizes[i], size=count)
        return self.settle(moved, rng)


_made: list[Grid] = []


def grid_of(space: SearchSpace) -> Grid:
    """The grid of a space; the last two are kept, since a study asks for the same ones again and again."""
    for grid in _made:
        if grid.space is space:
            return grid
    _made[:] = [Grid(space), *_made[:1]]
    return _made[0]


def _axis(parameter: Parameter) -> Axis:
    values = _values(parameter.domain)
    return Axis(parameter, values, _places(values, parameter.domain))


def _values(domain: Domain) -> tuple[Choice, ...]:
    match domain:
        case CategoricalDomain(choices=choices):
            return choices
        case BundleDomain(options=options):
            return tuple(options)
        case IntDomain(low=low, high=high, step=step, log=log):
            if log:
                return tuple(sorted({round(v) for v in np.geomspace(low, high, GRID)}))
            every = range(low, high + 1, step)
            return tuple(every[i] for i in _thinned(len(every)))
        case FloatDomain(low=low, high=high, step=grid_step, log=log):
            if log:
                return tuple(float(v) for v in np.geomspace(low, high, GRID))
            if grid_step is None:
                return tuple(float(v) for v in np.linspace(low, high, GRID))
            count = math.floor((high - low) / grid_step + 1e-9) + 1
            return tuple(round(low + i * grid_step, 12) for i in _thinned(count))


def _thinned(count: int) -> Sequence[int]:
    if count <= GRID:
        return range(count)
    return sorted({round(v) for v in np.linspace(0, count - 1, GRID)})


def _places(values: tuple[Choice, ...], domain: Domain) -> NDArray[np.float64] | None:
    if isinstance(domain, BundleDomain) or len(values) < 3:
        return None
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        return None
    low, high = min(numbers), max(numbers)
    if low > 0 and high / low >= WIDE:
        numbers, low, high = [math.log(v) for v in numbers], math.log(low), math.log(high)
    return (np.array(numbers) - low) / (high - low)
