"""The node's processes, ports and files, looked at and ended through a link: the far side of `_ending` and `_ports`."""

from __future__ import annotations

import base64
import hashlib
import random
import shlex
import signal
import time
from collections.abc import Callable, Iterable, Sequence

from servetune.core.errors import NodeUnusableError
from servetune.nodes import _shell
from servetune.nodes._ending import reclaimed
from servetune.nodes._marks import Mark, Process, Snapshot, members
from servetune.nodes._ports import NEIGHBOURS, PREFERRED, SECOND_CHOICE, listeners_in
from servetune.nodes._segments import remove_segments, segments
from servetune.nodes._ssh_link import RUN_S, Link

_SNAPSHOTS = 5  # tries: a process list may be cut when the node is out of memory
_PORT_FREE_S = 5.0
_PORT_LOOK_S = 0.1


class FarMachine:
    """A `Machine` of `_ending`. With `patience_s` the connection is waited for that long, else as long as usual."""

    def __init__(self, link: Link, patience_s: float | None = None) -> None:
        self._link = link
        self._patience_s = patience_s

    def snapshot(self) -> Snapshot:
        """Everything of this user that runs on the node at this moment."""
        for _ in range(_SNAPSHOTS):
            done = self._link.run(_shell.snapshot(), patience_s=self._patience_s)
            try:
                return _shell.read_snapshot(done.data)
            except ValueError as error:
                said = f"{error}: {done.text[-200:]!r}"
        raise NodeUnusableError(f"the node's processes cannot be listed ({said}); look at /proc there, then resume")

    def send(self, process: Process, number: signal.Signals) -> None:
        """Signal exactly this process, never one that took over its pid. Nothing happens when it is gone."""
        self._link.run(_shell.send([process], number), patience_s=self._patience_s)

    def wait_for_exit(self, processes: Sequence[Process], timeout_s: float) -> None:
        """Return when all have exited (a zombie has) or after `timeout_s`."""
        self._link.run(_shell.wait_for_exit(processes, timeout_s), RUN_S + 2 * timeout_s, self._patience_s)


def far_free_port(link: Link) -> int:
    """As `_ports.free_port`, of the node. Raises NodeUnusableError."""
    taken = set(listeners_in(link.run(_shell.listening()).text))
    chance = random.SystemRandom()
    for candidates in (PREFERRED, SECOND_CHOICE):
        for port in chance.sample(candidates, 100):
            if taken.isdisjoint(port + offset for offset in (0, *NEIGHBOURS)):
                return port
    raise NodeUnusableError(
        "no free TCP port found in 30000–39999 of the node after 200 tries; see `ss -tlnp` there, and end who listens "
        "for nothing"
    )


class FarPortGuard:
    """As `_ports.PortGuard`, of the node."""

    def __init__(self, link: Link, port: int, was_free: bool | None = None) -> None:
        self._link = link
        self._port = port
        self._was_free = not self._inodes() if was_free is None else was_free

    def check(self) -> None:
        """Return once nothing listens, or what does is another launch's. Raises NodeUnusableError after 5 s."""
        if not self._was_free:
            return
        deadline_s = time.monotonic() + _PORT_FREE_S
        while inodes := self._inodes():
            if time.monotonic() > deadline_s:
                self._refuse(inodes)
                return
            time.sleep(_PORT_LOOK_S)

    def _inodes(self) -> set[str]:
        return listeners_in(self._link.run(_shell.listening()).text).get(self._port, set())

    def _refuse(self, inodes: set[str]) -> None:
        holders = {int(pid) for pid in self._link.run(_shell.holders(inodes)).text.split()}
        seen = FarMachine(self._link).snapshot()
        unmarked = {pid for pid in holders if pid not in seen.marks}
        if holders and not unmarked:
            return
        shown = "; ".join(str(seen.processes.get(pid, f"pid {pid}")) for pid in sorted(unmarked))
        raise NodeUnusableError(
            f"port {self._port} of the node is still listened on after the server was stopped, by "
            f"{shown or 'a process of another user'}. It does not carry this launch's mark and was left alone; "
            "end it by hand if it is a rest of the server, then resume"
        )


def pushed(link: Link, folder: str, data: bytes, suffix: str) -> str:
    """Path on the node of a file with this content, put there unless it is there already."""
    path = f"{folder}/{hashlib.sha256(data).hexdigest()[:24]}{suffix}"
    at = shlex.quote(path)
    if link.run(f"[ -f {at} ]").code == 0:
        return path
    text = base64.encodebytes(data).decode()
    script = f"mkdir -p {shlex.quote(folder)} && base64 -d > {at}.$$ <<'END' && mv {at}.$$ {at}\n{text}END"
    done = link.run(script)
    if done.code != 0:
        raise NodeUnusableError(
            f"{path} cannot be written on the node: {done.text.strip()[-300:]}; free space there, correct its owner, "
            "or name another node.workdir"
        )
    return path


def reclaimed_with_segments(link: Link, wanted: Callable[[Mark], bool]) -> Sequence[str]:
    """As `_ending.reclaimed`, and removes the shared memory of what it ends."""
    machine = FarMachine(link)
    held = segments_of(link, [member.process for member in members(machine.snapshot(), wanted)])
    said = reclaimed(machine, wanted)
    if held:
        link.run(remove_segments(held))
    return said


def segments_of(link: Link, processes: Iterable[Process]) -> set[tuple[int, str]]:
    """(Inode, path) of what processes hold in /dev/shm."""
    lines = [line.partition(" ") for line in link.run(segments(processes)).text.splitlines()]
    return {(int(inode), path) for inode, _, path in lines}


def marked(seen: Snapshot, marks: Iterable[Mark]) -> set[int]:
    """Pids of running processes that carry one of the marks."""
    wanted = {(mark.study, mark.starter) for mark in marks}
    return {pid for pid, mark in seen.marks.items() if (mark.study, mark.starter) in wanted}
