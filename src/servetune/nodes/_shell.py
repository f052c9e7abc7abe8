"""Shell text for a machine that is reached by a shell only, and the readers of what it prints.

Each function returns text for `sh -s` on standard input (so that nothing of it, a secret least of all, is seen in a
process list) in POSIX sh with the usual tools of Linux (coreutils, grep, util-linux). Nothing here runs it.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from servetune.core.errors import SpecError
from servetune.core.node import Exit
from servetune.nodes._marks import FILTER, KEEPER, ROLE_MARKER, Mark, Process, Snapshot, mark_in, process_in

LOG_FILE = "server.log"
_STATUS_OF_SIGNAL = 128
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

#: People write `source` in what activates an environment, which Debian's sh does not know.
BASH = '"$(command -v bash || command -v sh)"'

# Sets S and T to state and start ticks (fields 3 and 22) of process $1, empty without one; its name may hold ")".
_TICKS = 'ticks() { S= T=; { read -r L < "/proc/$1/stat"; } 2>/dev/null || return 0; set -- ${L##*) }; S=$1 T=${20}; }'


@dataclass(frozen=True)
class Fence:
    """Lease files on the node that must still say `text` when a server starts; `lock`: under which they change.

    A script that a dying connection delivers late, when another tuner has the node, then starts nothing.
    """

    lock: str
    files: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Detached:
    """A program to start so that it outlives the connection. `folder` (absolute) gets its log, pid and exit status.

    `token` names this launch in the folder, `digest` what was launched.
    `output_filter`: a command that the output goes through (the log filter), with an environment of its own.
    """

    argv: Sequence[str]
    environment: Mapping[str, str]
    mark: Mark
    folder: str
    token: str
    digest: str = "-"
    activate: str = ""  # a shell line before the program, such as `. /root/ml-env/bin/activate`
    cwd: str = ""  # absolute; empty: the folder
    output_filter: Sequence[str] = ()
    filter_environment: Mapping[str, str] = field(default_factory=dict)
    fence: Fence | None = None


@dataclass(frozen=True)
class Started:
    """Leader of a detached launch: its pid and start ticks, and the size of the log before it."""

    pid: int
    start_ticks: int
    log_from_bytes: int


@dataclass(frozen=True)
class Status:
    """Of a detached server. `exit`: how it ended, None while it runs; its code is None when nobody kept it.

    `rebooted`: the node was restarted since. `log_bytes`: of the whole log file. `full`: the disk is, and
    nobody kept the exit status.
    """

    exit: Exit | None
    rebooted: bool
    log_bytes: int
    full: bool = False


def start(launch: Detached) -> str:
    """Starts it in a session of its own; prints `started PID TICKS LOG_BYTES` of the session's leader, or why not.

    The leader is a shell that waits for the server and keeps its exit status: it takes the signals of a stop without
    ending from them. Leader, server and filter carry the mark. Run a second time with the same token (the answer to
    the first was lost on the way) it starts nothing and waits for the first.
    """
    syntax = f"printf '%s\\n' {shlex.quote(launch.activate)} | {BASH} -n 2>/dev/null || {{ echo activate; exit 1; }}"
    marks = _assignments(replace(launch.mark, role=KEEPER).environment())
    script = _leader(launch)
    until = f"END_{hashlib.sha256(script.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
    pid_file, refusal = f"{launch.token}.pid", f"{launch.token}.refused"
    opening, closing = _fenced(launch)
    return "\n".join(
        [
            f"mkdir -p {shlex.quote(launch.folder)} && cd {shlex.quote(launch.folder)} || exit 1",
            f": >> {LOG_FILE} && echo > {launch.token}.room && [ -s {launch.token}.room ] || exit 1",
            f"rm -f {launch.token}.room",
            *([syntax] if launch.activate else []),
            f"if mkdir {launch.token}.begun 2>/dev/null; then",
            *opening,
            # The script comes on standard input: an argument would show its secrets in the process list.
            # --fork and not &, with which a shell would make it ignore INT for good.
            f"{marks} setsid --fork {BASH} -s <<'{until}' >/dev/null 2>&1{' 9<&-' if closing else ''}",
            script,
            until,
            *closing,
            "fi",
            f"I=0; while [ $I -lt {_START_LOOKS} ] && ! [ -s {pid_file} ] && ! [ -s {refusal} ]; do",
            "sleep 0.02; I=$((I + 1)); done",
            f"[ -s {refusal} ] && {{ cat {refusal}; exit 1; }}",
            f"read -r PID T FROM REST < {pid_file} || {{ echo 'the server could not be started'; exit 1; }}",
            'echo "started $PID $T $FROM"',
        ]
    )


def _fenced(launch: Detached) -> tuple[list[str], list[str]]:
    """What stands before and after the start: it happens under the lock of the leases, or not at all."""
    if launch.fence is None:
        return [], []
    lock, text = shlex.quote(launch.fence.lock), shlex.quote(launch.fence.text)
    refuse = f"{{ rmdir {launch.token}.begun; echo {LOST_LEASE}; exit 1; }}"
    looks = [f"grep -qF {text} {shlex.quote(file)} 2>/dev/null || {refuse}" for file in launch.fence.files]
    return [f"[ -r {lock} ] || {refuse}", "{", f"flock -w 20 9 || {refuse}", *looks], [f"}} 9< {lock}"]


LOST_LEASE = "lease"
_START_LOOKS = 3000  # a minute: activating an environment may read a lot from a slow disk


def read_started(text: str) -> Started | str:
    """The last line that `start` printed, or what it said instead."""
    lines = text.strip().splitlines() or ["it said nothing"]
    words = lines[-1].split()
    if len(words) == 4 and words[0] == "started":
        return Started(int(words[1]), int(words[2]), int(words[3]))
    return "\n".join(lines)


def _leader(launch: Detached) -> str:
    server = _exec(launch.argv, {**launch.environment, **launch.mark.environment()}, "</dev/null", launch.cwd)
    # on a full disk an empty file would stand for an exit status
    kept = f"echo $? > {launch.token}.new && [ -s {launch.token}.new ] && mv {launch.token}.new {launch.token}.exit"
    lines = [
        "trap : INT TERM HUP",  # a handler ends with the exec of the server; an ignored signal would not
        _TICKS,
        *_activation(launch),
        *_checks(launch),
        f"ticks $$; SIZE=$(wc -c < {LOG_FILE}); read -r BOOT < {_BOOT_ID}",
        f'echo "$$ $T $SIZE $BOOT {launch.digest}" {shlex.quote(_told(launch.mark))} > {launch.token}.new',
        f"mv {launch.token}.new {launch.token}.pid || exit 1",
    ]
    if not launch.output_filter:
        return "\n".join([*lines, f"{server} >> {LOG_FILE} 2>&1", kept])
    passed = {**launch.filter_environment, **replace(launch.mark, role=FILTER).environment()}
    through = _exec(launch.output_filter, passed, f">> {LOG_FILE}")
    return "\n".join([*lines, f"{{ trap : INT TERM HUP; {server}; {kept}; }} 2>&1 | {through}"])


def under(activate: str, command: str) -> str:
    """`command` after the activation line; status 120 when that fails. In a shell of its own, whose end is not ours."""
    if not activate:
        return command
    text = f"{{ {activate}\n}} </dev/null >/dev/null || exit 120\n{command}"
    return f"{BASH} -c {shlex.quote(text)}"


def _activation(launch: Detached) -> list[str]:
    if not launch.activate:
        return []
    refusal = f"echo activate > {launch.token}.refused"
    return [
        f"trap '{refusal}' EXIT",  # the line itself may end the shell
        f"{{ {launch.activate}\n}} </dev/null >/dev/null 2>&1 || exit",
        "trap - EXIT",
    ]


def _checks(launch: Detached) -> list[str]:
    """Program and working directory, seen as the server will see them."""
    program = shlex.quote(launch.argv[0])
    path = [f"export {_assignment('PATH', launch.environment['PATH'])};"] if "PATH" in launch.environment else []
    where = f"cd {shlex.quote(launch.cwd)}" if launch.cwd else ":"
    # dash's `command -v` is content with a file that is not executable
    found = f"[ -f {program} ] && [ -x {program} ]" if "/" in launch.argv[0] else f"command -v {program} >/dev/null"
    why = f"if [ -e {program} ]; then echo plain; else echo missing; fi"
    refusal = f"{launch.token}.refused"
    return [
        f"( {where} ) 2>/dev/null || {{ echo cwd > {refusal}; exit; }}",
        f"( {' '.join(path)} {where}; {found} || {{ {why}; }} > {refusal} )",
        f"[ -s {refusal} ] && exit",
    ]


def _exec(argv: Sequence[str], environment: Mapping[str, str], redirection: str, cwd: str = "") -> str:
    exports = "".join(f"export {_assignment(name, value)}; " for name, value in environment.items())
    where = f"cd {shlex.quote(cwd)}; " if cwd else ""
    return f"( unset {ROLE_MARKER}; {exports}{where}exec {shlex.join(argv)} {redirection} )"


def status(folder: str, token: str, offset_bytes: int, limit_bytes: int) -> str:
    """Prints what `read_status` reads: one line, then at most `limit_bytes` of the log from `offset_bytes` on."""
    return "\n".join(
        [
            f"cd {shlex.quote(folder)} || exit 1",
            _TICKS,
            f"read -r PID STARTED FROM BOOT REST < {token}.pid || exit 1",
            'ticks "$PID"',
            # The size after the exit status: what the server wrote before it ended is counted.
            'CODE=-; ALIVE=gone; [ "$T" = "$STARTED" ] && [ "$S" != Z ] && ALIVE=alive',
            f"[ -f {token}.exit ] && read -r CODE < {token}.exit",
            f'read -r NOW < {_BOOT_ID}; SAME=same; [ "$NOW" = "$BOOT" ] || SAME=rebooted',
            f"SIZE=$(wc -c < {LOG_FILE})",
            f"written() {{ echo > {token}.room && [ -s {token}.room ]; }} 2>/dev/null",
            f'ROOM=room; [ "$ALIVE$CODE" != gone- ] || written || ROOM=full; rm -f {token}.room',
            'echo "$ALIVE $CODE $SAME $SIZE $ROOM"',
            f"[ $SIZE -le {offset_bytes} ] || tail -c +{offset_bytes + 1} {LOG_FILE} | head -c {limit_bytes}",
        ]
    )


def found(folder: str, token: str, digest: str) -> str:
    """Prints `started …` as `start` does and `age SECONDS`, for a running launch of that digest; else nothing."""
    return "\n".join(
        [
            f"cd {shlex.quote(folder)} 2>/dev/null || exit 0",
            _TICKS,
            f"read -r PID STARTED FROM BOOT DIGEST REST 2>/dev/null < {token}.pid || exit 0",
            f'read -r NOW < {_BOOT_ID}; ticks "$PID"; read -r UP REST < /proc/uptime',
            f'[ "$NOW" = "$BOOT" ] && [ "$DIGEST" = {digest} ] && [ "$T" = "$STARTED" ] && [ "$S" != Z ] || exit 0',
            f"[ -f {token}.exit ] && exit 0",
            'echo "age $((${UP%.*} - STARTED / $(getconf CLK_TCK)))"; echo "started $PID $STARTED $FROM"',
        ]
    )


def read_status(data: bytes) -> tuple[Status, bytes]:
    """(Status, log bytes). A leader that is gone without having kept an exit status was killed, or the node restarted.

    Raises ValueError when there is no status.
    """
    line, _, log = data.partition(b"\n")
    alive, code, same, size, room = line.decode("ascii", "replace").split()
    known = None if code == "-" else _exit(int(code))
    gone = Exit(code=None) if alive == "gone" or same == "rebooted" else None
    return Status(known or gone, known is None and same == "rebooted", int(size), room == "full"), log


def _exit(status: int) -> Exit:
    return Exit(code=status if status <= _STATUS_OF_SIGNAL else _STATUS_OF_SIGNAL - status)


def log(folder: str, offset_bytes: int, limit_bytes: int) -> str:
    """Prints at most `limit_bytes` of the log from `offset_bytes` on; nothing when there is no more."""
    path = shlex.quote(f"{folder}/{LOG_FILE}")
    return f"[ -f {path} ] || exit 0; tail -c +{offset_bytes + 1} {path} | head -c {limit_bytes}"


def _told(mark: Mark) -> str:
    """The end of a line in the launch's pid file: whose it is."""
    return f"{mark.starter} {mark.trial} {mark.study}"


def snapshot() -> str:
    """Prints what `read_snapshot` reads: a handful of processes in all, however many there are to look at.

    `@logs`: processes that write into a launch's log, with the leader of its session; see `_by_log`.
    """
    return "\n".join(
        [
            "echo $$; id -u",
            "echo @owners; stat -c '%n %u' /proc/[0-9]* 2>/dev/null",
            "echo @processes; cat /proc/[0-9]*/stat 2>/dev/null",
            "echo @marks; grep -zHa '^SERVETUNE_' /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'",
            f"echo @logs; read -r NOW < {_BOOT_ID}; ls -l /proc/[0-9]*/fd/1 2>/dev/null |",
            rf"sed -n 's|.* /proc/\([0-9]*\)/fd/1 -> \(/.*\)/{re.escape(LOG_FILE)}$|\1 \2|p' |",
            'while read -r P D; do for F in "$D"/*.pid; do',
            'read -r PID T FROM BOOT DIGEST TOLD < "$F" && [ "$BOOT" = "$NOW" ] && echo "$P $PID $TOLD"',
            "done; done 2>/dev/null",
            "echo @end",
        ]
    )


def read_snapshot(text: bytes) -> Snapshot:
    """Raises ValueError when the output was cut."""
    head, owners, stats, marked, logs = (part.strip() for part in _parts(text))
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
    return Snapshot(processes, {**dict(_by_log(logs, processes)), **marks}, int(own))


def _by_log(lines: bytes, processes: Mapping[int, Process]) -> Iterator[tuple[int, Mark]]:
    for line in lines.splitlines():
        words = line.decode("utf-8", "surrogateescape").split(" ", 4)
        if len(words) == 5 and words[0].isdigit() and words[1].isdigit():
            pid, leader, starter, trial, study = words
            if int(pid) in processes and processes[int(pid)].session == int(leader):
                yield int(pid), Mark(study, trial, starter)


def _parts(text: bytes) -> Iterable[bytes]:
    if not text.rstrip().endswith(b"@end"):
        raise ValueError("the output of the snapshot was cut")
    rest = text.rstrip().removesuffix(b"@end")
    for name in (b"@owners\n", b"@processes\n", b"@marks\n", b"@logs\n"):
        part, _, rest = rest.partition(name)
        yield part
    yield rest


def send(processes: Sequence[Process], number: signal.Signals) -> str:
    """Signals those that are still the same, by start time."""
    name = number.name.removeprefix("SIG")
    tests = [f'ticks {one.pid}; [ "$T" = {one.start_ticks} ] && kill -{name} {one.pid}' for one in processes]
    return "\n".join([_TICKS, *(f"{test} 2>/dev/null" for test in tests), "true"])


def wait_for_exit(processes: Sequence[Process], timeout_s: float) -> str:
    """Returns once all have exited (a zombie has), or after about `timeout_s`."""
    tests = [f'ticks {one.pid}; [ "$T" = {one.start_ticks} ] && [ "$S" != Z ]' for one in processes]
    looks = max(1, round(timeout_s / 0.05))
    running = " || ".join(f"{{ {test}; }}" for test in tests)
    return "\n".join([_TICKS, f"I=0; while [ $I -lt {looks} ] && {{ {running}; }}; do sleep 0.05; I=$((I + 1)); done"])


def listening() -> str:
    """Prints the machine's TCP tables, for `_ports.listeners_in`."""
    return "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null; true"


def holders(inodes: Iterable[str]) -> str:
    """Prints the pids that hold one of these sockets, as far as this user may see them."""
    wanted = "|".join(rf"socket:\[{inode}\]" for inode in sorted(inodes))
    return "\n".join(
        [
            f"for F in /proc/[0-9]*/fd; do ls -l $F 2>/dev/null | grep -Eq '{wanted}' || continue",
            "P=${F#/proc/}; echo ${P%/fd}; done; true",
        ]
    )


def _assignments(variables: Mapping[str, str]) -> str:
    return " ".join(_assignment(name, value) for name, value in variables.items())


def _assignment(name: str, value: str) -> str:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        raise SpecError(
            f"{name!r} is not a name that a shell knows as a variable; change it under env: in the study file"
        )
    return f"{name}={shlex.quote(value)}"
