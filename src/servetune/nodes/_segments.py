"""Files in /dev/shm that a server of this machine holds: a killed one leaves them, and SGLang one at every stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from servetune.nodes import _shell
from servetune.nodes._marks import Process

FIRST_S, EVERY_S = 2.0, 15.0


class Segments:
    """Notes them while the server lives: after a crash they have no owner.

    `run`: runs shell text here and returns what it prints; `processes`: of the server, now.
    """

    def __init__(self, run: Callable[[str], str], processes: Callable[[], Iterable[Process]]) -> None:
        self._run, self._processes = run, processes
        self._seen: set[tuple[int, str]] = set()
        self._looked_s = time.monotonic() - EVERY_S + FIRST_S

    def look_now_and_then(self) -> None:
        """Look again when the last look was long ago."""
        if time.monotonic() - self._looked_s > EVERY_S:
            self.look()

    def look(self) -> None:
        """Note what is held now."""
        self._looked_s = time.monotonic()
        lines = [line.partition(" ") for line in self._run(_shell.segments(self._processes())).splitlines()]
        self._seen |= {(int(inode), path) for inode, _, path in lines}

    def remove(self) -> None:
        """Remove those noted that are still the same files and that nobody holds."""
        if self._seen:
            self._run(_shell.remove_segments(self._seen))
            self._seen.clear()
