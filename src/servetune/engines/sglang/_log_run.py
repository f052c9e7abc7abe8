"""Everything that is remembered of one server's log: bounded state, fed with clean lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from servetune.core.failure import Phase
from servetune.core.space import Value
from servetune.engines.sglang import _log_answers, _log_args, _log_notices, _log_phases, _log_scores
from servetune.engines.sglang._advice_facts import FREE_SPACE
from servetune.engines.sglang._failure_table import Entry
from servetune.engines.sglang._log_answers import ANSWERS, Answer
from servetune.engines.sglang._log_lines import Line, LineCleaner
from servetune.engines.sglang._log_native import NativeStack
from servetune.engines.sglang._log_notices import MAX_READ_TEXT, Notice
from servetune.engines.sglang._log_phases import Progress
from servetune.engines.sglang._log_requests import OpenRecord
from servetune.engines.sglang._log_scores import SCORES, Score
from servetune.engines.sglang._log_throughput import Throughput
from servetune.engines.sglang._log_tracebacks import Body, Trace, TracebackAssembler
from servetune.engines.sglang._log_words import Topics, shape_of, topics_of

#: Bounds on what is kept: first and last events per signature, notices, explaining lines, flags named in a usage text.
PER_SIGNATURE, NOTICES, EXPLAINING, KNOWN_FLAGS = 3, 64, 16, 4096
MAX_EVIDENCE_TEXT = 2000


@dataclass(frozen=True, slots=True)
class Event:
    """A line that matched a signature of the table, and where the log was then."""

    entry: Entry
    number: int
    text: str
    stamp_s: float
    rank: str | None
    phase: Phase
    ready: bool
    markers: int


@dataclass(slots=True)
class Run:
    """State of the reading. `deaths` and `stop_line`: the server ends, or was asked to end."""

    progress: Progress = field(default_factory=Progress)
    throughput: Throughput = field(default_factory=Throughput)
    tracebacks: TracebackAssembler = field(default_factory=TracebackAssembler)
    first_events: dict[str, list[Event]] = field(default_factory=dict)
    last_events: dict[str, deque[Event]] = field(default_factory=dict)
    notices: list[tuple[int, str, Notice, Phase]] = field(default_factory=list)
    explaining: dict[str, list[tuple[int, str, str | None]]] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    effective: dict[str, Any] = field(default_factory=dict)
    command: dict[str, Value] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    own_command: dict[str, Value] = field(default_factory=dict)  # what of both was shown during this run
    own_env: dict[str, str] = field(default_factory=dict)
    usage_flags: set[str] = field(default_factory=set)
    worry: tuple[int, str, Phase] | None = None
    deaths: list[tuple[int, str]] = field(default_factory=list)
    last_death: int = 0
    stop_line: int = 0
    last_line: tuple[int, str] = (0, "")
    last_decode_line: int = 0
    last_answer_line: int = 0
    stamp_s: float = 0.0
    start: int = 1  # ordinal of this server among those that the log shows
    previous: Run | None = None  # the server that ran before in the same log
    native: NativeStack = field(default_factory=NativeStack)
    request: OpenRecord = field(default_factory=OpenRecord)
    _before: Line | None = None
    _source: str = ""  # container that printed the arguments
    following: tuple[dict[str, Value], dict[str, str]] | None = None  # a command shown after this server's arguments

    @property
    def skims(self) -> bool:
        """Whether lines that mean nothing may be skipped: no traceback and no record of a request is open."""
        return not (self.tracebacks.is_open or self.native.is_open or self.request.is_open)

    @property
    def begun(self) -> bool:
        """Whether the start is under way; before, a stamp alone means that the command was accepted."""
        return self.progress.markers > 0

    @property
    def survives_tracebacks(self) -> bool:
        """Whether a traceback changes nothing but what is remembered of tracebacks."""
        return self.progress.phase is not Phase.PARSE and not (self.native.is_open or self.request.is_open)

    @property
    def awaits_body(self) -> bool:
        """Whether a traceback has just been announced, and nothing else is going on."""
        return self.tracebacks.fresh and not self.native.is_open

    def glance(self, line: Line) -> None:
        """Take only the time and the text of a line."""
        self._before = line
        if line.text.strip():
            self.last_line = (line.number, line.text[:MAX_EVIDENCE_TEXT])
        if line.stamp_s is not None:
            self.stamp_s = line.stamp_s

    def remembered(self, count: int, number: int) -> tuple[Body, Sequence[Line]] | None:
        """What the last `count` lines, behind line `number`, made of a traceback that had just been announced."""
        body = self.tracebacks.body(count)
        last_number, last_text = self.last_line
        if body is None or self._before is None or last_number <= number:
            return None
        last = self._before._replace(number=count)
        return body, (Line(last_number - number, last_text), last)

    def recall(self, known: tuple[Body, Sequence[Line]], number: int) -> None:
        """Take the lines of `remembered` again, behind line `number`."""
        body, last = known
        self.tracebacks.recall(body)
        for line in last:
            self.glance(line._replace(number=number + line.number))

    def take(self, line: Line) -> None:
        """Take one clean line."""
        if self.is_quoted(line):
            self.request.take(line.number, line.text)
            return
        self.request.begin(line.unclosed, line.number, line.source)
        before = self._before
        self.glance(line)
        self.native.take(line)
        if self.tracebacks.opens(line):
            self._traceback(line, before)
        elif not self.tracebacks.take(line):
            self._plain(line)

    def is_quoted(self, line: Line) -> bool:
        """Whether a line belongs to the record of a request that is shown: its words are a user's."""
        return self.request.covers(line.number, line.source, line.stamped)

    def _traceback(self, line: Line, before: Line | None) -> None:
        if _log_notices.DEATH.search(line.text):
            self._death(line)
        progress = self.progress
        if progress.phase is Phase.PARSE:
            progress.enter(Phase.VALIDATE, line)
        phase = progress.by_rank.get(line.rank or "", progress.phase)
        near = before is not None and before.number >= line.number - 1 and before.text.rstrip().endswith(":")
        announced = before if near else None
        self.tracebacks.start(line, phase.value, progress.ready, self.stamp_s, progress.markers, announced)

    def _plain(self, line: Line) -> None:
        text = line.text
        if line.stamped and self.progress.phase is Phase.PARSE and "server_args=" not in text:
            self.progress.enter(Phase.VALIDATE, line)
        short = text[:MAX_READ_TEXT]
        topics = topics_of(shape_of(short))
        if (topics.marker or topics.capturing or short is not text) and _log_phases.take_marker(self.progress, line):
            self._arguments(line)
            return
        self._command(text)
        self._usage(text)
        if topics.version:
            _log_phases.take_version(self.progress, line)
        if topics.telling:
            self._tell(line, short, topics)

    def _tell(self, line: Line, text: str, topics: Topics) -> None:
        if topics.retraction and _log_notices.RETRACTION.search(text):
            self.throughput.retractions += 1
            self._explain("retraction", line)
        notice = _log_notices.notice_of(text) if topics.notice and len(self.notices) < NOTICES else None
        if notice is not None and not self._repeats(notice):
            self.notices.append((line.number, text[:MAX_EVIDENCE_TEXT], notice, self.progress.phase))
        if topics.stop and not self.stop_line and not self.deaths and _log_notices.STOP.search(text):
            self.stop_line = line.number
        elif topics.death and _log_notices.DEATH.search(text):
            self._death(line)
        if topics.score and self.progress.phase is Phase.SERVING and len(self.scores) < SCORES:
            self._score(line, text)
        about = self._answer(line, text) if topics.answer and self.progress.phase is Phase.SERVING else text
        self._alarm(line, text, about, topics)

    def _answer(self, line: Line, text: str) -> str:
        """Remember an answer of the model: all of the first ones, then those that make no sense.

        Returns what the line says beside it.
        """
        found = _log_answers.read(line.number, text, judged=len(self.answers) < 2 * ANSWERS)
        if found is None:
            return text
        if len(self.answers) < (2 * ANSWERS if found.problem else ANSWERS):
            self.answers.append(found)
        return found.about

    def _score(self, line: Line, text: str) -> None:
        """Remember what an evaluation says of itself or of its reference."""
        self.scores += _log_scores.read(line.number, text[:MAX_EVIDENCE_TEXT])

    def _repeats(self, notice: Notice) -> bool:
        """Whether a notice in words, of which there may be any number, says what has been said of its subject."""
        return bool(notice.subject) and any(known.subject == notice.subject for _, _, known, _ in self.notices)

    def _death(self, line: Line) -> None:
        self.last_death = line.number
        if len(self.deaths) < EXPLAINING:
            self.deaths.append((line.number, line.text[:MAX_EVIDENCE_TEXT]))

    def _arguments(self, line: Line) -> None:
        if "server_args=" in line.text:
            self._source = self._source if self.effective else line.source
            self.effective.update(_log_args.parse_server_args(line.text))

    def _command(self, text: str) -> None:
        if "launch_server" in text or "sglang serve" in text or "sglang::launch" in text:
            shown = _log_args.parse_command(text)
            if shown is not None and (self.over or (self.command and self.decided)):
                self.following = shown
            elif shown is not None and len(self.command) < KNOWN_FLAGS:
                self._show(*shown)
        elif "export" in text and len(self.env) < KNOWN_FLAGS:
            pair = _log_args.parse_export(text)
            if pair is not None:
                self._show({}, dict([pair]))

    def _show(self, command: dict[str, Value], env: dict[str, str]) -> None:
        self.command.update(command)
        self.own_command.update(command)
        self.env.update(env)
        self.own_env.update(env)

    def _usage(self, text: str) -> None:
        """Collect the flags that a usage text lists: what this version knows."""
        early = self.progress.phase in (Phase.PARSE, Phase.VALIDATE)
        if early and "[--" in text and len(self.usage_flags) < KNOWN_FLAGS:
            self.usage_flags.update(_log_notices.NAMED_FLAG.findall(text))

    def _alarm(self, line: Line, text: str, about: str, topics: Topics) -> None:
        if topics.nccl_warn and _log_notices.NCCL_WARN.search(text):
            self._explain("nccl_warn", line)
        elif topics.assertion and _log_notices.ASSERTION_LINE.search(text):
            self._explain("assertion_line", line)
        elif topics.compiler and _log_notices.COMPILER_ERROR.search(text):
            self._explain("compiler_error", line)
        elif topics.space and FREE_SPACE.search(text):
            self._explain("free_space", line)
        if topics.worry and self.worry is None and _log_notices.worries(text):
            self.worry = (line.number, text[:MAX_EVIDENCE_TEXT], self.progress.phase)
        entry = next((one for one in topics.entries if self._applies(one, text if one.quotes else about)), None)
        if entry is not None:
            self._remember(entry, line)

    def _applies(self, entry: Entry, text: str) -> bool:
        signature = entry.signature
        if signature.phases and self.progress.phase not in signature.phases:
            return False
        if signature.when == "autotuning" and not self.progress.autotuning:
            return False
        return signature.matches(text, "") is not None

    def _remember(self, entry: Entry, line: Line) -> None:
        progress, name = self.progress, entry.signature.name
        event = Event(
            entry,
            line.number,
            line.text[:MAX_EVIDENCE_TEXT],
            self.stamp_s,
            line.rank,
            progress.phase,
            progress.ready,
            progress.markers,
        )
        first = self.first_events.setdefault(name, [])
        if len(first) < PER_SIGNATURE:
            first.append(event)
        else:
            self.last_events.setdefault(name, deque(maxlen=PER_SIGNATURE)).append(event)

    @property
    def events(self) -> list[Event]:
        """The first and the last few of each signature, in the order of the file."""
        found = [event for kept in (*self.first_events.values(), *self.last_events.values()) for event in kept]
        return sorted(found, key=lambda event: event.number)

    def _explain(self, kind: str, line: Line) -> None:
        known = self.explaining.setdefault(kind, [])
        if len(known) < EXPLAINING:
            known.append((line.number, line.text[:MAX_EVIDENCE_TEXT], line.rank))

    @property
    def decode_s(self) -> float:
        """Time of the last decode line; 0 without any."""
        raw = self.throughput.last_decode
        return max((line.stamp_s or 0.0 for line in LineCleaner().clean(0, raw)), default=0.0) if raw else 0.0

    @property
    def end_s(self) -> float | None:
        """Time of the last stamp, of a decode line too; None without any."""
        return max(self.stamp_s, self.decode_s) or None

    def restarted_by(self, line: Line) -> bool:
        """Whether `line` shows that a new server was started after this one: it had died, was ready or asked to stop.

        One that dies before it prints its arguments (its command is refused) is followed by another one, too.

        A server that is killed while it loads says nothing; the same container then starts on the same port again.
        Replicas and the nodes of one server, which start together, print their arguments before anything is loaded.
        """
        if not _log_args.shows_arguments(line.text) or self.is_quoted(line):
            return False
        if self.decided and (self.effective or not line.source):
            return True
        if not self.effective or line.rank or line.source != self._source:
            return False
        return self.over or (self.loading and self._same_place(line))

    @property
    def over(self) -> bool:
        """Whether it had started, or was asked to stop: arguments that follow are those of the next server."""
        return bool(self.effective) and bool(self.progress.ready or self.stop_line or self.decided)

    @property
    def loading(self) -> bool:
        """Whether it loads its weights: the same arguments again are then those of the next server."""
        return self.progress.phase is Phase.LOAD and bool(self.progress.before_load)

    def _same_place(self, line: Line) -> bool:
        new = _log_args.parse_server_args(line.text)
        return all(new.get(flag) == self.effective.get(flag) for flag in ("host", "port", "node-rank"))

    def repeats(self, other: Run) -> bool:
        """Whether it was started with the arguments of `other`; the seed is drawn anew by each launch."""
        drawn = ("random-seed", "nccl-port")
        ours, theirs = (
            {flag: value for flag, value in run.effective.items() if flag not in drawn} for run in (self, other)
        )
        return ours == theirs

    def successor(self) -> Run:
        """State for the next server in the same log; the command is kept unless another one was shown since."""
        self.previous = None
        command, env = self.following or (self.command, {})
        return Run(command=dict(command), env={**self.env, **env}, start=self.start + 1, previous=self)

    @property
    def decided(self) -> bool:
        """Whether the server cannot recover from what the log says."""
        if self.deaths:
            return True
        if any(
            event.entry.owner.slug == "cli_parse" or event.entry.signature.name == "port_busy" for event in self.events
        ):
            return True
        return any(trace.complete and (trace.fatal or trace.in_main) for trace in self.traces)

    @property
    def traces(self) -> list[Trace]:
        """Tracebacks in the order in which they began in the file."""
        return self.tracebacks.traces
