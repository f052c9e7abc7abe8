"""Decode, prefill and access lines: most of a long log. They are recognised and counted in bulk, on the raw bytes.

The numbers of decode lines are read from a sample: the first decode line in each stretch of the stream, and the
stretches double in length whenever the sample is full. So the sample depends on the log alone, not on its chunks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

#: Decode lines that are read closely, and the first length of a stretch in bytes.
SAMPLE = 1024
FIRST_STRETCH = 64
#: So many batches without a token are a standstill.
STANDS = 4

#: Whole lines of the kinds that are counted, one after another, as the logger prints them. Possessive: no way back.
RUN = re.compile(
    rb"(?:[^\[\n]{0,80}\[[^\]\n]{1,64}\] (?:(?:Decode|Prefill) batch[^\n]*|INFO:  [^\n]*\" 200 OK\r?)\n)++"
)
_LONGEST = 700
#: Each line of these kinds has one of these.
_COUNTED = (b"Decode batch", b"Prefill batch", b'" 200 OK')
_DECODE = re.compile(
    rb"#running-req: (?P<running>\d{1,9}).*?gen throughput \(token/s\): (?P<speed>\d{1,12}(?:\.\d{1,9})?)"
    rb"(?:, #queue-req: (?P<queue>\d{1,9}))?"
)
#: Before a kind of line that somebody only speaks of.
_QUOTES = (b"'", b'"', b"`")
_EAGER = b"graph: False, gen"
_PREFILL = re.compile(rb"#new-seq: (\d{1,9}).*?#running-req: (\d{1,9})")
_ACCEPT = re.compile(rb"accept len: (\d{1,9}(?:\.\d{1,9})?)")


def is_counted(lines: bytes, count: int) -> bool:
    """Whether none of `count` lines that match `RUN` holds a second entry of the log, or a traceback."""
    return lines.count(b"[") == count and b"Traceback" not in lines


def is_counted_line(line: bytes) -> bool:
    """Whether one line is counted, whatever its dress (colours, prefixes). `is_counted` takes no others."""
    at = max(map(line.find, _COUNTED))
    if at < 0 or b"Traceback" in line or line[at - 1 : at] in _QUOTES:
        return False
    return line.count(b"[") == 1 or (len(line) <= _LONGEST and b"[20" not in line[at:])


class CountedPlaces:
    """Finds the lines of a block that may be counted; each byte is searched once."""

    def __init__(self, block: bytes) -> None:
        self._block = block
        self._next = dict.fromkeys(_COUNTED, -1)

    def line_of_next(self, at: int) -> int:
        """Begin of the next such line from `at` (the begin of a line) on; the length of the block without one."""
        block, places = self._block, self._next
        for words, place in places.items():
            if place < at:
                found = block.find(words, at)
                places[words] = found if found >= 0 else len(block)
        nearest = min(places.values())
        return max(at, block.rfind(b"\n", at, nearest) + 1) if nearest < len(block) else nearest


class Decode(NamedTuple):
    """Numbers of one decode line. `offset`: where it begins in the stream."""

    offset: int
    tokens_per_s: float
    running: int
    queued: int
    accepted: float | None
    eager: bool = False  # without a CUDA graph


@dataclass(slots=True)
class Throughput:
    """Counts over all decode lines, and a thinned sample of their numbers."""

    decode_lines: int = 0
    eager_lines: int = 0
    prefill_lines: int = 0
    retractions: int = 0
    first_decode: tuple[int, bytes] | None = None
    first_eager: tuple[int, bytes] | None = None
    last_decode: bytes = b""
    last_prefill: bytes = b""
    stretch: int = FIRST_STRETCH
    next_offset: int = 0  # from here on the next decode line belongs to the sample
    sample: list[Decode] = field(default_factory=list)

    def take(self, lines: bytes, count: int, offset: int, first_number: int) -> int:
        """Count `count` whole lines that begin at `offset` of the stream. Returns how many of them are decode lines."""
        found = lines.count(b"Decode batch")
        if found < count:
            prefills = lines.count(b"Prefill batch")
            self.prefill_lines += prefills
            if prefills:
                self.last_prefill = _line_at(lines, lines.rfind(b"Prefill batch"))[1][:1000]
        if not found:
            return 0
        self.decode_lines += found
        if eager := lines.count(_EAGER):
            self.eager_lines += eager
            if self.first_eager is None:
                begin, line = _line_at(lines, lines.find(_EAGER))
                self.first_eager = (first_number + lines.count(b"\n", 0, begin), line[:1000])
        if self.first_decode is None:
            begin, line = _line_at(lines, lines.find(b"Decode batch"))
            self.first_decode = (first_number + lines.count(b"\n", 0, begin), line[:1000])
        self.last_decode = _line_at(lines, lines.rfind(b"Decode batch"))[1][:1000]
        self._sample(lines, offset)
        return found

    def _sample(self, lines: bytes, offset: int) -> None:
        while True:
            at = lines.find(b"Decode batch", max(0, self.next_offset - offset))
            if at < 0:
                return
            _, line = _line_at(lines, at)
            self.next_offset = (offset + at) // self.stretch * self.stretch + self.stretch
            self._read(line, offset + at)

    def _read(self, line: bytes, offset: int) -> None:
        decode = _decode(line, offset)
        if decode is None:
            return
        self.sample.append(decode)
        while len(self.sample) >= SAMPLE:
            self._thin()

    def _thin(self) -> None:
        """Double the stretches; the first of each stays."""
        self.stretch *= 2
        kept: dict[int, Decode] = {}
        for decode in self.sample:
            kept.setdefault(decode.offset // self.stretch, decode)
        self.sample = list(kept.values())
        self.next_offset = self.sample[-1].offset // self.stretch * self.stretch + self.stretch

    @property
    def last(self) -> Decode | None:
        """The last decode line, as number 0."""
        return _decode(self.last_decode, 0)

    @property
    def most_running(self) -> int:
        """Most requests that ran at once on the scheduler that logs; with the last prefill's new ones."""
        prefill = _PREFILL.search(self.last_prefill)
        filled = sum(map(int, prefill.groups())) if prefill else 0
        return max((one.running for one in (*self.sample, *filter(None, (self.last,)))), default=filled)

    @property
    def stands(self) -> bool:
        """Whether the last batches that were read closely, and the last one, had requests and generated nothing."""
        latest = [*self.sample[-STANDS:], *filter(None, (self.last,))]
        return len(latest) > STANDS and all(one.running and not one.tokens_per_s for one in latest)

    @property
    def accept_length(self) -> float | None:
        """Median number of tokens accepted per speculative step; None without speculation."""
        lengths = [decode.accepted for decode in self.sample if decode.accepted is not None]
        return median(lengths) if lengths else None

    def facts(self) -> dict[str, Any]:
        """`{decode_lines, prefill_lines, gen_tokens_per_s: {last, median, max}, eager_decode_share, …}`."""
        facts: dict[str, Any] = {
            "decode_lines": self.decode_lines,
            "prefill_lines": self.prefill_lines,
            "retractions": self.retractions,
        }
        if self.decode_lines:
            facts["eager_decode_share"] = round(self.eager_lines / self.decode_lines, 4)
        if self.sample:
            speeds = [decode.tokens_per_s for decode in self.sample]
            last = _DECODE.search(self.last_decode)
            facts["gen_tokens_per_s"] = {
                "last": float(last["speed"]) if last else speeds[-1],
                "median": median(speeds),
                "max": max(speeds),
            }
            facts["running_requests_max"] = max(decode.running for decode in self.sample)
            facts["queue_max"] = max(decode.queued for decode in self.sample)
        if self.accept_length is not None:
            facts["accept_length_median"] = self.accept_length
        return facts


def _decode(line: bytes, offset: int) -> Decode | None:
    match = _DECODE.search(line)
    if match is None:
        return None
    accept = _ACCEPT.search(line)
    accepted = float(accept.group(1)) if accept else None
    eager = _EAGER in line
    return Decode(offset, float(match["speed"]), int(match["running"]), int(match["queue"] or 0), accepted, eager)


def _line_at(lines: bytes, at: int) -> tuple[int, bytes]:
    """Begin and text of the line that holds position `at`."""
    begin = lines.rfind(b"\n", 0, at) + 1
    end = lines.find(b"\n", at)
    return begin, lines[begin : end if end >= 0 else len(lines)]
