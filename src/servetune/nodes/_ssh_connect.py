"""One SSH connection: through the jumps, host keys verified, authenticated."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from servetune.core.errors import NodeUnreachableError, SpecError
from servetune.nodes._ssh_config import Target
from servetune.nodes._ssh_keys import known_keys, negotiable, verify

CONNECT_S = 15.0
_LOG = "servetune.ssh"

# paramiko logs what this module raises; without a handler Python would print it over the live view
logging.getLogger(_LOG).addHandler(logging.NullHandler())
logging.getLogger(_LOG).propagate = False


@dataclass(frozen=True)
class Secrets:
    """Given by the user's environment; never shown, stored or logged."""

    password: str | None = field(default=None, repr=False)
    passphrase: str | None = field(default=None, repr=False)


class Connection:
    """An authenticated connection that asks every `alive_interval_s` whether the other end still lives."""

    def __init__(self, transport: paramiko.Transport, way: list[paramiko.Transport], target: Target) -> None:
        self.transport = transport
        self._way = way
        self._interval_s = target.alive_interval_s
        self._limit_s = target.alive_interval_s * target.alive_count
        self._heard_s = time.monotonic()
        threading.Thread(target=self._ask, name="ssh keepalive", daemon=True).start()

    @property
    def lives(self) -> bool:
        """False once it is closed, or has not answered for `alive_count` intervals."""
        return bool(self.transport.is_active()) and time.monotonic() - self._heard_s <= self._limit_s

    def close(self) -> None:
        """Close it with everything that runs over it. Never raises."""
        for transport in [self.transport, *reversed(self._way)]:
            with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                transport.close()

    def _ask(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while self.transport.is_active():
                asked_s = time.monotonic()
                self.transport.global_request("keepalive@openssh.com", wait=True)
                if self.transport.is_active():
                    self._heard_s = time.monotonic()
                time.sleep(max(0.0, min(self._interval_s, self._interval_s - (time.monotonic() - asked_s))))


def close_channel(channel: paramiko.Channel) -> None:
    """Close it, also when its connection is gone."""
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        channel.close()


def connect(target: Target, secrets: Secrets) -> Connection:
    """Connect and authenticate.

    Raises HostKeyError, NodeUnreachableError when it does not answer or lets nobody in, SpecError for a key file that
    cannot be used.
    """
    way: list[paramiko.Transport] = []
    with contextlib.ExitStack() as undo:
        for jump in target.jumps:
            way.append(_opened(jump, way[-1] if way else None, Secrets()))
            undo.callback(way[-1].close)
        connection = Connection(_opened(target, way[-1] if way else None, secrets), way, target)
        undo.pop_all()
    return connection


def _opened(target: Target, through: paramiko.Transport | None, secrets: Secrets) -> paramiko.Transport:
    transport = paramiko.Transport(_stream(target, through))
    transport.set_log_channel(_LOG)
    transport.daemon = True
    transport.banner_timeout = transport.auth_timeout = CONNECT_S
    with contextlib.ExitStack() as undo:
        undo.callback(transport.close)
        with _explained(target):
            known = known_keys(target.known_hosts, target.place)
            options = transport.get_security_options()
            options.key_types = negotiable(known, options.key_types)
            transport.start_client(timeout=CONNECT_S)
            key = transport.get_remote_server_key()
            verify(known, key.get_name(), key.asbytes(), target.place, target.known_hosts[0])
            _authenticate(transport, target, secrets)
        undo.pop_all()
    return transport


def _stream(target: Target, through: paramiko.Transport | None) -> Any:
    """A socket, or a channel through the last jump."""
    with _explained(target):
        if through is not None:
            return through.open_channel("direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=CONNECT_S)
        made = socket.create_connection((target.host, target.port), timeout=CONNECT_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made


@contextlib.contextmanager
def _explained(target: Target) -> Iterator[None]:
    try:
        yield
    except paramiko.AuthenticationException as error:
        way = f"-p {target.port} {target.user}@{target.host}"
        remedy = f"try `ssh {way}`, and see node.user, node.identity_file and ssh-agent"
        if isinstance(error, _NotLetIn) and error.passwords:
            remedy = (
                f"it takes passwords: install a key with `ssh-copy-id {way}`, or write `password: {{from_env: NAME}}` "
                f"under node: and export NAME; else {remedy}"
            )
        raise NodeUnreachableError(f"{target} does not let {target.user} in: {error}; {remedy}") from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise NodeUnreachableError(
            f"{target} cannot be reached: {why}; try `ssh -p {target.port} {target.user}@{target.host}`, and see "
            "node.host, node.port and node.jump"
        ) from error


def _authenticate(transport: paramiko.Transport, target: Target, secrets: Secrets) -> None:
    """Keys of the files, then of the agent, then the password. Raises the last refusal, or why none could be tried."""
    locked: list[str] = []
    with _agent_keys(target.use_agent) as agent:
        let_in, refused = _try_keys(transport, target.user, [*_file_keys(target, secrets, agent, locked), *agent])
    if let_in:
        return
    if secrets.password is not None:
        try:
            transport.auth_password(target.user, secrets.password)
        except paramiko.AuthenticationException as error:
            raise paramiko.AuthenticationException("neither a key nor the password (node.password) is taken") from error
        return
    if locked:
        raise SpecError(
            f"{', '.join(locked)} is encrypted: load it into an agent with `ssh-add {locked[0]}`, or write "
            "`passphrase: {from_env: NAME}` under node:"
        )
    files = ", ".join(str(file) for file in target.identity_files)
    why = str(refused or f"there is no key to offer (none of {files}, and no agent)")
    raise _NotLetIn(why, _takes_passwords(transport, target.user))


class _NotLetIn(paramiko.AuthenticationException):
    """By keys; `passwords`: whether the server would ask for one."""

    def __init__(self, why: str, passwords: bool) -> None:
        super().__init__(why)
        self.passwords = passwords


def _takes_passwords(transport: paramiko.Transport, user: str) -> bool:
    try:
        transport.auth_none(user)
    except paramiko.BadAuthenticationType as error:
        return not {"password", "keyboard-interactive"}.isdisjoint(error.allowed_types)
    except (paramiko.SSHException, OSError, EOFError):
        return False  # it has hung up after so many tries
    return False


def _try_keys(
    transport: paramiko.Transport, user: str, keys: Sequence[paramiko.PKey]
) -> tuple[bool, paramiko.AuthenticationException | None]:
    """(Whether one of them was enough, the last refusal)."""
    refused: paramiko.AuthenticationException | None = None
    tried: set[bytes] = set()
    for key in keys:
        if key.asbytes() in tried:
            continue
        tried.add(key.asbytes())
        try:
            if not transport.auth_publickey(user, key):
                return True, None
        except paramiko.AuthenticationException as error:
            refused = error
    return False, refused


@contextlib.contextmanager
def _agent_keys(wanted: bool) -> Iterator[list[paramiko.PKey]]:
    """The agent's keys while it lasts: they sign through its socket, which is closed afterwards."""
    try:
        agent = paramiko.Agent() if wanted else None
        keys: list[paramiko.PKey] = [] if agent is None else list(agent.get_keys())
    except (paramiko.SSHException, OSError):
        agent, keys = None, []
    try:
        yield keys
    finally:
        if agent is not None:
            agent.close()


def _file_keys(
    target: Target, secrets: Secrets, agent: list[paramiko.PKey], locked: list[str]
) -> Iterator[paramiko.PKey]:
    """Keys of the identity files; for an encrypted one the agent's, where it holds it. Locked ones are noted."""
    for file in target.identity_files:
        if not file.is_file():
            continue
        try:
            yield _key_of(file, secrets.passphrase)
        except paramiko.PasswordRequiredException:
            held = _held_by(agent, file)
            if held is None:
                locked.append(str(file))
            else:
                yield held


def _key_of(file: Path, passphrase: str | None) -> paramiko.PKey:
    """Raises PasswordRequiredException for an encrypted file without a passphrase, SpecError for anything else."""
    try:
        try:
            return paramiko.PKey.from_path(file)
        except TypeError as error:  # how the library says that the file is encrypted
            if passphrase is None:
                raise paramiko.PasswordRequiredException(str(file)) from error
            return paramiko.PKey.from_path(file, passphrase.encode())  # type: ignore[arg-type]  # the stubs want str, it wants bytes
    except paramiko.PasswordRequiredException:
        raise
    except (TypeError, ValueError, OSError, UnsupportedAlgorithm, paramiko.SSHException) as error:
        why = "the passphrase (node.passphrase) does not open it" if passphrase else str(error)
        raise SpecError(f"{file} cannot be used as a key (node.identity_file): {why}") from error


def _held_by(agent: list[paramiko.PKey], file: Path) -> paramiko.PKey | None:
    """The agent's key that belongs to an identity file, by its public half."""
    try:
        words = Path(f"{file}.pub").read_text(encoding="utf-8").split()
    except OSError:
        return None
    return next((key for key in agent if len(words) > 1 and key.get_base64() == words[1]), None)
