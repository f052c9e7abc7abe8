"""Reads whole lines of a log into a `Run`: counted ones in bulk, meaningless ones by their shape, the rest closely."""

from __future__ import annotations

from servetune.engines.sglang._log_floods import Floods, has_status, told_apart
from servetune.engines.sglang._log_lines import LineCleaner
from servetune.engines.sglang._log_run import Run
from servetune.engines.sglang._log_throughput import RUN, CountedPlaces, is_counted, is_counted_line
from servetune.engines.sglang._log_traceback_floods import BODY_BYTES, NO_BODY, TracebackFloods
from servetune.engines.sglang._log_tracebacks import HEADER
from servetune.engines.sglang._log_words import shapes_of

#: Lines that are looked at together, in bytes.
_TOGETHER = 64 * 1024


class BlockReader:
    """The state of the reading between two blocks. `number`: physical lines taken so far."""

    def __init__(self) -> None:
        self.run = Run()
        self.cleaner = LineCleaner()
        self.number = 0
        self.floods = Floods()
        self._tracebacks = TracebackFloods()

    def settle(self) -> None:
        """Let the run take what has been skipped: nothing but `run`, `number` and the cleaner's prefix counts then."""
        self.floods.catch_up(self.run, self.cleaner)
        self.floods.settled()

    def take(self, offset: int, block: bytes) -> None:
        """Whole lines, which begin at `offset` of the log."""
        at, places = 0, CountedPlaces(block)
        while at < len(block):
            end = places.line_of_next(at)
            if end > at:
                at = self._take_portion(block, at, end)
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

    def _take_portion(self, block: bytes, at: int, end: int) -> int:
        """Take some of the lines between two places, of which none is counted. Returns where the rest begins."""
        cut = _cut(block, at, end)
        run, skipped = self.run, None
        if run.survives_tracebacks and not self.cleaner.learned:
            skipped = self._tracebacks.skippable(block, at, cut, end, run.tracebacks)
        if skipped is None:
            self._take_lines(block[at:cut])
            return cut
        begin, rest = skipped
        self._take_lines(block[at:begin])
        if self.run is not run or not (run.survives_tracebacks and run.tracebacks.is_alone) or self.cleaner.learned:
            return begin
        self.number += block.count(b"\n", begin, rest)
        return rest

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
        if self.run.skims and (self.run.begun or b"[" not in text):
            at = self.floods.skip_all(lines, shapes, self.number + 1)
        while at < len(lines):
            if self.run.skims:
                number = self.number + at + 1
                at = self.floods.skip(lines, shapes, at, number, self.run, self.cleaner.learned)
            if at < len(lines):
                at = self._take_line(lines, shapes[at], at)
        self.number += len(lines)

    def _take_line(self, lines: list[bytes], shape: bytes, at: int) -> int:
        """Read the line at `at`, and with the header of a traceback its body. Returns the next place."""
        self.floods.catch_up(self.run, self.cleaner)
        self.floods.caught_up(shape)
        self._read(self.number + at + 1, lines[at])
        if lines[at].endswith(HEADER) and not self.cleaner.learned and self.run.awaits_body:
            return self._take_body(lines, at + 1)
        return at + 1

    def _take_body(self, lines: list[bytes], begin: int) -> int:
        """The lines behind the header of a traceback, up to the next with a stamp. What was read once is recalled."""
        end = next((at for at in range(begin, len(lines)) if lines[at].startswith(b"[")), len(lines))
        key = b"\n".join(lines[begin:end])
        if end == begin or len(key) > BODY_BYTES or any(map(key.__contains__, NO_BODY)):
            return begin
        run, number = self.run, self.number + begin
        known = self._tracebacks.body(key)
        if known is not None:
            run.recall(known, number)
            return end
        taken = run.tracebacks.taken
        for at in range(begin, end):
            self._read(self.number + at + 1, lines[at])
        if run.tracebacks.taken - taken == end - begin and self.run is run and not self.cleaner.learned:
            self._tracebacks.remember(key, run.remembered(end - begin, number))
        return end

    def _count(self, lines: bytes, count: int, offset: int) -> None:
        run, first = self.run, self.number + 1
        decodes = run.throughput.take(lines, count, offset, first)
        if decodes:
            run.last_decode_line = first
        if decodes < count and (b'"POST' in lines or b'"GET /health' in lines):
            run.last_answer_line = first
        self.number += count

    def _read(self, number: int, raw: bytes) -> None:
        learned = self.cleaner.learned
        lines = self.cleaner.clean(number, raw)
        if self.cleaner.learned != learned:
            self.floods.forget_kinds()
        for line in lines:
            if self.run.restarted_by(line):
                self.run = self.run.successor()
            self.run.take(line)


def _cut(block: bytes, begin: int, end: int) -> int:
    """Where to end a portion of the whole lines between two places."""
    if end - begin <= 2 * _TOGETHER:
        return end
    return block.find(b"\n", begin + _TOGETHER, end) + 1 or end
