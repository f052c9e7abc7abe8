"""Python tracebacks out of interleaved log lines: one per rank, the chain of exceptions inner cause first, bounded."""

from __future__ import annotations

import re
from collections import deque
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache

from servetune.engines.sglang._log_lines import Line

#: Bounds: tracebacks kept per log, containers followed at once, exceptions per chain, innermost frames per
#: exception, lines of one message.
MAX_TRACES = 96
MAX_SOURCES = 64
MAX_CHAIN = 8
MAX_FRAMES = 40
MAX_MESSAGE_LINES = 24
MAX_MESSAGE_TEXT = 2000

_HEAD = "Traceback (most recent call last)"
#: End of a line that begins a traceback, as raw bytes.
HEADER = b"Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line \d+(?:, in (?P<function>.+)| in (?P<native>.+))?')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_]\w*(?:\.\w+)*)(?::|$)")
_EXCEPTION_NAME = re.compile(
    r"(?:Error|Exception|Exit|Interrupt|Timeout|Unsupported|OutOfResources|StopIteration|Warning|Failure|Abort\w*)\w*$"
)
_LEVELS = frozenset(("INFO", "WARNING", "ERROR", "DEBUG", "CRITICAL", "WARN", "Note", "usage"))
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
#: A message that ends so quotes the traceback of another process, which follows it.
_QUOTES = re.compile(
    r"(?:in a (?:sub|child |worker )?process|[Rr]emote traceback|[Oo]riginal traceback) ?:\s*\Z|\n\"\"\"\s*\Z"
)
_ADVICE = (
    "Possible solutions:",
    "CUDA kernel errors might be asynchronously",
    "For debugging consider passing",
    "Compile with `TORCH_USE_CUDA_DSA`",
    "Open an issue on GitHub",
)
#: What others write into the same file: the shell, the kernel (`[91231.221] oom-kill:…`), Slurm, a tuner (`[tuner] …`).
_NOT_A_MESSAGE = re.compile(
    r"^(?:Killed|Aborted|Terminated|Segmentation fault|container exited|[$+#] |server exited"
    r"|\[(?:\w{0,20}(?:tune|trial|bench|probe|canary|client|eval|wait|launch|entry|kmsg|dmesg|watch|monitor)\w{0,20}\] "
    r"|(?: *\d+\.\d+|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4})\] )"
    r"|oom-kill:|(?:Memory cgroup o|O)ut of memory: Killed|\S+ invoked oom-killer"
    r"|kernel: |srun: |slurmstepd: |.*\bOOMKilled\b|command terminated with exit code|\S+ exited with code )"
)
#: "… hit an exception" headers: after one of these the process is dying, whatever follows.
_FATAL_HEADER = re.compile(
    r"hit an exception|Initialization failed|Exception in thread (?:MainThread|\S+ \(forward_thread_func)"
    r"|Exception in run_|Exception in Controller"
)


@lru_cache(maxsize=1024)
def is_fatal_header(header: str) -> bool:
    """Whether the header of a traceback says that the process ends."""
    return bool(_FATAL_HEADER.search(header))


@dataclass(slots=True)
class Raised:
    """One exception of a chain. `lines`: its message as (line number, text), the type on the first."""

    frames: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_FRAMES))
    first_frame: str = ""
    lines: list[tuple[int, str]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Type and message as printed, up to the advice that wrappers and CUDA append (it is no evidence)."""
        kept = []
        for _, text in self.lines:
            if text.startswith(_ADVICE):
                break
            kept.append(text)
        return "\n".join(kept)

    @property
    def quotes(self) -> bool:
        """Whether the message only says that the traceback which follows comes from another process."""
        if not self.lines or not self.lines[-1][1].endswith((":", '"""')):
            return False
        return bool(_QUOTES.search("\n".join(text for _, text in self.lines)))

    @property
    def stack(self) -> str:
        """Frames from outermost to innermost, one a line: `sglang/srt/…/file.py:function> code`."""
        return "\n".join(self.frames)

    def moved(self, lines: int) -> Raised:
        """A copy whose lines are further down."""
        return replace(self, frames=self.frames.copy(), lines=[(number + lines, text) for number, text in self.lines])

    def line_at(self, offset: int) -> tuple[int, str]:
        """The printed line that holds character `offset` of `text`."""
        for number, text in self.lines:
            if offset <= len(text):
                return number, text
            offset -= len(text) + 1
        return self.lines[-1]


@dataclass(slots=True)
class Trace:
    """One traceback. `header`: what the logger said before it; `phase` and `ready`: where the log was when it began."""

    line: int
    header: str
    stamp_s: float
    rank: str | None
    source: str
    phase: str
    ready: bool
    progress: int  # how many phase markers had been seen; a later one means that the process went on
    chain: list[Raised] = field(default_factory=list)

    @property
    def fatal(self) -> bool:
        """Whether its header says that the process ends."""
        return is_fatal_header(self.header)

    @property
    def complete(self) -> bool:
        """Whether the last exception's message has been seen."""
        return bool(self.chain) and bool(self.chain[-1].lines)

    @property
    def raised(self) -> list[Raised]:
        """The chain without exceptions whose message never came, and without those that only quote another one."""
        told = [one for one in self.chain if one.lines]
        return [one for one in told[:-1] if not one.quotes] + told[-1:]

    @property
    def in_main(self) -> bool:
        """Whether it unwound the launcher's own main function: nothing is left to serve."""
        first = self.chain[-1].first_frame if self.chain else ""
        return bool(re.search(r"<frozen runpy>|runpy\.py|launch_server\.py:<module>|bin/sglang|cli/main\.py", first))


@dataclass(frozen=True, slots=True)
class Body:
    """The lines behind the header of a traceback as they were read once: the same bytes need no second reading."""

    count: int
    chain: tuple[Raised, ...]  # line numbers and places are those behind the header
    follower: _Follower


@dataclass(slots=True)
class TracebackAssembler:
    """Takes lines, gives traces; each container or pod of an interleaved log is followed on its own."""

    traces: list[Trace] = field(default_factory=list)
    taken: int = 0  # lines that belonged to the traceback that was open
    is_full: bool = False  # fatal tracebacks hold all places: no other will be kept
    _by_source: dict[str, _Follower] = field(default_factory=dict)
    _places: dict[str, int] = field(default_factory=dict)  # lines seen of each source

    @property
    def is_open(self) -> bool:
        """Whether the next lines may belong to a traceback."""
        return bool(self._by_source)

    def opens(self, line: Line) -> bool:
        """Whether `line` starts a traceback."""
        return _HEAD in line.text

    def start(
        self, line: Line, phase: str, ready: bool, stamp_s: float, progress: int, announced: Line | None = None
    ) -> None:
        """Open a traceback, or the next exception of the open chain. `announced`: a header on the line before."""
        place = self._place(line)
        follower = self._by_source.get(line.source)
        if follower is not None and follower.continues(line, place):
            self.taken += 1
            return
        before = line.text.split(_HEAD)[0].strip()
        own = before or line.stamped or announced is None
        header = before if own or announced is None else announced.text
        rank = line.rank if own or announced is None else announced.rank
        trace = Trace(line.number, header.rstrip(": "), stamp_s, rank, line.source, phase, ready, progress, [Raised()])
        self._keep(trace)
        if len(self._by_source) < MAX_SOURCES or line.source in self._by_source:
            self._by_source[line.source] = _Follower(trace, place, place)

    def take(self, line: Line) -> bool:
        """Whether `line` belongs to the open traceback of its source; it is then stored there."""
        if not self._by_source:
            return False
        place = self._place(line)
        follower = self._by_source.get(line.source)
        if follower is None:
            return False
        taken = follower.take(line, place)
        if follower.closed:
            del self._by_source[line.source]
        self.taken += taken
        return taken

    @property
    def is_alone(self) -> bool:
        """Whether one traceback is open, of no particular source."""
        return list(self._by_source) == [""]

    @property
    def fresh(self) -> bool:
        """Whether the only open traceback has just been announced, by a line of no particular source."""
        follower = self._by_source.get("")
        return len(self._by_source) == 1 and follower is not None and follower.fresh

    def body(self, count: int) -> Body | None:
        """What the last `count` lines, all of which the only open traceback took, made of it when it was fresh."""
        follower = self._by_source.get("")
        if len(self._by_source) != 1 or follower is None:
            return None
        return follower.body(count)

    def recall(self, body: Body) -> None:
        """Let the fresh traceback take the lines of `body` at once."""
        follower = self._by_source[""]
        follower.recall(body)
        self._places[""] += body.count
        self.taken += body.count

    def _place(self, line: Line) -> int:
        """Ordinal of the line among those of its source, as long as a traceback is open somewhere."""
        if not self._by_source:
            self._places.clear()
        place = self._places[line.source] = self._places.get(line.source, 0) + 1
        return place

    def _keep(self, trace: Trace) -> None:
        """Bounded; what the server survived makes room for what kills it."""
        if self.is_full:
            return
        if len(self.traces) >= MAX_TRACES:
            survived = next((one for one in self.traces if not one.fatal), None)
            if survived is None:
                self.is_full = True
                return
            self.traces.remove(survived)
        self.traces.append(trace)


@dataclass(slots=True)
class _Follower:
    """Follows one open traceback through the lines of one source, until a blank line, a stamp or other text ends it."""

    _trace: Trace
    _header_place: int
    _last_place: int
    _chained: bool = False  # "During handling …" has been seen, its exception not yet
    _closed_message: bool = False
    _after_frame: bool = False
    closed: bool = False

    @property
    def fresh(self) -> bool:
        """Whether no line has followed the header."""
        return self._trace.chain == [Raised()] and not (self._chained or self._closed_message or self._after_frame)

    def body(self, count: int) -> Body:
        """A copy of what has been read of the trace and of the state, counted from the header."""
        header = self._trace.line
        state = copy(self)
        state._last_place -= self._header_place
        return Body(count, tuple(one.moved(-header) for one in self._trace.chain), state)

    def recall(self, body: Body) -> None:
        """Become what `body` was."""
        header, state = self._trace.line, body.follower
        self._trace.chain[:] = [one.moved(header) for one in body.chain]
        self._last_place = state._last_place + self._header_place
        self._chained, self._closed_message = state._chained, state._closed_message
        self._after_frame = state._after_frame

    def continues(self, line: Line, place: int) -> bool:
        """Whether the head of a traceback in `line` is the next exception of this chain."""
        quoted = self._trace.complete and self._trace.chain[-1].quotes
        if line.stamped or not (self._chained or quoted):
            return False
        self._next_exception()
        self._last_place = place
        return True

    def take(self, line: Line, place: int) -> bool:
        """Whether `line` belongs to the traceback; it is then stored there."""
        if line.stamped:
            return self._stamp(line)
        taken = self._unstamped(line, place) if line.text.strip() else self._blank()
        if taken:
            self._last_place = place
        return taken

    def _next_exception(self) -> None:
        if self._trace.chain[-1].lines and len(self._trace.chain) < MAX_CHAIN:
            self._trace.chain.append(Raised())
        self._closed_message, self._chained = False, False

    def _stamp(self, line: Line) -> bool:
        """A stamped line of another rank leaves the traceback open: its remaining lines may follow."""
        self.closed = self._trace.complete or line.rank == self._trace.rank
        return False

    def _blank(self) -> bool:
        self._closed_message = self._closed_message or (self._trace.complete and not self._has_paragraphs())
        return True

    def _has_paragraphs(self) -> bool:
        """Whether the message begins on the line below its type: one that is written so has blank lines, too."""
        return self._trace.chain[-1].lines[0][1].rstrip().endswith("Error:")

    def _unstamped(self, line: Line, place: int) -> bool:
        text = line.text
        if text.startswith(_CHAINED):
            self._chained = self._closed_message = True
            return True
        if self._chained and _EXCEPTION.match(text):
            self._next_exception()
        current = self._trace.chain[-1]
        if _FRAME.match(text):
            return self._frame(line, current)
        if not current.lines and (text.startswith(" ") or self._is_code(text)):
            self._after_frame = False
            _add_code(current, text)
            return True
        return self._message(line, current, place)

    def _is_code(self, text: str) -> bool:
        """A source line whose indentation got lost: it follows a frame and is no exception."""
        match = _EXCEPTION.match(text)
        return self._after_frame and not (match and _EXCEPTION_NAME.search(match["type"]))

    def _frame(self, line: Line, current: Raised) -> bool:
        if current.lines:
            self.closed = self._closed_message
            return not self.closed  # else a frame printed inside a message
        frame = frame_of(line.text)
        current.first_frame = current.first_frame or frame
        current.frames.append(frame)
        self._after_frame = True
        return True

    def _message(self, line: Line, current: Raised, place: int) -> bool:
        if current.lines:
            adjacent = place <= self._last_place + 1
            self.closed = self._closed_message or not adjacent or bool(_NOT_A_MESSAGE.match(line.text))
            if not self.closed and len(current.lines) < MAX_MESSAGE_LINES:
                current.lines.append((line.number, line.text[:MAX_MESSAGE_TEXT]))
            return not self.closed
        match = _EXCEPTION.match(line.text)
        if not match or match["type"] in _LEVELS or not (_EXCEPTION_NAME.search(match["type"]) or current.frames):
            return False
        current.lines.append((line.number, line.text[:MAX_MESSAGE_TEXT]))
        return True


def _add_code(current: Raised, text: str) -> None:
    if current.frames and ">" not in current.frames[-1] and not text.strip().startswith(("^", "~")):
        current.frames[-1] += f"> {text.strip()[:160]}"


@lru_cache(maxsize=4096)
def frame_of(text: str) -> str:
    """`path:function` of a `File "…", line N, in f` line, the path from the package's name on."""
    match = _FRAME.match(text)
    if match is None:
        return ""
    path = re.sub(r"^.*/(?:site-packages|dist-packages|python|site)/", "", match["path"])
    return f"{path}:{(match['function'] or match['native'] or '').strip()}"
