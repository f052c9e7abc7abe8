"""Other tools' ways of searching, as samplers: each sees of the study's trials what its tool would see.

Written from the papers' and tools' own descriptions; each gets the baseline first, as every strategy does.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtr

from servetune.core.space import SearchSpace
from servetune.search._grid import Codes, Grid
from servetune.search.sampling import distribution

LAUNCHED = (TrialState.COMPLETE, TrialState.PRUNED)


class Seen:
    """A study in which crashed trials do not appear."""

    def __init__(self, study: Study) -> None:
        self._study = study

    def __getattr__(self, name: str):
        return getattr(self._study, name)

    def _get_trials(self, deepcopy: bool = True, states=None, use_cache: bool = False) -> list[FrozenTrial]:
        found = self._study._get_trials(deepcopy=deepcopy, states=states, use_cache=use_cache)
        return [t for t in found if t.state is not TrialState.PRUNED]

    def get_trials(self, deepcopy: bool = True, states=None) -> list[FrozenTrial]:
        return self._get_trials(deepcopy=deepcopy, states=states)


class Blind(BaseSampler):
    """auto-tuning-vllm: plain TPE; crashed trials are told FAIL, so TPE does not see them."""

    def __init__(self, seed: int) -> None:
        self._inner = TPESampler(seed=seed, n_startup_trials=10)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._inner.infer_relative_search_space(Seen(study), trial)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict:
        return self._inner.sample_relative(Seen(study), trial, search_space)

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, domain: BaseDistribution):
        return self._inner.sample_independent(Seen(study), trial, name, domain)


class OnGrid(BaseSampler):
    """Base of the peers that choose a whole point at once."""

    def __init__(self, seed: int, space: SearchSpace) -> None:
        self._grid, self._rng = Grid(space), np.random.default_rng(seed)
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {axis.name: distribution(axis.parameter.domain) for axis in self._grid.axes}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict:
        if "fixed_params" in trial.system_attrs:
            return {}
        return dict(self._grid.decode(self.choose(study.get_trials(deepcopy=False, states=LAUNCHED))))

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, domain: BaseDistribution):
        return self._random.sample_independent(study, trial, name, domain)

    def choose(self, trials: Sequence[FrozenTrial]) -> Codes:
        raise NotImplementedError


class Scoot(OnGrid):
    """SCOOT (WWW '25): a GP with expected improvement; a random forest learns the hidden constraints online.

    Candidates below a probability of feasibility are left out; the threshold falls when too few are left.
    """

    START, CANDIDATES, TREES = 8, 1500, 40

    def choose(self, trials: Sequence[FrozenTrial]) -> Codes:
        if len(trials) < self.START:
            return self._grid.random(1, self._rng)[0]
        codes = np.array([self._grid.encode(t.params) for t in trials])
        complete = np.array([t.state is TrialState.COMPLETE for t in trials])
        known = {tuple(row) for row in codes}
        best = codes[complete][np.argsort([-t.value for t in trials if t.state is TrialState.COMPLETE])[:4]]
        pool = [self._grid.random(self.CANDIDATES, self._rng), *(self._grid.neighbours(b, self._rng) for b in best)]
        candidates = np.array([row for row in np.concatenate(pool) if tuple(row) not in known])
        feasible = forest(codes, complete.astype(float), candidates, self._rng, self.TREES)
        threshold = 0.5
        while (feasible >= threshold).sum() < 20 and threshold > 0.01:
            threshold -= 0.1
        candidates = candidates[feasible >= threshold]
        values = np.array([math.log(t.value) for t in trials if t.state is TrialState.COMPLETE])
        return candidates[int(np.argmax(improvement(self._features, codes[complete], values, candidates)))]

    def _features(self, codes: Codes) -> np.ndarray:
        parts = []
        for p, axis in enumerate(self._grid.axes):
            if axis.place is None:
                parts.append(np.eye(len(axis.values))[codes[:, p]] / math.sqrt(2))
            else:
                parts.append(axis.place[codes[:, p]][:, None])
        return np.concatenate(parts, axis=1)


def improvement(features: Callable, codes: Codes, values: np.ndarray, candidates: Codes) -> np.ndarray:
    """Expected improvement of a Matérn-5/2 GP; length, noise, amplitude by marginal likelihood on a grid."""
    own, other = features(codes), features(candidates)
    target = (values - values.mean()) / (values.std() + 1e-9)

    def kernel(left: np.ndarray, right: np.ndarray, length: float) -> np.ndarray:
        distance = np.sqrt(np.maximum(0, ((left[:, None] - right[None]) ** 2).sum(-1))) * math.sqrt(5) / length
        return (1 + distance + distance**2 / 3) * np.exp(-distance)

    best = (-math.inf, 1.0, 0.01)
    for length, noise in itertools.product((0.5, 1.0, 2.0, 4.0), (0.003, 0.03, 0.2)):
        factor = cho_factor(kernel(own, own, length) + noise * np.eye(len(own)), lower=True)
        fit = -0.5 * target @ cho_solve(factor, target) - np.log(np.diag(factor[0])).sum()
        best = max(best, (fit, length, noise))
    _, length, noise = best
    factor = cho_factor(kernel(own, own, length) + noise * np.eye(len(own)), lower=True)
    across = kernel(other, own, length)
    mean = across @ cho_solve(factor, target)
    spread = np.sqrt(np.maximum(1e-9, 1 - np.einsum("ij,ji->i", across, cho_solve(factor, across.T))))
    z = (mean - target.max()) / spread
    return spread * (z * ndtr(z) + np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi))


def forest(codes: Codes, labels: np.ndarray, candidates: Codes, rng: np.random.Generator, trees: int) -> np.ndarray:
    """Mean vote of trees grown on bootstrap samples: categorical equality or ordered splits, by impurity."""
    votes = np.zeros(len(candidates))
    for _ in range(trees):
        drawn = rng.integers(len(codes), size=len(codes))
        votes += grown(codes[drawn], labels[drawn], candidates, rng, 0)
    return votes / trees


def grown(codes: Codes, labels: np.ndarray, rows: Codes, rng: np.random.Generator, depth: int) -> np.ndarray:
    if depth >= 8 or len(labels) < 2 or labels.min() == labels.max() or not len(rows):
        return np.full(len(rows), labels.mean())
    best = (labels.var() * len(labels) - 1e-9, None)
    axes = rng.choice(codes.shape[1], size=max(2, int(math.sqrt(codes.shape[1]) + 0.5)), replace=False)
    for p in axes:
        for above in (False, True):
            impurity, value = split(codes[:, p], labels, above)
            if impurity < best[0]:
                best = (impurity, (p, value, above))
    if best[1] is None:
        return np.full(len(rows), labels.mean())
    p, value, above = best[1]
    left, chosen = (codes[:, p] >= value, rows[:, p] >= value) if above else (codes[:, p] == value, rows[:, p] == value)
    answer = np.empty(len(rows))
    answer[chosen] = grown(codes[left], labels[left], rows[chosen], rng, depth + 1)
    answer[~chosen] = grown(codes[~left], labels[~left], rows[~chosen], rng, depth + 1)
    return answer


def split(codes: np.ndarray, labels: np.ndarray, above: bool) -> tuple[float, int]:
    """Least impurity (of labels 0 and 1) that one value of an axis leaves when it splits off its own side."""
    count, ones = np.bincount(codes), np.bincount(codes, weights=labels)
    if above:
        count, ones = count[::-1].cumsum()[::-1], ones[::-1].cumsum()[::-1]
    other, rest = len(labels) - count, labels.sum() - ones
    inside = (count > 0) & (other > 0)
    if not inside.any():
        return math.inf, 0
    with np.errstate(divide="ignore", invalid="ignore"):
        impurity = np.where(inside, labels.sum() - ones**2 / count - rest**2 / other, math.inf)
    return float(impurity.min()), int(impurity.argmin())


class Annealed(BaseSampler):
    """SLO-Guard: annealing from the feasible baseline until enough is known to be feasible, then TPE on all of it."""

    FEASIBLE, MOST = 8, 16

    def __init__(self, seed: int, space: SearchSpace) -> None:
        self._walk = Walk(seed, space)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._tpe = TPESampler(seed=seed, n_startup_trials=0, multivariate=True)

    def _inner(self, study: Study) -> BaseSampler:
        trials = study.get_trials(deepcopy=False, states=LAUNCHED)
        feasible = sum(t.state is TrialState.COMPLETE for t in trials)
        return self._walk if feasible < self.FEASIBLE and len(trials) < self.MOST else self._tpe

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._inner(study).infer_relative_search_space(study, trial)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict:
        return self._inner(study).sample_relative(study, trial, search_space)

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, domain: BaseDistribution):
        return self._tpe.sample_independent(study, trial, name, domain)


class Walk(OnGrid):
    """Neighbours of the best feasible point: many parameters change while it is hot, one when it is cold."""

    def choose(self, trials: Sequence[FrozenTrial]) -> Codes:
        feasible = [t for t in trials if t.state is TrialState.COMPLETE]
        row = (
            self._grid.encode(max(feasible, key=lambda t: t.value).params)
            if feasible
            else self._grid.random(1, self._rng)[0]
        )
        changes = max(1, round(3 * 0.85 ** len(trials)))
        for p in self._rng.choice(len(row), size=changes, replace=False):
            row[p] = self._rng.integers(self._grid.sizes[p])
        return row


class OneAtATime(OnGrid):
    """SGLang's removed tool: each value of each axis alone, then the product of the best of the first three axes.

    Wide axes are given as the tool's users would: a few values. What is left of the time goes to the whole product.
    """

    FEW = 4

    def choose(self, trials: Sequence[FrozenTrial]) -> Codes:
        base = self._grid.encode(next((t for t in trials if t.user_attrs.get("baseline")), trials[0]).params)
        known = {tuple(self._grid.encode(t.params)) for t in trials}
        for row in itertools.chain(self._single(base), self._product(base, trials)):
            if tuple(row) not in known:
                return row
        return self._grid.random(1, self._rng)[0]

    def _few(self, p: int) -> Sequence[int]:
        size = self._grid.sizes[p]
        if self._grid.axes[p].place is None or size <= self.FEW:
            return range(size)
        return sorted({round(v) for v in np.linspace(0, size - 1, self.FEW + 2)[1:-1]})

    def _single(self, base: Codes):
        for p in range(len(base)):
            for value in self._few(p):
                row = base.copy()
                row[p] = value
                yield row

    def _product(self, base: Codes, trials: Sequence[FrozenTrial]):
        """Tier 2: all pairs and triples of the first three axes' values that worked, others at their single best."""
        worked = {tuple(self._grid.encode(t.params)): t.value for t in trials if t.state is TrialState.COMPLETE}
        best = base.copy()
        good: list[list[int]] = []
        for p in range(len(base)):
            scored = []
            for value in self._few(p):
                row = base.copy()
                row[p] = value
                if tuple(row) in worked:
                    scored.append((worked[tuple(row)], value))
            scored.sort(reverse=True)
            good.append([value for _, value in scored] or [int(base[p])])
            best[p] = good[-1][0]
        yield best
        for first in itertools.product(*good[:3]):
            row = best.copy()
            row[:3] = first
            yield row
        for combination in itertools.product(*(values[:2] for values in good)):
            yield np.array(combination)


def _quiet(make: Callable[[int, SearchSpace], BaseSampler]) -> Callable[[int, SearchSpace], BaseSampler]:
    def made(seed: int, space: SearchSpace) -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make(seed, space)

    return made


MAKERS = {
    "tpe-fail": _quiet(lambda seed, space: Blind(seed)),
    "scoot": Scoot,
    "slo-guard": _quiet(Annealed),
    "one-at-a-time": OneAtATime,
}
