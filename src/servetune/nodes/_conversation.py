"""A helper process on this machine that is talked with in lines, with deadlines."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import IO, Protocol

from servetune.core.errors import ConversationError

GRACE_S = 3.0
#: No program has this much to say in one line.
_LONGEST_LINE = 1 << 26


class Process(Protocol):
    """The part of `subprocess.Popen` that is needed."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...


class LocalConversation:
    """Implements `core.preflight.Conversation` on two pipes. The process leads a session of its own."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._in, self._out = process, process.stdin, process.stdout
        self._to, self._from = self._in.fileno(), self._out.fileno()
        self._heard = b""
        os.set_blocking(self._to, False)

    def say(self, line: str) -> None:
        """Send one line. Raises ConversationError when the process is gone or does not read for a minute."""
        if self._in.closed:
            raise ConversationError("the helper process has ended")
        rest, until_s = memoryview((line + "\n").encode()), time.monotonic() + 60.0
        while rest:
            _, ready, _ = select.select([], [self._to], [], max(0.0, until_s - time.monotonic()))
            if not ready:
                self.close()
                raise ConversationError("the helper process does not read what it is told")
            try:
                rest = rest[os.write(self._to, rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._ended() from error

    def hear(self, timeout_s: float) -> str:
        """The next line. Raises ConversationError when the process ended, or says nothing for `timeout_s`."""
        if self._out.closed:
            raise ConversationError("the helper process has ended")
        until_s = time.monotonic() + timeout_s
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until_s - time.monotonic()))
            if not ready:
                self.close()
                raise ConversationError(f"the helper process did not answer within {timeout_s:g} s")
            chunk = os.read(self._from, 1 << 16)
            if not chunk or len(self._heard) > _LONGEST_LINE:
                raise self._ended()
            self._heard += chunk
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode("utf-8", "replace")

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

    def _ended(self) -> ConversationError:
        self.close()
        return ConversationError(f"the helper process ended (status {self._process.poll()})")
