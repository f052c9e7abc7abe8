"""A helper process on this machine that is talked with in lines, with deadlines."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import IO, Protocol

from servetune.core.errors import ProgramEndedError

GRACE_S = 3.0
SEND_S = 60.0
_READ_BYTES = 1 << 16


class Process(Protocol):
    """The part of `subprocess.Popen` that is needed."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...


class LocalConversation:
    """Implements `core.preflight.Helper` on two pipes. The process leads a session of its own."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._in, self._out = process, process.stdin, process.stdout
        self._held = b""
        os.set_blocking(self._in.fileno(), False)

    def send(self, line: str) -> None:
        """Say one line. Raises ProgramEndedError when the process is gone or does not read for SEND_S."""
        if self._in.closed:
            raise ProgramEndedError("it has ended")
        rest, until_s = memoryview((line + "\n").encode()), time.monotonic() + SEND_S
        while rest:
            _, ready, _ = select.select([], [self._in], [], max(0.0, until_s - time.monotonic()))
            if not ready:
                raise ProgramEndedError("it does not read what it is told")
            try:
                rest = rest[os.write(self._in.fileno(), rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._ended() from error

    def receive(self, timeout_s: float) -> list[str]:
        """Every line that has come, waiting `timeout_s` for the first; empty: none yet. Raises ProgramEndedError."""
        if self._out.closed:
            raise ProgramEndedError("it has ended")
        lines: list[str] = []
        until_s = time.monotonic() + timeout_s
        while not lines:
            ready, _, _ = select.select([self._out], [], [], max(0.0, until_s - time.monotonic()))
            if not ready:
                return []
            chunk = os.read(self._out.fileno(), _READ_BYTES)
            if not chunk:
                raise self._ended()
            *whole, self._held = (self._held + chunk).split(b"\n")
            lines = [line.decode("utf-8", "replace") for line in whole]
        return lines

    def close(self) -> None:
        """Say no more, which ends it; after GRACE_S end it and what it started. Idempotent."""
        with contextlib.suppress(OSError):
            self._in.close()
        until_s = time.monotonic() + GRACE_S
        while self._process.poll() is None:
            if time.monotonic() > until_s:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            time.sleep(0.01)
        self._out.close()

    def _ended(self) -> ProgramEndedError:
        self.close()
        return ProgramEndedError(f"it ended with status {self._process.poll()}")
