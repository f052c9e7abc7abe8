"""Whether a point's graphs and activations fit beside its KV pool: guesses, weighed by which launches fitted.

What a log does not say (graphs at other sizes, activations) is drawn once; each guess counts as far as it agrees with
the launches that fitted, and with those that ran out of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri

from servetune.search._grid import Codes
from servetune.search._history import Seen
from servetune.search._memory import Memory

Floats = NDArray[np.float64]

GUESSES = 128
#: Of the memory before the weights: median and spread (of the logarithm) of what is not known yet.
ACTIVATION, CHUNK_1K, GRAPH_BASE, GRAPH_EACH = (0.02, 0.45), (0.001, 0.5), (0.005, 0.6), (1.5e-4, 0.6)
#: How sharply a launch that fitted or not is taken, of the memory before the weights.
SHARP = 0.0008
#: Exponents are kept within this: beyond it a chance is 0 or 1.
BEYOND = 200.0


class Room:
    """Guesses about the memory of one study, drawn by `seed`."""

    def __init__(self, memory: Memory, seen: Sequence[Seen], seed: int) -> None:
        self._memory = memory
        if not memory.known:
            return
        self._pre, self._sharp = memory.pre, SHARP * memory.pre
        self._guess(np.random.default_rng(seed))
        self._learn_graphs()
        self._weigh(seen)

    def _guess(self, rng: np.random.Generator) -> None:
        strata = ndtri((np.arange(GUESSES) + 0.5) / GUESSES)  # evenly spread, so that few guesses are enough

        def cloud(median: float, spread: float) -> Floats:
            drawn: Floats = self._pre * median * np.exp(spread * rng.permutation(strata))
            return drawn

        self._activation, self._chunk = cloud(*ACTIVATION), cloud(*CHUNK_1K)
        self._graph_base, self._graph_each = cloud(*GRAPH_BASE), cloud(*GRAPH_EACH)

    def _learn_graphs(self) -> None:
        """One observed size fixes the slope for each guess of the base, two fix both."""
        sizes = self._memory.graphs
        self._graphs_known = len(sizes) >= 2
        if self._graphs_known:
            slope, base = np.polyfit(list(sizes), list(sizes.values()), 1)
            self._graph_base[:], self._graph_each[:] = base, max(slope, 0.0)
        elif sizes:
            ((batch, used),) = sizes.items()
            self._graph_base = np.minimum(self._graph_base, 0.9 * used)
            self._graph_each = (used - self._graph_base) / batch

    def _lacking(self, fraction: Floats, batch: Floats) -> Floats:
        """Guesses × points: by how much graphs exceed the memory outside the pool, in units of `SHARP`.

        One row where all guesses are the same.
        """
        count = 1 if self._graphs_known else None
        base, each = self._graph_base[:count] / self._sharp, self._graph_each[:count] / self._sharp
        return each[:, None] * batch + (base[:, None] - self._pre * (1 - fraction) / self._sharp)

    def _serving(self, chunks: Floats) -> Floats:
        """Guesses × points: what serving needs beside graphs, in units of `SHARP`."""
        return (self._chunk / self._sharp)[:, None] * chunks + (self._activation / self._sharp)[:, None]

    def _weigh(self, seen: Sequence[Seen]) -> None:
        """Weight of each guess: which launches should have fitted, and did or did not."""
        self._weights = np.full(GUESSES, 1 / GUESSES)
        told = [
            t for t in seen if t.complete or t.slug in ("oom_graph", "oom_runtime") or t.phase in ("warmup", "serving")
        ]
        if not told:
            return
        fraction, batch, chunks = self._memory.launched(told)
        lacking = self._lacking(fraction, batch)
        graphs = np.array([1.0 if t.slug == "oom_graph" else -1.0 for t in told])  # what is to be lacking
        logs = np.zeros(GUESSES) + np.log(1e-9 + expit(graphs * lacking)).sum(1)
        loaded = [t.slug == "oom_runtime" or any(level >= 10 for level in t.log_levels) for t in told]
        served = np.array([1.0 if t.slug == "oom_runtime" else -1.0 for t in told])[loaded]
        serving = lacking[:, loaded] + self._serving(chunks[loaded])
        logs += np.log(1e-9 + expit(served * serving)).sum(1)
        weights = np.exp(logs - logs.max())
        kept = weights > 1e-3 * weights.max()
        self._weights = weights[kept] / weights[kept].sum()
        for name in ("_activation", "_chunk", "_graph_base", "_graph_each"):
            setattr(self, name, getattr(self, name)[kept])

    def log_probability(self, codes: Codes) -> Floats:
        """Row by row: log probability that everything fits; 0 where nothing is known of the memory."""
        memory = self._memory
        if not memory.known:
            return np.zeros(len(codes))
        fraction = memory.fraction(codes)
        avail, spread = memory.avail(codes)
        pool = avail - self._pre * (1 - fraction)
        fits = self._fits(fraction, memory.batch(codes), memory.chunks(codes))
        result: Floats = np.log(1e-6 + fits) + np.log(1e-6 + ndtr((pool - 0.002 * self._pre) / spread))
        return result

    def _fits(self, fraction: Floats, batch: Floats, chunks: Floats) -> Floats:
        """Chance that graphs and serving fit: the product of two logistic curves, for each guess."""
        graph = self._lacking(fraction, batch)
        np.exp(np.clip(graph, -BEYOND, BEYOND, out=graph), out=graph)
        sizes, which = np.unique(chunks, return_inverse=True)
        against = np.exp(np.minimum(self._serving(sizes), BEYOND))[:, which]
        against *= graph  # in place: these arrays are large
        against += 1
        against *= 1 + graph
        fits: Floats = self._weights @ np.reciprocal(against, out=against)
        return fits
