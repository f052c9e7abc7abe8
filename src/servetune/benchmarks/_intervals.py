"""95 % intervals for means and quantiles of correlated series, by batches of the measured time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEWEST_BATCHES = 5
#: More batches are shorter and more alike their neighbours: with 20 a one-second correlation in a minute covered 91 %,
#: with 10 95 %.
MOST_BATCHES = 10
SKEWNESS_AT_MOST = 1.5  # of few batches it is hardly known
RESAMPLES = 200
CELLS = 1000  # of the histogram that stands for the values when quantiles are resampled


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


def student_97_5(freedom: int) -> float:
    """The 97.5 % quantile of Student's t. A table, since importing scipy costs more than the command it is for."""
    table = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
    return table[freedom - 1] if freedom <= len(table) else 1.96 + 2.37 / freedom + 2.82 / freedom**2


def student(freedom: int, error: float) -> float:
    """What Student's t exceeds with the chance `error`."""
    from scipy.special import stdtrit  # where a study runs it is loaded already; `servetune bench` never asks

    return float(stdtrit(freedom, 1 - error))


def batch_count(completed: int) -> int:
    """How many batches a window with that many completed requests is cut into.

    A batch should hold a whole request: shorter ones see its parts (prefill, decode) as noise that cancels in the sum.
    """
    return max(FEWEST_BATCHES, min(MOST_BATCHES, completed))


def batch_means(batches: Floats) -> Interval:
    """Interval of the mean from the means of equally long, consecutive batches.

    Student's t corrected for skewness (P. Hall, On the removal of skewness by transformation, 1992): slow moments make
    throughput skewed, and the plain t interval then covers too little. Valid when a batch is long against the
    correlation time of the series and holds what happens rarely. One batch: the interval is the value.
    """
    count, value = len(batches), float(np.mean(batches))
    spread = float(np.std(batches, ddof=1)) if count > 1 else 0.0
    if spread <= 1e-12 * abs(value):
        return Interval(value, value, value)
    skewness = float(np.mean((batches - value) ** 3)) / spread**3 * count**2 / ((count - 1) * max(1, count - 2))
    skewness = max(-SKEWNESS_AT_MOST, min(SKEWNESS_AT_MOST, skewness))
    quantile = student_97_5(count - 1)
    error = spread / math.sqrt(count)
    low = value - error * _untransformed(quantile, skewness, count)
    high = value - error * _untransformed(-quantile, skewness, count)
    return Interval(value, min(low, value), max(high, value))


def _untransformed(quantile: float, skewness: float, count: int) -> float:
    """Hall's cubic transformation, inverted: the quantile of the studentised mean of skewed values."""
    if abs(skewness) < 1e-9:
        return quantile
    root = math.sqrt(count)
    cube = 1 + skewness * (quantile / root - skewness / (6 * count))
    return 3 * root / skewness * (math.copysign(abs(cube) ** (1 / 3), cube) - 1)


def quantile_errors(values: Floats, batch: Ints, quantiles: Floats) -> Floats:
    """Half widths of the 95 % intervals of quantiles, by resampling whole batches (block bootstrap).

    `batch` numbers the batch of each value from 0 on. The values are first counted into cells of about equal content,
    so that the cost does not grow with the resamples times the values. Reproducible: the resampling is seeded.

    Resamples of few batches spread less than their sample does, by the square root of 1 - 1 / batches, which Student's
    quantile does not know: uncorrected, the intervals covered 92 to 95 % of 1,000 samples, corrected 93 to 96 %.
    """
    batches = int(np.max(batch)) + 1 if len(batch) else 0
    if batches < 2:
        return np.zeros(len(quantiles))
    edges = np.unique(np.quantile(values, np.linspace(0, 1, CELLS + 1)))
    if len(edges) < 2:
        return np.zeros(len(quantiles))
    cell = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    counts = np.bincount(batch * (len(edges) - 1) + cell, minlength=batches * (len(edges) - 1))
    drawn = np.random.default_rng(0).multinomial(batches, np.full(batches, 1 / batches), RESAMPLES)
    below = np.cumsum(drawn @ counts.reshape(batches, -1), axis=1)
    found = np.array([np.interp(quantiles * row[-1], row, edges[1:]) for row in below if row[-1]])
    spread = np.std(found, axis=0, ddof=1) * math.sqrt(batches / (batches - 1))
    return np.asarray(student_97_5(batches - 1) * spread)
