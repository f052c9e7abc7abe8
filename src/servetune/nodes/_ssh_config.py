"""Where and as whom to connect: a host or alias, resolved as OpenSSH's client would from ~/.ssh/config.

Honoured: HostName, User, Port, IdentityFile, IdentitiesOnly, IdentityAgent, ProxyJump, UserKnownHostsFile,
HostKeyAlias, ServerAliveInterval, ServerAliveCountMax, Include. See man 5 ssh_config.
"""

from __future__ import annotations

import getpass
import glob
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko

from servetune.core.errors import SpecError

ALIVE_INTERVAL_S = 15.0
ALIVE_COUNT = 3
_KEY_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa")
_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_HEADER = re.compile(r"\s*(host|match)[\s=]", re.IGNORECASE)
_INCLUDE = re.compile(r"\s*include[\s=]+(.*)", re.IGNORECASE)
_DEEPEST = 16  # Includes within Includes, as in OpenSSH


@dataclass(frozen=True)
class Target:
    """One SSH server. `key_name`: what its host key is known by; `jumps`: servers to go through, in that order.

    `own_file`: the key that the study file names, among `identity_files`; `named_files`: those that somebody named.
    `agent`: its socket.
    """

    host: str
    port: int
    user: str
    key_name: str
    identity_files: tuple[Path, ...]
    agent: Path | None
    known_hosts: tuple[Path, ...]
    alive_interval_s: float
    alive_count: int
    jumps: tuple[Target, ...] = ()
    own_file: Path | None = None
    named_files: tuple[Path, ...] = ()
    identities_only: bool = False

    @property
    def place(self) -> str:
        """As known_hosts writes it."""
        return self.key_name if self.port == 22 else f"[{self.key_name}]:{self.port}"

    def __str__(self) -> str:
        way = f" through {', '.join(jump.place for jump in self.jumps)}" if self.jumps else ""
        return f"{self.user}@{self.host}:{self.port}{way}"


@dataclass(frozen=True)
class Wanted:
    """What the study file says; it goes before what the configuration file says."""

    host: str
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    jump: str | None = None
    known_hosts: str | None = None


def resolve(wanted: Wanted, config_file: Path) -> Target:
    """The server meant. Raises SpecError for a configuration that cannot be read or asks for what is not supported."""
    return _resolve(wanted, _read(config_file), ())


def _resolve(wanted: Wanted, config: paramiko.SSHConfig, on_the_way: Sequence[str]) -> Target:
    if wanted.host in on_the_way:
        raise SpecError(f"node.jump: {' → '.join([*on_the_way, wanted.host])} goes in a circle; see ProxyJump")
    found = _lookup(config, wanted.host)
    host = found.get("hostname", wanted.host)
    named = _identities(wanted.identity_file, found)
    return Target(
        host=host,
        port=wanted.port or int(found.get("port", 22)),
        user=wanted.user or found.get("user") or getpass.getuser(),
        key_name=found.get("hostkeyalias", host),
        identity_files=named or tuple(Path(f"~/.ssh/{name}").expanduser() for name in _KEY_NAMES),
        agent=_agent(str(found.get("identityagent", "SSH_AUTH_SOCK"))),
        known_hosts=_known_hosts(wanted.known_hosts, found),
        alive_interval_s=float(found.get("serveraliveinterval", 0)) or ALIVE_INTERVAL_S,
        alive_count=int(found.get("serveralivecountmax", ALIVE_COUNT)),
        jumps=_jumps(wanted, found, config, (*on_the_way, wanted.host)),
        own_file=named[0] if wanted.identity_file else None,
        named_files=named,
        identities_only=str(found.get("identitiesonly", "no")).lower() == "yes",
    )


def _jumps(
    wanted: Wanted, found: Mapping[str, Any], config: paramiko.SSHConfig, on_the_way: Sequence[str]
) -> tuple[Target, ...]:
    text = wanted.jump or found.get("proxyjump", "none")
    if text.lower() == "none":
        if wanted.jump is None and found.get("proxycommand", "none").lower() != "none":
            raise SpecError(
                f"the SSH configuration gives {wanted.host} a ProxyCommand, which is not supported; "
                "write ProxyJump there, or node.jump in the study file"
            )
        return ()
    jumps: list[Target] = []
    for word in text.split(","):
        user, _, place = word.strip().removeprefix("ssh://").rpartition("@")
        host, port = _split_port(place)
        jump = _resolve(Wanted(host, port, user or None, known_hosts=wanted.known_hosts), config, on_the_way)
        jumps += [*(jump.jumps if not jumps else ()), jump]
    return tuple(jumps)


def _split_port(place: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"\[?(.*?)\]?(?::(\d+))?", place) if place.count(":") <= 1 or place.startswith("[") else None
    if match is None:
        return place, None  # a bare IPv6 address
    return match.group(1), int(match.group(2)) if match.group(2) else None


def _identities(given: str | None, found: Mapping[str, Any]) -> tuple[Path, ...]:
    named = [*([given] if given else []), *found.get("identityfile", [])]
    return tuple(Path(name).expanduser() for name in named)


def _agent(word: str) -> Path | None:
    """Socket of the agent: `none`, a variable's name (with or without `$`), or a path."""
    if word.lower() == "none":
        return None
    path = os.environ.get(word.removeprefix("$"), "") if word == "SSH_AUTH_SOCK" or word[:1] == "$" else word
    return Path(path).expanduser() if path else None


def _known_hosts(given: str | None, found: Mapping[str, Any]) -> tuple[Path, ...]:
    """The first is where an unknown key may be accepted: never the bin that people name to have no such file."""
    if given:
        return (Path(given).expanduser(),)
    names = found.get("userknownhostsfile", _KNOWN_HOSTS).split()
    if set(names) <= {"none", "/dev/null"}:
        names = _KNOWN_HOSTS.split()
    return (*(Path(name).expanduser() for name in names), Path("/etc/ssh/ssh_known_hosts"))


def _lookup(config: paramiko.SSHConfig, host: str) -> Mapping[str, Any]:
    try:
        return dict(config.lookup(host))
    except (paramiko.SSHException, ImportError, ValueError) as error:
        raise SpecError(f"the SSH configuration for {host} cannot be used: {error}") from error


def _read(file: Path) -> paramiko.SSHConfig:
    config = paramiko.SSHConfig()
    if file.is_file():
        try:
            config.parse(io.StringIO("".join(_lines(file, 0))))
        except (paramiko.SSHException, OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{file} cannot be read: {error}") from error
    return config


def _lines(file: Path, depth: int) -> Iterator[str]:
    """The file with its Includes put in, each followed by the header of the block that it stands in."""
    header = "Host *\n"
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        include = _INCLUDE.match(line)
        if include is None:
            header = line if _HEADER.match(line) else header
            yield line if line.endswith("\n") else f"{line}\n"
            continue
        for pattern in include.group(1).split():
            at = Path(pattern.strip('"')).expanduser()
            for name in sorted(glob.glob(str(at if at.is_absolute() else file.parent / at))):
                if depth < _DEEPEST:
                    yield from _lines(Path(name), depth + 1)
        yield header
