"""A server that runs detached on the node: its exit, its log, its end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from servetune.core.errors import ConnectionLostError, NodeUnusableError
from servetune.core.node import Exit, LaunchSpec, LoadProgram
from servetune.nodes import _shell
from servetune.nodes._by_log import LOG_FILE, STATE_FILE
from servetune.nodes._ending import end
from servetune.nodes._far_gpus import Intruders
from servetune.nodes._gpus import Ask
from servetune.nodes._launch import writing
from servetune.nodes._marks import LOAD, Mark, Process, members
from servetune.nodes._segments import remove_segments
from servetune.nodes._server import LEAST_GRACE_S, LOG_CHUNK_BYTES, Guard
from servetune.nodes._ssh_link import Link
from servetune.nodes._ssh_load import FarProgram
from servetune.nodes._ssh_machine import FarMachine, segments_of
from servetune.nodes._ssh_tunnel import Tunnel

_LOOK_BYTES = 1 << 16  # of the log, that come with each look at the process
_COPY_BYTES = 256 << 20  # of the log, kept beside the study
LOAD_END_S = 2.0  # for the load generator to leave at the end of its input
LOAD_TRIES = 5  # of starting it, when the connection breaks each time before it is ready
SEGMENTS_FIRST_S, SEGMENTS_EVERY_S = 2.0, 15.0
IMPATIENT_S = 10.0  # how long a broken connection is waited for by somebody who wants to stop at once


class LogCopy:
    """The log beside the study on this machine: what `servetune diagnose` reads when the node is long gone."""

    def __init__(self, folder: Path, fresh: bool) -> None:
        self._path = folder / LOG_FILE
        if fresh:
            self._path.unlink(missing_ok=True)
        self._from_bytes = self._path.stat().st_size if self._path.exists() else 0
        self._kept_bytes = 0

    def take(self, offset_bytes: int, chunk: bytes) -> None:
        """Append what is new. Raises NodeUnusableError when this machine's disk is full."""
        new = chunk[max(0, self._kept_bytes - offset_bytes) :] if offset_bytes <= self._kept_bytes else b""
        if new and self._kept_bytes < _COPY_BYTES:
            with writing(self._path), self._path.open("ab") as log:
                log.write(new)
            self._kept_bytes += len(new)


class FarServer:
    """A server on the node. `token` and `folder`: where its launch keeps what it keeps there."""

    def __init__(
        self,
        link: Link,
        launch: _shell.Detached,
        started: _shell.Started,
        port: int,
        copy: LogCopy,
        time_scale: float,
        guards: Sequence[Guard],
        load: Callable[[Mark], FarProgram],
        gpus: tuple[Ask, str | None],
    ) -> None:
        self.pid = started.pid
        self.mark: Mark = launch.mark
        self.folder = launch.folder
        self.port = port
        self._link = link
        self._token = launch.token
        self._log_from_bytes = started.log_from_bytes
        self._copy = copy
        self._time_scale = time_scale
        self._guards = guards
        self._start_load = load
        self._intruders = Intruders(*gpus, self._own_pids, self._known_pids)
        self._load: FarProgram | None = None
        self._segments: set[tuple[int, str]] = set()  # of /dev/shm, seen in use by the server
        self._looked_s = time.monotonic() - SEGMENTS_EVERY_S + SEGMENTS_FIRST_S
        self._exit: Exit | None = None
        self._rebooted = False
        self._read_to = 0  # of the log, by whoever reads it
        self._ahead = (0, b"")  # offset and bytes of the log that came with the last look
        self._log_end: int | None = None  # of the log at the last look, until somebody was told so

    @property
    def rebooted(self) -> bool:
        """Whether the node was restarted under it."""
        return self._rebooted

    def poll(self) -> Exit | None:
        """How it ended, None while it runs. Brings the next piece of the log along: one round trip for both."""
        status, log = self._status(self._read_to, _LOOK_BYTES)
        if status.full and not status.rebooted:
            raise NodeUnusableError(
                f"the server ended while nothing could be written in {self.folder} on the node: its disk is full. That "
                "says nothing about the configuration; free space there, or name another node.workdir, then resume"
            )
        self._exit, self._rebooted = status.exit, status.rebooted
        self._ahead = (self._read_to, log)
        self._log_end = status.log_bytes - self._log_from_bytes
        if self._exit is None and time.monotonic() - self._looked_s > SEGMENTS_EVERY_S:
            self._look_at_segments()
        return self._exit

    def _look_at_segments(self) -> None:
        """A crash leaves them without an owner, so they are noted while the server lives."""
        self._looked_s = time.monotonic()
        self._segments |= segments_of(self._link, self._own())

    def read_log(self, offset_bytes: int) -> bytes:
        """At most 1 MiB of what this launch logged, from `offset_bytes` on; empty when there is no more yet."""
        chunk = self._chunk(offset_bytes)
        self._read_to = offset_bytes + len(chunk)
        self._copy.take(offset_bytes, chunk)
        return chunk

    def _chunk(self, offset_bytes: int) -> bytes:
        begin, log = self._ahead
        if begin <= offset_bytes < begin + len(log):
            return log[offset_bytes - begin :]
        if self._log_end is not None and offset_bytes >= self._log_end:
            self._log_end = None  # a second question after the same look is answered by the node
            return b""
        script = _shell.log(self.folder, self._log_from_bytes + offset_bytes, LOG_CHUNK_BYTES)
        return self._link.run(script).data

    @contextmanager
    def endpoint(self) -> Iterator[str]:
        """Base URL on this machine's loopback: a tunnel to the node's."""
        with Tunnel(self._link, self.port) as url:
            yield url

    def intruders(self) -> Sequence[str]:
        """Foreign processes on the server's GPUs now."""
        return self._intruders.look()

    def _own(self) -> list[Process]:
        return [member.process for member in members(FarMachine(self._link).snapshot(), self._is_mine)]

    def _own_pids(self) -> set[int]:
        return {process.pid for process in self._own()}

    def _known_pids(self) -> set[int]:
        return {int(word) for word in self._link.run("cd /proc && echo [0-9]*").text.split()}

    @property
    def loopback(self) -> str:
        """Base URL on the node's loopback."""
        return f"http://127.0.0.1:{self.port}"

    def load_program(self) -> LoadProgram:
        """The load generator beside the server; one for all levels, begun anew after the connection broke."""
        for _ in range(LOAD_TRIES - 1):
            with suppress(ConnectionLostError):
                return self._ready_load()
        return self._ready_load()

    def _ready_load(self) -> LoadProgram:
        self.prepare_load()
        assert self._load is not None
        self._load.await_ready()
        return self._load

    def prepare_load(self) -> None:
        """Begin to start it, unless it runs."""
        if self._load is None or not self._load.usable:
            self._end_load()
            self._load = self._start_load(self.mark)

    def _end_load(self) -> None:
        """Also that of a broken connection, which would go on for a while."""
        if self._load is not None:
            self._load.close()
            self._load = None
            end(FarMachine(self._link), lambda other: self._is_mine(other) and other.role == LOAD, LOAD_END_S)

    def _is_mine(self, other: Mark) -> bool:
        return (other.study, other.starter) == (self.mark.study, self.mark.starter)

    def stop(self, grace_s: float) -> Exit:
        """INT, TERM, KILL, `grace_s` of node time each (at least 2 wall seconds); see `core.node.ServerProcess.stop`.

        Returns once processes are gone and port, GPU memory and shared memory are free again. Raises NodeUnusableError
        or NodeBusyError when they stay taken, NodeUnreachableError when the node cannot be asked.
        """
        patience_s = None if grace_s > 0 else IMPATIENT_S
        wall_s = max(grace_s / self._time_scale, min(grace_s, LEAST_GRACE_S))
        if self._load is not None:
            self._load.close()
            self._load = None
        if grace_s > 0:
            with suppress(NodeUnusableError):  # a process that hangs in the kernel hangs who reads its memory map
                self._look_at_segments()
        end(FarMachine(self._link, patience_s), self._is_mine, wall_s)
        if self._segments:
            self._link.run(remove_segments(self._segments), patience_s=patience_s)
            self._segments.clear()
        code = self.poll()
        for guard in self._guards:
            guard.check()
        return code or Exit(code=None)

    def _status(self, offset_bytes: int, limit_bytes: int) -> tuple[_shell.Status, bytes]:
        script = _shell.status(self.folder, self._token, self._log_from_bytes + offset_bytes, limit_bytes)
        done = self._link.run(script)
        try:
            return _shell.read_status(done.data)
        except ValueError as error:
            raise NodeUnusableError(
                f"{self.folder} on the node lost what a launch keeps there ({done.text.strip()[-200:]!r}); leave "
                "node.workdir alone while a study runs, then resume"
            ) from error


def write_far_state(folder: Path, launch: _shell.Detached, spec: LaunchSpec) -> None:
    """`server.json` for people and post-mortems; a secret is its reference. Raises NodeUnusableError."""
    state = {"study": launch.mark.study, "trial": int(launch.mark.trial), "folder_on_node": launch.folder}
    path = folder / STATE_FILE
    with writing(path):
        beside = path.with_suffix(".json.new")
        beside.write_text(json.dumps({**state, "launch": spec.model_dump(mode="json")}, indent=1) + "\n", "utf-8")
        beside.replace(path)
