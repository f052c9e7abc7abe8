"""Requests and answers that the engine logs (`--log-requests`): a user's words, of which none is the server's.

A prompt may hold any sentence of any log, arguments and tracebacks too. So of such a record only its begin is read.
Where the text is printed as it is, with its line breaks, the record goes on over the next lines: up to the bracket that
closes it, or to the next line that the engine's logger stamped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: What every such record has; cheap to look for.
HINTS = ("obj=", '"request.')
_BEGIN = re.compile(
    r"""^[^'"]{0,160}?\b(?:Receive|Finish)(?: \w{1,16})?: ?obj=(?P<type>\w{0,64})"""
    r"""|^[^'"{]{0,160}\{"timestamp": ?"[^"]{0,64}", ?"event": ?"request\."""
)
_SIGN = re.compile(r"""\\.|['"()\[\]{}]""", re.S)
_QUOTES, _OPENING, _CLOSING = "'\"", "([{", ")]}"
#: A quotation mark is one where it stands behind, or before, one of these: texts are not always escaped.
_BEHIND, _BEFORE = "=([{,: ", ",)]}:"
#: Brackets within one another, and lines of one record; beyond, nobody can tell.
MOST_BRACKETS, MOST_LINES = 200, 2000


def shows_request(raw: bytes) -> bool:
    """Whether a raw line, or the begin of one, may show a request."""
    return b"obj=" in raw or b'"request.' in raw


def own_words(text: str) -> tuple[str, str, int] | None:
    """Of a line that shows a request: what the server says itself, the brackets left open, where the record ends."""
    begin = _BEGIN.match(text) if any(map(text.__contains__, HINTS)) else None
    if begin is None:
        return None
    is_event = begin["type"] is None
    state, end = unclosed(text, text.index("{") if is_event else begin.end())
    return (text[: text.index("{")] + "request" if is_event else begin[0]), state, end


def unclosed(text: str, at: int = 0, state: str = "") -> tuple[str, int]:
    """The brackets and the quotation mark that are open at the end of a text, and where the record ends.

    `state`: those open before `at`, outermost first.
    """
    for match in _SIGN.finditer(text, at):
        sign, end = match[0], match.end()
        if state and state[-1] in _QUOTES:
            follows = text[end : end + 1]
            if sign == state[-1] and ((follows and follows in _BEFORE) or text.startswith(" ...", end)):
                state = state[:-1]
        elif sign in _QUOTES:
            state += sign if text[end - 2 : end - 1] in _BEHIND else ""
        elif sign in _OPENING:
            state = (state + sign)[:MOST_BRACKETS]
        elif sign in _CLOSING:
            state = state[:-1]
            if not state and not text.startswith(", ", end):
                return "", end
    return state, len(text)


@dataclass(slots=True)
class OpenRecord:
    """A record whose end has not come. `state`: what is open; `begun`, `number`: its first and last lines so far."""

    state: str = ""
    begun: int = 0
    number: int = 0
    source: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the next lines may belong to it."""
        return bool(self.state)

    def covers(self, number: int, source: str, stamped: bool) -> bool:
        """Whether a line belongs to it: it follows directly, and the engine's logger did not stamp it."""
        if not self.state or stamped or source != self.source:
            return False
        return number <= self.number + 1 and number - self.begun <= MOST_LINES

    def begin(self, state: str, number: int, source: str) -> None:
        """Open or, with an empty `state`, close it."""
        self.state, self.begun, self.number, self.source = state, number, number, source

    def take(self, number: int, text: str) -> None:
        """Take a line that belongs to it."""
        self.state, self.number = unclosed(text, 0, self.state)[0], number
