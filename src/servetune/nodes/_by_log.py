"""Whose a process is that wiped its environment: the launch into whose log it writes, if it is of that session.

SGLang names its schedulers with setproctitle, which overwrites the environment that /proc shows. While the server lives
they are found by their session; when it was killed, nothing but their standard output leads back to the launch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from servetune.nodes._marks import Mark, Process

LOG_FILE = "server.log"
STATE_FILE = "server.json"


def boot_id() -> str:
    """Names this run of the kernel: unlike a machine-id never copied with an image, and never absent in a container."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def mark_by_log(process: Process) -> Mark | None:
    """The mark of the launch whose session and log it has; None when it is of no launch, or may not be looked at."""
    try:
        output = os.readlink(f"/proc/{process.pid}/fd/1")
        if not output.endswith(f"/{LOG_FILE}"):
            return None
        state = json.loads(Path(output).with_name(STATE_FILE).read_bytes())
        if (state["pid"], state["boot_id"]) != (process.session, boot_id()):
            return None
        return Mark(str(state["study"]), str(state["trial"]), str(state["starter"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
