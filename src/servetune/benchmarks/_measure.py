"""What every load generator here does with a level: run it undisturbed, then judge it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from servetune.benchmarks._api import parse_target
from servetune.benchmarks._level import Demand, LevelRun
from servetune.benchmarks._verdict import judge
from servetune.benchmarks._worker import workers_for
from servetune.core.benchmark import GoOn, Level, Measurement
from servetune.core.clock import Clock


def measure(
    base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str], demand: Demand
) -> Measurement | None:
    """Measure one level; None when `go_on` returned False. `go_on` is called in the caller's thread."""
    target = parse_target(base_url, headers)
    with undisturbed():
        workers = workers_for(level.concurrency, demand.processes)
        outcome = LevelRun(target, level, demand, clock, go_on, workers).run()
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
