"""A program on the node that is talked with line by line: the load generator beside its server."""

from __future__ import annotations

import json
import shlex
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
_RECV_BYTES = 1 << 16
_STDERR_BYTES = 4000
_STATUS_S = 3.0  # the exit status comes after the end of the output


class FarProgram:
    """Implements `core.node.LoadProgram`."""

    def __init__(
        self, link: Link, mark: Mark, argv: list[str], activate: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._link = link
        self._held = b""
        self._lines: list[str] = []
        variables = {**(environment or {}), **replace(mark, role=LOAD).environment()}
        marks = " ".join(shlex.quote(f"{name}={value}") for name, value in variables.items())
        command = under(activate, f"exec {shlex.join(argv)}")
        self._channel = link.channel(f"exec env {marks} /bin/sh -c {shlex.quote(command)}")
        self._ready = False

    @property
    def usable(self) -> bool:
        """Whether it can still be talked with."""
        return not self._channel.closed and not self._channel.exit_status_ready() and self._link.lives

    def send(self, line: str) -> None:
        """Say one line. Raises ConnectionLostError."""
        try:
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
        while self._channel.recv_ready():
            self._read()
        taken, self._lines = self._lines, []
        return taken

    def close(self) -> None:
        """End it: it leaves at the end of its input. Never raises."""
        close_channel(self._channel)

    def _read(self) -> None:
        try:
            chunk = self._channel.recv(_RECV_BYTES)
        except TimeoutError:
            if not self._link.lives:
                raise self._lost() from None
            return
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._lost() from error
        if not chunk:
            raise self._lost()
        *lines, self._held = (self._held + chunk).split(b"\n")
        self._lines += [line.decode("utf-8", "replace") for line in lines]

    def _lost(self) -> Exception:
        if self._link.lives and self._channel.status_event.wait(_STATUS_S) and self._channel.exit_status >= 0:
            said = b""
            while self._channel.recv_stderr_ready() and len(said) < _STDERR_BYTES:
                said += self._channel.recv_stderr(_RECV_BYTES)
            last = said.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it said nothing"]
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


def helper(link: Link, mark: Mark, argv: Sequence[str], env: Mapping[str, Text], activate: str) -> FarProgram:
    """A program that belongs to no launch. Secrets of `env` are left out: they would stand on a command line.

    Raises NodeUnreachableError.
    """
    plain = {name: text for name, text in env.items() if isinstance(text, str)}
    return FarProgram(link, mark, list(argv), activate, plain)
