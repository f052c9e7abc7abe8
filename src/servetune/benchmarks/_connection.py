"""One streaming request at a time on one connection, at the least CPU per event.

A server sends each event as one chunk. Reads of whole chunks are recognised by their chunk heads, and the only thing
looked for in them is the running token count, from the end: work that does not grow with a cumulative text. Everything
else takes the general way through `_http.AnswerReader` and `_events.EventSplitter`, with the same result. JSON is
decoded once per answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, Protocol

from servetune.benchmarks._endings import Closing, has_content, read_closing, refusal, short
from servetune.benchmarks._events import EventSplitter
from servetune.benchmarks._http import AnswerReader, MalformedAnswerError
from servetune.benchmarks._records import Records

#: A running count in an event. Inside a JSON string the quotes would be escaped, so that text cannot look like it.
COUNT_KEY = b'"completion_tokens":'


class Owner(Protocol):
    """Who is told that a connection may be used again, or no more."""

    def request_ended(self, connection: Connection) -> None:
        """The request is over and recorded."""
        ...

    def request_lost(self, connection: Connection) -> None:
        """A connection that had served before was closed without a byte of an answer.

        A server may close an idle connection while a request is on its way; sending it again is the rule of HTTP
        (RFC 9112, 9.3.1), and no failure of the server.
        """
        ...

    def connection_ended(self, connection: Connection) -> None:
        """The connection is closed."""
        ...


class Connection(asyncio.Protocol):
    """Sends requests, records their events. One request at a time; never raises for what the server does."""

    def __init__(self, owner: Owner, records: Records) -> None:
        self._owner = owner
        self._records = records
        self._add_time = records.event_time.append
        self._add_request = records.event_request.append
        self._add_tokens = records.event_tokens.append
        self._transport: asyncio.Transport | None = None
        self._now: Callable[[], float] = time.monotonic
        self.busy = False
        self.served = 0  # answers completed on this connection
        self.message = b""
        self.input_tokens = 0
        self.last_event = 0.0  # wall time of the last sign of life of the current request
        self._plain = False  # at the border of a chunk of an event stream with nothing held
        self._tokens = 0
        self._new = 0  # tokens of the last event
        self._before = 0.0  # wall time of the event before it
        self._begin(0, 0)

    # the caller's side

    @property
    def usable(self) -> bool:
        """Whether a request can be sent now."""
        return self._transport is not None and not self.busy and not self._transport.is_closing()

    @property
    def started(self) -> bool:
        """Whether the current request has given a token."""
        return self._new > 0

    def send(self, message: bytes, asked: int, due: float, input_tokens: int = 0) -> None:
        """Send a request for `asked` tokens that was due at wall time `due`: latencies count from there."""
        self.input_tokens = input_tokens
        self._put(self._records.open_request(due, asked), message, asked, due)

    def send_again(self, lost: Connection) -> None:
        """Send the request that another connection lost; it keeps its row in the records."""
        self.input_tokens = lost.input_tokens
        self._put(lost.request, lost.message, lost.asked, lost.last_event)

    def _put(self, request: int, message: bytes, asked: int, due: float) -> None:
        assert self._transport is not None
        self._begin(request, asked)
        self.busy, self.message = True, message
        self.last_event = self._before = due
        self._transport.write(message)

    def under_way(self, now: float) -> float:
        """Tokens that are probably made but have not come: the share of the last event's tokens and time."""
        if not self.busy or not self._new:
            return 0.0
        span = self.last_event - self._before
        return self._new * min(1.0, (now - self.last_event) / span) if span > 0 else 0.0

    def abandon(self) -> None:
        """Close at once; a request in flight is neither completed nor failed."""
        self.busy = False
        if self._transport is not None:
            self._transport.abort()

    def fail(self, reason: str) -> None:
        """Record the current request as failed and close."""
        if self.busy:
            self.busy = False
            self._records.fail_request(self.request, self._now(), reason)
            if self._transport is not None:
                self._transport.abort()
            self._owner.request_ended(self)

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        if self._plain and data.endswith(b"\n\n\r\n"):
            # Whole chunks that end with an event: the count in the last one says it all. When the client is behind, a
            # read holds several; their tokens then share the time of the read.
            try:
                begin = end = 0
                size = len(data)
                while end < size:
                    begin = end
                    head = data.index(b"\n", begin + 1, begin + 12)
                    end = head + int(data[begin:head], 16) + 3
                if end == size:
                    at = data.rindex(COUNT_KEY, begin) + len(COUNT_KEY)
                    count = int(data[at : data.index(b",", at)])
                    new = count - self._tokens
                    if new > 0:
                        self._add_tokens(new)
                        self._tokens, self._new, self._before = count, new, self.last_event
                        self.last_event = now = self._now()
                        self._add_time(now)
                        self._add_request(self.request)
                        self._last = data
                        return
            except ValueError:
                pass  # not that shape: take the general way
        self._general(data)

    def eof_received(self) -> bool:
        """The server closes after this answer."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """A request in flight ends here: complete when its body was delimited by the close, else cut."""
        self._transport = None
        self._owner.connection_ended(self)
        if not self.busy:
            return
        if self.served and not self._reader.touched:
            self.busy = False
            self._owner.request_lost(self)
            return
        if self._reader.status and self._reader.end_of_input():
            self._finish()
        elif exc is not None:
            self.fail(f"connection lost: {type(exc).__name__}")
        else:
            self.fail("connection closed before the end of the answer")

    # the general way

    def _begin(self, request: int, asked: int) -> None:
        self.request = request
        self.asked = asked
        self._tokens = 0
        self._new = 0
        self._counted = 0  # content events without a token count
        self._total: int | None = None  # of a final usage record
        self._last = b""
        self._done = False
        self._plain = False
        self._reader = AnswerReader()
        self._splitter = EventSplitter()
        self._error_body = b""

    def _general(self, data: bytes) -> None:
        if not self.busy:
            if self._transport is not None:
                self._transport.abort()  # bytes that nobody asked for: the connection is out of step
            return
        try:
            body = self._reader.feed(data)
            if self._reader.status == 200:
                if not self._new:
                    self._error_body = (self._error_body + body)[:2000]  # it may be no event stream at all
                self._read_events(self._splitter.feed(body) if body else ())
            elif self._reader.status:
                self._error_body = (self._error_body + body)[:2000]
        except MalformedAnswerError as error:
            self.fail(f"malformed answer: {error}")
            return
        events_whole = self._reader.at_border and not self._splitter.held
        self._plain = events_whole and self._reader.status == 200 and not self._counted
        if self._reader.complete and self.busy:
            self._finish()

    def _read_events(self, events: Any) -> None:
        for event in events:
            if event == b"[DONE]":
                self._done = True
            else:
                self._read_event(event)
            if not self.busy:
                return

    def _read_event(self, event: bytes) -> None:
        at = event.rfind(COUNT_KEY)
        count = None if at < 0 else _number_at(event, at + len(COUNT_KEY))
        if count is None:
            self._read_uncounted(event)
            return
        if b'"choices":[]' in event or b'"choices": []' in event:
            self._total = count  # OpenAI's closing usage record
        new = count - self._tokens
        if new < 0 and not self._counted:
            self.fail("malformed answer: the token count went back")
            return
        if new > 0 and not self._counted:
            self._tokens = count
            self._note(new)
        if self._total is None:
            self._last = event

    def _read_uncounted(self, event: bytes) -> None:
        try:
            decoded = json.loads(event)
        except ValueError:
            self.fail("malformed answer: an event is not JSON")
            return
        if not isinstance(decoded, dict) or "error" in decoded:
            self.fail(f"the server reports an error in the stream: {short(event)}")
            return
        self._last = event
        if has_content(decoded):
            self._records.request_counted[self.request] = 1
            self._counted += 1
            self._note(1)

    def _note(self, tokens: int) -> None:
        self._before, self._new = self.last_event, tokens
        self.last_event = now = self._now()
        self._add_time(now)
        self._add_request(self.request)
        self._add_tokens(tokens)

    def _finish(self) -> None:
        """The answer is complete: decode its last event, judge, record."""
        if self._reader.excess or not self._reader.keep_alive:
            self._close_softly()
        if self._reader.status != 200:
            self._reject(refusal(self._reader, self.message, self._error_body))
            return
        tokens = self._total if self._total is not None else (self._counted or self._tokens)
        closing = read_closing(self._last)
        reason = self._trouble(tokens, closing)
        if reason is not None:
            self._reject(reason)
            return
        self._note_prompt(closing)
        self.busy = False
        self.served += 1
        self._records.complete_request(self.request, self.last_event, tokens)
        self._owner.request_ended(self)

    def _note_prompt(self, closing: Closing) -> None:
        if closing.prompt_tokens is not None:
            records = self._records
            records.prompts_counted += 1
            records.prompt_tokens += closing.prompt_tokens
            records.cached_tokens += closing.cached_tokens
            records.input_tokens += self.input_tokens

    def _trouble(self, tokens: int, closing: Closing) -> str | None:
        kind = self._reader.headers.get(b"content-type", b"text/event-stream").partition(b";")[0].strip()
        if not tokens and kind.lower() != b"text/event-stream":
            return f"the answer is no event stream but {short(kind)}: {short(self._error_body)}"
        if not tokens:
            return "an answer without a token"
        if not self._done and self._splitter.held:
            return "connection closed before the end of the answer"
        if tokens != self.asked and self._counted and self._total is None:
            return (
                f"{tokens} events with text for {self.asked} tokens, and the server does not count its tokens (usage)"
            )
        if tokens != self.asked:
            return f"{tokens} of {self.asked} tokens, finish reason {closing.finish_reason or 'none'}"
        return None

    def _reject(self, reason: str) -> None:
        self.busy = False
        self._records.fail_request(self.request, self._now(), reason)
        self._owner.request_ended(self)

    def _close_softly(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _number_at(event: bytes, at: int) -> int | None:
    """The whole number that stands at `at`, or None."""
    digits = event[at : at + 24].lstrip()
    end = 0
    while end < len(digits) and 48 <= digits[end] <= 57:
        end += 1
    return int(digits[:end]) if end else None
