"""A small random language model whose answers differ in their low bits with the batch, as a real server's do.

A recurrent network in numpy. Its products are added up in pieces, each rounded to bfloat16; which pieces depends on the
size of the batch, as it does in the kernels of a real engine. So one and the same model gives logits that differ in
their last bits from batch to batch, and where two tokens are nearly as likely another one comes and the answer parts
for good. Nothing here draws when an answer parts: it follows from the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from servetune.core.answers import Answer, AnswerSet

PROMPTS, TOKENS, TOP = 24, 32, 5
VOCABULARY, WIDTH = 800, 48
PIECES = (8, 12, 16, 24)  # lengths into which a sum over WIDTH is cut, one for each kind of batch


def bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounded to its eight bits of mantissa, to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def product(left: np.ndarray, right: np.ndarray, piece: int) -> np.ndarray:
    """`left @ right` with partial sums of `piece` terms, rounded."""
    total = np.zeros((len(left), right.shape[1]), dtype=np.float32)
    for begin in range(0, WIDTH, piece):
        total = bfloat16(total + bfloat16(left[:, begin : begin + piece] @ right[begin : begin + piece]))
    return total


@dataclass
class Fault:
    """What may be wrong with a server. `crosstalk`: chance per token and prompt that another's state is read."""

    crosstalk: float = 0.0
    scale: float = 1.0  # of the output matrix
    low_bits: int = 0  # of the weights' mantissa cut off
    only_loaded: bool = True


class SmallModel:
    """One model; `answers` is one launch of it. `sharpness`: how sure of its tokens it is."""

    def __init__(self, seed: int, sharpness: float = 6.0) -> None:
        chance = np.random.default_rng(seed)
        self._embedding = bfloat16(chance.normal(0, 1.0, (VOCABULARY, WIDTH)))
        self._inner = bfloat16(chance.normal(0, 1.6 / WIDTH**0.5, (WIDTH, WIDTH)))
        self._outer = bfloat16(chance.normal(0, sharpness / WIDTH**0.5, (WIDTH, VOCABULARY)))
        self._begin = bfloat16(chance.normal(0, 1.0, (PROMPTS, WIDTH)))

    def answers(self, seed: int, fault: Fault | None = None) -> AnswerSet:
        """Alone four at a time: one kind of batch; under load another kind at every token."""
        chance, fault = np.random.default_rng(seed), fault or Fault()
        alone = self._answers(chance, PIECES[:1], Fault() if fault.only_loaded else fault)
        return AnswerSet.model_construct(
            idle=alone, loaded=self._answers(chance, PIECES, fault), concurrency=256, solved=()
        )

    def _answers(self, chance: np.random.Generator, pieces: tuple[int, ...], fault: Fault) -> tuple[Answer, ...]:
        state, outer, inner = self._begin, self._outer * np.float32(fault.scale), self._inner
        if fault.low_bits:
            outer, inner = (self._cut(weights, fault.low_bits) for weights in (outer, inner))
        tokens, chosen, top, top_ids = [], [], [], []
        for _ in range(TOKENS):
            piece = int(chance.choice(pieces))
            mixed = chance.random(PROMPTS) < fault.crosstalk
            state = np.where(mixed[:, None], np.roll(state, 1, axis=0), state)
            logits = product(state, outer, piece).astype(np.float64)
            logprobs = logits - np.log(np.sum(np.exp(logits - logits.max(1, keepdims=True)), 1, keepdims=True))
            logprobs -= logits.max(1, keepdims=True)
            best = np.argsort(-logits, axis=1, kind="stable")[:, :TOP]
            tokens.append(best[:, 0])
            chosen.append(np.take_along_axis(logprobs, best, 1)[:, 0])
            top.append(np.take_along_axis(logprobs, best, 1))
            top_ids.append(best)
            state = bfloat16(np.tanh(product(state, inner, piece) + self._embedding[best[:, 0]]))
        return tuple(
            self._answer(*(np.array(one)[:, k] for one in (tokens, chosen, top_ids, top))) for k in range(PROMPTS)
        )

    def _cut(self, weights: np.ndarray, bits: int) -> np.ndarray:
        mask = np.uint32(0xFFFFFFFF << (16 + bits) & 0xFFFFFFFF)
        return (weights.astype(np.float32).view(np.uint32) & mask).view(np.float32)

    def _answer(self, tokens: np.ndarray, chosen: np.ndarray, ids: np.ndarray, top: np.ndarray) -> Answer:
        rows = (
            tuple((str(i), round(float(p), 4)) for i, p in zip(*row, strict=True)) for row in zip(ids, top, strict=True)
        )
        return Answer.model_construct(  # checking each of them would take most of the time
            tokens=tuple(map(str, tokens)),
            asked=TOKENS,
            logprobs=tuple(round(float(p), 4) for p in chosen),
            top=tuple(rows),
        )
