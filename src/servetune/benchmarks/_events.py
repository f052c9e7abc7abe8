"""Server-sent events: body bytes in, the data of each complete event out, at any split of the input.

Lines may end in LF, CR LF or CR; several data lines of one event are joined by LF; comments and other fields are
dropped (https://html.spec.whatwg.org/multipage/server-sent-events.html).
"""

from __future__ import annotations

import re

_BLANK_LINE = re.compile(rb"\n\n|\r\n\r\n|\r\r")


class EventSplitter:
    """Holds the beginning of an event until its blank line has come."""

    def __init__(self) -> None:
        self.held = b""

    def feed(self, body: bytes) -> list[bytes]:
        """The data of every event that `body` completes, in order."""
        self.held += body
        *complete, self.held = _BLANK_LINE.split(self.held)
        return [data for event in complete if (data := data_of(event))]


def data_of(event: bytes) -> bytes:
    """The data of one event without its closing blank line; empty when it has none."""
    lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
