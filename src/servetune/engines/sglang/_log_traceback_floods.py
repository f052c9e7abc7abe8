"""Tracebacks that follow one another by the thousand: which have been read before, and which of them change nothing.

A **unit** is the header of a traceback as the engine's logger prints it, and the lines behind it up to the next one
with a stamp. The places for tracebacks are bounded: once fatal ones fill them (`TracebackAssembler.is_full`), nothing
is left of a known unit that another one follows; of those that are not fatal as many are left as there are places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from servetune.engines.sglang._log_lines import Line, LineCleaner, is_dressed
from servetune.engines.sglang._log_notices import DEATH
from servetune.engines.sglang._log_tracebacks import HEADER, MAX_TRACES, Body, TracebackAssembler, is_fatal_header
from servetune.engines.sglang._log_words import shapes_of

#: Bodies that are remembered, and the longest of them in bytes; shapes of headers.
_BODIES, BODY_BYTES, _HEADERS, _HEADER_BYTES = 128, 64 * 1024, 512, 1024
#: With any of these a line is more than a line of a traceback.
NO_BODY = (b"\r", b"\x1b", b"\b", b"\xc2", b'{"', b"[20", b"Fatal Python", b"server_args=")
#: With any of these a header is more than that.
_NO_HEADER = ("server_args=", "Fatal Python error")
_END = HEADER.decode()
_HEADER_LINE = HEADER + b"\n"
#: Fewer units are read.
_LEAST = 4


class Header(NamedTuple):
    """What all headers of one shape are. `alone`: they announce a traceback, and nothing else."""

    alone: bool
    fatal: bool


class TracebackFloods:
    """Remembers the bodies of tracebacks and the shapes of their headers."""

    def __init__(self) -> None:
        self._bodies: dict[bytes, tuple[Body, Sequence[Line]]] = {}
        self._headers: dict[bytes, Header] = {}

    def body(self, text: bytes) -> tuple[Body, Sequence[Line]] | None:
        """What was remembered of a body, which is given without its last newline."""
        return self._bodies.get(text)

    def remember(self, text: bytes, body: tuple[Body, Sequence[Line]] | None) -> None:
        """Remember a body for the next time."""
        if body is None:
            return
        if len(self._bodies) >= _BODIES:
            self._bodies.clear()
        self._bodies[text] = body

    def skippable(self, block: bytes, at: int, cut: int, end: int, state: TracebackAssembler) -> tuple[int, int] | None:
        """Begin and end of units that need not be read if `state` was reached when all before them has been read.

        They stand between `at` and `end`; the first unit, which is read, begins before `cut`.
        """
        header = block.find(_HEADER_LINE, at, cut)
        if header < 0:
            return None
        units = self._units(block, block.rfind(b"\n", at, header) + 1 or at, end, state.is_full)
        kept = 1 if state.is_full else MAX_TRACES
        if len(units) < kept + _LEAST or not self._has_time(block, units[-kept]):
            return None
        return units[1], units[-kept]

    def _units(self, block: bytes, at: int, end: int, fatal: bool) -> list[int]:
        """Where known units begin that follow one another; fatal ones only if asked."""
        units = []
        while at < end:
            line_end = block.find(b"\n", at, end)
            header = self._header(block[at:line_end])
            body_end = block.find(b"\n[", line_end, end)
            known = body_end > line_end and block[line_end + 1 : body_end] in self._bodies
            if not known or not header.alone or (header.fatal and not fatal):
                break
            units.append(at)
            at = body_end + 1
        return units

    def _header(self, raw: bytes) -> Header:
        shape = shapes_of(raw)
        header = self._headers.get(shape)
        if header is None:
            header = _header(raw)
            if len(self._headers) >= _HEADERS:
                self._headers.clear()
            if len(raw) <= _HEADER_BYTES:
                self._headers[shape] = header
        return header

    def _has_time(self, block: bytes, at: int) -> bool:
        """Whether the time of a header can be read."""
        lines = LineCleaner().clean(0, block[at : block.index(b"\n", at)])
        return lines[0].stamp_s is not None


def _header(raw: bytes) -> Header:
    lines = LineCleaner().clean(0, raw) if raw.startswith(b"[20") and raw.endswith(HEADER) else ()
    if len(lines) != 1 or not lines[0].stamped or is_dressed(raw):
        return Header(False, False)
    text = lines[0].text
    alone = text.endswith(_END) and not DEATH.search(text) and not any(map(text.__contains__, _NO_HEADER))
    return Header(alone, is_fatal_header(text))
