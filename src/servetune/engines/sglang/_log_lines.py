"""From bytes to clean log lines: splitting with bounded memory, and removing everything that is not the message.

A **physical line** is what lies between two newlines; numbers count these, from 1, as `grep -n` does. One physical line
may hold several **lines**: progress bars end with a carriage return, and a logger's line may follow a bar directly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from servetune.engines.sglang import _log_requests

#: A physical line longer than the sum is shortened to its first and last bytes (a `server_args=` line has about 20 KB).
HEAD_BYTES = 64 * 1024
TAIL_BYTES = 16 * 1024
#: Longest text of one clean line, in characters; `server_args=` needs most of it.
MAX_TEXT = HEAD_BYTES + TAIL_BYTES
#: Physical lines without the logger's stamp repeat (frames of tracebacks above all): how many of which length are kept.
REMEMBERED, REMEMBERED_BYTES = 4096, 400

#: What a terminal takes for itself: titles, links and other strings up to their end, colours and moves, other escapes;
#: and what is left of a colour where the escape character got lost.
_ANSI = re.compile(
    r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*+(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]|\x1b(?:[()][A-Z0-9]|[@-Z\\-_])?|^\[\d{1,2}(?:;\d{1,2})*m|\[0?m$"
)
#: One of these is in every line with such dress but a lost escape: a backspace, too. The same in raw lines.
_DRESS = ("\x1b", "\b", "\x9b", "\x9d", "\x90", "\x98", "\x9e", "\x9f")
_RAW_DRESS = (b"\x1b", b"\b", b"\0", b"\xc2\x9b", b"\xc2\x9d", b"\xc2\x90", b"\xc2\x98", b"\xc2\x9e", b"\xc2\x9f")
_RANKS = r"((?: [A-Z][A-Z_]{0,7}\d+)*)"
#: Escapes, and what is left of them where a terminal's escape character got lost; several lines in one.
_SPECIAL = (*_DRESS, "\x00", "\r", "\n", "[0m", "[m")
_STAMP = re.compile(rf"\[(\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)?{_RANKS}\] ?")
_SHORT_STAMP = re.compile(rf"^\[(?:\d\d-\d\d )?(\d\d:\d\d:\d\d){_RANKS}\] ?")
_RANK_ONLY = re.compile(r"^\[([A-Z]{2,4}\d+(?: [A-Z]{2,4}\d+)*)\] ")
_TORCH = re.compile(r"^\s?\[(rank\d+)\]:\s?(?:\[[EWIF]\d* ?[\d:.]* [^\]]*\]\s?)?")
_NCCL_RANK = re.compile(r"^\S+:\d+:\d+ \[(\d+)\] ")
_RETURN = re.compile(r"\r")
_BAR = re.compile(r"%[|]|\d+it \[")
#: "(head, rank=0, pid=8292) ", "(Actor(rank=3) pid=616) ": words and pairs, one of which names a process.
_PAIR = r"\w{1,40}=[^\s,()\[\]<>=]{1,80}"
_NAMED_PROCESS = re.compile(
    r"^ ?[(\[<](?=[A-Za-z])(?=[^()\[\]]{0,99}(?:\([^()]{0,40}\))?[^()\[\]]{0,99}"
    r"\b(?:pid|rank|local_rank|node_rank|worker|node|host)=)"
    rf"(?:[\w.:/-]{{1,80}}(?:\([^()]{{0,40}}\))?,? ){{0,3}}{_PAIR}(?:,? {_PAIR}){{0,6}}[)\]>]:? ?"
)
#: A viewer's severity and time of a line, in either order; INFO of the engine's own lines has no time beside it.
_LEVEL = r"(?i:\[?(?:INFO|ERROR|WARN(?:ING)?|DEBUG|NOTICE|CRITICAL|DEFAULT|ALERT|FATAL)\]?)"
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d| \+0000 UTC)"
_CONTAINER = (
    re.compile(r"^\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)\] ?"),  # Jenkins and others
    re.compile(r"^(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4})?\[\d+,\d+\]<std(?:err|out)>: ?"),  # mpirun
    re.compile(r"^\[pod/[^\]]+\] ?"),  # kubectl logs --prefix
    re.compile(
        rf"^(?:{_LEVEL})[ \t]{_TIME}[ \t](?:\[severity: [A-Z]+\] ?)?|^{_TIME}[ \t](?:{_LEVEL})(?:[ \t]|$)"
    ),  # viewers of clouds
    re.compile(
        r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)(?: std(?:out|err) [FP](?: |$)| |$)"
    ),  # Kubernetes, CRI, docker -t
    re.compile(r"^[A-Za-z][\w.\-]{0,60} *\| ?"),  # docker compose
    re.compile(r"^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [^\s:\[]+(?:\[\d+\])?: "),  # journald, syslog
    _NAMED_PROCESS,  # Ray, launchers
    re.compile(r"^\d{1,3}: (?=\[\d{4}-| |Traceback|[\w.]{1,80}(?:Error|Exception)\b|usage: |$)"),  # srun --label
    re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\t"),  # exports with tabs
)


class Line(NamedTuple):
    """One clean line. `stamp_s`: its own time stamp in seconds, None without one; `rank` as printed (`DP0 TP3`)."""

    number: int
    text: str
    stamp_s: float | None = None
    rank: str | None = None
    source: str = ""  # container or pod that wrote it, where the log says so
    stamped: bool = False  # the engine's logger wrote it: a line of a traceback or of a library has no such prefix
    unclosed: str = ""  # brackets that are open at its end, where it shows a request (`_log_requests`)


class LineSplitter:
    """Cuts a byte stream into blocks of whole lines. Holds at most one shortened line, whatever the chunks are."""

    def __init__(self) -> None:
        self._pending = b""
        self._tail = b""  # only of a line that is already too long
        self._long = False
        self._start = 0  # offset in the stream of the first byte that is held back
        self._seen = 0

    def feed(self, chunk: bytes | bytearray) -> list[tuple[int, bytes]]:
        """Blocks of whole lines, each with the offset in the stream at which it begins and a newline at its end."""
        begin = self._seen
        self._seen += len(chunk)
        if self._long:
            return self._feed_long(bytes(chunk), begin)
        end = chunk.rfind(b"\n") + 1
        blocks = []
        view = memoryview(chunk)  # nothing is copied twice
        if end:
            blocks.append((self._start, b"".join((self._pending, view[:end]))))
            self._pending, self._start = b"", begin + end
        self._pending += view[end:]
        if len(self._pending) > HEAD_BYTES + TAIL_BYTES:
            self._long = True
            self._tail = self._pending[-TAIL_BYTES:]
            self._pending = self._pending[:HEAD_BYTES]
        return blocks

    def _feed_long(self, chunk: bytes, begin: int) -> list[tuple[int, bytes]]:
        end = chunk.find(b"\n")
        if end < 0:
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            return []
        line = self._pending + (self._tail + chunk[:end])[-TAIL_BYTES:] + b"\n"
        start = self._start
        self._pending, self._tail, self._long = b"", b"", False
        self._start = self._seen = begin + end + 1
        return [(start, line), *self.feed(chunk[end + 1 :])]

    @property
    def rest(self) -> bytes:
        """What follows the last newline, shortened."""
        return self._pending + self._tail


def clip(raw: bytes) -> bytes:
    """The part of a physical line that is read: all of it, or its first and last bytes."""
    return raw if len(raw) <= HEAD_BYTES + TAIL_BYTES else raw[:HEAD_BYTES] + raw[-TAIL_BYTES:]


class LineCleaner:
    """Removes colours, carriage returns and container prefixes; remembers a prefix that it saw before a time stamp."""

    def __init__(self, learned: str = "") -> None:
        self.learned = learned

    def clean(self, number: int, raw: bytes) -> Sequence[Line]:
        """The lines of one physical line. An empty physical line gives one empty line: it ends a traceback."""
        if raw.startswith(b"[20") and (plain := _plain(number, raw)) is not None:
            return (plain,)
        known = _cleaned if len(raw) <= REMEMBERED_BYTES else _cleaned.__wrapped__
        self.learned, lines = known(self.learned, raw)
        return [Line(number, *one[1:]) for one in lines]

    def peek(self, raw: bytes) -> Sequence[Line]:
        """The same, as number 0, without remembering a prefix."""
        return LineCleaner(self.learned).clean(0, raw)


def _plain(number: int, raw: bytes) -> Line | None:
    """A line that is as the engine's logger wrote it; None when anything about it is special."""
    if len(raw) > MAX_TEXT:
        return None
    text = raw.decode("utf-8", "replace").rstrip("\r\n")
    stamp = _STAMP.match(text)
    if stamp is None or any(map(text.__contains__, _SPECIAL)):
        return None
    if text.find("[", 1) > 0 and _STAMP.search(text, 1):
        return None
    line = Line(number, text[stamp.end() :], _seconds(stamp[1]), stamp[2].strip() or None, "", stamped=True)
    return _own(line) if any(map(text.__contains__, _log_requests.HINTS)) else line


@lru_cache(maxsize=REMEMBERED)
def _cleaned(learned: str, raw: bytes) -> tuple[str, tuple[Line, ...]]:
    """The prefix that is known then, and the lines of one physical line, as number 0."""
    text = clip(raw).decode("utf-8", "replace").replace("\x00", "")
    if text.startswith('{"'):
        text = _unpack_json(text)
    lines: list[Line] = []
    for line in text.rstrip("\r\n").split("\n"):
        learned, source, rest = _strip_prefix(learned, _without_escapes(line))
        lines += (_own(_line(0, part, source)) for part in _records(rest))
    return learned, tuple(lines)


def _without_escapes(text: str) -> str:
    if any(map(text.__contains__, _DRESS)) or text.startswith("[") or text.endswith("m"):
        text = _ANSI.sub("", text)
    return _overwritten(text) if "\b" in text else text


def is_dressed(raw: bytes) -> bool:
    """Whether a raw line holds what a terminal does not show: words may then be in pieces."""
    return any(map(raw.__contains__, _RAW_DRESS))


def _overwritten(text: str) -> str:
    """The text as a terminal shows it where letters were gone back over."""
    shown, place = list[str](), 0
    for index, piece in enumerate(text.split("\b")):
        place = max(0, place - (index > 0))
        shown[place : place + len(piece)] = piece
        place += len(piece)
    return "".join(shown)


def _strip_prefix(learned: str, text: str) -> tuple[str, str, str]:
    """The known prefix, the source that it names, and the line without it."""
    if learned and text.startswith(learned):
        return learned, learned.strip(), text[len(learned) :]
    source, text = _without_container(text)
    stamp = _STAMP.search(text, 0, 200)
    if stamp and 0 < stamp.start() <= 80 and not source and _looks_like_prefix(text[: stamp.start()]):
        learned = text[: stamp.start()]
        return learned, learned.strip(), text[stamp.start() :]
    return learned, source, text


def _without_container(text: str) -> tuple[str, str]:
    """Source (where a prefix names one) and rest of a line; prefixes may stand behind one another."""
    source, stripped = "", True
    while stripped:
        stripped = False
        for pattern in _CONTAINER:
            match = pattern.match(text)
            if match and match.end() and not _BAR.search(match.group()):
                if "|" in match.group() or "/" in match.group():
                    source += match.group().strip(" |")
                text, stripped = text[match.end() :], True
    return source, text


def _looks_like_prefix(text: str) -> bool:
    """A few words without spaces inside brackets or quotes, such as a pod name; not the rest of a progress bar."""
    return bool(re.fullmatch(r"[\w./:\-\[\]|() ]{1,80}[ |\]:]", text)) and not _BAR.search(text) and "%" not in text


def _unpack_json(text: str) -> str:
    """One object a line: Docker's json-file format, and loggers that write JSON. A traceback may be one message."""
    try:
        unpacked = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(unpacked, dict):
        return text
    told = (unpacked.get(key) for key in ("log", "message", "msg"))
    return next((log.rstrip("\r\n") for log in told if isinstance(log, str)), text)


def _records(text: str) -> list[str]:
    """The parts of a line, of which one may show a request: that one is not split, whatever it holds."""
    if not any(map(text.__contains__, _log_requests.HINTS)):
        return _parts(text)
    starts = [0, *(stamp.start() for stamp in _STAMP.finditer(text, 1)), *(cr.end() for cr in _RETURN.finditer(text))]
    for start in sorted(starts):
        stamp = _STAMP.match(text, start)
        behind = stamp.end() if stamp else start
        found = _log_requests.own_words(text[behind:])
        if found is not None:
            end = behind + found[2]
            rest = _parts(text[end:]) if _STAMP.search(text, end) else []
            return [*(_parts(text[:start]) if start else []), text[start:end], *rest]
    return _parts(text)


def _own(line: Line) -> Line:
    """Of a line that shows a request what the server says itself."""
    found = _log_requests.own_words(line.text)
    return line if found is None else line._replace(text=found[0], unclosed=found[1])


def _parts(text: str) -> list[str]:
    """Split at carriage returns (only the last of several progress bars is kept) and before a stamp inside a line."""
    pieces = [piece for piece in text.split("\r") if piece] if "\r" in text else [text]
    parts = pieces if _STAMP.search(text, 1) is None else [part for piece in pieces for part in _stamped_parts(piece)]
    bars = [index for index, part in enumerate(parts) if _BAR.search(part)] if len(parts) > 1 else []
    if len(bars) < 2:
        return parts or [""]
    dropped = frozenset(bars[:-1])
    return [part for index, part in enumerate(parts) if index not in dropped]


def _stamped_parts(piece: str) -> list[str]:
    starts = [0, *(stamp.start() for stamp in _STAMP.finditer(piece, 1))]
    return [piece[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def _line(number: int, text: str, source: str) -> Line:
    stamp = _STAMP.match(text)
    if stamp:
        rank = stamp.group(2).strip() or None
        return Line(number, text[stamp.end() :], _seconds(stamp.group(1)), rank, source, stamped=True)
    if text.startswith("["):
        short = _SHORT_STAMP.match(text)
        if short:
            seconds = _seconds(f"1970-01-01 {short.group(1)}")
            return Line(number, text[short.end() :], seconds, short.group(2).strip() or None, source, stamped=True)
        ranks = _RANK_ONLY.match(text)
        if ranks:
            return Line(number, text[ranks.end() :], None, ranks.group(1), source, stamped=True)
    torch = _TORCH.match(text)
    if torch:
        return Line(number, text[torch.end() :], None, torch.group(1), source)
    nccl = _NCCL_RANK.match(text)
    return Line(number, text, None, f"rank{nccl.group(1)}" if nccl else None, source)


@lru_cache(maxsize=64)
def _seconds(stamp: str) -> float | None:
    try:
        return datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
