"""Prompts as token ids with the statistics of real text: frequent words repeat, neighbours are not consecutive ids.

Ids are made from a shipped text of our own, without a tokenizer: each word, word part or sign gets one id by a hash of
its spelling. So the repetition inside and between prompts is that of English text, which expert routing, n-gram
speculation and prefix caches all see, and every trial of every study gets the same prompts.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import random
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Below are control and byte tokens in all common vocabularies; every served model's vocabulary reaches 30,000.
FIRST_ID = 100
LAST_ID = 30_000
#: Random ids that open each prompt, so that no two share a cached prefix longer than a token or so.
OPENING_IDS = 4

_PIECE = re.compile(r" ?[A-Za-z]{1,7}| ?\d{1,3}|\s|[^A-Za-z\d\s]")


@dataclass(frozen=True)
class Vocabulary:
    """Ids in [first, end) may be used."""

    first: int = FIRST_ID
    end: int = LAST_ID

    def id_of(self, piece: str) -> int:
        """The id of a piece of text: a fixed hash of its spelling into the range."""
        return self.first + zlib.crc32(piece.encode()) % (self.end - self.first)


def vocabulary_below(size: int | None) -> Vocabulary:
    """The range to use with a vocabulary of `size` ids (None: not known). Tiny test vocabularies get what there is."""
    if size is None or size >= LAST_ID:
        return Vocabulary()
    return Vocabulary(first=min(FIRST_ID, size // 4), end=size)


def vocabulary_size(model_path: str) -> int | None:
    """`vocab_size` of a model folder's config.json, when that folder can be read here; else None."""
    try:
        config = json.loads((Path(model_path) / "config.json").read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict):
        return None
    nested = config.get("text_config")
    size = config.get("vocab_size") or (nested.get("vocab_size") if isinstance(nested, dict) else None)
    return size if isinstance(size, int) and size > 8 else None


class PromptSource:
    """Prompt number k of a seed and a level, as the JSON text of a list of ids. Same arguments, same prompt.

    `window`: how often the same server has had this level before; its cache may still hold those prompts.
    """

    def __init__(self, vocabulary: Vocabulary, seed: int, level: int, window: int = 0) -> None:
        self.vocabulary = vocabulary
        self._seed = window << 96 | (seed & 0xFFFFFFFF) << 64 | (level & 0xFFFFFFFF) << 32
        self._sentences = _sentences(vocabulary)

    def ids_json(self, number: int, tokens: int) -> bytes:
        """Exactly `tokens` ids, such as `b"[5121,877]"`."""
        return b"[" + b",".join(self._pieces(number, tokens)) + b"]"

    def ids(self, number: int, tokens: int) -> list[int]:
        """The same prompt as integers."""
        return [int(piece) for piece in self._pieces(number, tokens)]

    def _pieces(self, number: int, tokens: int) -> list[bytes]:
        chance = random.Random(self._seed | number)  # noqa: S311 (reproducible prompts, no secret)
        span = self.vocabulary.end - self.vocabulary.first
        pieces = [b"%d" % (self.vocabulary.first + int(chance.random() * span)) for _ in range(OPENING_IDS)]
        at = int(chance.random() * len(self._sentences))
        while len(pieces) < tokens:
            # runs of a few neighbouring sentences, then a jump: local repetition as in a document
            pieces += self._sentences[at]
            at = at + 1 if chance.random() < 0.75 else int(chance.random() * len(self._sentences))
            at %= len(self._sentences)
        return pieces[:tokens]


@functools.lru_cache(maxsize=8)
def _sentences(vocabulary: Vocabulary) -> Sequence[tuple[bytes, ...]]:
    text = importlib.resources.files("servetune.benchmarks").joinpath("prompts.txt").read_text("utf-8")
    return tuple(tuple(b"%d" % vocabulary.id_of(piece) for piece in _PIECE.findall(line)) for line in text.splitlines())
