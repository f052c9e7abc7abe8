"""A server that is started again and again: of a log of a crash loop only the last two lives matter.

A life begins with the arguments that the engine prints, where these show a new start (`Run.restarted_by`), and ends at
the next. Nothing is left of it but the command and the environment that were shown on the way. Whether it ends so, and
what it leaves, is the same for all lives of one **shape** (digits as zeros), apart from the few lines whose numbers
decide. So a life whose shape has been read before is skipped, and read later where it turns out to be the last but one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from servetune.core.space import Value
from servetune.engines.sglang._log_args import ARGUMENTS
from servetune.engines.sglang._log_blocks import BlockReader
from servetune.engines.sglang._log_life_ends import ends_for_certain
from servetune.engines.sglang._log_requests import shows_request
from servetune.engines.sglang._log_run import KNOWN_FLAGS, Run
from servetune.engines.sglang._log_words import shapes_of

#: Bytes of lives that are remembered, with so much for each, and the longest of them.
ROOM, OVERHEAD, LONGEST = 16 << 20, 2048, 512 * 1024
#: Arguments that are no new start, within one life.
MOST_ARGUMENTS = 4
#: Lines in which numbers decide whether a life ends, or that are left of it (`_log_notices.STOP`, `Run.decided`).
NUMBERED = (b"ignal", b"xit code", b"rrno", b"launch_server", b"sglang serve", b"sglang::launch", b"export")
_ARGS = b"server_args="
#: The shape of the logger's time, which decides nothing.
_STAMP = b"[0000-00-00 00:00:00"
#: Arguments as the logger of no rank prints them, and nothing else in their line.
_PLAIN = re.compile(rb"\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\] (?:[^\x00\x08\x1b\r\n\[\xc2]++|\[(?!0?m|\d{4}-))*+\n")
_PLAIN_BYTES = 32 * 1024
_LOST_ESCAPE = re.compile(rb"(?<!\x1b)\[0m")


class Left(NamedTuple):
    """What a life leaves to the next: the command and the environment that were shown so far."""

    command: dict[str, Value]
    env: dict[str, str]

    def begin(self, start: int) -> Run:
        """A new run, which is the server's start of that ordinal."""
        return Run(command=dict(self.command), env=dict(self.env), start=start)

    @property
    def is_long(self) -> bool:
        """Whether a run may have no room for more."""
        return len(self.command) + len(self.env) > KNOWN_FLAGS // 2


class Shown(NamedTuple):
    """What a life adds to what was left to it. `following`: the command and the environment of the next one."""

    command: dict[str, Value]
    env: dict[str, str]
    following: tuple[dict[str, Value], dict[str, str]] | None

    @classmethod
    def by(cls, run: Run) -> Shown:
        """What was shown during `run`."""
        return cls(run.own_command, run.own_env, run.following)

    def after(self, left: Left) -> Left:
        """What is left in the end, where `left` was left to the life."""
        if not (self.command or self.env or self.following):
            return left
        command, env = {**left.command, **self.command}, {**left.env, **self.env}
        return Left(self.following[0], {**env, **self.following[1]}) if self.following else Left(command, env)


NOTHING = Shown({}, {}, None)
#: What the text up to the next arguments shows where these are no new start.
GOES_ON = Shown({}, {}, None)


class Life(NamedTuple):
    """From the arguments at `at` to those at `end`. `left`: to it; `shown`: by it, None until it is known."""

    at: int
    end: int
    left: Left
    shape: Shape
    key: tuple[bytes, ...]
    shown: Shown | None


class Shape:
    """Lives of one shape. `places`: which bytes decide. `known`: these → what such a life shows.

    `certain`: it ends and shows nothing, whatever was before it.
    """

    def __init__(self, shape: bytes, begin: int) -> None:
        """`begin`: behind the arguments, whose numbers do not count."""
        self.known: dict[tuple[bytes, ...], Shown] = {}
        self.certain = ends_for_certain(shape[begin:])
        if self.certain:
            self.places = []
            return
        self.places = [*_statuses(shape, begin), *_numbered_lines(shape, begin), *_lost_escapes(shape)]
        if b"\\u" in shape or b"\0" in shape:
            self.places = [slice(0, len(shape))]

    def key(self, left: Left, text: bytes, at: int) -> tuple[bytes, ...]:
        """Of the life that begins at `at` in a text. Whether it was left a command decides whose the next one is."""
        return (b"1" if left.command else b"", *[text[at + place.start : at + place.stop] for place in self.places])


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

    def lines(self, begin: int, end: int) -> int:
        """Number of lines between two places; negative where the second is before the first."""
        return self.text.count(b"\n", begin, end) - self.text.count(b"\n", end, begin)


class Skipped(NamedTuple):
    """A life that was skipped behind `number` lines, and the run of the next one."""

    life: Life
    number: int
    successor: Run


class Lives:
    """Takes blocks of whole lines, skips known lives, and lets the reader take the others."""

    def __init__(self, reader: BlockReader) -> None:
        self._reader = reader
        self._shapes: dict[bytes, Shape] = {}
        self._room = ROOM
        self._skipped: Skipped | None = None

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
            if life is not None and life.shown is not None:
                at, life = self._skip(block, life, life.shown, at)
            end = block.starts[at + 1] if at + 1 < len(block.starts) else len(text)
            self._reader.take(offset + block.ends[at], text[block.ends[at] : end])
            at += 1
        self._read_skipped(block)

    def _arguments(self, block: Block, at: int, life: Life | None) -> Life | None:
        """Let the reader take arguments at the end of `life`. Returns the life that they belong to."""
        reader, line = self._reader, block.arguments(at)
        before, loading = reader.run, reader.run.loading
        reader.take(block.offset + block.starts[at], line)
        certain = before.decided or before.over
        if not self._plain(block, at):
            return None
        if reader.run.previous is before:
            if certain and life is not None and life.end == at:
                self._learn(life, Shown.by(before))
            return self._life(block, at, Left(dict(reader.run.command), dict(reader.run.env)))
        if life is None or reader.run is not before or certain or loading:
            return None
        if life.end != at:
            return life if at < life.end else None
        self._learn(life, GOES_ON)
        return self._life(block, life.at, life.left)

    def _plain(self, block: Block, at: int) -> bool:
        """Whether arguments stand alone in their line, are of no rank, and nobody in particular printed them."""
        start, end = block.starts[at], block.ends[at]
        if not self._reader.cleaner.learned and _PLAIN.match(block.text, start, min(end, start + _PLAIN_BYTES)):
            return True
        lines = self._reader.cleaner.peek(block.text[start:end])
        return len(lines) == 1 and not lines[0].source and not lines[0].rank

    def _learn(self, life: Life, shown: Shown) -> None:
        if life.shown is None:
            self._spend(sum(map(len, life.key)))
            life.shape.known[life.key] = shown

    def _skip(self, block: Block, life: Life, shown: Shown, read: int) -> tuple[int, Life | None]:
        """Skip known lives from `life`, which shows `shown` and whose arguments up to `read` were taken.

        Takes the next arguments. Returns their place and the life that they begin.
        """
        reader, start = self._reader, self._reader.run.start
        while True:
            left, start = shown.after(life.left), start + 1
            following = self._life(block, life.end, left)
            if following is None or following.shown is None:
                break
            life, shown = following, following.shown
        number = reader.number + block.lines(block.ends[read], block.starts[life.at])
        reader.number = number + block.lines(block.starts[life.at], block.starts[life.end])
        reader.run = left.begin(start)
        reader.take(block.offset + block.starts[life.end], block.arguments(life.end))
        self._skipped = Skipped(life, number, reader.run)
        return life.end, following

    def _read_skipped(self, block: Block) -> None:
        """Read the last life that was skipped, if it is the one before the last."""
        skipped, self._skipped = self._skipped, None
        if skipped is None or self._reader.run is not skipped.successor:
            return
        start, end = block.starts[skipped.life.at], block.starts[skipped.life.end]
        reader = BlockReader()
        reader.run = skipped.life.left.begin(skipped.successor.start - 1)
        reader.number = skipped.number
        reader.take(block.offset + start, block.text[start:end])
        reader.settle()
        skipped.successor.previous = reader.run

    def _life(self, block: Block, at: int, left: Left) -> Life | None:
        """The one that begins at `at`, to which `left` was left, as far as its end is known.

        None where the next arguments are not in the block, or too far.
        """
        begin = block.starts[at]
        if self._reader.cleaner.learned or left.is_long:
            return None
        for following in range(at + 1, min(at + 1 + MOST_ARGUMENTS, len(block.ends))):
            end = block.starts[following]
            if end - begin > LONGEST or not self._plain(block, following):
                return None
            text = block.shape[begin:end]
            shape = self._shapes.get(text)
            if shape is None:
                shape = Shape(text, block.ends[at] - begin)
                self._remember(text, shape)
            key = shape.key(left, block.text, begin)
            shown = NOTHING if shape.certain else shape.known.get(key)
            if shown is not GOES_ON:
                return Life(at, following, left, shape, key, shown)
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
        start = block.rfind(b"\n", 0, found) + 1
        if ARGUMENTS.match(block, found) and not shows_request(block[start:found]):
            yield start


def _statuses(shape: bytes, begin: int) -> Iterator[slice]:
    """Of access lines."""
    for at in _places(shape, b'" 000', begin):
        yield slice(at, at + 5)


def _numbered_lines(shape: bytes, begin: int) -> Iterator[slice]:
    for words in NUMBERED:
        for at in _places(shape, words, begin):
            start = shape.rfind(b"\n", 0, at) + 1
            yield slice(start + len(_STAMP) * shape.startswith(_STAMP, start), shape.find(b"\n", at))


def _lost_escapes(shape: bytes) -> Iterator[slice]:
    """What would be taken for one: only with a zero it may stand at the end of a line."""
    for match in _LOST_ESCAPE.finditer(shape) if b"[0m" in shape else ():
        yield slice(*match.span())


def _places(text: bytes, words: bytes, begin: int) -> Iterator[int]:
    at = text.find(words, begin)
    while at >= 0:
        yield at
        at = text.find(words, at + len(words))
