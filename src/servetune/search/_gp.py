"""Gaussian process on log throughput: each parameter adds its own effect, and pairs of categorical ones a little more.

Effects multiply in throughput, so they add in its logarithm. The amplitude of each parameter's effect, and of the
pairs, is learned by the marginal likelihood (with a weak prior); the noise of each value is known from its measurement.
Values without an order share nothing but the prior; ordered ones are alike when they lie close.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize

from servetune.search._grid import Codes, Grid

Floats = NDArray[np.float64]

#: Distance, of an ordered parameter's whole range, over which its effect changes.
LENGTH = 0.35
#: Prior of the amplitudes: median and spread of the logarithm; pairs have a smaller one.
AMPLITUDE, AMPLITUDE_SPREAD, PAIR_AMPLITUDE = 0.11, 0.6, 0.012
#: The same of ordered parameters, and of those whose effect the memory arithmetic explains.
ORDERED_AMPLITUDE, EXPLAINED_AMPLITUDE = 0.06, 0.002
#: Amplitude of what all points share, and the least noise of a value.
LEVEL_AMPLITUDE, LEAST_NOISE = 0.15, 0.003
#: Least amplitude of a parameter, and of the pairs: they stay possible.
LEAST = 0.001
STEPS = 12
#: A value this many deviations below what the others say of it is taken for an outlier, of this deviation.
OUTLYING, OUTLIER_SD = -3.5, 0.08


def tables_of(grid: Grid) -> list[Floats]:
    """For each parameter: likeness of each value with each. The last index stands for "not active"."""
    tables = []
    for axis in grid.axes:
        size = len(axis.values)
        alike = np.eye(size + 1)
        if axis.place is not None:
            distance = (axis.place[:, None] - axis.place[None, :]) / LENGTH
            alike[:size, :size] = np.exp(-0.5 * distance**2)
        tables.append(alike)
    return tables


class AdditiveGp:
    """Fitted to values `y` at `codes`, with known variances, and linear features of known prior variance.

    `amplitudes`: learned before; None: learned from these values.
    """

    def __init__(
        self,
        grid: Grid,
        expected: Floats,
        codes: Codes,
        y: Floats,
        variance: Floats,
        features: Floats,
        amplitudes: Floats | None = None,
    ) -> None:
        self._grid, self._expected = grid, expected
        self._plain = [p for p, axis in enumerate(grid.axes) if axis.place is None]
        self._ordered = [p for p, axis in enumerate(grid.axes) if axis.place is not None]
        self._codes, self._y, self._features = codes, y, features
        self._told_variance, self._variance = variance, variance + LEAST_NOISE**2
        self._like = [table[:, codes[:, p]] for p, table in enumerate(tables_of(grid))]
        parts = self._parts()
        self._fixed = features @ features.T + LEVEL_AMPLITUDE**2
        self.amplitudes = self._learned(parts) if amplitudes is None else amplitudes
        self._factor(parts)
        self._doubt_outliers(parts)

    def _parts(self) -> Floats:
        """Likeness of the data with itself: one matrix for each parameter, and one for all pairs."""
        each = np.stack([like[self._codes[:, p]] for p, like in enumerate(self._like)])
        same = each[self._plain].sum(0)
        return np.concatenate([each, ((same**2 - same) / 2)[None]])

    def _across(self, codes: Codes) -> Floats:
        """Covariance of `codes` with the data, as the amplitudes say; points alike in all but order share a part."""
        power = self.amplitudes**2
        kinds, which = self._grid.kinds(codes)
        same = np.zeros((len(kinds), len(self._y)))
        own = np.zeros_like(same)
        for p in self._plain:
            like = self._like[p][kinds[:, p]]
            same += like
            own += power[p] * like
        across = (own + power[-1] / 2 * (same**2 - same))[which]
        for p in self._ordered:
            across += (power[p] * self._like[p])[codes[:, p]]
        return np.asarray(across)

    def believing(self, codes: Codes, features: Floats) -> AdditiveGp:
        """The same with further points, taken for measured with what is expected of them."""
        expected, _ = self.predict(codes, features)
        return AdditiveGp(
            self._grid,
            self._expected,
            np.concatenate([self._codes, codes]),
            np.concatenate([self._y, expected]),
            np.concatenate([self._told_variance, np.full(len(codes), 1e-4)]),
            np.concatenate([self._features, features]),
            self.amplitudes,
        )

    def _learned(self, parts: Floats) -> Floats:
        count = len(parts)
        middle = np.log(np.append(self._expected, PAIR_AMPLITUDE))
        if len(self._y) < 3:
            return np.asarray(np.exp(middle))
        base = self._fixed + np.diag(self._variance)
        flat = parts.reshape(count, -1)

        def loss(theta: Floats) -> tuple[float, Floats]:
            power = np.exp(2 * theta)
            covariance = base + (power @ flat).reshape(base.shape)
            lower = cholesky(covariance, lower=True, check_finite=False)
            inverse, _ = dpotri(lower, lower=1)  # its lower triangle
            inverse = np.tril(inverse) + np.tril(inverse, -1).T
            alpha = inverse @ self._y
            away = (theta - middle) / AMPLITUDE_SPREAD
            value = 0.5 * self._y @ alpha + np.log(np.diag(lower)).sum() + 0.5 * away @ away
            slope = power * (flat @ (inverse - np.outer(alpha, alpha)).ravel()) + away / AMPLITUDE_SPREAD
            return float(value), slope

        bounds = [(math.log(LEAST), math.log(0.8))] * (count - 1) + [(math.log(LEAST), math.log(0.15))]
        found = minimize(loss, middle, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": STEPS})
        learned: Floats = np.exp(found.x)
        return learned

    def _factor(self, parts: Floats) -> None:
        covariance = self._fixed + np.tensordot(self.amplitudes**2, parts, 1) + np.diag(self._variance)
        self._lower = cholesky(covariance, lower=True, check_finite=False)
        self._alpha = cho_solve((self._lower, True), self._y, check_finite=False)

    def _doubt_outliers(self, parts: Floats) -> None:
        """Leave-one-out: a value far below what all others say of it weighs less (a disturbed measurement)."""
        inverse = cho_solve((self._lower, True), np.eye(len(self._y)), check_finite=False)
        spread = 1 / np.sqrt(np.diag(inverse))
        off = self._alpha * spread
        doubtful = (off < OUTLYING) & (spread < OUTLIER_SD)
        if doubtful.any():
            self._variance = np.where(doubtful, OUTLIER_SD**2, self._variance)
            self._factor(parts)

    def expected(self, codes: Codes, features: Floats) -> Floats:
        """Mean of the true value, row by row."""
        return np.asarray(self._covariance(codes, features) @ self._alpha)

    def _covariance(self, codes: Codes, features: Floats) -> Floats:
        return self._across(codes) + features @ self._features.T + LEVEL_AMPLITUDE**2

    def predict(self, codes: Codes, features: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the true value, row by row."""
        across = self._covariance(codes, features)
        mean = across @ self._alpha
        half = solve_triangular(self._lower, across.T, lower=True, check_finite=False)
        pairs = len(self._plain)
        own = float(np.sum(self.amplitudes[:-1] ** 2) + self.amplitudes[-1] ** 2 * pairs * (pairs - 1) / 2)
        before = own + LEVEL_AMPLITUDE**2 + np.einsum("ij,ij->i", features, features)
        spread = np.sqrt(np.maximum(1e-10, before - np.einsum("ij,ij->j", half, half)))
        return mean, spread
