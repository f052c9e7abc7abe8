"""What logs taught about memory: whether a point fits, and how many requests its KV pool holds.

The engine splits the memory that is free before the weights: `1 - fraction` of it stays outside the KV pool and must
hold CUDA graphs (linear in the largest captured batch) and activations (linear in the chunk size); the pool gets what
weights and this leave. Each log says the memory before and after the weights, of the graphs, and the pool's tokens, so
most of it is known after one launch; what is not (graphs at other sizes, activations) is a cloud of guesses, weighed by
which launches fitted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri

from servetune.search._grid import Codes, Grid
from servetune.search._history import Context, Seen

Floats = NDArray[np.float64]

FRACTION = ("mem-fraction-static",)
GRAPH = ("cuda-graph-max-bs", "cuda-graph-max-bs-decode")
CHUNK = ("chunked-prefill-size",)
GUESSES = 128
#: Of the memory before the weights: median and spread (of the logarithm) of what is not known yet.
ACTIVATION, CHUNK_1K, GRAPH_BASE, GRAPH_EACH = (0.02, 0.45), (0.001, 0.5), (0.005, 0.6), (1.5e-4, 0.6)
#: Weights that another value of a categorical parameter adds, of the memory before the weights.
MORE_WEIGHTS = 0.03
#: How sharply a launch that fitted or not is taken, of the memory before the weights.
SHARP = 0.0008


class Memory:
    """The arithmetic of one study. `known` False: no log has said enough, or the space has no memory fraction."""

    def __init__(self, grid: Grid, seen: Sequence[Seen], context: Context, seed: int) -> None:
        self._grid, self._context = grid, context
        self._numbers = [_numbers(grid, names) for names in (FRACTION, GRAPH, CHUNK)]
        loaded = [t for t in seen if t.facts.get("pre", 0) > 0 and "avail" in t.facts]
        self.known = bool(loaded) and self._fixed_or_axis(FRACTION, self._numbers[0])
        if not self.known:
            return
        self.pre = float(np.median([t.facts["pre"] for t in loaded]))
        self._learn_weights(loaded)
        self._guess(np.random.default_rng(seed))
        fractions, batches, _ = self.launched(loaded)
        self._learn_graphs(loaded, batches.tolist())
        each = [
            t.facts["kv_tokens"] / max(1e-3, t.facts["avail"] - self.pre * (1 - fraction))
            for t, fraction in zip(loaded, fractions.tolist(), strict=True)
            if t.facts.get("kv_tokens")
        ]
        self.tokens_per_gib = float(np.median(each)) if each else None
        self._weigh(seen)

    def _fixed_or_axis(self, names: Sequence[str], axis: tuple[int, Floats] | None) -> bool:
        return axis is not None or any(name in self._context.fixed for name in names)

    def _value(self, which: int, names: Sequence[str], codes: Codes, otherwise: float) -> Floats:
        axis = self._numbers[which]
        if axis is None:
            fixed = next((self._context.fixed[name] for name in names if name in self._context.fixed), otherwise)
            return np.full(len(codes), float(fixed))
        place, numbers = axis
        return np.append(numbers, otherwise)[codes[:, place]]

    def fraction(self, codes: Codes) -> Floats:
        """Memory fraction of each point."""
        return self._value(0, FRACTION, codes, 0.85)

    def batch(self, codes: Codes) -> Floats:
        """Largest captured batch of each point."""
        return self._value(1, GRAPH, codes, 0.0)

    def chunks(self, codes: Codes) -> Floats:
        """Chunk size of each point, in thousands of tokens."""
        return self._value(2, CHUNK, codes, 8192.0) / 1024

    def launched(self, trials: Sequence[Seen]) -> tuple[Floats, Floats, Floats]:
        """Memory fraction, largest captured batch, and chunk size as they were launched, also outside the space."""
        codes = np.array([t.codes for t in trials])
        near = (self.fraction(codes), self.batch(codes), self.chunks(codes))
        units = (1.0, 1.0, 1024.0)
        found = [
            np.array([self._given(t, names, n * unit) / unit for t, n in zip(trials, own.tolist(), strict=True)])
            for names, own, unit in zip((FRACTION, GRAPH, CHUNK), near, units, strict=True)
        ]
        return found[0], found[1], found[2]

    def _given(self, trial: Seen, names: Sequence[str], otherwise: float) -> float:
        """The number that the assignment gives one of the flags, or the engine where the baseline leaves it out."""
        sources = [trial.given, self._context.fixed] if trial.baseline and trial.given else [trial.given]
        told = (source.get(name) for source in sources for name in names)
        return next((float(v) for v in told if isinstance(v, int | float) and not isinstance(v, bool)), otherwise)

    def _learn_weights(self, loaded: Sequence[Seen]) -> None:
        """Memory left after the weights: that of the first launch, plus what each other value changes (ridge)."""
        plain = [p for p, axis in enumerate(self._grid.axes) if axis.place is None]
        self._base_codes = loaded[0].codes
        self._offsets = np.cumsum([0, *(self._grid.sizes[p] for p in plain)])
        self._plain = plain
        rows = self._changes(np.array([t.codes for t in loaded]))
        target = np.array([t.facts["avail"] for t in loaded]) - loaded[0].facts["avail"]
        self._base_avail = loaded[0].facts["avail"]
        noise, prior = (1e-4 * self.pre) ** 2, (MORE_WEIGHTS * self.pre) ** 2
        precision = rows.T @ rows / noise + np.eye(rows.shape[1]) / prior
        self._change_cov = np.linalg.inv(precision)
        self._change_mean = self._change_cov @ (rows.T @ target) / noise

    def _changes(self, codes: Codes) -> Floats:
        rows = np.zeros((len(codes), int(self._offsets[-1])))
        for at, p in enumerate(self._plain):
            differs = (codes[:, p] != self._base_codes[p]) & (codes[:, p] >= 0)
            rows[np.flatnonzero(differs), self._offsets[at] + codes[differs, p]] = 1.0
        return rows

    def avail(self, codes: Codes) -> tuple[Floats, Floats]:
        """GiB left after the weights, and its standard deviation."""
        rows = self._changes(codes)
        spread = np.sqrt(np.maximum(1e-8, ((rows @ self._change_cov) * rows).sum(1)))
        return self._base_avail + rows @ self._change_mean, spread

    def _guess(self, rng: np.random.Generator) -> None:
        strata = ndtri((np.arange(GUESSES) + 0.5) / GUESSES)  # evenly spread, so that few guesses are enough

        def cloud(median: float, spread: float) -> Floats:
            drawn: Floats = self.pre * median * np.exp(spread * rng.permutation(strata))
            return drawn

        self._activation, self._chunk = cloud(*ACTIVATION), cloud(*CHUNK_1K)
        self._graph_base, self._graph_each = cloud(*GRAPH_BASE), cloud(*GRAPH_EACH)

    def _learn_graphs(self, loaded: Sequence[Seen], batches: Sequence[float]) -> None:
        """One observed size fixes the slope for each guess of the base, two fix both."""
        sizes: dict[float, float] = {}
        for trial, batch in zip(loaded, batches, strict=True):
            if trial.facts.get("graph") and batch > 0:
                sizes[batch] = trial.facts["graph"]
        if len(sizes) >= 2:
            slope, base = np.polyfit(list(sizes), list(sizes.values()), 1)
            self._graph_base[:], self._graph_each[:] = base, max(slope, 0.0)
        elif sizes:
            ((batch, used),) = sizes.items()
            self._graph_base = np.minimum(self._graph_base, 0.9 * used)
            self._graph_each = (used - self._graph_base) / batch

    def _slack(self, fraction: Floats, batch: Floats, chunks: Floats) -> tuple[Floats, Floats]:
        """Guesses × points: GiB that stay free when graphs are captured, and when serving."""
        headroom = self.pre * (1 - fraction)
        graph = self._graph_base[:, None] + self._graph_each[:, None] * batch
        serving = graph + self._activation[:, None] + self._chunk[:, None] * chunks
        return headroom - graph, headroom - serving

    def _weigh(self, seen: Sequence[Seen]) -> None:
        """Weight of each guess: which launches should have fitted, and did or did not."""
        self._weights = np.full(GUESSES, 1 / GUESSES)
        told = [
            t for t in seen if t.complete or t.slug in ("oom_graph", "oom_runtime") or t.phase in ("warmup", "serving")
        ]
        if not told:
            return
        graph, serving = self._slack(*self.launched(told))
        sharp = SHARP * self.pre
        logs = np.zeros(GUESSES)
        for i, trial in enumerate(told):
            logs += np.log(1e-9 + expit((-graph if trial.slug == "oom_graph" else graph)[:, i] / sharp))
            if trial.slug == "oom_runtime":
                logs += np.log(1e-9 + expit(-serving[:, i] / sharp))
            elif any(level >= 10 for level in trial.log_levels):
                logs += np.log(1e-9 + expit(serving[:, i] / sharp))
        weights = np.exp(logs - logs.max())
        kept = weights > 1e-3 * weights.max()
        self._weights = weights[kept] / weights[kept].sum()
        for name in ("_activation", "_chunk", "_graph_base", "_graph_each"):
            setattr(self, name, getattr(self, name)[kept])

    def log_probability(self, codes: Codes) -> Floats:
        """Row by row: log probability that everything fits."""
        avail, spread = self.avail(codes)
        pool = avail - self.pre * (1 - self.fraction(codes))
        fits = self._fits(codes)
        result: Floats = np.log(1e-6 + fits) + np.log(1e-6 + ndtr((pool - 0.002 * self.pre) / spread))
        return result

    def _fits(self, codes: Codes) -> Floats:
        """Chance that graphs and serving fit; points that differ elsewhere only are asked once."""
        axes = [axis[0] for axis in self._numbers if axis is not None]
        _, first, which = np.unique(codes[:, axes], axis=0, return_index=True, return_inverse=True)
        rows = codes[first]
        graph, serving = self._slack(self.fraction(rows), self.batch(rows), self.chunks(rows))
        sharp = SHARP * self.pre
        fits: Floats = self._weights @ (expit(graph / sharp) * expit(serving / sharp))
        return fits[which.ravel()]

    def held(self, trials: Sequence[Seen]) -> Floats:
        """How many requests the KV pool of each launch held at once: by its log, else as expected."""
        expected = self.requests(np.array([t.codes for t in trials]))
        if not self._context.tokens:
            return expected
        told = [t.facts.get("kv_tokens", 0.0) / self._context.tokens for t in trials]
        return np.array([max(own, 1e-3) if own else e for own, e in zip(told, expected.tolist(), strict=True)])

    def requests(self, codes: Codes) -> Floats:
        """How many requests the KV pool holds at once, as expected; infinite where that is not known."""
        if self.tokens_per_gib is None or not self._context.tokens:
            return np.full(len(codes), np.inf)
        avail, _ = self.avail(codes)
        pool = np.maximum(0.01, avail - self.pre * (1 - self.fraction(codes)))
        held: Floats = pool * self.tokens_per_gib / self._context.tokens
        return held


def _numbers(grid: Grid, names: Sequence[str]) -> tuple[int, Floats] | None:
    for place, axis in enumerate(grid.axes):
        if axis.name in names and all(isinstance(v, int | float) for v in axis.values):
            return place, np.array([float(v) for v in axis.values])  # type: ignore[arg-type]
    return None
