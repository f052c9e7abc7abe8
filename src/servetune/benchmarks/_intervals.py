"""95 % intervals for means of correlated series, by batch means."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

FEWEST_BATCHES = 5
MOST_BATCHES = 20


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        """Half the width of the interval as a share of the value; infinite when the value is 0."""
        return (self.high - self.low) / 2 / self.value if self.value > 0 else math.inf


def batch_count(completed: int) -> int:
    """How many batches a window with that many completed requests is cut into.

    A batch should hold a whole request: shorter ones see its parts (prefill, decode) as noise that cancels in the sum.
    """
    return max(FEWEST_BATCHES, min(MOST_BATCHES, completed))


def batch_means(batches: Floats) -> Interval:
    """Interval of the mean from the means of equally long, consecutive batches (Student's t).

    Valid when batches are long against the correlation time of the series. One batch: the interval is the value.
    """
    value = float(np.mean(batches))
    if len(batches) < 2:
        return Interval(value, value, value)
    half = float(stats.t.ppf(0.975, len(batches) - 1) * np.std(batches, ddof=1) / math.sqrt(len(batches)))
    return Interval(value, value - half, value + half)
