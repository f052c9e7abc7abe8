"""Which patterns can match a line at all, decided once per shape of line.

The **shape** of a text is the text in lower case with every digit as 0: a flood of lines that differ in numbers has
few shapes. A pattern needs certain words (one of a set, found in its syntax tree); where a shape has none of them, no
text of that shape matches. So most patterns are never tried, and lines that mean nothing are skipped by their shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

from servetune.engines.sglang import (
    _advice_facts,
    _log_answers,
    _log_changes,
    _log_notices,
    _log_phases,
    _log_scores,
)
from servetune.engines.sglang._failure_table import Entry, compiled, entries

#: Shapes whose topics are remembered.
SHAPES = 2048
#: Of the words that are harmless, the one where a number decides.
_HARMLESS_NUMBER = "0 failed"
#: A word of fewer bytes than this is in nearly every line.
SHORTEST = 3
_MASK = str.maketrans("123456789", "000000000")
_MASK_BYTES = bytes.maketrans(b"123456789", b"000000000")
#: What is read otherwise than by patterns: commands, environments, usage texts, tracebacks, native stacks, arguments.
_OTHERWISE = (
    "server_args=",
    "launch_server",
    "sglang serve",
    "sglang::launch",
    "export",
    "[--",
    "Traceback",
    "Fatal Python error",
)
_Words = frozenset[str]


def shape_of(text: str) -> str:
    """Lower case, digits as zeros."""
    return text.translate(_MASK).lower()


def shapes_of(raw: bytes) -> bytes:
    """The same for raw lines, which keep their capitals: prefixes are told by them."""
    return raw.translate(_MASK_BYTES)


@dataclass(frozen=True, slots=True)
class Topics:
    """What a text of one shape may be about: the patterns that are worth trying, in their order."""

    marker: bool
    capturing: bool
    version: bool
    telling: bool  # any of the following
    retraction: bool
    stop: bool
    death: bool
    worry: bool
    nccl_warn: bool
    assertion: bool
    compiler: bool
    space: bool
    notice: bool
    answer: bool
    score: bool
    entries: tuple[Entry, ...]
    steady: bool  # every text of the shape means the same, and only the first and the last few are remembered

    @property
    def inert(self) -> bool:
        """Whether no pattern can match."""
        return not (self.marker or self.capturing or self.version or self.telling)


@lru_cache(maxsize=SHAPES)
def topics_of(shape: str) -> Topics:
    """The topics of a shape."""
    asked = {name: may(shape) for name, may in _questions().items()}
    found = tuple(entry for may, entry in _line_entries() if may(shape))
    telling = bool(found) or any(asked[name] for name in asked if name not in ("marker", "capturing", "version"))
    steady = not (asked["marker"] or asked["version"] or asked["score"] or _HARMLESS_NUMBER in shape)
    steady = steady and all(map(_steady, found)) and all(_numberless(name, shape) for name in asked if asked[name])
    return Topics(telling=telling, steady=steady, entries=found, **asked)


def _numberless(name: str, shape: str) -> bool:
    """Whether no number decides about a question, as far as its patterns may match the shape."""
    return all(digits_are_alike(pattern) for pattern in _patterns()[name] if _may_match([pattern])(shape))


def _steady(entry: Entry) -> bool:
    """Whether it is the same for all texts of a shape whether they match (an access line's status is told apart)."""
    signature = entry.signature
    if signature.check:
        return False
    return signature.name == "queue_full" or all(
        digits_are_alike(compiled(pattern)) for pattern in (signature.text, signature.not_text)
    )


_May = Callable[[str], bool]


@cache
def _patterns() -> dict[str, list[re.Pattern[str]]]:
    """Field of `Topics` → its patterns."""
    return {
        "marker": [re.compile(re.escape(words)) for words, _ in _log_phases.MARKERS],
        "capturing": [_log_phases.CAPTURING],
        "version": [_log_phases.VERSION],
        "retraction": [_log_notices.RETRACTION],
        "stop": [_log_notices.STOP],
        "death": [_log_notices.DEATH],
        "worry": [_log_notices.WORRYING],
        "nccl_warn": [_log_notices.NCCL_WARN],
        "assertion": [_log_notices.ASSERTION_LINE],
        "compiler": [_log_notices.COMPILER_ERROR],
        "space": [_advice_facts.FREE_SPACE],
        "answer": [_log_answers.HINTS],
        "score": [_log_scores.HINTS],
        "notice": [*(notice.text for notice in _log_notices.NOTICES), _log_notices.NOT_AVAILABLE, _log_changes.CHANGED],
    }


@cache
def _questions() -> dict[str, _May]:
    return {name: _may_match(patterns) for name, patterns in _patterns().items()}


@cache
def _line_entries() -> tuple[tuple[_May, Entry], ...]:
    tried = [entry for entry in entries("line") if not entry.signature.frame]
    return tuple((_may_match([compiled(entry.signature.text)]), entry) for entry in tried)


def _may_match(patterns: Iterable[re.Pattern[str]]) -> _May:
    """Whether any of the patterns may match a text of a shape. Without known words it always may."""
    needed = [words_of(pattern) for pattern in patterns]
    if any(words is None for words in needed):
        return lambda shape: True
    words = tuple(frozenset[str]().union(*(one for one in needed if one is not None)))
    return lambda shape: any(map(shape.__contains__, words))


@cache
def words_of(pattern: re.Pattern[str]) -> _Words | None:
    """Words (as in shapes) of which every text that the pattern matches has one; None: there is no such set."""
    return _words(_parser.parse(pattern.pattern, pattern.flags))


def _words(sequence: Any) -> _Words | None:
    """The best set of a sequence: any part of it will do; longest shortest word first."""
    best: _Words | None = None
    literal = ""
    for operation, argument in [*sequence, (None, None)]:
        if operation is _constants.LITERAL:
            literal += shape_of(chr(argument))
            continue
        best = _better(best, frozenset((literal,)) if literal else None)
        literal = ""
        best = _better(best, _of_part(operation, argument))
    return best


def _of_part(operation: Any, argument: Any) -> _Words | None:
    if operation is _constants.SUBPATTERN:
        return _words(argument[3])
    if operation is _constants.ATOMIC_GROUP:
        return _words(argument)
    if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT) and argument[0] > 0:
        return _words(argument[2])
    if operation is _constants.BRANCH:
        parts = [_words(part) for part in argument[1]]
        return None if any(part is None for part in parts) else frozenset[str]().union(*(part or () for part in parts))
    return None


@cache
def digits_are_alike(pattern: re.Pattern[str]) -> bool:
    """Whether the pattern treats all digits alike: whether it matches is the same for all texts of a shape."""
    return not _names_digits(_parser.parse(pattern.pattern, pattern.flags))


def _names_digits(tree: Any) -> bool:
    if isinstance(tree, (_parser.SubPattern, list)):
        return any(map(_names_digits, tree))
    if not isinstance(tree, tuple):
        return False
    if len(tree) == 2 and tree[0] in (_constants.LITERAL, _constants.NOT_LITERAL):
        return chr(tree[1]).isdigit()
    if len(tree) == 2 and tree[0] is _constants.RANGE:
        low, high = tree[1]
        return low <= ord("9") and high >= ord("0") and not (low <= ord("0") and high >= ord("9"))
    return any(map(_names_digits, tree))


def _better(one: _Words | None, other: _Words | None) -> _Words | None:
    def worth(words: _Words | None) -> int:
        return min(len(word.encode("utf-8", "replace")) for word in words) if words else 0

    better = other if worth(other) > worth(one) else one
    return better if worth(better) >= SHORTEST else None


def inert(text: str) -> bool:
    """Whether no pattern can match the text, nor any text of its shape."""
    return _by_patterns(text) and topics_of(shape_of(text)).inert


def steady(text: str) -> bool:
    """Whether every text of its shape means the same, and changes nothing but what is remembered of its kind."""
    return _by_patterns(text) and topics_of(shape_of(text)).steady


def _by_patterns(text: str) -> bool:
    return len(text) <= _log_notices.MAX_READ_TEXT and not any(map(text.__contains__, _OTHERWISE))
