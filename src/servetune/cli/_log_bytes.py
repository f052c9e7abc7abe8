"""The bytes of a log as its server printed them: unpacked and decoded on the way, as a stream in bounded memory."""

from __future__ import annotations

import bz2
import codecs
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

CHUNK_BYTES = 1 << 20
#: Memory that an xz stream may ask for; `xz -9` needs 65 MiB.
_XZ_BYTES = 256 << 20
#: Bytes that tell all formats apart.
_MAGIC_BYTES = 6
#: Formats that the standard library does not read, and the program that does.
_FOREIGN = {
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dc"),
    b"PK\x03\x04": ("zip", "unzip -p"),
    b"PK\x05\x06": ("zip", "unzip -p"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -dc"),
    b"7z\xbc\xaf\x27\x1c": ("7z", "7z x -so"),
    b"\x1f\x9d": ("compress", "gzip -dc"),
}
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class UnreadableLogError(Exception):
    """Bytes that are no text and cannot be made one; the message completes "the log … "."""


class _Decompressor(Protocol):
    """One compressed stream; another may follow it in the same file."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


_Begin = Callable[[], _Decompressor]
_COMPRESSED: dict[bytes, tuple[str, _Begin]] = {
    b"\x1f\x8b": ("gzip", lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)),
    b"BZh": ("bzip2", bz2.BZ2Decompressor),
    b"\xfd7zXZ\x00": ("xz", lambda: lzma.LZMADecompressor(memlimit=_XZ_BYTES)),
}


class LogBytes:
    """Iterates over the log in `stream`. `cut`: the format whose data ended early; None where they did not.

    Raises UnreadableLogError for what cannot be unpacked. `has_nul`: whether NUL bytes came, which no text has.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.cut: str | None = None
        self.has_nul = False

    def __iter__(self) -> Iterator[bytes]:
        for chunk in _decoded(self._unpacked(_chunks(self._stream))):
            self.has_nul = self.has_nul or b"\0" in chunk
            yield chunk

    def _unpacked(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        head = _head(chunks)
        for magic, (name, program) in _FOREIGN.items():
            if head.startswith(magic):
                raise UnreadableLogError(
                    f"is packed with {name}; unpack it first: {program} FILE | servetune diagnose -"
                )
        for magic, (name, begin) in _COMPRESSED.items():
            if head.startswith(magic):
                yield from self._inflated(name, begin, magic, head, chunks)
                return
        yield head
        yield from chunks

    def _inflated(
        self, name: str, begin: _Begin, magic: bytes, data: bytes, chunks: Iterator[bytes]
    ) -> Iterator[bytes]:
        """Stream after stream, as `cat` and rotation put them behind one another; what follows the last is ignored."""
        while data.startswith(magic):
            decompressor = begin()
            while not decompressor.eof:
                try:
                    unpacked = decompressor.decompress(data, CHUNK_BYTES)
                except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
                    raise UnreadableLogError(f"cannot be unpacked as {name}: {error}") from error
                if unpacked:
                    yield unpacked
                data = getattr(decompressor, "unconsumed_tail", b"")
                if not (decompressor.eof or data) and getattr(decompressor, "needs_input", not unpacked):
                    data = next(chunks, b"")
                    if not data:
                        self.cut = name
                        return
            data = decompressor.unused_data.lstrip(b"\0")
            while len(data) < len(magic) and (more := next(chunks, b"")):
                data = (data + more).lstrip(b"\0")


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def _head(chunks: Iterator[bytes]) -> bytes:
    """The first chunk, or as many as hold the bytes that tell the format."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= _MAGIC_BYTES:
            break
    return head


def _decoded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """UTF-16 with a byte-order mark as UTF-8; a mark of UTF-8 is left out."""
    head = _head(chunks)
    if not head.startswith(_UTF16):
        yield head.removeprefix(codecs.BOM_UTF8)
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    yield decoder.decode(head).encode("utf-8", "replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "replace")
