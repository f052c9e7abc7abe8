"""Who we are: keys of files and of an agent, in the order in which OpenSSH's client would try them, then a password.

A server hangs up after a few wrong keys (MaxAuthTries), so the order decides whether the right one is ever asked.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm

from servetune.core.errors import SpecError
from servetune.nodes._ssh_config import Target
from servetune.nodes._ssh_keys import public_blob

_AGENT_S = 60.0  # it may ask a person


@dataclass(frozen=True)
class Secrets:
    """Given by the user's environment; never shown, stored or logged."""

    password: str | None = field(default=None, repr=False)
    passphrase: str | None = field(default=None, repr=False)


class NotLetIn(paramiko.AuthenticationException):
    """By keys. `passwords`: whether the server would ask for one; `hung_up`: after so many keys it heard no more."""

    def __init__(self, why: str, passwords: bool = False, hung_up: bool = False) -> None:
        super().__init__(why)
        self.passwords, self.hung_up = passwords, hung_up


def authenticate(transport: paramiko.Transport, target: Target, secrets: Secrets) -> None:
    """Raises NotLetIn, or SpecError when a key that could not be opened might have been the right one."""
    unopened: list[str] = []
    with _agent_keys(target.agent) as agent:
        tried = _Tried(transport, target.user)
        if tried.any_of(_in_order(target, secrets, agent, unopened)):
            return
    if secrets.password is not None:
        try:
            transport.auth_password(target.user, secrets.password)
        except paramiko.AuthenticationException as error:
            raise NotLetIn("neither a key nor the password (node.password) is taken") from error
        return
    if unopened:
        raise SpecError("; ".join(unopened))
    if not tried.names:
        files = ", ".join(str(file) for file in target.identity_files)
        why = f"there is no key to offer (none of {files}, and {_of_agent(target)})"
    else:
        why = f"{tried.refusal} offered: {', '.join(tried.names)}"
        missing = [str(file) for file in target.named_files if not file.exists()]
        why += f", and there is no {', '.join(missing)}" if missing else ""
    raise NotLetIn(why, _takes_passwords(transport, target.user))


def _of_agent(target: Target) -> str:
    if target.agent is None:
        return "no agent"
    return f"none of the agent {target.agent}" + (" is named: IdentitiesOnly" if target.identities_only else "")


class _Tried:
    """Keys that were offered to a server, each once."""

    def __init__(self, transport: paramiko.Transport, user: str) -> None:
        self._transport, self._user = transport, user
        self._blobs: set[bytes] = set()
        self.names: list[str] = []
        self.refusal = ""

    def any_of(self, keys: Iterator[tuple[str, paramiko.PKey]]) -> bool:
        """Whether one of them was enough. Raises NotLetIn when the server hangs up before all were asked."""
        for name, key in keys:
            if key.asbytes() in self._blobs:
                continue
            self._blobs.add(key.asbytes())
            try:
                if not self._transport.auth_publickey(self._user, key):
                    return True
            except paramiko.AuthenticationException as error:
                self.refusal = str(error)
            except (paramiko.SSHException, OSError, EOFError) as error:
                if not self.names:
                    raise
                raise self._hung_up() from error
            self.names.append(name)
            if not self._transport.is_active():
                raise self._hung_up()
        return False

    def _hung_up(self) -> NotLetIn:
        count = len(self.names)
        return NotLetIn(f"it hung up after {count} wrong keys (MaxAuthTries): {', '.join(self.names)}", hung_up=True)


def _in_order(
    target: Target, secrets: Secrets, agent: Sequence[paramiko.PKey], unopened: list[str]
) -> Iterator[tuple[str, paramiko.PKey]]:
    """(Name, key): the study's own, those of files that the agent holds, the agent's others, files.

    What cannot be opened is noted in `unopened`, with what to do about it.
    """
    own = [file for file in target.identity_files if file == target.own_file]
    rest = [file for file in target.identity_files if file != target.own_file]
    yield from _of_files(own, secrets, agent, unopened)
    for file in rest:
        if (held := _held_by(agent, file)) is not None:
            yield f"{file} by the agent", held
    if not target.identities_only:
        yield from ((f"{getattr(key, 'comment', '') or key.get_name()} of the agent", key) for key in agent)
    yield from _of_files(rest, secrets, agent, unopened)


def _of_files(
    files: Sequence[Path], secrets: Secrets, agent: Sequence[paramiko.PKey], unopened: list[str]
) -> Iterator[tuple[str, paramiko.PKey]]:
    """The agent's key where it holds that of a file: no passphrase is needed then."""
    for file in files:
        held = _held_by(agent, file)
        if held is not None:
            yield f"{file} by the agent", held
        elif file.is_file():
            try:
                yield str(file), _key_of(file, secrets.passphrase)
            except SpecError as error:
                unopened.append(str(error))


class _Agent(paramiko.agent.AgentSSH):
    """The agent at a socket, whose keys sign through it. Raises OSError, SSHException."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._socket = socket.socket(socket.AF_UNIX)
        with contextlib.ExitStack() as undo:
            undo.callback(self._socket.close)
            self._socket.settimeout(_AGENT_S)
            self._socket.connect(str(path))
            self._connect(self._socket)  # type: ignore[attr-defined]  # what a subclass is to call; the stubs lack it
            undo.pop_all()

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def _agent_keys(place: Path | None) -> Iterator[list[paramiko.PKey]]:
    """The agent's keys while it lasts: they sign through its socket, which is closed afterwards."""
    agent = None
    with contextlib.suppress(paramiko.SSHException, OSError):
        agent = None if place is None else _Agent(place)
    try:
        yield [] if agent is None else list(agent.get_keys())
    finally:
        if agent is not None:
            agent.close()


def _key_of(file: Path, passphrase: str | None) -> paramiko.PKey:
    """Raises SpecError, which says what to do."""
    if _starts_as(file).startswith((b"ssh-", b"ecdsa-", b"sk-")):
        raise SpecError(
            f"{file} is the public half of a key, and no agent has the private one: load it with `ssh-add`, or name "
            "the private file as node.identity_file"
        )
    try:
        try:
            return paramiko.PKey.from_path(file)
        except (TypeError, paramiko.PasswordRequiredException):  # a TypeError is how the library says "encrypted"
            if passphrase is None:
                raise SpecError(
                    f"{file} is encrypted: load it into an agent with `ssh-add {file}`, or write "
                    "`passphrase: {from_env: NAME}` under node: and export NAME"
                ) from None
            return paramiko.PKey.from_path(file, passphrase.encode())  # type: ignore[arg-type]  # the stubs want str, it wants bytes
    except (TypeError, ValueError, OSError, UnsupportedAlgorithm, paramiko.SSHException) as error:
        why = "the passphrase (node.passphrase) does not open it" if passphrase else str(error)
        raise SpecError(f"{file} cannot be used as a key (node.identity_file): {why}") from error


def _starts_as(file: Path) -> bytes:
    with contextlib.suppress(OSError), file.open("rb") as opened:
        return opened.read(6)
    return b""


def _held_by(agent: Sequence[paramiko.PKey], file: Path) -> paramiko.PKey | None:
    """The agent's key that belongs to an identity file, by its public half."""
    blob = public_blob(file) if agent else None
    return next((key for key in agent if key.asbytes() == blob), None)


def _takes_passwords(transport: paramiko.Transport, user: str) -> bool:
    try:
        transport.auth_none(user)
    except paramiko.BadAuthenticationType as error:
        return not {"password", "keyboard-interactive"}.isdisjoint(error.allowed_types)
    except (paramiko.SSHException, OSError, EOFError):
        return False  # it has hung up after so many tries
    return False
