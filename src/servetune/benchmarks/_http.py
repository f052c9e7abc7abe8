"""HTTP/1.1 answers without I/O: bytes in, body bytes out, at any split of the input.

Written by hand because of one property that a general parser does not show: whether the next byte begins a chunk
(`at_border`). With it the common read (one chunk holding one event) costs no parsing at all; see `_connection`.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Mapping

MAX_HEAD_BYTES = 65_536


class MalformedAnswerError(ValueError):
    """The bytes are not an HTTP/1.1 answer. Caught where the request is counted as failed."""


class _State(enum.Enum):
    HEAD = enum.auto()
    CHUNK_SIZE = enum.auto()
    CHUNK_DATA = enum.auto()
    CHUNK_END = enum.auto()
    TRAILERS = enum.auto()
    LENGTH = enum.auto()
    UNTIL_CLOSE = enum.auto()
    COMPLETE = enum.auto()


class AnswerReader:
    """One answer. `status` is 0 until the head is complete; `complete` once the body is."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[bytes, bytes] = {}
        self.keep_alive = True
        self.touched = False  # whether a byte has come
        self.excess = b""  # what came after the end of the answer
        self._state = _State.HEAD
        self._held = b""  # input that does not yet make a line
        self._left = 0  # bytes of the chunk or body still to come
        self._inflate: zlib._Decompress | None = None

    @property
    def complete(self) -> bool:
        """Whether the whole answer has been read."""
        return self._state is _State.COMPLETE

    @property
    def at_border(self) -> bool:
        """Whether the next byte begins a chunk of an uncompressed body."""
        return self._state is _State.CHUNK_SIZE and not self._held and self._inflate is None

    def feed(self, data: bytes) -> bytes:
        """The body bytes that `data` completes, decoded. Raises MalformedAnswerError."""
        self.touched = True
        pieces: list[bytes] = []
        rest = self._held + data if self._held else data
        self._held = b""
        while rest and self._state is not _State.COMPLETE:
            rest = self._step(rest, pieces)
        if self._state is _State.COMPLETE:
            self.excess, self._held = self._held + rest, b""
        body = b"".join(pieces)
        return self._inflated(body) if self._inflate is not None and body else body

    def end_of_input(self) -> bool:
        """The connection was closed. True when that completes the answer, False when the answer is cut."""
        if self._state is _State.UNTIL_CLOSE:
            self._state = _State.COMPLETE
        self.keep_alive = False
        return self.complete

    def _step(self, rest: bytes, pieces: list[bytes]) -> bytes:
        if self._state is _State.HEAD:
            return self._read_head(rest)
        if self._state in (_State.CHUNK_DATA, _State.LENGTH):
            pieces.append(rest[: self._left])
            taken, self._left = min(len(rest), self._left), max(0, self._left - len(rest))
            if not self._left:
                self._state = _State.CHUNK_END if self._state is _State.CHUNK_DATA else _State.COMPLETE
            return rest[taken:]
        if self._state is _State.UNTIL_CLOSE:
            pieces.append(rest)
            return b""
        return self._read_line(rest)

    def _read_line(self, rest: bytes) -> bytes:
        """A line between chunks: a size, the empty line after a chunk, or a trailer."""
        line, found, after = rest.partition(b"\n")
        if not found:
            if len(rest) > MAX_HEAD_BYTES:
                raise MalformedAnswerError(f"a chunk head of more than {MAX_HEAD_BYTES} bytes")
            self._held = rest
            return b""
        line = line.rstrip(b"\r")
        if self._state is _State.CHUNK_SIZE:
            self._left = _chunk_size(line)
            self._state = _State.CHUNK_DATA if self._left else _State.TRAILERS
        elif self._state is _State.CHUNK_END:
            if line:
                raise MalformedAnswerError(f"{line[:20]!r} where a chunk ends")
            self._state = _State.CHUNK_SIZE
        elif not line:
            self._state = _State.COMPLETE
        return after

    def _read_head(self, rest: bytes) -> bytes:
        head, found, after = rest.partition(b"\r\n\r\n")
        if not found:
            if len(rest) > MAX_HEAD_BYTES:
                raise MalformedAnswerError(f"answer headers of more than {MAX_HEAD_BYTES} bytes")
            if not b"HTTP/1.".startswith(rest[:7]):
                raise MalformedAnswerError(f"the answer begins with {rest[:20]!r}, not with HTTP/1.")
            self._held = rest
            return b""
        status, headers = _parse_head(head)
        if 100 <= status < 200:
            return after
        self.status, self.headers = status, headers
        self._begin_body()
        return after

    def _begin_body(self) -> None:
        self.keep_alive = b"close" not in self.headers.get(b"connection", b"").lower()
        if self.headers.get(b"content-encoding", b"identity").lower() in (b"gzip", b"deflate"):
            self._inflate = zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, told apart by their first bytes
        if self.status in (204, 304):
            self._state = _State.COMPLETE
        elif b"chunked" in self.headers.get(b"transfer-encoding", b"").lower():
            self._state = _State.CHUNK_SIZE
        elif (length := self.headers.get(b"content-length")) is not None:
            if not length.isdigit():
                raise MalformedAnswerError(f"content-length is {length[:20]!r}")
            self._left = int(length)
            self._state = _State.LENGTH if self._left else _State.COMPLETE
        else:
            self._state = _State.UNTIL_CLOSE

    def _inflated(self, body: bytes) -> bytes:
        assert self._inflate is not None
        try:
            return self._inflate.decompress(body)
        except zlib.error as error:
            raise MalformedAnswerError(f"the compressed body cannot be read: {error}") from error


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        size = int(digits, 16)
    except ValueError:
        size = -1
    if size < 0:
        raise MalformedAnswerError(f"{line[:20]!r} where a chunk size was expected")
    return size


def _parse_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or len(words[1]) != 3 or not words[1].isdigit():
        raise MalformedAnswerError(f"{first[:40]!r} is not a status line")
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    return int(words[1]), headers
