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
from servetune.engines.sglang._log_flags import LaunchFlags
from servetune.engines.sglang._log_floods import Floods, has_status, told_apart
from servetune.engines.sglang._log_lines import Line, LineCleaner, LineSplitter
from servetune.engines.sglang._log_run import Run
from servetune.engines.sglang._log_throughput import RUN, CountedPlaces, is_counted, is_counted_line
from servetune.engines.sglang._log_tracebacks import HEADER, Body
from servetune.engines.sglang._log_words import shapes_of

_PIECE = 1 << 20
#: Tracebacks (without their headers) that are remembered, and the longest of them.
_BODIES, _BODY_BYTES = 128, 64 * 1024
#: With any of these a line is more than a line of a traceback.
_NO_BODY = (b"\r", b"\x1b", b'{"', b"[20", b"Fatal Python", b"server_args=")


class SglangLogReader:
    """Implements `core.engine.LogReader` for SGLang 0.4.6 to 0.5.23. `assignment`: what the server was started with.

    With an empty assignment the flags are taken from the command and the `server_args=` line of the log itself.
    """

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = dict(assignment)
        self._splitter = LineSplitter()
        self._cleaner = LineCleaner()
        self._run = Run()
        self._number = 0
        self._last_raw = b""
        self._floods = Floods()
        self._bodies: dict[bytes, tuple[Body, Sequence[Line]]] = {}
        self._finished: tuple[int, Run] | None = None
        self._fed_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log; they may be cut anywhere."""
        self._fed_bytes += len(chunk)
        if len(chunk) <= _PIECE:
            self._feed(chunk)
            return
        view = memoryview(chunk)
        for start in range(0, len(chunk), _PIECE):
            self._feed(bytes(view[start : start + _PIECE]))

    def _feed(self, chunk: bytes) -> None:
        for offset, block in self._splitter.feed(chunk):
            self._take_block(offset, block)
            self._remember_last(block)

    def _take_block(self, offset: int, block: bytes) -> None:
        """Whole lines: count runs of decode, prefill and access lines in bulk, read the others one by one."""
        at, places = 0, CountedPlaces(block)
        while at < len(block):
            end = places.line_of_next(at)
            if end > at:
                self._take_lines(block[at:end])
                at = end
                continue
            match = RUN.match(block, at)
            end = match.end() if match is not None else block.index(b"\n", at) + 1
            lines = block[at:end]
            count = lines.count(b"\n")
            if match is not None and is_counted(lines, count):
                self._count(lines, count, offset + at)
            else:
                self._take_mixed(lines, offset + at)
            at = end

    def _take_mixed(self, lines: bytes, offset: int) -> None:
        for line in lines.split(b"\n")[:-1]:
            if is_counted_line(line):
                self._count(line + b"\n", 1, offset)
            else:
                self._take_lines(line + b"\n")
            offset += len(line) + 1

    def _take_lines(self, text: bytes) -> None:
        """Lines of which none is counted."""
        masked = shapes_of(text)
        lines, shapes = text.split(b"\n")[:-1], masked.split(b"\n")[:-1]
        if has_status(masked):
            told_apart(lines, shapes)
        at = 0
        while at < len(lines):
            if self._run.skims:
                number = self._number + at + 1
                at = self._floods.skip(lines, shapes, at, number, self._run, self._cleaner.learned)
            if at < len(lines):
                at = self._take_line(lines, shapes[at], at)
        self._number += len(lines)

    def _take_line(self, lines: list[bytes], shape: bytes, at: int) -> int:
        """Read the line at `at`, and with the header of a traceback its body. Returns the next place."""
        self._floods.catch_up(self._run, self._cleaner)
        self._floods.caught_up(shape)
        self._read(self._number + at + 1, lines[at])
        if lines[at].endswith(HEADER) and not self._cleaner.learned and self._run.awaits_body:
            return self._take_body(lines, at + 1)
        return at + 1

    def _take_body(self, lines: list[bytes], begin: int) -> int:
        """The lines behind the header of a traceback, up to the next with a stamp. What was read once is recalled."""
        end = next((at for at in range(begin, len(lines)) if lines[at].startswith(b"[")), len(lines))
        key = b"\n".join(lines[begin:end])
        if end == begin or len(key) > _BODY_BYTES or any(map(key.__contains__, _NO_BODY)):
            return begin
        run, number = self._run, self._number + begin
        known = self._bodies.get(key)
        if known is not None:
            run.recall(known, number)
            return end
        taken = run.tracebacks.taken
        for at in range(begin, end):
            self._read(self._number + at + 1, lines[at])
        if run.tracebacks.taken - taken == end - begin and self._run is run and not self._cleaner.learned:
            self._remember_body(key, run.remembered(end - begin, number))
        return end

    def _remember_body(self, key: bytes, body: tuple[Body, Sequence[Line]] | None) -> None:
        if body is None:
            return
        if len(self._bodies) >= _BODIES:
            self._bodies.clear()
        self._bodies[key] = body

    def _count(self, lines: bytes, count: int, offset: int) -> None:
        run, first = self._run, self._number + 1
        decodes = run.throughput.take(lines, count, offset, first)
        if decodes:
            run.last_decode_line = first
        if decodes < count and (b'"POST' in lines or b'"GET /health' in lines):
            run.last_answer_line = first
        self._number += count

    def _remember_last(self, block: bytes) -> None:
        last = block.rstrip()
        if last:
            self._last_raw = last[last.rfind(b"\n") + 1 :][:4096]

    def _read(self, number: int, raw: bytes) -> None:
        learned = self._cleaner.learned
        lines = self._cleaner.clean(number, raw)
        if self._cleaner.learned != learned:
            self._floods.forget_kinds()
        for line in lines:
            if self._run.restarted_by(line):
                self._run = self._run.successor()
            self._run.take(line)

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
        lines = [line.text for line in LineCleaner().clean(0, self._last_raw) if line.text.strip()]
        return lines[-1].strip() if lines else ""

    def facts(self) -> Mapping[str, Any]:
        """JSON-able: `{phase, ready, version, memory, kv_tokens, …, server_args, timeline, throughput}`.

        Memory in GiB as the engine prints it, the smallest over the ranks.
        """
        run = self._closed()
        progress = run.progress
        return {
            "phase": progress.phase.value,
            "ready": progress.ready,
            "lines": self._number,
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
        return failures.diagnose(run, self._assignment, exit, hint)

    def report(self, failure: Failure) -> dict[str, Any]:
        """A diagnosis of this log as `servetune diagnose --json` prints it."""
        return _failure_report.report(self._closed(), self._assignment, failure)

    def flags(self) -> LaunchFlags:
        """Flags as passed (the assignment, else the command that the log shows) and as the engine used them."""
        return LaunchFlags.of(self._closed(), self._assignment)

    def _closed(self) -> Run:
        """The state including skipped lines and an unfinished last line; reading goes on as if nobody had looked."""
        rest = self._splitter.rest
        if not rest.strip() and self._floods.empty:
            return self._run
        if self._finished is None or self._finished[0] != self._fed_bytes:
            run, cleaner = copy.deepcopy(self._run), copy.deepcopy(self._cleaner)
            self._floods.catch_up(run, cleaner)
            for line in cleaner.clean(self._number + 1, rest) if rest.strip() else ():
                run = run.successor() if run.restarted_by(line) else run
                run.take(line)
            self._finished = (self._fed_bytes, run)
        return self._finished[1]
