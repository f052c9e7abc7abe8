"""Lease files on the node: who uses which GPU, for tuners that share no database.

One file a GPU, in a directory that every user of the node can write. A file is taken, renewed and given back under one
lock there, judged by the node's clock alone; its age says whether its owner still lives.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from servetune.core.errors import NodeBusyError, NodeError, NodeUnusableError
from servetune.nodes._shell import Fence
from servetune.nodes._ssh_link import Link
from servetune.nodes._starter import lives, this_tuner

TTL_S = 120
_RENEWALS = 4  # within the time that a lease lasts
_LOOK_S = 2.0
_MEASURING = "measuring"

#: Tokens of the leases that this process holds: one of this process that is not among them was left by a sitting that
#: could not reach the node at its end.
_HELD: set[str] = set()


class LeaseFiles:
    """The lease directory of one node."""

    def __init__(self, link: Link, folder: str) -> None:
        self._link = link
        self.folder = folder

    def take(self, names: Sequence[str], owner: Mapping[str, str]) -> tuple[str, dict[str, str], int] | None:
        """Take all of them or none. None when taken, else (name, owner, age in seconds) of one that is held."""
        dead: list[str] = []
        while True:
            done = self._link.run(self._text(_TAKE, names, owner, dead))
            words = done.text.strip().splitlines()
            if words and words[-1] == "taken":
                return None
            held = _held(words[-1] if words else "")
            if held is None:
                raise self._unwritable(done.text)
            name, other, age_s = held
            if other.get("token", "") in dead or not _dead(other):
                return name, other, age_s
            dead.append(other["token"])

    def renew(self, names: Sequence[str], owner: Mapping[str, str]) -> dict[str, str] | None:
        """Whose they are now when they are not ours any more; None when they are."""
        said = self._link.run(self._text(_RENEW, names, owner, ())).text.strip().splitlines()
        held = _held(said[-1] if said else "")
        return None if held is None else held[1]

    def give_back(self, names: Sequence[str], owner: Mapping[str, str], patience_s: float = 5.0) -> None:
        """Remove those that are ours."""
        self._link.run(self._text(_GIVE_BACK, names, owner, ()), patience_s=patience_s)

    def owners(self) -> list[tuple[str, dict[str, str]]]:
        """Names of leases that are not over, and whose they are. Changes nothing.

        Raises NodeUnusableError where no lease could be taken.
        """
        done = self._link.run(self._text(_LIST, (), {}, ()))
        if done.code != 0:
            raise self._unwritable(done.text)
        found = [_held(line) for line in done.text.splitlines()]
        return [held[:2] for held in found if held is not None and held[2] <= TTL_S and not _dead(held[1])]

    def _unwritable(self, said: str) -> NodeUnusableError:
        return NodeUnusableError(
            f"no lease can be written in {self.folder} on {self._link.target.host}: {said.strip()[-300:]}; its owner "
            f"mends that with `chmod 0777 {shlex.quote(self.folder)}`, or name another node.lease_dir"
        )

    def _text(self, script: str, names: Sequence[str], owner: Mapping[str, str], dead: Sequence[str]) -> str:
        values = {
            "D": self.folder,
            "NAMES": " ".join(names),
            "TOKEN": owner.get("token", ""),
            "LINE": json.dumps(dict(owner)),
            "DEAD": f" {' '.join(dead)} ",
        }
        assigned = "\n".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
        return f"{assigned}\nTTL={TTL_S}\n{_LOCK}\n{script}"


# No sticky bit: a lease of another user that is over has to be replaced. The lock is opened for reading only, since
# Linux may refuse O_CREAT on somebody else's file in a directory of everybody's (fs.protected_regular).
_LOCK = """
[ -d "$D" ] || (umask 0; mkdir -p -m 0777 "$D") || exit 1
[ -e "$D/lock" ] || (umask 0; : > "$D/lock") || exit 1
exec 9< "$D/lock" && flock -w 20 9 || exit 1
NOW=$(date +%s)
look() {
  F="$D/$1.json"; LINE_THERE=; AGE=0
  [ -f "$F" ] || return 1
  IFS= read -r LINE_THERE < "$F"; AGE=$((NOW - $(stat -c %Y "$F")))
}
mine() { case $LINE_THERE in *"\\"token\\": \\"$TOKEN\\""*) return 0;; esac; return 1; }
dead() {
  for T in $DEAD; do case $LINE_THERE in *"\\"token\\": \\"$T\\""*) return 0;; esac; done
  [ $AGE -gt $TTL ]
}
put() { (umask 022; printf '%s\\n' "$LINE" > "$D/.$1.$TOKEN" && mv -f "$D/.$1.$TOKEN" "$D/$1.json"); }
"""
_TAKE = """
for N in $NAMES; do
  if look $N && ! mine && ! dead; then echo "held $N $AGE $LINE_THERE"; exit 3; fi
done
for N in $NAMES; do put $N || exit 1; done
echo taken
"""
_RENEW = """
for N in $NAMES; do
  if look $N && ! mine; then echo "held $N $AGE $LINE_THERE"; exit 3; fi
  put $N || exit 1
done
"""
_GIVE_BACK = """
for N in $NAMES; do look $N && mine && rm -f "$D/$N.json"; done; true
"""
_LIST = """
[ -w "$D" ] || { echo "it is read-only for $(id -un)"; exit 1; }
for F in "$D"/*.json; do [ -f "$F" ] || continue; N=${F##*/}; N=${N%.json}; look $N && echo "held $N $AGE $LINE_THERE"
done; true
"""


class FarLease:
    """Held lease files, renewed by a thread until they are given back."""

    def __init__(self, files: LeaseFiles, names: Sequence[str], owner: Mapping[str, str]) -> None:
        self._files, self._names, self._owner = files, names, owner
        self._taken_by: dict[str, str] | None = None
        self._stop = threading.Event()
        _HELD.add(owner["token"])
        self._thread = threading.Thread(target=self._keep, name="node lease", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether somebody else took it while it was not renewed."""
        return self._taken_by is not None

    def check(self) -> None:
        """Raises NodeBusyError once somebody else has taken it."""
        if self._taken_by is not None:
            raise NodeBusyError(
                f"the node was taken over by {_named(self._taken_by)} while this tuner could not renew its lease in "
                f"{self._files.folder}; stop here, and resume when that one is done"
            )

    @property
    def fence(self) -> Fence | None:
        """What a start on the node looks for; None once it is given back."""
        if self._stop.is_set():
            return None
        files = tuple(f"{self._files.folder}/{name}.json" for name in self._names)
        return Fence(f"{self._files.folder}/lock", files, f'"token": "{self._owner["token"]}"')

    def renew(self) -> None:
        """Renew it now. Raises NodeBusyError when somebody else has it."""
        self._taken_by = self._files.renew(self._names, self._owner)
        self.check()

    def release(self) -> None:
        """Give it back. Idempotent; never raises: what cannot be given back now is void in two minutes."""
        if self._stop.is_set():
            return
        self._stop.set()
        _HELD.discard(self._owner["token"])
        try:
            self._files.give_back(self._names, self._owner)
        except NodeError:
            return

    def _keep(self) -> None:
        while not self.lost and not self._stop.wait(TTL_S / _RENEWALS):
            try:
                self._taken_by = self._files.renew(self._names, self._owner)
            except NodeError:
                continue  # the next round tries again

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def hold(files: LeaseFiles, names: Sequence[str], study: str) -> FarLease:
    """Take the leases for a study. Raises NodeBusyError naming who holds one."""
    owner = _owner(study)
    held = files.take(names, owner)
    if held is not None:
        name, other, age_s = held
        raise NodeBusyError(
            f"{name} of the node is in use by {_named(other)}, whose lease {files.folder}/{name}.json was renewed "
            f"{age_s} s ago. Stop that tuner, or wait for it; a lease that is not renewed for {TTL_S} s is void"
        )
    return FarLease(files, names, owner)


@contextmanager
def alone(files: LeaseFiles, study: str, go_on: Callable[[str], bool]) -> Iterator[bool]:
    """While it lasts no other study measures on the node. Waits for that as long as `go_on` allows; False: it did not.

    `go_on` is told who is waited for.
    """
    owner = _owner(study)
    while (held := files.take([_MEASURING], owner)) is not None:
        if not go_on(f"waiting for {_named(held[1])} to finish a level: node.measure_alone"):
            yield False
            return
        time.sleep(_LOOK_S)
    lease = FarLease(files, [_MEASURING], owner)
    try:
        yield True
    finally:
        lease.release()


def _owner(study: str) -> dict[str, str]:
    return {
        "token": uuid.uuid4().hex,
        "study": study,
        "tuner": this_tuner(),
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _named(owner: Mapping[str, str]) -> str:
    return (
        f"study {owner.get('study', '?')!r} (process {owner.get('pid', '?')} on host {owner.get('host', '?')}, since "
        f"{owner.get('since', '?')})"
    )


def _dead(owner: Mapping[str, str]) -> bool:
    if owner.get("tuner") == this_tuner():
        return owner.get("token") not in _HELD
    try:
        return lives(owner["tuner"]) is False
    except (KeyError, ValueError):
        return False


def _held(line: str) -> tuple[str, dict[str, str], int] | None:
    words = line.split(" ", 3)
    if len(words) != 4 or words[0] != "held":
        return None
    try:
        owner = json.loads(words[3])
    except ValueError:
        owner = {"study": words[3][:80]}
    return words[1], owner if isinstance(owner, dict) else {}, int(words[2])
