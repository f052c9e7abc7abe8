"""How many connections this process may open."""

from __future__ import annotations

import resource

SPARE_FILES = 64  # of the tuner itself: database, logs, control requests


def allow_connections(wanted: int) -> list[str]:
    """Raise the soft limit of open files as far as needed and allowed. One sentence when that is not enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return []
    reach = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reach, hard))
    if reach >= needed:
        return []
    return [
        f"{wanted} connections need {needed} open files, and the hard limit here is {hard}: "
        f"raise it with `ulimit -Hn {needed}` in the shell that starts servetune"
    ]
