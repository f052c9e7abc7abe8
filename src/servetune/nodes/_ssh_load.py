"""A program on the node that is talked with line by line: the load generator beside its server, a helper.

Its command travels as the first line of its input, to a shell of ours: the user's own login shell may be any (to csh a
line break within quotes is an error, to fish a backslash is none), and may print what it likes before.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets as random_words
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import paramiko

from servetune.core.errors import ConnectionLostError, ProgramEndedError
from servetune.core.node import Text
from servetune.nodes._marks import LOAD, Mark
from servetune.nodes._shell import under
from servetune.nodes._ssh_connect import close_channel
from servetune.nodes._ssh_link import Link

HELPERS = "servetune helper"  # stands for a study in the mark of what belongs to none
READY_S = 60.0  # to import numpy and pydantic from a cold disk
#: A helper that hears nothing for this long ends: the connection of a tuner whose machine died looks alive to sshd for
#: hours. Longer than an import from a slow disk, during which it does not listen.
HEARD_WITHIN_S = 900.0
HEARD_WITHIN = "SERVETUNE_HEARD_WITHIN_S"
_PINGS = 6  # within that time
_RECV_BYTES = 1 << 16
_STDERR_BYTES = 4000
_STATUS_S = 3.0  # the exit status comes after the end of the output
_READ_A_LINE = "exec /bin/sh -c 'IFS= read -r L && eval \"$L\"'"


class FarProgram:
    """Implements `core.node.LoadProgram` and `core.preflight.Helper`. Threads may share it for sending."""

    def __init__(
        self, link: Link, mark: Mark, argv: Sequence[str], activate: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._link = link
        self._held = b""
        self._lines: list[str] = []
        self._stderr = b""
        self._sending = threading.Lock()
        self._first = random_words.token_hex(12)  # what is printed before it is the login shell's
        self._begun = False
        self.ended = threading.Event()  # nobody talks with it any more
        self._ready = False
        variables = {**(environment or {}), **replace(mark, role=LOAD).environment()}
        exports = [f"export {shlex.quote(name)}={shlex.quote(value)}" for name, value in variables.items()]
        command = under(activate, f"exec {shlex.join(argv)}")
        script = "\n".join([*exports, f"printf '\\n%s\\n' {self._first}", f"exec /bin/sh -c {shlex.quote(command)}"])
        encoded = base64.b64encode(script.encode("utf-8", "surrogateescape")).decode()
        self._channel = link.channel(_READ_A_LINE, f'eval "$(echo {encoded} | base64 -d)"')

    @property
    def usable(self) -> bool:
        """Whether it can still be talked with."""
        return not self._channel.closed and not self._channel.exit_status_ready() and self._link.lives

    def send(self, line: str) -> None:
        """Say one line. Raises ConnectionLostError."""
        try:
            with self._sending:
                self._channel.settimeout(READY_S)
                self._channel.sendall(line.encode() + b"\n")
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._lost() from error

    def receive(self, timeout_s: float) -> list[str]:
        """Every line that has come, waiting `timeout_s` for the first; empty: none yet.

        Raises ConnectionLostError, ProgramEndedError when the program has ended by itself.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self._lines and (left_s := deadline_s - time.monotonic()) > 0:
            self._channel.settimeout(left_s)
            self._read()
        self._read_stderr()
        while self._channel.recv_ready():
            self._read()
        taken, self._lines = self._lines, []
        return taken

    def close(self) -> None:
        """End it: it leaves at the end of its input. Never raises."""
        self.ended.set()
        close_channel(self._channel)

    def _read(self) -> None:
        try:
            chunk = self._channel.recv(_RECV_BYTES)
            self._read_stderr()
        except TimeoutError:
            if not self._link.lives:
                raise self._lost() from None
            return
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._lost() from error
        if not chunk:
            raise self._lost()
        *lines, self._held = (self._held + chunk).split(b"\n")
        for line in lines:
            if self._begun:
                self._lines.append(line.decode("utf-8", "replace"))
            self._begun = self._begun or line == self._first.encode()

    def _read_stderr(self) -> None:
        """Its end is kept. What is not read would stop the program once the channel's window is full."""
        while self._channel.recv_stderr_ready():
            self._stderr = (self._stderr + self._channel.recv_stderr(_RECV_BYTES))[-_STDERR_BYTES:]

    def _lost(self) -> Exception:
        if self._link.lives and self._channel.status_event.wait(_STATUS_S) and self._channel.exit_status >= 0:
            self._read_stderr()
            last = self._stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it said nothing"]
            return ProgramEndedError(f"it ended with status {self._channel.exit_status}: {last[0]}")
        return ConnectionLostError(f"the connection to {self._link.target.host} broke")

    def await_ready(self) -> None:
        """Return once it listens; passes over what a login shell prints. Raises as `receive`."""
        if self._ready:
            return
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s:
            for line in self.receive(1.0):
                if line.startswith("{") and "ready" in json.loads(line):
                    self._ready = True
                    return
        raise ProgramEndedError(f"it was not ready within {READY_S:g} s")


def helper(
    link: Link,
    mark: Mark,
    argv: Sequence[str],
    env: Mapping[str, Text],
    activate: str,
    within_s: float = HEARD_WITHIN_S,
) -> FarProgram:
    """A program that belongs to no launch. It is kept alive by empty lines, and ends `within_s` after the last one.

    Secrets of `env` are left out: nothing filters what it says. Raises NodeUnreachableError.
    """
    plain = {name: text for name, text in env.items() if isinstance(text, str)}
    program = FarProgram(link, mark, argv, activate, {**plain, HEARD_WITHIN: f"{within_s:g}"})
    threading.Thread(target=_ping, args=(program, within_s / _PINGS), name="helper pings", daemon=True).start()
    return program


def _ping(program: FarProgram, every_s: float) -> None:
    with contextlib.suppress(ConnectionLostError):
        while not program.ended.wait(every_s):
            program.send("")
