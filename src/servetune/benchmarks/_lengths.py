"""How long prompts and answers are: fixed, uniform between bounds, or as in a trace of one's own traffic."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field

from servetune.core.errors import SpecError
from servetune.core.space import Frozen

#: Seconds; beyond is no time of a trace, nor are NaN and infinity.
MOST_ARRIVAL_S = 1e12


class Lengths(Protocol):
    """Request number → tokens. The same number always has the same lengths."""

    def of(self, number: int) -> tuple[int, int]:
        """Input and output tokens of request `number`."""
        ...

    @property
    def mean_output_tokens(self) -> float:
        """Over many requests."""
        ...


@dataclass(frozen=True)
class FixedLengths:
    """Every request alike."""

    input_tokens: int
    output_tokens: int

    def of(self, number: int) -> tuple[int, int]:
        """Input and output tokens of request `number`."""
        return self.input_tokens, self.output_tokens

    @property
    def mean_output_tokens(self) -> float:
        """Over many requests."""
        return float(self.output_tokens)


@dataclass(frozen=True)
class UniformLengths:
    """Each length drawn by itself, evenly between its bounds, both included."""

    input_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    seed: int

    def of(self, number: int) -> tuple[int, int]:
        """Input and output tokens of request `number`."""
        chance = random.Random((self.seed & 0xFFFFFFFF) << 32 | number)  # noqa: S311 (reproducible, no secret)
        return chance.randint(*self.input_tokens), chance.randint(*self.output_tokens)

    @property
    def mean_output_tokens(self) -> float:
        """Over many requests."""
        return sum(self.output_tokens) / 2


@dataclass(frozen=True)
class TraceLengths:
    """The trace's requests in order, and again from its beginning when it ends."""

    pairs: tuple[tuple[int, int], ...]

    def of(self, number: int) -> tuple[int, int]:
        """Input and output tokens of request `number`."""
        return self.pairs[number % len(self.pairs)]

    @property
    def mean_output_tokens(self) -> float:
        """Over the trace."""
        return sum(output for _, output in self.pairs) / len(self.pairs)


class UniformSpec(Frozen):
    """`{input: [low, high], output: [low, high]}` in tokens."""

    input: tuple[int, int]
    output: tuple[int, int]


class LengthSpec(Frozen):
    """`{uniform: {…}}` or `{trace: file.jsonl}`; neither: the workload's own input_tokens and output_tokens."""

    uniform: UniformSpec | None = None
    trace: str | None = Field(default=None, description="JSONL: input, output (tokens), arrival (s, for open loops)")


@dataclass(frozen=True)
class Trace:
    """Requests of real traffic: token lengths and, where given, arrival times in seconds from the first."""

    pairs: tuple[tuple[int, int], ...]
    arrivals_s: tuple[float, ...] | None


def read_trace(path: str) -> Trace:
    """Read a JSONL trace. Raises SpecError naming file and line."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"the trace {path} cannot be read: {error}") from error
    rows = [_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise SpecError(f"the trace {path} holds no request; each line is {{'input': 512, 'output': 256}}")
    timed = all(row.get("arrival") is not None for row in rows)
    if timed:
        rows.sort(key=lambda row: float(row["arrival"]))
    pairs = tuple((int(row["input"]), int(row["output"])) for row in rows)
    return Trace(pairs, tuple(float(row["arrival"] - rows[0]["arrival"]) for row in rows) if timed else None)


def _row(path: str, number: int, line: str) -> dict[str, Any]:
    where = f"{path}, line {number}"
    try:
        row = json.loads(line)
    except ValueError as error:
        raise SpecError(f"{where} is not JSON: {error}") from error
    for key in ("input", "output"):
        if not isinstance(row, dict) or not isinstance(row.get(key), int) or row[key] < 1:
            got = row.get(key) if isinstance(row, dict) else row
            raise SpecError(f"{where}: {key!r} must be a number of tokens from 1 on, got {got!r}")
    arrival = row.get("arrival")
    if arrival is not None and not (type(arrival) in (int, float) and abs(arrival) < MOST_ARRIVAL_S):
        raise SpecError(f"{where}: 'arrival' must be seconds, got {arrival!r}")
    assert isinstance(row, dict)
    return row


def lengths_of(spec: LengthSpec, input_tokens: int, output_tokens: int, seed: int) -> Lengths:
    """The lengths that settings ask for. Raises SpecError."""
    if spec.uniform is not None and spec.trace is not None:
        raise SpecError("lengths: give either 'uniform' or 'trace', not both")
    if spec.trace is not None:
        return TraceLengths(read_trace(spec.trace).pairs)
    if spec.uniform is not None:
        for name, (low, high) in (("input", spec.uniform.input), ("output", spec.uniform.output)):
            if not 1 <= low <= high:
                raise SpecError(f"lengths.uniform.{name}: need 1 <= low <= high, got [{low}, {high}]")
        return UniformLengths(spec.uniform.input, spec.uniform.output, seed)
    return FixedLengths(input_tokens, output_tokens)


class Arrivals(Protocol):
    """When the requests of an open loop come, in seconds of node time from the start; never ends."""

    def times_s(self) -> Iterator[float]:
        """From 0 on, not decreasing."""
        ...


@dataclass(frozen=True)
class PoissonArrivals:
    """Independent users: exponential gaps with a mean of 1 / `requests_per_s`."""

    requests_per_s: float
    seed: int

    def times_s(self) -> Iterator[float]:
        """From 0 on, not decreasing."""
        chance = random.Random(self.seed)  # noqa: S311 (reproducible, no secret)
        now_s = 0.0
        while True:
            now_s += chance.expovariate(self.requests_per_s)
            yield now_s


@dataclass(frozen=True)
class TraceArrivals:
    """The trace's own times, again from its beginning when it ends, one mean gap after its last."""

    arrivals_s: tuple[float, ...]

    def times_s(self) -> Iterator[float]:
        """From 0 on, not decreasing."""
        last = self.arrivals_s[-1]
        period_s = last + (last / (len(self.arrivals_s) - 1) if len(self.arrivals_s) > 1 else 1.0)
        begin_s = 0.0
        while True:
            yield from (begin_s + time_s for time_s in self.arrivals_s)
            begin_s += period_s
