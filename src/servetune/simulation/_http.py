"""The HTTP side of the simulated server: one connection, keep-alive, chunked streams."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import httptools

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 503: "Service Unavailable"}
#: A client that leaves this much unread is cut off.
MOST_UNREAD_BYTES = 64 * 2**20


class Request(NamedTuple):
    """One HTTP request. Header names in lower case; path without its query."""

    method: str
    path: str
    headers: Mapping[bytes, bytes]
    body: bytes
    keep_alive: bool


class Connection(asyncio.Protocol):
    """Reads requests and hands each to `serve`, the next one only after `finish`. `lost` is called at the end."""

    def __init__(self, serve: Callable[[Connection, Request], None]) -> None:
        self._serve = serve
        self.lost: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._waiting: deque[Request] = deque()
        self._current: Request | None = None

    # called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        if self.lost is not None:
            self.lost()
            self.lost = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._close()
        except httptools.HttpParserCallbackError:
            raise  # a fault of ours: the event loop reports it and drops the connection
        except httptools.HttpParserError:
            self.answer(400, b'{"error":{"message":"not an HTTP request"}}')
            self._close()

    # called by the parser

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect", b"").lower() == b"100-continue" and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._url.partition(b"?")[0].decode("latin-1")
        method, keep_alive = self._parser.get_method().decode(), self._parser.should_keep_alive()
        self._waiting.append(Request(method, path, self._headers, b"".join(self._body), keep_alive))
        if self._current is None:
            self._next()

    # called by who answers

    def answer(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """A whole answer to the current request."""
        head = f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}\r\ncontent-type: {content_type}\r\n"
        self._write(f"{head}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body)
        self.finish()

    def begin_stream(self) -> None:
        """Head of a stream of events."""
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    def stream(self, data: bytes, last: bool) -> None:
        """One chunk; `last` ends the stream and the request."""
        self._write(b"%x\r\n%b\r\n%b" % (len(data), data, b"0\r\n\r\n" if last else b""))
        if last:
            self.finish()

    def finish(self) -> None:
        """The current request is answered."""
        current, self._current, self.lost = self._current, None, None
        if current is not None and not current.keep_alive:
            self._close()
        elif self._waiting:
            self._next()

    def _next(self) -> None:
        self._current = self._waiting.popleft()
        self._serve(self, self._current)

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
            self._transport.abort()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
