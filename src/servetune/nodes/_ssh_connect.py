"""One SSH connection: through the jumps, host keys verified, authenticated."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import paramiko

from servetune.core.errors import NodeUnreachableError
from servetune.nodes._ssh_auth import NotLetIn, Secrets, authenticate
from servetune.nodes._ssh_config import Target
from servetune.nodes._ssh_keys import known_keys, negotiable, verify

CONNECT_S = 15.0
_LOG = "servetune.ssh"

# paramiko logs what this module raises; without a handler Python would print it over the live view
logging.getLogger(_LOG).addHandler(logging.NullHandler())
logging.getLogger(_LOG).propagate = False


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
            way.append(_opened(jump, way[-1] if way else None, replace(secrets, password=None)))
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
            authenticate(transport, target, secrets)
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
        if isinstance(error, NotLetIn) and error.hung_up:
            remedy = "name the right key as node.identity_file: it is tried first"
        elif isinstance(error, NotLetIn) and error.passwords:
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
