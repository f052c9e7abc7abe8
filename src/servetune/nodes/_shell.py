"""Shell text for a machine that is reached by a shell only, and the readers of what it prints.

Each function returns text for `sh -s` on standard input (so that nothing of it, a secret least of all, is seen in a
process list) in POSIX sh with the usual tools of Linux (coreutils, grep, util-linux). Nothing here runs it.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from servetune.core.errors import SpecError
from servetune.core.node import Exit
from servetune.nodes._marks import FILTER, KEEPER, ROLE_MARKER, Mark, Process, Snapshot, mark_in, process_in

LOG_FILE = "server.log"
_PID_FILE = "server.pid"  # "<pid> <start ticks>" of the session's leader
_EXIT_FILE = "server.exit"  # exit status as the shell tells it
_STATUS_OF_SIGNAL = 128

# Sets S and T to state and start ticks (fields 3 and 22) of process $1, empty without one; its name may hold ")".
_TICKS = 'ticks() { S= T=; { read -r L < "/proc/$1/stat"; } 2>/dev/null || return 0; set -- ${L##*) }; S=$1 T=${20}; }'


@dataclass(frozen=True)
class Detached:
    """A program to start so that it outlives the connection. `folder` (absolute) gets its log, pid and exit status.

    `output_filter`: a command that the output goes through (the log filter), with an environment of its own.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    mark: Mark
    folder: str
    activate: str = ""  # a shell line before the program, such as `. /root/ml-env/bin/activate`
    output_filter: Sequence[str] = ()
    filter_environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Status:
    """Of a detached server: its leader's pid and start ticks, how it ended if it did, its log's size in bytes."""

    pid: int
    start_ticks: int
    exit: Exit | None
    log_bytes: int


def start(launch: Detached) -> str:
    """Starts it in a session of its own; prints `started PID TICKS` of the session's leader, or why it did not.

    The leader is a shell that waits for the server and keeps its exit status: it takes the signals of a stop without
    ending from them. Leader, server and filter carry the mark.
    """
    folder = shlex.quote(launch.folder)
    marks = _assignments(replace(launch.mark, role=KEEPER).environment())
    script = _leader(launch)
    until = f"END_{hashlib.sha256(script.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
    return "\n".join(
        [
            f"mkdir -p {folder} && cd {folder} || exit 1",
            f"rm -f {_EXIT_FILE} {_PID_FILE} || exit 1",
            f": >> {LOG_FILE} || exit 1",
            # The script comes on standard input: an argument would show its secrets in the process list.
            # --fork and not &, with which a shell would make it ignore INT for good.
            f"{marks} setsid --fork sh -s <<'{until}' >/dev/null 2>&1",
            script,
            until,
            f"I=0; while [ $I -lt 250 ] && ! [ -s {_PID_FILE} ]; do sleep 0.02; I=$((I + 1)); done",
            f"read -r PID T < {_PID_FILE} || {{ echo 'the server could not be started'; exit 1; }}",
            'echo "started $PID $T"',
        ]
    )


def _leader(launch: Detached) -> str:
    server = _exec(launch.argv, {**launch.environment, **launch.mark.environment()}, "</dev/null")
    kept = f"echo $? > {_EXIT_FILE}.new; mv {_EXIT_FILE}.new {_EXIT_FILE}"
    lines = [
        "trap : INT TERM HUP",  # a handler ends with the exec of the server; an ignored signal would not
        _TICKS,
        f'ticks $$; echo "$$ $T" > {_PID_FILE}.new && mv {_PID_FILE}.new {_PID_FILE}',
        *([launch.activate] if launch.activate else []),
    ]
    if not launch.output_filter:
        return "\n".join([*lines, f"{server} >> {LOG_FILE} 2>&1", kept])
    passed = {**launch.filter_environment, **replace(launch.mark, role=FILTER).environment()}
    through = _exec(launch.output_filter, passed, f">> {LOG_FILE}")
    return "\n".join([*lines, f"{{ trap : INT TERM HUP; {server}; {kept}; }} 2>&1 | {through}"])


def _exec(argv: Sequence[str], environment: Mapping[str, str], redirection: str) -> str:
    exports = "".join(f"export {_assignment(name, value)}; " for name, value in environment.items())
    return f"( unset {ROLE_MARKER}; {exports}exec {shlex.join(argv)} {redirection} )"


def status(folder: str) -> str:
    """Prints what `read_status` reads."""
    return "\n".join(
        [
            f"cd {shlex.quote(folder)} || exit 1",
            _TICKS,
            f"read -r PID STARTED < {_PID_FILE} || exit 1",
            'ticks "$PID"',
            f"CODE=; [ -f {_EXIT_FILE} ] && read -r CODE < {_EXIT_FILE}",
            f"SIZE=$(wc -c < {LOG_FILE})",
            'ALIVE=gone; [ "$T" = "$STARTED" ] && [ "$S" != Z ] && ALIVE=alive',
            'echo "$PID $STARTED $ALIVE ${CODE:--} $SIZE"',
        ]
    )


def read_status(text: str) -> Status:
    """A leader that is gone without having kept an exit status was killed: its exit is not known."""
    pid, ticks, alive, code, size = text.split()
    known = None if code == "-" else _exit(int(code))
    return Status(int(pid), int(ticks), known or (None if alive == "alive" else Exit(code=None)), int(size))


def _exit(status: int) -> Exit:
    return Exit(code=status if status <= _STATUS_OF_SIGNAL else _STATUS_OF_SIGNAL - status)


def log(folder: str, offset_bytes: int, limit_bytes: int) -> str:
    """Prints at most `limit_bytes` of the log from `offset_bytes` on; nothing when there is no more."""
    path = shlex.quote(f"{folder}/{LOG_FILE}")
    return f"[ -f {path} ] || exit 0; tail -c +{offset_bytes + 1} {path} | head -c {limit_bytes}"


def snapshot() -> str:
    """Prints what `read_snapshot` reads: three processes in all, however many there are to look at."""
    return "\n".join(
        [
            "echo $$; id -u",
            "echo @owners; stat -c '%n %u' /proc/[0-9]* 2>/dev/null",
            "echo @processes; cat /proc/[0-9]*/stat 2>/dev/null",
            "echo @marks; grep -zHa '^SERVETUNE_' /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'",
            "echo @end",
        ]
    )


def read_snapshot(text: bytes) -> Snapshot:
    """Raises ValueError when the output was cut."""
    head, owners, stats, marked = (part.strip() for part in _parts(text))
    own, user = head.split()
    mine = {line.split()[0].rpartition(b"/")[2] for line in owners.splitlines() if line.split()[1] == user}
    lines = [line for line in stats.splitlines() if line.partition(b" ")[0] in mine]
    processes = {process.pid: process for process in map(process_in, lines) if process.running}
    entries: dict[int, list[bytes]] = {}
    for line in marked.splitlines():
        if not line.startswith(b"/proc/"):
            continue  # the rest of a value with a line break
        path, _, entry = line.partition(b":")
        entries.setdefault(int(path.split(b"/")[2]), []).append(entry)
    marks = {pid: mark for pid, found in entries.items() if pid in processes and (mark := mark_in(found)) is not None}
    return Snapshot(processes, marks, int(own))


def _parts(text: bytes) -> Iterable[bytes]:
    if not text.rstrip().endswith(b"@end"):
        raise ValueError("the output of the snapshot was cut")
    rest = text.rstrip().removesuffix(b"@end")
    for name in (b"@owners\n", b"@processes\n", b"@marks\n"):
        part, _, rest = rest.partition(name)
        yield part
    yield rest


def send(processes: Sequence[Process], number: signal.Signals) -> str:
    """Signals those that are still the same, by start time."""
    name = number.name.removeprefix("SIG")
    tests = [f'ticks {one.pid}; [ "$T" = {one.start_ticks} ] && kill -{name} {one.pid}' for one in processes]
    return "\n".join([_TICKS, *(f"{test} 2>/dev/null" for test in tests), "true"])


def listening() -> str:
    """Prints the machine's TCP tables, for `_ports.listeners_in`."""
    return "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null; true"


def _assignments(variables: Mapping[str, str]) -> str:
    return " ".join(_assignment(name, value) for name, value in variables.items())


def _assignment(name: str, value: str) -> str:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        raise SpecError(
            f"{name!r} is not a name that a shell knows as a variable; change it under env: in the study file"
        )
    return f"{name}={shlex.quote(value)}"
