"""A server that runs on this machine: its exit, its log, its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from servetune.core.node import Exit
from servetune.nodes._by_log import LOG_FILE
from servetune.nodes._ending import end
from servetune.nodes._launch import Launch
from servetune.nodes._marks import Mark, Process, members
from servetune.nodes._processes import ThisMachine
from servetune.nodes._segments import Segments

LOG_CHUNK_BYTES = 1 << 20
LEAST_GRACE_S = 2.0  # wall: a compressed node second is too short for a real process to end


class Child(Protocol):
    """A child process of the tuner, as `subprocess.Popen` is one."""

    pid: int

    def poll(self) -> int | None:
        """Return code, negative for a signal; None while it runs. Reaps a zombie."""
        ...

    def wait(self) -> int:
        """Return code, once it has ended."""
        ...


class Guard(Protocol):
    """Something of the node that a launch takes and must have given back once it is stopped."""

    def check(self) -> None:
        """Return once it is back. Raises NodeUnusableError or NodeBusyError when it stays away."""
        ...


class LocalServer:
    """A server started by this process; `log_from_bytes` is where in the log file this launch began."""

    def __init__(
        self,
        launch: Launch,
        server: Child,
        log_filter: Child | None,
        log_from_bytes: int,
        time_scale: float,
        guards: Sequence[Guard],
        run: Callable[[str], str],
    ) -> None:
        self.pid = server.pid
        self.log_path = launch.folder / LOG_FILE
        self._launch = launch
        self._server = server
        self._filter = log_filter
        self._log_from_bytes = log_from_bytes
        self._time_scale = time_scale
        self._guards = guards
        self._segments = Segments(run, self._own)

    def poll(self) -> Exit | None:
        """How it ended, None while it runs."""
        code = self._server.poll()
        if code is None:
            self._segments.look_now_and_then()
        return None if code is None else Exit(code=code)

    def _own(self) -> list[Process]:
        return [member.process for member in members(ThisMachine().snapshot(), self._is_mine)]

    def _is_mine(self, other: Mark) -> bool:
        mark = self._launch.mark
        return (other.study, other.starter) == (mark.study, mark.starter)

    def read_log(self, offset_bytes: int) -> bytes:
        """At most 1 MiB of what this launch logged, from `offset_bytes` on; empty when there is no more yet."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(self._log_from_bytes + offset_bytes)
                return log.read(LOG_CHUNK_BYTES)
        except FileNotFoundError:
            return b""

    @contextmanager
    def endpoint(self) -> Iterator[str]:
        """Base URL on loopback."""
        yield f"http://127.0.0.1:{self._launch.spec.port}"

    def stop(self, grace_s: float) -> Exit:
        """INT, TERM, KILL, `grace_s` of node time each (at least 2 wall seconds); see `core.node.ServerProcess.stop`.

        Children that made a session of their own are found by the mark in their environment. Returns once the port and
        the GPU memory are free again; raises NodeUnusableError or NodeBusyError when they stay taken.
        """
        wall_s = max(grace_s / self._time_scale, min(grace_s, LEAST_GRACE_S))
        if grace_s > 0:
            self._segments.look()
        end(ThisMachine(), self._is_mine, wall_s)
        self._segments.remove()
        if self._filter is not None:
            self._filter.wait()
        code = self._server.wait()
        for guard in self._guards:
            guard.check()
        return Exit(code=code)
