"""Load generator: a fixed number of requests in flight, over HTTP streaming."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pydantic import Field

from servetune.benchmarks._api import parse_target
from servetune.benchmarks._lengths import LengthSpec, lengths_of
from servetune.benchmarks._level import Demand, LevelRun
from servetune.benchmarks._verdict import judge
from servetune.benchmarks._worker import ThreadWorker
from servetune.core.benchmark import GoOn, Level, Measurement
from servetune.core.clock import Clock
from servetune.core.space import Frozen


class Settings(Frozen):
    """`vocabulary_size`: where the server's model folder cannot be read here and its ids end below 30,000.

    `stall_s`: node seconds without a token in the middle of an answer after which it counts as failed.
    """

    lengths: LengthSpec = LengthSpec()
    vocabulary_size: int | None = Field(default=None, ge=16)
    stall_s: float = Field(default=120.0, gt=0)


def create(settings: Settings) -> LoadGenerator:
    """A load generator with these settings. Raises SpecError for a trace that cannot be used."""
    lengths_of(settings.lengths, 1, 1, 0)
    return LoadGenerator(settings)


class LoadGenerator:
    """Implements `core.benchmark.LoadGenerator`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Measurement | None:
        """Hold the level and measure it; see the protocol. `go_on` is called in the caller's thread."""
        workload = level.workload
        demand = Demand(
            lengths=lengths_of(self._settings.lengths, workload.input_tokens, workload.output_tokens, workload.seed),
            vocabulary_size=self._settings.vocabulary_size,
            stall_s=self._settings.stall_s,
        )
        with undisturbed():
            target = parse_target(base_url, headers)
            outcome = LevelRun(target, level, demand, clock, go_on, [ThreadWorker()]).run()
        return None if outcome is None else judge(outcome)


@contextmanager
def undisturbed() -> Iterator[None]:
    """No collection of old objects and short turns between threads while times are taken."""
    turn_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(turn_s)
