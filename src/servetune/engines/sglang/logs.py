"""Reads the log of one SGLang server as it grows: phases, numbers, failures. Bounded memory, any chunking.

Most of a long log are decode, prefill and access lines; they are recognised on the raw bytes and counted in bulk. Only
the rest is cleaned and read closely (`_log_run.Run`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from servetune.core.failure import Failure, Phase
from servetune.core.node import Exit
from servetune.core.space import Assignment
from servetune.engines.sglang import _failure_report, _log_args, _log_phases, failures
from servetune.engines.sglang._failure_ends import is_foreign
from servetune.engines.sglang._log_blocks import BlockReader
from servetune.engines.sglang._log_flags import LaunchFlags
from servetune.engines.sglang._log_fragment import MAX_BYTES, completed, is_fragment
from servetune.engines.sglang._log_lines import LineCleaner, LineSplitter
from servetune.engines.sglang._log_lives import Lives
from servetune.engines.sglang._log_repeats import Loop, period_at, settled
from servetune.engines.sglang._log_run import Run

#: The end of a block, which mostly holds its last line.
_LAST = 16 * 1024
#: Bytes that are looked at together, and the first stretch that is read before it is looked for repetitions.
_PIECE, _STRETCH = 4 << 20, 64 * 1024


class SglangLogReader:
    """Implements `core.engine.LogReader` for SGLang 0.4.6 to 0.5.23. `assignment`: what the server was started with.

    With an empty assignment the flags are taken from the command and the `server_args=` line of the log itself.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = dict(assignment)
        self._waiting = bytearray()
        self._splitter = LineSplitter()
        self._blocks = BlockReader()
        self._lives = Lives(self._blocks)
        self._loop: Loop | None = None
        self._stretch = _STRETCH
        self._last_raw = b""
        self._finished: tuple[int, Run] | None = None
        self._fed_bytes = 0
        self._head = bytearray()  # all of it, as long as the log may be a fragment

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log; they may be cut anywhere. They are read together, or when somebody asks."""
        self._fed_bytes += len(chunk)
        if len(self._head) <= MAX_BYTES:
            self._head += chunk[: MAX_BYTES + 1 - len(self._head)]
        view = memoryview(chunk)
        for start in range(0, len(chunk), _PIECE):
            self._waiting += view[start : start + _PIECE]
            if len(self._waiting) >= _PIECE:
                self._read_waiting()

    def _read_waiting(self) -> None:
        chunk, self._waiting = self._waiting, bytearray()
        for offset, block in self._splitter.feed(chunk):
            self._take_block(offset, block)
            self._remember_last(block)

    def _take_block(self, offset: int, block: bytes) -> None:
        at = 0
        while at < len(block):
            if self._loop is not None:
                at = self._loop.take(block, at)
                if at < len(block):
                    self._end_loop()
                continue
            end = block.find(b"\n", min(at + self._stretch, len(block) - 1)) + 1
            self._lives.take(offset + at, block[at:end])
            self._stretch = min(2 * self._stretch, _PIECE)
            at = self._begin_loop(offset, block, end)

    def _begin_loop(self, offset: int, block: bytes, at: int) -> int:
        """Look whether the text repeats from `at` on. Returns up to where it was read to find that out."""
        length = period_at(block, at) if at < len(block) else 0
        if not length:
            return at
        first = at
        while self._blocks.run.native.is_open and at < first + length:
            end = block.index(b"\n", at) + 1
            self._blocks.take(offset + at, block[at:end])
            at = end
        read, self._loop = settled(block, at, length, offset, self._blocks)
        return at + read * length

    def _end_loop(self) -> None:
        if self._loop is not None:
            self._loop.end(self._blocks)
            self._blocks.take(0, self._loop.begun)
            self._loop, self._stretch = None, _STRETCH

    def _remember_last(self, block: bytes) -> None:
        last = block[-_LAST:].rstrip() or block.rstrip()
        if b"\n" not in last:
            last = block.rstrip()
        if last:
            self._last_raw = last[last.rfind(b"\n") + 1 :][:4096]

    @property
    def _run(self) -> Run:
        """The state after all whole lines that were fed, but for those that the floods hold."""
        if self._waiting:
            self._read_waiting()
        self._end_loop()
        return self._blocks.run

    @property
    def phase(self) -> Phase:
        """The phase that the log has reached."""
        return self._run.progress.phase

    @property
    def ready(self) -> bool:
        """Whether the engine said that it is ready to serve."""
        return self._run.progress.ready

    @property
    def decided(self) -> bool:
        """Whether a line has been seen after which the server cannot recover."""
        return self._run.decided

    @property
    def last_line(self) -> str:
        """The last complete line, cleaned of colours, carriage returns and prefixes."""
        if self._waiting:
            self._read_waiting()
        lines = [line.text for line in LineCleaner().clean(0, self._last_raw) if line.text.strip()]
        return lines[-1].strip() if lines else ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing but white space was fed."""
        return self.is_foreign and not self._closed().last_line[0]

    @property
    def is_foreign(self) -> bool:
        """Whether no line looks like the server's: the text is something else."""
        if not is_foreign(self._closed(), bytes(self._head)):
            return False
        whole = completed(bytes(self._head)) if self._fed_bytes <= MAX_BYTES else None
        return whole is None or is_foreign(whole, bytes(self._head))

    def facts(self) -> Mapping[str, Any]:
        """JSON-able: `{phase, ready, version, memory, kv_tokens, …, server_args, timeline, throughput}`.

        Memory in GiB as the engine prints it, the smallest over the ranks.
        """
        run = self._closed()
        progress = run.progress
        return {
            "phase": progress.phase.value,
            "ready": progress.ready,
            "lines": self._blocks.number,
            "version": progress.version,
            "memory_gib": dict(progress.memory),
            "graph_gib": dict(progress.graph_gib),
            "kv_tokens": progress.kv_tokens,
            "captured_sizes": {what: list(sizes) for what, sizes in progress.sizes.items()},
            "max_running_requests": progress.pool.get("max_running_requests"),
            "pool": dict(progress.pool),
            "server_args": dict(run.effective),
            "command": dict(run.command),
            "changed": {
                flag: list(pair) for flag, pair in _log_args.differences(self._flags(run), run.effective).items()
            },
            "throughput": run.throughput.facts(),
            "retractions": run.throughput.retractions,
            "timeline": _log_phases.timeline(progress, run.end_s),
            "not_in_effect": _failure_report.not_in_effect(run, self._assignment),
            "in_effect": _failure_report.in_effect(run),
        }

    def _flags(self, run: Run) -> Assignment:
        return self._assignment or run.command

    def warnings(self) -> Sequence[str]:
        """Sentences about options that are not in effect, retractions and eager decoding, each with its line number."""
        return _failure_report.warnings(self._closed(), self._assignment)

    def diagnose(self, exit: Exit | None, hint: str | None = None) -> Failure:
        """Why it failed, from the log first, then from `hint` (what the tuner saw) and from how the process ended.

        A healthy log gives slug `none`; one that explains nothing gives `unknown` with the best evidence.
        """
        run = self._closed()
        failure = failures.diagnose(run, self._assignment, exit, hint)
        if self._fed_bytes > MAX_BYTES or not is_fragment(run):
            return failure
        whole = completed(bytes(self._head))
        better = failures.diagnose(whole, self._assignment, exit, hint) if whole else failure
        return failure if better.slug in ("unknown", "none") and failure.slug != "unknown" else better

    def report(self, failure: Failure) -> dict[str, Any]:
        """A diagnosis of this log as `servetune diagnose --json` prints it."""
        run = self._closed()
        return _failure_report.report(failures.telling(run), self._assignment, failure, run.start)

    def flags(self) -> LaunchFlags:
        """Flags as passed (the assignment, else the command that the log shows) and as the engine used them."""
        return LaunchFlags.of(failures.telling(self._closed()), self._assignment)

    def _closed(self) -> Run:
        """The state including skipped lines and an unfinished last line; reading goes on as if nobody had looked."""
        open_run, floods = self._run, self._blocks.floods
        rest = self._splitter.rest
        if not rest.strip() and floods.empty:
            return open_run
        if self._finished is None or self._finished[0] != self._fed_bytes:
            run, cleaner = copy.deepcopy(open_run), copy.deepcopy(self._blocks.cleaner)
            floods.catch_up(run, cleaner)
            for line in cleaner.clean(self._blocks.number + 1, rest) if rest.strip() else ():
                run = run.successor() if run.restarted_by(line) else run
                run.take(line)
            self._finished = (self._fed_bytes, run)
        return self._finished[1]
