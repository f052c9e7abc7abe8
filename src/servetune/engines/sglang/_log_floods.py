"""Lines that need not be read: those that mean nothing, and all but the first and last few of a flood of equals.

Both are told by the **shape** of the raw line (its digits as zeros; see `_log_words`). Of a flood only as many lines
are remembered anyway as `Run` has places for; between two lines of another kind nothing else changes. So the lines in
the middle are dropped, and the last few are held back until something else has to be read.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from servetune.engines.sglang._log_lines import LineCleaner, is_dressed
from servetune.engines.sglang._log_notices import RETRACTION
from servetune.engines.sglang._log_requests import shows_request
from servetune.engines.sglang._log_run import NOTICES, PER_SIGNATURE, Run
from servetune.engines.sglang._log_telling import is_dull
from servetune.engines.sglang._log_words import inert, steady

#: Bytes of shapes that are remembered, and the longest of them; shapes of floods that are held back.
SHAPES_BYTES, SHAPE_BYTES, FLOODS = 8 << 20, 16 * 1024, 256
#: So many lines of a shape are read before the next count as a flood: `Run` remembers no more of a kind.
FIRST = NOTICES
_STAMP = re.compile(rb"\[\d{4}-\d\d-\d\d ")
_STATUS = b'" 000'
#: JSON may hide any letter behind a number.
_JSON = b"\\u"


_Raw = tuple[int, bytes]  # number and text of a physical line


class Kind(Enum):
    """What is done with the lines of a shape."""

    READ = 0
    NOTHING = 1  # no pattern can match
    REPEATS = 2  # each means the same as the one before


@dataclass(slots=True)
class Held:
    """The last lines of one flood, each with the last stamped line that was skipped before it."""

    dropped: int = 0
    lines: deque[tuple[_Raw, _Raw | None]] = field(default_factory=lambda: deque(maxlen=PER_SIGNATURE))


class Floods:
    """Remembers the kinds of shapes, and what has been skipped since the last line that was read."""

    def __init__(self) -> None:
        self._kinds: dict[bytes, Kind] = {}
        self._room = SHAPES_BYTES
        self._seen: dict[bytes, int] = {}
        self._held: dict[bytes, Held] = {}
        self._last: _Raw | None = None  # the last skipped line that is not blank, where it means nothing
        self._stamped: _Raw | None = None  # the last skipped line that seems to have a time stamp

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        raise TypeError("what was skipped belongs to one reader")

    @property
    def empty(self) -> bool:
        """Whether nothing has been skipped since the last line that was read."""
        return self._last is None and self._stamped is None and not self._held

    def forget_kinds(self) -> None:
        """Another prefix has been learned: what a raw line means may have changed."""
        self._kinds.clear()
        self._room = SHAPES_BYTES

    def skip_all(self, lines: list[bytes], shapes: list[bytes], number: int) -> int:
        """Skip all `lines` (the first with `number`) if none of them has to be read. Returns how many were skipped.

        What `skip` does one by one; the same is remembered. No traceback is open.
        """
        counts = Counter(shapes)
        floods = [shape for shape in counts if self._kinds.get(shape) is not Kind.NOTHING]
        if not all(shape in self._held and self._seen.get(shape, 0) >= FIRST for shape in floods):
            return 0
        noted = 0
        for at in _last_few(shapes, {shape: min(counts[shape], PER_SIGNATURE) for shape in floods}):
            self._note(lines, noted, at, number + noted)
            self._hold(shapes[at], lines[at], number + at)
            noted = at + 1
        self._note(lines, noted, len(lines), number + noted)
        for shape in floods:
            self._seen[shape] += counts[shape]
            self._held[shape].dropped += max(0, counts[shape] - PER_SIGNATURE)
        return len(lines)

    def skip(self, lines: list[bytes], shapes: list[bytes], begin: int, number: int, run: Run, known: str) -> int:
        """Skip lines from `begin` (with `number`) on. Returns the place of the first that has to be read.

        `known`: the prefix that the cleaner has learned. `run` has no traceback open.
        """
        at = noted = begin
        begun, kinds = run.begun, self._kinds
        for at in range(begin, len(lines)):
            kind = kinds.get(shapes[at]) or self._kind_of(shapes[at], lines[at], known)
            if kind is Kind.NOTHING and (begun or b"[" not in lines[at]):
                continue
            if kind is not Kind.REPEATS or not begun or not self._floods(shapes[at]):
                break
            self._note(lines, noted, at, number + noted - begin)
            self._hold(shapes[at], lines[at], number + at - begin)
            noted = at + 1
        else:
            at = len(lines)
        self._note(lines, noted, at, number + noted - begin)
        return at

    def _floods(self, shape: bytes) -> bool:
        """Whether enough lines of this shape have been read since the last line of another kind."""
        seen = self._seen[shape] = self._seen.get(shape, 0) + 1
        return seen > FIRST and (shape in self._held or len(self._held) < FLOODS)

    def _hold(self, shape: bytes, raw: bytes, number: int) -> None:
        held = self._held.setdefault(shape, Held())
        held.dropped += len(held.lines) == PER_SIGNATURE
        held.lines.append(((number, raw), self._stamped))
        if _has_stamp(raw):
            self._stamped = number, raw
        self._last = None

    def _note(self, lines: list[bytes], begin: int, end: int, number: int) -> None:
        """Remember the last of the lines that mean nothing, and the last of them with a stamp."""
        for at in range(end - 1, begin - 1, -1):
            if lines[at].strip():
                self._last = number + at - begin, lines[at]
                break
        for at in range(end - 1, begin - 1, -1):
            if _has_stamp(lines[at]):
                self._stamped = number + at - begin, lines[at]
                break

    def _kind_of(self, shape: bytes, raw: bytes, known: str) -> Kind:
        kind = Kind.NOTHING if is_dull(raw) and not (is_dressed(raw) or shows_request(raw)) else kind_of(raw, known)
        if kind is not Kind.READ and _JSON in raw:
            return kind if kind is Kind.NOTHING else Kind.READ
        if len(shape) <= SHAPE_BYTES:
            self._room -= len(shape) + 200
            if self._room < 0:
                self.forget_kinds()
            self._kinds[shape] = kind
        return kind

    def catch_up(self, run: Run, cleaner: LineCleaner) -> None:
        """Let `run` take what has been skipped; nothing is forgotten."""
        if self.empty:
            return
        held = sorted((line for flood in self._held.values() for line in flood.lines), key=lambda line: line[0][0])
        for raw, stamped in held:
            _glance(run, cleaner, stamped)
            for line in cleaner.clean(*raw):
                run.take(line)
        for flood in self._held.values():
            if flood.dropped and any(RETRACTION.search(line.text) for line in cleaner.clean(0, flood.lines[-1][0][1])):
                run.throughput.retractions += flood.dropped
        if self._last is not None or not held:
            _glance(run, cleaner, self._stamped)
            _glance(run, cleaner, self._last)

    def settled(self) -> None:
        """What was skipped has been caught up with."""
        self._held.clear()
        self._last = self._stamped = None

    def caught_up(self, shape: bytes) -> None:
        """A line of `shape` is read next: forget what was skipped, and after another kind of line how many repeated."""
        self.settled()
        if self._kinds.get(shape) is not Kind.REPEATS:
            self._seen.clear()


def _last_few(shapes: list[bytes], wanted: dict[bytes, int]) -> list[int]:
    """Places of the last so many of each shape, in their order."""
    places = []
    at = len(shapes)
    while wanted:
        at -= 1
        left = wanted.get(shapes[at])
        if left is not None:
            places.append(at)
            wanted[shapes[at]] = left - 1
            if left == 1:
                del wanted[shapes[at]]
    return places[::-1]


def _has_stamp(raw: bytes) -> bool:
    return b"[20" in raw and _STAMP.search(raw) is not None


def _glance(run: Run, cleaner: LineCleaner, raw: _Raw | None) -> None:
    for line in cleaner.clean(*raw) if raw is not None else ():
        run.glance(line)


def kind_of(raw: bytes, known: str) -> Kind:
    """The kind of a raw line, whatever its numbers are; its status where it is an access line."""
    lines = LineCleaner(known).clean(0, raw)
    texts = [line.text for line in lines]
    if any(line.unclosed for line in lines):
        return Kind.READ
    if all(map(inert, texts)):
        return Kind.NOTHING
    return Kind.REPEATS if all(inert(text) or steady(text) for text in texts) else Kind.READ


def told_apart(lines: list[bytes], shapes: list[bytes]) -> None:
    """Put the status of access lines back into their shapes: it decides."""
    for index, shape in enumerate(shapes):
        at = shape.find(_STATUS)
        if at >= 0:
            shapes[index] = shape[:at] + lines[index][at : at + len(_STATUS)] + shape[at + len(_STATUS) :]


def has_status(shapes: bytes) -> bool:
    """Whether `told_apart` is needed."""
    return _STATUS in shapes
