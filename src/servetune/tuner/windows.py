"""A level in two windows that must agree: a disturbed measurement is noticed where it costs seconds, not launches.

Only with load generators that can measure a share of a level (`windows = True`); others judge steadiness themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from statistics import NormalDist
from typing import TypeGuard

from servetune.core.benchmark import Bar, Level, Measurement

Hold = Callable[[Level], Measurement | None]

#: Two windows whose values differ by more than this many standard deviations of the difference disagree (1 in 2,000).
AGREE = 3.5
#: Windows at most, while no two agree.
MOST = 4


def in_windows(hold: Hold, level: Level) -> Measurement | None:
    """Hold the level in windows of half the wanted effort each, until two agree; their mean. None as from `hold`.

    A window that is not valid ends it and is the answer. When no two of MOST windows agree, the closest two count.
    Against a bar, the first window is two quarters, and they are the answer when each of them is below it.
    """
    windows: list[Measurement] = []
    if level.bar is not None:
        quarters: list[Measurement] = []
        for number in (MOST, MOST + 1):
            got = _held(hold, level, level.effort / 4, number)
            if not _usable(got):
                return got
            quarters.append(got)
        windows.append(_together((quarters[0], quarters[1]), quarters))
        if all(_is_below(level.bar, quarter) for quarter in quarters):
            return windows[0]
    while len(windows) < MOST:
        got = _held(hold, level, level.effort / 2, len(windows))
        if not _usable(got):
            return got
        windows.append(got)
        pair = min(combinations(windows, 2), key=_distance, default=None)
        if pair is not None and (_distance(pair) <= AGREE or len(windows) == MOST):
            return _together(pair, windows)
    return None


def _held(hold: Hold, level: Level, effort: float, number: int) -> Measurement | None:
    return hold(level.model_copy(update={"effort": effort, "window": number, "bar": None}))


def _usable(window: Measurement | None) -> TypeGuard[Measurement]:
    return window is not None and window.valid and window.requests_completed > 0


def _is_below(bar: Bar, quarter: Measurement) -> bool:
    """Whether a quarter alone is below the bar. A level as good as the bar must fail in both of them by accident.

    Each is allowed half the root of the error: one disturbed quarter (a fiftieth of them on some nodes) is not enough.
    """
    rate = quarter.output_tokens_per_s
    spread = math.hypot(_sd(quarter) / rate, bar.sd / bar.output_tokens_per_s)
    deviations = NormalDist().inv_cdf(1 - math.sqrt(bar.error) / 2)
    return math.log(bar.output_tokens_per_s / rate) > deviations * spread


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
