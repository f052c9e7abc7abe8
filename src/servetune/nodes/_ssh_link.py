"""Running shell text on the node over one connection that is mended when it breaks.

Every script that is run here may be run twice: when the connection breaks, nobody knows how far the first got.
"""

from __future__ import annotations

import secrets as random_words
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import paramiko

from servetune.core.errors import NodeUnreachableError, NodeUnusableError
from servetune.nodes._gpus import Command
from servetune.nodes._ssh_auth import Secrets
from servetune.nodes._ssh_config import Target
from servetune.nodes._ssh_connect import CONNECT_S, Connection, close_channel, connect

RUN_S = 90.0  # for one script: a node that loads weights from a slow disk answers late
_RECV_BYTES = 1 << 18
_LOOK_S = 0.5
_SAID_BYTES = 200
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 15.0
_PATIENCE_AGAIN_S = 5.0
_ENDED_ALONE = 4

Note = Callable[[str], None]
Result = TypeVar("Result")


class Lost(Exception):
    """The connection broke in the middle of something; or only the session did, `alone`. Handled in this module."""

    def __init__(self, why: str, alone: bool = False) -> None:
        super().__init__(why)
        self.alone = alone


@dataclass(frozen=True)
class Output:
    """What a script printed, standard error included, and its exit status."""

    code: int
    data: bytes

    @property
    def text(self) -> str:
        """Decoded; bytes that are no UTF-8 survive a round trip."""
        return self.data.decode("utf-8", "surrogateescape")


class Link:
    """The connection to one node. Threads may share it; scripts run one after the other."""

    def __init__(self, target: Target, secrets: Secrets, patience_s: float, note: Note) -> None:
        self.target = target
        self._secrets = secrets
        self._patience_s = patience_s
        self._note = note
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._shell: _Shell | None = None
        self._was_connected = False
        self._broke_s: float | None = None  # when it was seen to be broken
        self._ended_alone = 0
        self._gave_up = False  # who tidies up after that need not wait as long again

    def run(self, script: str, timeout_s: float = RUN_S, patience_s: float | None = None) -> Output:
        """Run `script` and wait for its end; again when the connection breaks, which is mended for `patience_s`.

        Raises NodeUnreachableError, HostKeyError, NodeUnusableError when it does not end within `timeout_s`.
        """
        return self._patiently(lambda: self._open_shell().run(script, timeout_s), patience_s)

    def ask(self, argv: Sequence[str]) -> Command | None:
        """Run a program; None when the node does not have it. Raises as `run`, after a minute as well."""
        script = f"command -v {shlex.quote(argv[0])} >/dev/null || exit 127; timeout -k 5 60 {shlex.join(argv)}"
        done = self.run(script)
        if done.code in (124, 137):
            raise NodeUnusableError(
                f"{argv[0]} did not answer within 60 s on {self.target.host}; run it there by hand: when it hangs "
                "there, too, the driver or a file system does, and the node needs a person"
            )
        return None if done.code in (126, 127) else Command(done.code, done.text)

    def channel(self, command: str, first_line: str) -> paramiko.Channel:
        """A new session that runs `command`, for a conversation; whoever takes it sees it break with the connection.

        The command may be run twice, the first time with an input that ends. Raises as `run`.
        """

        def opened() -> paramiko.Channel:
            made = self._connect().transport.open_session(timeout=CONNECT_S)
            with ExitStack() as undo:
                undo.callback(close_channel, made)
                made.exec_command(command)
                made.settimeout(CONNECT_S)
                made.sendall(f"{first_line}\n".encode())
                undo.pop_all()
            return made

        return self._patiently(opened, None)

    def forward(self, port: int) -> paramiko.Channel:
        """A stream to a port of the node's loopback. Raises paramiko.SSHException when nobody listens there."""
        transport = self._patiently(self._connect, None).transport
        return transport.open_channel("direct-tcpip", ("127.0.0.1", port), ("127.0.0.1", 0), timeout=CONNECT_S)

    @property
    def lives(self) -> bool:
        """Whether the connection stands at this moment."""
        return self._connection is not None and self._connection.lives

    def close(self) -> None:
        """Let go of the connection; the next use makes another."""
        with self._lock:
            self._drop()

    def _patiently(self, work: Callable[[], Result], patience_s: float | None) -> Result:
        patience_s = self._patience_s if patience_s is None else patience_s
        if self._gave_up:
            patience_s = min(patience_s, _PATIENCE_AGAIN_S)
        began_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
        with self._lock:
            while True:
                try:
                    done = work()
                    break
                except (Lost, NodeUnreachableError, paramiko.SSHException, OSError, EOFError) as error:
                    self._count_ended(error)
                    self._break(str(error) or type(error).__name__)
                    waited_s = time.monotonic() - max(began_s, self._broke_s or began_s)
                    if not self._was_connected or waited_s >= patience_s:
                        self._gave_up = True
                        raise self._given_up(error, waited_s) from error
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self._ended_alone = 0
            self._mended()
        return done

    def _count_ended(self, error: Exception) -> None:
        """A shell that ends each time although the connection stands will not be better the next time."""
        self._ended_alone = self._ended_alone + 1 if isinstance(error, Lost) and error.alone else 0
        if self._ended_alone >= _ENDED_ALONE:
            self._ended_alone = 0
            raise NodeUnusableError(
                f"the shell on {self.target.host} ends in the middle of a command, again and again ({error}); see "
                f"whether {self.target.user} may log in there, whether the node is out of memory or processes, and "
                "whether the login shell's files end it"
            ) from error

    def _break(self, why: str) -> None:
        """The connection is of no use any more; said once."""
        self._drop()
        if self._was_connected and self._broke_s is None:
            self._broke_s = time.monotonic()
            self._note(f"the connection to {self.target.host} broke ({why}); trying again")

    def _mended(self) -> None:
        self._gave_up = False
        if self._broke_s is not None:
            self._note(f"{self.target.host} answers again after {time.monotonic() - self._broke_s:.0f} s")
            self._broke_s = None

    def _given_up(self, error: Exception, waited_s: float) -> Exception:
        if isinstance(error, NodeUnreachableError) and not self._was_connected:
            return error
        return NodeUnreachableError(
            f"{self.target} did not answer again within {waited_s:.0f} s ({error or type(error).__name__}); what runs "
            "there goes on running. Mend the connection, then resume: a running server is taken up again"
        )

    def _connect(self) -> Connection:
        if self._connection is not None and not self._connection.lives:
            self._break("it was closed by the other end")
        if self._connection is None:
            self._connection = connect(self.target, self._secrets)
            self._was_connected = True
        return self._connection

    def _open_shell(self) -> _Shell:
        connection = self._connect()
        if self._shell is None or not self._shell.usable:
            self._shell = _Shell(connection)
        return self._shell

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._shell = None


class _Shell:
    """A shell on the node that runs one script after the other: one round trip each, not the four of a new session."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channel = connection.transport.open_session(timeout=CONNECT_S)
        self._channel.settimeout(_LOOK_S)
        self._channel.exec_command("exec /bin/sh")
        self._token = random_words.token_hex(12)
        self._number = 0
        self.run("true", CONNECT_S)  # what the login shell's files print is passed over

    @property
    def usable(self) -> bool:
        """False once a script was given up or the connection broke."""
        return not self._channel.closed and self._connection.lives

    def run(self, script: str, timeout_s: float) -> Output:
        """Raises Lost, and NodeUnusableError when the script does not end in time."""
        self._number += 1
        end = f"{self._token}-{self._number}"
        # A group of its own, so that `exit` leaves only it, and that nothing in it reads the scripts that follow.
        text = f"(\n{script}\n) </dev/null 2>&1\nprintf '\\n%s %s\\n' {end} $?\n"
        with ExitStack() as undo:
            undo.callback(close_channel, self._channel)  # nobody could tell later which answer belongs to which script
            self._send(text.encode("utf-8", "surrogateescape"), time.monotonic() + timeout_s)
            output = self._receive(end.encode(), time.monotonic() + timeout_s, timeout_s)
            undo.pop_all()
        return output

    def _send(self, data: bytes, deadline_s: float) -> None:
        sent = 0
        while sent < len(data):
            try:
                sent += self._channel.send(data[sent : sent + _RECV_BYTES])
            except TimeoutError:
                self._check(deadline_s, 0.0)

    def _receive(self, end: bytes, deadline_s: float, timeout_s: float) -> Output:
        got = bytearray()
        mark = b"\n" + end + b" "
        while True:
            at = got.find(mark, max(0, len(got) - _RECV_BYTES - 64))
            if at >= 0 and got.endswith(b"\n") and len(got) > at + len(mark):
                return Output(int(got[at + len(mark) :]), bytes(got[:at]))
            while self._channel.recv_stderr_ready():  # of the login shell's files; it comes at any time
                self._channel.recv_stderr(_RECV_BYTES)
            try:
                chunk = self._channel.recv(_RECV_BYTES)
            except TimeoutError:
                self._check(deadline_s, timeout_s)
                continue
            if not chunk:
                time.sleep(_LOOK_S)  # the end of the connection shows a moment later than that of its sessions
                said = bytes(got[-_SAID_BYTES:]).decode("utf-8", "replace").strip()
                raise Lost(f"the session ended after {said!r}" if said else "the session ended", self._connection.lives)
            got += chunk

    def _check(self, deadline_s: float, timeout_s: float) -> None:
        if not self._connection.lives:
            raise Lost("it does not answer")
        if time.monotonic() > deadline_s:
            raise NodeUnusableError(
                f"the node did not finish a command within {timeout_s:.0f} s, although the connection stands: its disk "
                "or driver hangs, or it is overloaded; look at it, then resume"
            )
