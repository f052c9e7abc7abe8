"""Choices that a sentence names in words: "speculative MoE runner backend" is `speculative-moe-runner-backend`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

#: A name of fewer words stands in a sentence by chance.
WORDS = 3


def spelled(text: str, names: Iterable[str]) -> list[str]:
    """Those of some names that a text spells, without those that are only the end of a longer one."""
    found = [name for name in names if name.count("-") >= WORDS - 1 and _pattern(name).search(text)]
    return [name for name in found if not any(other != name and other.endswith(f"-{name}") for other in found)]


def without(text: str, names: Iterable[str]) -> str:
    """The text without these names, so that a part of one points at nothing else."""
    for name in names:
        text = _pattern(name).sub(" ", text)
    return text


@lru_cache(maxsize=1024)
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(r"(?i)(?<![\w-])" + r"[ _-]".join(map(re.escape, name.split("-"))) + r"(?![\w-])")
