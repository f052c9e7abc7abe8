"""CPU time of a call, as the benchmarks of the configuration checks measure it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any


def timed_ms(call: Callable[[Any, Any], None], todo: Sequence[tuple[Any, Any]]) -> list[float]:
    """CPU milliseconds of `call` for each entry, after 50 calls that do not count."""
    for assignment, config in todo[:50]:
        call(assignment, config)
    gc.collect()
    gc.disable()  # objects of the benchmark, not of the checks
    took_ms = []
    for assignment, config in todo:
        begin = time.thread_time_ns()
        call(assignment, config)
        took_ms.append((time.thread_time_ns() - begin) / 1e6)
    gc.enable()
    return took_ms
