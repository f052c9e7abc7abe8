"""A server that is started again and again: of a log of a crash loop only the last two lives matter.

A life begins with the arguments that the engine prints, where these show a new start (`Run.restarted_by`), and ends at
the next. Nothing is left of it but the command and the environment that were shown on the way. Whether it ends so, and
what it leaves, is the same for all lives of one **shape** (digits as zeros), apart from the few lines whose numbers
decide. So a life whose shape has been read before is skipped, if it is followed by another one that ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from servetune.core.space import Value
from servetune.engines.sglang._log_args import ARGUMENTS
from servetune.engines.sglang._log_blocks import BlockReader
from servetune.engines.sglang._log_run import Run
from servetune.engines.sglang._log_words import shapes_of

#: Bytes of lives that are remembered, with so much for each, and the longest of them.
ROOM, OVERHEAD, LONGEST = 16 << 20, 2048, 512 * 1024
#: Arguments that are no new start, within one life.
MOST_ARGUMENTS = 4
#: Lines in which numbers decide whether a life ends, or that are left of it (`_log_notices.STOP`, `Run.decided`).
NUMBERED = (b"ignal", b"xit code", b"rrno", b"launch_server", b"sglang serve", b"sglang::launch", b"export")
_ARGS = b"server_args="


class Left(NamedTuple):
    """What a life leaves to the next. `key` tells it apart."""

    key: bytes
    command: dict[str, Value]
    env: dict[str, str]

    @classmethod
    def to(cls, run: Run) -> Left:
        """What `run` was left by the one before."""
        return cls(repr((run.command, run.env)).encode(), dict(run.command), dict(run.env))

    def begin(self) -> Run:
        """A new run."""
        return Run(command=dict(self.command), env=dict(self.env))


#: What the text up to the next arguments leaves where these are no new start.
GOES_ON = Left(b"", {}, {})


class Life(NamedTuple):
    """From the arguments at `at` to those at `end`. `left`: to it; `leaves`: None until it is known."""

    at: int
    end: int
    left: Left
    shape: Shape
    key: tuple[bytes, ...]
    leaves: Left | None


class Shape:
    """Lives of one shape. `places`: which bytes decide. `known`: these and what was left to a life → what it leaves."""

    def __init__(self, shape: bytes, begin: int) -> None:
        """`begin`: behind the arguments, whose numbers do not count."""
        self.places = [*_statuses(shape, begin), *_numbered_lines(shape, begin)]
        if b"\\u" in shape or b"0m\n" in shape:
            self.places = [slice(0, len(shape))]
        self.known: dict[tuple[bytes, ...], Left] = {}

    def key(self, left: Left, text: bytes, at: int) -> tuple[bytes, ...]:
        """Of the life that begins at `at` in a text."""
        return (left.key, *[text[at + place.start : at + place.stop] for place in self.places])


class Block:
    """Whole lines, which begin at `offset` of the log, and the lines with arguments: where each begins and ends."""

    def __init__(self, offset: int, text: bytes) -> None:
        self.offset, self.text = offset, text
        self.starts = list(_starts(text))
        self.ends = [text.index(b"\n", start) + 1 for start in self.starts]
        self.shape = shapes_of(text) if len(self.starts) > 2 else b""

    def arguments(self, at: int) -> bytes:
        """The line."""
        return self.text[self.starts[at] : self.ends[at]]


class Lives:
    """Takes blocks of whole lines, skips known lives, and lets the reader take the others."""

    def __init__(self, reader: BlockReader) -> None:
        self._reader = reader
        self._shapes: dict[bytes, Shape] = {}
        self._room = ROOM

    def take(self, offset: int, text: bytes) -> None:
        """Whole lines, which begin at `offset` of the log."""
        block = Block(offset, text)
        if not block.shape:
            self._reader.take(offset, text)
            return
        self._reader.take(offset, text[: block.starts[0]])
        at, life = 0, None
        while at < len(block.ends):
            life = self._arguments(block, at, life)
            if life is not None and life.leaves is not None:
                life = self._skip(block, life, at)
                at = max(at, life.at)
            end = block.starts[at + 1] if at + 1 < len(block.starts) else len(text)
            self._reader.take(offset + block.ends[at], text[block.ends[at] : end])
            at += 1

    def _arguments(self, block: Block, at: int, life: Life | None) -> Life | None:
        """Let the reader take arguments at the end of `life`. Returns the life that they belong to."""
        reader, line = self._reader, block.arguments(at)
        before, loading = reader.run, reader.run.loading
        reader.take(block.offset + block.starts[at], line)
        certain = before.decided or before.over
        if not self._plain(block, at):
            return None
        if reader.run.previous is before:
            left = Left.to(reader.run)
            if certain and life is not None and life.end == at:
                self._learn(life, left)
            return self._life(block, at, left)
        if life is None or reader.run is not before or certain or loading:
            return None
        if life.end != at:
            return life if at < life.end else None
        self._learn(life, GOES_ON)
        return self._life(block, life.at, life.left)

    def _plain(self, block: Block, at: int) -> bool:
        """Whether arguments stand alone in their line, are of no rank, and nobody in particular printed them."""
        lines = self._reader.cleaner.peek(block.arguments(at))
        return len(lines) == 1 and not lines[0].source and not lines[0].rank

    def _learn(self, life: Life, leaves: Left) -> None:
        if life.leaves is None:
            self._spend(sum(map(len, life.key)))
            life.shape.known[life.key] = leaves

    def _skip(self, block: Block, life: Life, read: int) -> Life:
        """Skip known lives from `life`, whose arguments up to `read` were taken, but the last, which is returned.

        The reader is then behind the first arguments of that one, or where it was.
        """
        reader = self._reader
        while life.leaves is not None:
            following = self._life(block, life.end, life.leaves)
            if following is None or following.leaves is None:
                break
            life = following
        if life.at > read:
            reader.number += block.text.count(b"\n", block.ends[read], block.starts[life.at])
            reader.run = life.left.begin()
            reader.take(block.offset + block.starts[life.at], block.arguments(life.at))
        return life

    def _life(self, block: Block, at: int, left: Left) -> Life | None:
        """The one that begins at `at`, to which `left` was left, as far as its end is known.

        None where the next arguments are not in the block, or too far.
        """
        begin = block.starts[at]
        for following in range(at + 1, min(at + 1 + MOST_ARGUMENTS, len(block.ends))):
            end = block.starts[following]
            if self._reader.cleaner.learned or end - begin > LONGEST or not self._plain(block, following):
                return None
            text = block.shape[begin:end]
            shape = self._shapes.get(text)
            if shape is None:
                shape = Shape(text, block.ends[at] - begin)
                self._remember(text, shape)
            key = shape.key(left, block.text, begin)
            leaves = shape.known.get(key)
            if leaves is not GOES_ON:
                return Life(at, following, left, shape, key, leaves)
        return None

    def _remember(self, text: bytes, shape: Shape) -> None:
        self._spend(len(text))
        self._shapes[text] = shape

    def _spend(self, size: int) -> None:
        self._room -= size + OVERHEAD
        if self._room < 0:
            self._shapes.clear()
            self._room = ROOM


def _starts(block: bytes) -> Iterator[int]:
    """Where lines with arguments begin."""
    at = 0
    while (found := block.find(_ARGS, at)) >= 0:
        at = block.index(b"\n", found) + 1
        if ARGUMENTS.match(block, found):
            yield block.rfind(b"\n", 0, found) + 1


def _statuses(shape: bytes, begin: int) -> Iterator[slice]:
    """Of access lines."""
    for at in _places(shape, b'" 000', begin):
        yield slice(at, at + 5)


def _numbered_lines(shape: bytes, begin: int) -> Iterator[slice]:
    for words in NUMBERED:
        for at in _places(shape, words, begin):
            yield slice(shape.rfind(b"\n", 0, at) + 1, shape.find(b"\n", at))


def _places(text: bytes, words: bytes, begin: int) -> Iterator[int]:
    at = text.find(words, begin)
    while at >= 0:
        yield at
        at = text.find(words, at + len(words))
