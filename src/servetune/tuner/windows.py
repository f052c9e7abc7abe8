"""A level in two windows that must agree: a disturbed measurement is noticed where it costs seconds, not launches.

Only with load generators that can measure a share of a level (`windows = True`); others judge steadiness themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations

from servetune.core.benchmark import Level, Measurement

Hold = Callable[[Level], Measurement | None]

#: Two windows whose values differ by more than this many standard deviations of the difference disagree (1 in 2,000).
AGREE = 3.5
#: Windows at most, while no two agree.
MOST = 4


def in_windows(hold: Hold, level: Level) -> Measurement | None:
    """Hold the level in windows of half the wanted effort each, until two agree; their mean. None as from `hold`.

    A window that is not valid ends it and is the answer. When no two of MOST windows agree, the closest two count.
    """
    windows: list[Measurement] = []
    while len(windows) < MOST:
        got = hold(level.model_copy(update={"effort": level.effort / 2, "window": len(windows)}))
        if got is None or not got.valid or got.requests_completed == 0:
            return got
        windows.append(got)
        pair = min(combinations(windows, 2), key=_distance, default=None)
        if pair is not None and (_distance(pair) <= AGREE or len(windows) == MOST):
            return _together(pair, windows)
    return None


def _sd(measurement: Measurement) -> float:
    return max(1e-9, (measurement.high - measurement.low) / (2 * 1.96))


def _distance(pair: tuple[Measurement, Measurement]) -> float:
    left, right = pair
    return abs(left.output_tokens_per_s - right.output_tokens_per_s) / math.hypot(_sd(left), _sd(right))


def _together(pair: tuple[Measurement, Measurement], windows: list[Measurement]) -> Measurement:
    left, right = pair
    rate = (left.output_tokens_per_s + right.output_tokens_per_s) / 2
    half = 1.96 * math.hypot(_sd(left), _sd(right)) / 2
    change = {
        "output_tokens_per_s": rate,
        "low": max(0.0, rate - half),
        "high": rate + half,
        "duration_s": sum(w.duration_s for w in windows),
        "requests_completed": sum(w.requests_completed for w in windows),
        "output_tokens": sum(w.output_tokens for w in windows),
    }
    return right.model_copy(update=change)
