"""TCP ports of this machine: which are free, and who listens."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from pathlib import Path

from servetune.core.errors import NodeUnusableError
from servetune.nodes._processes import mark_of, read

# Below the ports that Linux hands out to outgoing connections by default (32768 and up): none appears by accident
# between the moment when a port is chosen and the moment, minutes later, when the server binds it.
PREFERRED = range(30000, 32500)
SECOND_CHOICE = range(33000, 39700)

_PORT_FREE_S = 5.0

# With DP attention SGLang also listens on port+1 … port+6 and port+233 (dist_init), see its network options.
NEIGHBOURS = (1, 2, 3, 4, 5, 6, 233)


def free_port() -> int:
    """A port on which, as on those beside it that SGLang derives from it, nothing listens at this moment.

    Chosen at random: two tuners that choose at the same time must not meet. Raises NodeUnusableError.
    """
    chance = random.SystemRandom()
    for candidates in (PREFERRED, SECOND_CHOICE):
        for port in chance.sample(candidates, 100):
            if all(_can_bind(port + offset) for offset in (0, *NEIGHBOURS)):
                return port
    raise NodeUnusableError(
        "no free TCP port found in 30000–39999 after 200 tries; see `ss -tlnp`, and end who listens for nothing"
    )


def _can_bind(port: int) -> bool:
    for address in ("127.0.0.1", ""):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True


def listening_inodes(port: int) -> set[str]:
    """Socket inodes that listen on `port` of this machine, any address, IPv4 and IPv6."""
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            found |= listeners_in(Path(table).read_text()).get(port, set())
    return found


def listeners_in(tables: str) -> dict[int, set[str]]:
    """Port → inodes of the sockets that listen there. Format: man 5 proc, /proc/net/tcp; headers are passed over."""
    found: dict[int, set[str]] = {}
    for fields in map(str.split, tables.splitlines()):
        if len(fields) > 9 and fields[3] == "0A":
            found.setdefault(int(fields[1].rpartition(":")[2], 16), set()).add(fields[9])
    return found


def listening_pids(port: int) -> set[int]:
    """Processes that hold a listening socket on `port`, as far as this user may see them."""
    wanted = {f"socket:[{inode}]" for inode in listening_inodes(port)}
    return {pid for pid in _pids() if wanted & _open_files(pid)} if wanted else set()


def _pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _open_files(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry.path))
    return found


class PortGuard:
    """Remembers whether a port was free before a launch, and sees that it is free after it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._was_free = not listening_inodes(port)

    def check(self) -> None:
        """Return once nothing listens, or what does is another launch's. Raises NodeUnusableError after 5 s.

        A port that somebody held before the launch (the server then failed for it) is nobody's fault here.
        """
        if not self._was_free:
            return
        deadline_s = time.monotonic() + _PORT_FREE_S
        while listening_inodes(self._port):
            if time.monotonic() > deadline_s:
                self._refuse(listening_pids(self._port))
                return
            time.sleep(0.05)

    def _refuse(self, holders: set[int]) -> None:
        unmarked = {pid for pid in holders if mark_of(pid) is None}
        if holders and not unmarked:
            return
        shown = "; ".join(str(found) for pid in sorted(unmarked) if (found := read(pid)))
        raise NodeUnusableError(
            f"port {self._port} is still listened on after the server was stopped, by "
            f"{shown or 'a process of another user'}. It does not carry this launch's mark and was left alone; "
            "end it by hand if it is a rest of the server, then resume"
        )
