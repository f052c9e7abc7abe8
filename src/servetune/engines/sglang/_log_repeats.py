"""Text that repeats byte for byte: a launcher in a loop that prints no time, dumps, a log that was pasted many times.

Reading is a function of the state and the text. After the same text has been read three more times, and each time the
state has changed in the same whole numbers by the same amounts, it will do so for ever: further copies are compared
with the text and counted. Copies in which decode lines stand are read, since their sample depends on their places.
"""

from __future__ import annotations

from servetune.engines.sglang._log_blocks import BlockReader
from servetune.engines.sglang._log_run import Run
from servetune.engines.sglang._log_state import numbers_of, with_numbers

#: The longest text whose repetition is looked for, its first bytes that are looked for, and how many finds are tried.
LONGEST, PROBE, FINDS = 1 << 20, 512, 8
#: So many copies have to follow at least.
LEAST = 5
#: Copies that are read before it is looked whether the state has settled. Lists of the state fill up on the way.
LOOKS = (1, 5, 20, 70, 110, 300)
_COMPARED = 256 * 1024
_SAMPLED = b"Decode batch"


def period_at(block: bytes, at: int) -> int:
    """Length of the text at `at` that follows itself at least `LEAST` times; 0 without one."""
    probe, found = block[at : at + PROBE], at
    for _ in range(FINDS):
        found = block.find(probe, found + 1, at + LONGEST + len(probe))
        if found < 0:
            return 0
        length = found - at
        if _follows_itself(block, at, length) and block[found - 1 : found] == b"\n":
            return 0 if block.find(_SAMPLED, at, found) >= 0 else length
    return 0


def _follows_itself(block: bytes, at: int, length: int) -> bool:
    reach = LEAST * length
    return at + reach + length <= len(block) and block[at : at + reach] == block[at + length : at + length + reach]


class Loop:
    """Copies of `text` that are counted, and the begin of the next one."""

    def __init__(self, text: bytes, run: Run, steps: list[int]) -> None:
        self._text = text
        self._many = text * (_COMPARED // len(text) + 1)
        self._run = run
        self._steps = steps
        self.copies = 0
        self._begun = 0  # bytes of the next copy that have been seen

    def take(self, block: bytes, at: int) -> int:
        """Count what of `block` goes on as before. Returns the place where it does not; the end of `block` at best."""
        rest = self._text[self._begun :]
        if not block.startswith(rest, at):
            return self._take_begin(block, at, rest)
        at += len(rest)
        self.copies, self._begun = self.copies + 1, 0
        for text in (self._many, self._text):
            while block.startswith(text, at):
                at += len(text)
                self.copies += len(text) // len(self._text)
        return self._take_begin(block, at, self._text)

    def _take_begin(self, block: bytes, at: int, rest: bytes) -> int:
        if len(block) - at < len(rest) and rest.startswith(block[at:]):
            self._begun += len(block) - at
            return len(block)
        return at

    @property
    def begun(self) -> bytes:
        """What has been seen of the copy after the last."""
        return self._text[: self._begun]

    def end(self, reader: BlockReader) -> None:
        """Put the reader behind the last whole copy."""
        _, numbers = numbers_of(self._run)
        now = [number + self.copies * step for number, step in zip(numbers, self._steps, strict=True)]
        reader.run = with_numbers(self._run, now)
        reader.number += self.copies * self._text.count(b"\n")


def settled(block: bytes, at: int, length: int, offset: int, reader: BlockReader) -> tuple[int, Loop | None]:
    """Read copies of the `length` bytes at `at` until further ones can be counted. Returns how many were read.

    `offset`: where `block` begins in the log.
    """
    text = block[at : at + length]
    copies = LEAST
    while block.startswith(text, at + copies * length):
        copies += 1
    read = 0
    for look in LOOKS:
        if look + 2 >= copies:
            break
        while read < look:
            reader.take(offset + at + read * length, text)
            read += 1
        states: list[tuple[str, Run, list[int]]] = []
        for _ in range(3):
            if states:
                reader.take(offset + at + read * length, text)
                read += 1
            reader.settle()
            if reader.run.native.is_open:
                return read, None
            states.append((reader.cleaner.learned, *numbers_of(reader.run)))
        loop = _loop(text, reader.run, states)
        if loop is not None:
            return read, loop
    return read, None


def _loop(text: bytes, run: Run, states: list[tuple[str, Run, list[int]]]) -> Loop | None:
    if any(state[:2] != states[0][:2] for state in states[1:]):
        return None
    first, second, third = (numbers for _, _, numbers in states)
    if not len(first) == len(second) == len(third):
        return None
    steps = [after - before for before, after in zip(second, third, strict=True)]
    return Loop(text, run, steps) if steps == [b - a for a, b in zip(first, second, strict=True)] else None
