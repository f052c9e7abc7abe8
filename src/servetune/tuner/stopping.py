"""Ctrl-C: once finishes cleanly (the current server is stopped, its trial runs again on resume), twice at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Set by the first INT or TERM; the tuner looks at it between two polls."""

    def __init__(self) -> None:
        self.requested = False

    def request(self) -> None:
        """Ask the tuner to stop at the next poll."""
        self.requested = True


class Interrupted(BaseException):
    """The person asked to stop; the current trial has no outcome and is run again on resume."""


@contextmanager
def signals(stop: StopRequest) -> Iterator[None]:
    """While inside, the first INT or TERM requests a stop and the second raises KeyboardInterrupt."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        stop.request()

    earlier = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
