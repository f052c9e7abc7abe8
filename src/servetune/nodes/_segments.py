"""Files in /dev/shm that a server of this machine holds: a killed one leaves them, and SGLang one at every stop."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable

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
        lines = [line.partition(" ") for line in self._run(segments(self._processes())).splitlines()]
        self._seen |= {(int(inode), path) for inode, _, path in lines}

    def remove(self) -> None:
        """Remove those noted that are still the same files and that nobody holds."""
        if self._seen:
            self._run(remove_segments(self._seen))
            self._seen.clear()


def segments(processes: Iterable[Process]) -> str:
    """Prints `inode path` of every segment in /dev/shm that one of the processes maps or holds open.

    Segments lie in /dev/shm itself and are younger than the first of the processes: what a person keeps there, such as
    the model's weights, is none.
    """
    found = sorted(processes, key=lambda process: process.start_ticks)
    if not found:
        return "true"
    looks = [f"cat /proc/{process.pid}/maps; ls -l /proc/{process.pid}/fd" for process in found]
    return "\n".join(
        [
            "while read -r K V; do [ $K = btime ] && BOOTED=$V; done < /proc/stat",
            f"SINCE=$((BOOTED + {found[0].start_ticks} / $(getconf CLK_TCK) - 1))",
            f"{{ {'; '.join(looks)}; }} 2>/dev/null | grep -v '(deleted)$' | grep -o '/dev/shm/[^/]*$' | sort -u |",
            "while IFS= read -r F; do",
            'M=$(stat -c %Y "$F" 2>/dev/null) && [ $M -ge $SINCE ] && stat -c \'%i %n\' "$F" 2>/dev/null; done; true',
        ]
    )


def remove_segments(seen: Iterable[tuple[int, str]]) -> str:
    """Removes those that are still the same files and that no process holds any more; prints each."""
    lines = ["HELD=$(cat /proc/[0-9]*/maps 2>/dev/null; ls -l /proc/[0-9]*/fd 2>/dev/null)"]
    for inode, path in sorted(seen):
        at = shlex.quote(path)
        lines.append(
            f'[ "$(stat -c %i {at} 2>/dev/null)" = {inode} ] && ! printf %s "$HELD" | grep -qF {at} && '
            f"rm -f {at} && echo {at}"
        )
    return "\n".join([*lines, "true"])
