"""Host keys: whether a server is the one that is known. Format of known_hosts: man 8 sshd, SSH_KNOWN_HOSTS FILE FORMAT.

Written by hand because paramiko passes over lines with a marker: a revoked key would look like an unknown one.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import shlex
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from servetune.core.errors import HostKeyError

REVOKED = "@revoked"
AUTHORITY = "@cert-authority"
_PRIVATE_MAGIC = b"openssh-key-v1\0"
_SIGNATURES = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}  # key type → what is negotiated for it


@dataclass(frozen=True)
class KnownKey:
    """One line that names a host. `marker`: empty, @revoked or @cert-authority."""

    marker: str
    key_type: str
    blob: bytes
    place: str  # file:line


def known_keys(files: Sequence[Path], place: str) -> tuple[KnownKey, ...]:
    """Every line of the files whose host patterns match `place` (`host`, or `[host]:port`)."""
    return tuple(key for file in files for key in _of_file(file, place.lower()))


def negotiable(known: Sequence[KnownKey], offered: Sequence[str]) -> tuple[str, ...]:
    """Host key algorithms in the order to ask for: those of known keys first, so that a known key is shown."""
    types = [key.key_type for key in known if not key.marker]
    first = [name for key_type in types for name in _SIGNATURES.get(key_type, (key_type,)) if name in offered]
    return tuple(dict.fromkeys([*first, *offered]))


def verify(known: Sequence[KnownKey], key_type: str, blob: bytes, place: str, file: Path) -> None:
    """Return only for the key that is known. Raises HostKeyError for an unknown, a changed or a revoked one."""
    shown = f"{key_type} {fingerprint(blob)}"
    revoked = [key for key in known if key.marker == REVOKED and key.blob == blob]
    if revoked:
        raise HostKeyError(
            f"the host key of {place} is REVOKED ({revoked[0].place}): {shown}. Somebody who has this key may pretend "
            "to be the node. Nothing was sent. Give the node a new key, and put that one into known_hosts"
        )
    plain = [key for key in known if not key.marker]
    if any(key.blob == blob for key in plain):
        return
    if plain:
        was = ", ".join(f"{key.key_type} {fingerprint(key.blob)} ({key.place})" for key in plain)
        raise HostKeyError(
            f"the host key of {place} has CHANGED: known is {was}, shown is {shown}. Either the node was installed "
            "anew or somebody stands in between. Nothing was sent. Ask whoever runs the node for its fingerprint; "
            f"if it is the new one, remove the old key with `ssh-keygen -R {shlex.quote(place)} -f "
            f"{shlex.quote(str(plain[0].place.rpartition(':')[0]))}` and start again"
        )
    hint = " (its certificate authority is known, but host certificates are not supported)" if known else ""
    line = f"{place} {key_type} {base64.b64encode(blob).decode()}"
    raise HostKeyError(
        f"the host key of {place} is unknown{hint}: {shown}. Compare it with what "
        f"`ssh-keygen -lf /etc/ssh/ssh_host_{_short(key_type)}_key.pub` prints on the node; if they are the same, "
        f"accept it with: `{_accepting(line, file)}`"
    )


def _accepting(line: str, file: Path) -> str:
    """The command that adds a line, whatever the file is like now."""
    at = shlex.quote(str(file))
    made = "" if file.parent.is_dir() else f"mkdir -p -m 700 {shlex.quote(str(file.parent))} && "
    try:
        whole = file.read_bytes()[-1:] in (b"", b"\n")
    except OSError:
        whole = True
    return f"{made}echo {shlex.quote(line)} >> {at}" if whole else f"printf '\\n%s\\n' {shlex.quote(line)} >> {at}"


def fingerprint(blob: bytes) -> str:
    """As `ssh-keygen -l` shows it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def public_blob(file: Path) -> bytes | None:
    """The public half of a key file, of its `.pub` beside it, or of an OpenSSH private key (where it lies open)."""
    for path in (file, Path(f"{file}.pub")):
        try:
            text = path.read_text(encoding="utf-8")
            words = text.split()
            if text.startswith("-----BEGIN OPENSSH PRIVATE KEY-----"):
                return _open_half(base64.b64decode("".join(text.strip().splitlines()[1:-1])))
            if len(words) > 1 and not text.startswith("-----"):
                return base64.b64decode(words[1], validate=True)
        except (OSError, ValueError, IndexError, struct.error):
            continue
    return None


def _open_half(data: bytes) -> bytes:
    """Of PROTOCOL.key in OpenSSH's sources: magic, cipher, kdf, its options, number of keys, public key."""
    at = len(_PRIVATE_MAGIC)
    if not data.startswith(_PRIVATE_MAGIC):
        raise ValueError("no OpenSSH private key")
    for _ in range(3):
        (size,) = struct.unpack_from(">I", data, at)
        at += 4 + size
    at += 4
    (size,) = struct.unpack_from(">I", data, at)
    return data[at + 4 : at + 4 + size]


def _short(key_type: str) -> str:
    return "rsa" if "rsa" in key_type else "ecdsa" if key_type.startswith("ecdsa") else "ed25519"


def _of_file(file: Path, place: str) -> Iterator[KnownKey]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for number, line in enumerate(lines, 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or not _names(words[0], place):
            continue
        try:
            yield KnownKey(marker, words[1], base64.b64decode(words[2], validate=True), f"{file}:{number}")
        except binascii.Error:
            continue


def _names(patterns: str, place: str) -> bool:
    if patterns.startswith("|1|"):
        return _hashed(patterns, place)
    words = patterns.lower().split(",")
    if any(word.startswith("!") and _matches(word[1:], place) for word in words):
        return False
    return any(not word.startswith("!") and _matches(word, place) for word in words)


def _matches(pattern: str, place: str) -> bool:
    """`*` and `?` only: the brackets of `[host]:port` are letters here."""
    return fnmatch.fnmatchcase(place, pattern.replace("[", "[[]"))


def _hashed(word: str, place: str) -> bool:
    try:
        _, _, salt, digest = word.split("|")
        made = hmac.new(base64.b64decode(salt), place.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(made, base64.b64decode(digest))
    except (ValueError, binascii.Error):
        return False
