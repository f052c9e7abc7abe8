"""Follows one server: is the process alive, does its log grow, has a decisive line come, is a deadline over."""

from __future__ import annotations

from dataclasses import dataclass, field

from servetune.core.clock import Clock
from servetune.core.engine import LogReader
from servetune.core.events import Listener, LogLine, PhaseReached
from servetune.core.failure import Phase
from servetune.core.node import Exit, ServerProcess
from servetune.tuner.stopping import Interrupted, StopRequest

#: Read at most this much of the log at one look, so that a flood cannot stop the watching.
LOOK_BYTES = 16 * 1024 * 1024


@dataclass
class Watch:
    """One server under observation. Times are node seconds since `started_s`."""

    trial: int
    process: ServerProcess
    reader: LogReader
    clock: Clock
    listener: Listener
    stop: StopRequest
    started_s: float
    offset_bytes: int = 0
    grew_s: float = 0.0
    exit: Exit | None = None
    phase: Phase = Phase.PARSE
    _shown: str = field(default="", repr=False)

    def elapsed_s(self) -> float:
        """Node seconds since the start."""
        return self.clock.now_s() - self.started_s

    def look(self) -> bool:
        """One look at log and process; False when the server has failed or ended. Raises Interrupted."""
        if self.stop.requested:
            raise Interrupted
        self.exit = self.process.poll()
        self._read()
        self._tell()
        return self.exit is None and not self.reader.decided

    def drain(self) -> None:
        """Read what the log still holds."""
        while self._read():
            pass

    def silent_s(self) -> float:
        """Node seconds since the log last grew."""
        return self.elapsed_s() - self.grew_s

    def _read(self) -> bool:
        taken = 0
        while taken < LOOK_BYTES and (chunk := self.process.read_log(self.offset_bytes)):
            self.reader.feed(chunk)
            self.offset_bytes += len(chunk)
            taken += len(chunk)
        if taken:
            self.grew_s = self.elapsed_s()
        return taken >= LOOK_BYTES

    def _tell(self) -> None:
        if self.reader.phase is not self.phase:
            self.phase = self.reader.phase
            self.listener.on(PhaseReached(trial=self.trial, phase=self.phase, elapsed_s=self.elapsed_s()))
        if self.reader.last_line != self._shown:
            self._shown = self.reader.last_line
            self.listener.on(LogLine(trial=self.trial, text=self._shown))
