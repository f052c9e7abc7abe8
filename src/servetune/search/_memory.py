"""What logs taught about memory: what weights leave of it, and how many requests a point's KV pool holds.

The engine splits the memory that is free before the weights: `1 - fraction` of it stays outside the KV pool and must
hold CUDA graphs (linear in the largest captured batch) and activations (linear in the chunk size); the pool gets what
weights and this leave. Each log says the memory before and after the weights and the pool's tokens, so most of it is
known after one launch; what is not is guessed (`_room.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from servetune.search._grid import Codes, Grid
from servetune.search._history import Context, Seen
from servetune.search.facts import FLAGS, number_of

Floats = NDArray[np.float64]

FRACTION, GRAPH, CHUNK = FLAGS["fraction"], FLAGS["batch"], FLAGS["chunk_tokens"]
#: Weights that another value of a categorical parameter adds, of the memory before the weights.
MORE_WEIGHTS = 0.03


class Memory:
    """The arithmetic of one study. `known` False: no log has said enough, or the space has no memory fraction."""

    def __init__(self, grid: Grid, seen: Sequence[Seen], context: Context) -> None:
        self._grid, self._context = grid, context
        self._numbers = [_numbers(grid, name, context, seen) for name in FLAGS]
        loaded = [t for t in seen if t.facts.get("pre", 0) > 0 and "avail" in t.facts]
        self.known = bool(loaded) and self._fixed_or_axis(FRACTION, self._numbers[0])
        if not self.known:
            return
        self.pre = float(np.median([t.facts["pre"] for t in loaded]))
        self._learn_weights(loaded)
        self._launched = dict(zip((t.number for t in seen), self._numbers_of(seen), strict=True))
        self.graphs = self._seen_graphs(loaded)
        each = [
            t.facts["kv_tokens"] / max(1e-3, t.facts["avail"] - self.pre * (1 - self._launched[t.number][0]))
            for t in loaded
            if t.facts.get("kv_tokens")
        ]
        self.tokens_per_gib = float(np.median(each)) if each else None

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
        found = np.array([self._launched[t.number] for t in trials])
        return found[:, 0], found[:, 1], found[:, 2]

    def _numbers_of(self, trials: Sequence[Seen]) -> Iterator[tuple[float, float, float]]:
        codes = np.array([t.codes for t in trials])
        near = zip(self.fraction(codes).tolist(), self.batch(codes).tolist(), self.chunks(codes).tolist(), strict=True)
        for trial, (fraction, batch, chunk) in zip(trials, near, strict=True):
            yield (
                self._given(trial, "fraction", fraction),
                self._given(trial, "batch", batch),
                self._given(trial, "chunk_tokens", chunk * 1024) / 1024,
            )

    def _given(self, trial: Seen, name: str, otherwise: float) -> float:
        """The number that the assignment gives one of the flags, or the engine where the assignment leaves it out."""
        for source in (trial.given, self._context.fixed) if trial.baseline and trial.given else (trial.given,):
            value = number_of(source, FLAGS[name])
            if value is not None:
                return value
        return trial.facts.get(name, otherwise)

    def _seen_graphs(self, loaded: Sequence[Seen]) -> Mapping[float, float]:
        """Largest captured batch → GiB of the graphs, as logs said; the last launch of a size counts."""
        batches = self.launched(loaded)[1].tolist()
        told = [(batch, t.facts.get("graph")) for t, batch in zip(loaded, batches, strict=True)]
        return {batch: used for batch, used in told if used and batch > 0}

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
        kinds, which = self._grid.kinds(codes)
        rows = self._changes(kinds)
        spread = np.sqrt(np.maximum(1e-8, ((rows @ self._change_cov) * rows).sum(1)))
        return (self._base_avail + rows @ self._change_mean)[which], spread[which]

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


def _numbers(grid: Grid, name: str, context: Context, seen: Sequence[Seen]) -> tuple[int, Floats] | None:
    """Place of the axis that sets this number, and the number of each of its values."""
    for place, axis in enumerate(grid.axes):
        if axis.name not in FLAGS[name] or any(isinstance(value, bool | str) for value in axis.values):
            continue
        numbers = np.array([math.nan if value is None else float(value) for value in axis.values])
        if np.isnan(numbers).all():
            continue
        own = axis.values.index(None) if None in axis.values else None
        return place, np.where(np.isnan(numbers), _engines_own(place, own, name, context, seen, numbers), numbers)
    return None


def _engines_own(
    place: int, own: int | None, name: str, context: Context, seen: Sequence[Seen], numbers: Floats
) -> float:
    """What the engine takes where the value says nothing: as its logs told, else its default, else a middle value."""
    told = [t.facts[name] for t in seen if t.codes[place] == own and name in t.facts]
    default = number_of(context.fixed, FLAGS[name])
    return told[0] if told else float(np.nanmedian(numbers)) if default is None else default
