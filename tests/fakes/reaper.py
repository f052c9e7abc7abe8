"""Ends what a test run leaves when it is cut off: by SIGKILL, a time limit, a lost terminal. Standard library only.

usage: reaper.py RUN FOLDER; standard input is a pipe from the test run, and its end is the run's end. Ended is who has
TEST_RUN=RUN in its environment, or FOLDER (the run's own, new one) in its command line, as sshd shows it.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

PASSES, PAUSE_S = 40, 0.25  # a start that is under way ends up in a process a moment later
QUIET = 8  # passes in a row that find nobody


def left(run: str, folder: str) -> list[int]:
    """Pids of this user's processes that belong to the run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words, environ = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            if f"TEST_RUN={run}".encode() in environ.split(b"\0") or f"{folder}/".encode() in words:
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def main(run: str, folder: str) -> None:
    quiet = QUIET - 1 if sys.stdin.read() else 0  # a run that says good-bye has nothing under way
    for _ in range(PASSES):
        found = left(run, folder)
        quiet = 0 if found else quiet + 1
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if quiet >= QUIET:
            return
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
