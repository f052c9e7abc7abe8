"""A server that streams at an exactly known rate and writes down when it sent what.

Program: `python exact_rate_server.py --itl-s 0.05 --ttft-s 0.1 [--port 0] [faults…]`; prints `port N` once it listens.
Speaks SGLang's /generate (cumulative text) and OpenAI's /v1/completions (deltas, optional running usage) with chunked
event streams, /server_info, /flush_cache, /metrics, /v1/models, /stamps. Each stream follows its own absolute schedule:
token k is due ttft + k * itl after the request was read; it never drifts. Built for the CPU of a shared machine: events
are encoded once per token count, and one timer per millisecond sends what is due. A path that begins with
`/with/--option,value,…` is answered with these options instead, by a server with counts and stamps of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import time
import zlib
from array import array
from typing import ClassVar

import uvloop

WHEEL_S = 0.001
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n%b\r\n"
WORDS = ("harbour", "clock", "tide", "wind", "bridge", "cable", "winter", "report", "bread", "flour", "dough", "oven")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def plain_answer(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class EventText:
    """Encoded events, made once for each token count."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._cache: dict[tuple[str, int, int, int, int], bytes] = {}

    def text(self, begin: int, end: int) -> str:
        marker = "ü漢🙂" if self._options.utf8 else ""
        return "".join(f" {WORDS[(i * 7 + i * i) % len(WORDS)]}{marker}" for i in range(begin, end))

    def event(self, api: str, before: int, count: int, asked: int, prompt: int) -> bytes:
        key = (api, before, count, asked if count >= asked else 0, prompt)
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._make(api, before, count, asked, prompt)
        return found

    def _make(self, api: str, before: int, count: int, asked: int, prompt: int) -> bytes:
        last = count >= asked
        shown = count + self._options.wrong_count if last or self._options.wrong_count_always else count
        usage = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + shown,
            "completion_tokens": shown,
            "prompt_tokens_details": None,
        }
        if api == "sglang":
            body = {
                "text": self.text(0, count),
                "output_ids": list(range(count)) if self._options.ids else [],
                "meta_info": {
                    "id": "0123456789abcdef",
                    "finish_reason": {"type": "length", "length": asked} if last else None,
                    "prompt_tokens": prompt,
                    "weight_version": "default",
                    "completion_tokens": shown,
                    "cached_tokens": 0,
                    "e2e_latency": 0.25,
                },
            }
        else:
            choice = {
                "index": 0,
                "text": self.text(before, count),
                "logprobs": None,
                "finish_reason": "length" if last else None,
            }
            body = {"id": "cmpl-0", "object": "text_completion", "created": 1, "model": "exact", "choices": [choice]}
            body["usage"] = usage if self._options.running_usage else None
        return b"data: " + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"

    def closing(self, api: str, asked: int, prompt: int) -> bytes:
        if api == "sglang" or self._options.no_usage:
            return b"data: [DONE]\n\n"
        shown = asked + self._options.wrong_count
        usage = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + shown,
            "completion_tokens": shown,
            "prompt_tokens_details": None,
        }
        body = {
            "id": "cmpl-0",
            "object": "text_completion",
            "created": 1,
            "model": "exact",
            "choices": [],
            "usage": usage,
        }
        return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\ndata: [DONE]\n\n"


class Stamps:
    """When each event was handed to the socket: monotonic seconds, number of the request, tokens it brought."""

    def __init__(self) -> None:
        self.time = array("d")
        self.request = array("I")
        self.tokens = array("I")
        self.received = array("d")

    def dump(self) -> bytes:
        head = json.dumps({"events": len(self.time), "requests": len(self.received)}).encode()
        parts = (self.time, self.request, self.tokens, self.received)
        return head + b"\n" + b"".join(part.tobytes() for part in parts)


class Wheel:
    """Calls due at a millisecond: a list per slot, one timer for all."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: dict[int, list] = {}
        self._begin = time.monotonic()
        self._done = 0
        loop.call_later(WHEEL_S, self._turn)

    def at(self, when_s: float, call) -> None:
        slot = max(self._done + 1, math.ceil((when_s - self._begin) / WHEEL_S))
        self._slots.setdefault(slot, []).append(call)

    def _turn(self) -> None:
        now = int((time.monotonic() - self._begin) / WHEEL_S)
        while self._done < now:
            self._done += 1
            for call in self._slots.pop(self._done, ()):
                call()
        self._loop.call_later(WHEEL_S, self._turn)


class Server:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.texts = EventText(options)
        self.stamps = Stamps()
        self.wheel = Wheel(asyncio.get_running_loop())
        self.requests = 0
        self.running = 0
        self.peak = 0
        self.finished_tokens = 0
        self.flushed = 0


class Stream:
    """One answer on its schedule."""

    def __init__(self, connection: Connection, api: str, asked: int, prompt: int) -> None:
        server = connection.server
        options = server.options
        self.connection, self.server, self.api, self.asked, self.prompt = connection, server, api, asked, prompt
        self.number = len(server.stamps.received)
        self.received = time.monotonic()
        server.stamps.received.append(self.received)
        self.sent = 0
        slow = options.slow_first_s if options.slow_first_every and self.number % options.slow_first_every == 0 else 0.0
        busy = options.ttft_per_running_s * server.running
        self.first_at = self.received + options.ttft_s + busy + slow
        self.gone = False
        self.gzip = zlib.compressobj(wbits=31) if options.gzip else None
        server.running += 1
        server.peak = max(server.peak, server.running)
        head = HEAD % (b"Content-Encoding: gzip\r\n" if self.gzip else b"")
        if options.trickle:
            for i in range(len(head)):
                server.wheel.at(self.received + 0.002 * i, lambda piece=head[i : i + 1]: connection.write(piece))
            self.first_at = max(self.first_at, self.received + 0.002 * len(head) + 0.01)
        else:
            connection.write(head)
        server.wheel.at(self.first_at, self.step)

    def end(self) -> None:
        if not self.gone:
            self.gone = True
            self.server.running -= 1

    def step(self) -> None:
        if self.gone:
            return
        options, server = self.server.options, self.server
        if options.stall_after and self.sent >= options.stall_after and self.number % options.every == 0:
            return
        if options.reset_after and self.sent >= options.reset_after and self.number % options.every == 0:
            self.connection.transport.abort()
            return
        early = options.early_end_after and self.sent >= options.early_end_after and self.number % options.every == 0
        if early and options.early_end == "cut":
            self.connection.transport.close()
            return
        if early:
            self.write(server.texts.closing(self.api, self.sent, self.prompt))
            self.finish()
            return
        before, self.sent = self.sent, min(self.asked, self.sent + options.tokens_per_event)
        event = server.texts.event(self.api, before, self.sent, self.asked, self.prompt)
        now = time.monotonic()
        server.stamps.time.append(now)
        server.stamps.request.append(self.number)
        server.stamps.tokens.append(self.sent - before)
        self.write(event)
        if options.duplicate and self.sent % 5 == 0:
            self.write(event)
        if self.sent >= self.asked:
            self.write(server.texts.closing(self.api, self.asked, self.prompt))
            server.finished_tokens += self.asked
            self.finish()
        else:
            steps = math.ceil(self.sent / options.tokens_per_event)
            server.wheel.at(self.first_at + steps * options.itl_s * options.tokens_per_event, self.step)

    def write(self, event: bytes) -> None:
        options = self.server.options
        if self.gzip is not None:
            event = self.gzip.compress(event) + self.gzip.flush(zlib.Z_SYNC_FLUSH)
        if options.split:  # chunk borders inside the event, and inside a character
            for begin in range(0, len(event), options.split):
                self.connection.write(chunk(event[begin : begin + options.split]))
        else:
            self.connection.write(chunk(event))

    def finish(self) -> None:
        self.end()
        self.connection.stream = None
        self.connection.write(b"0\r\n\r\n")
        if self.server.options.close:
            self.connection.transport.close()


class Connection(asyncio.Protocol):
    servers: ClassVar[dict[str, Server]] = {}

    def __init__(self, server: Server) -> None:
        self.server = server
        self.held = b""
        self.stream: Stream | None = None

    def connection_made(self, transport) -> None:
        self.transport = transport

    def connection_lost(self, exc) -> None:
        if self.stream is not None:
            self.stream.end()

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.held += data
        head, found, rest = self.held.partition(b"\r\n\r\n")
        if not found:
            return
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(headers.get(b"content-length", 0))
        if len(rest) < length:
            return
        self.held = rest[length:]
        _, path, _ = head.split(b" ", 2)
        if self.server.options.record:
            self.note(path.decode(), headers, rest[:length])
        self.serve(self.chosen(path.decode().partition("?")[0]), rest[:length])

    def answer_whole(self, api: str, prompt: list[int] | str, tokens: int) -> None:
        """An unstreamed answer after the time that it would take: a rule makes it of the prompt, or it is nonsense.

        A text is answered with itself from behind.
        """
        server, options = self.server, self.server.options
        mad = options.nonsense_above and server.running > options.nonsense_above
        text = "" if isinstance(prompt, list) else "x" * len(prompt) if mad else prompt[::-1]
        prompt = [] if isinstance(prompt, str) else prompt
        step = random.randrange(1, 10**6) if mad else 7
        ids = [(sum(prompt) + step * at * at) % 30_000 for at in range(tokens)]
        if api == "sglang":
            likely = [[[-0.1, i, None], [-2.5, i + 1, None]] for i in ids]
            meta = {"finish_reason": {"type": "length", "length": tokens}, "completion_tokens": tokens}
            meta |= {"output_token_logprobs": [rows[0] for rows in likely], "output_top_logprobs": likely}
            body = {"text": text, "output_ids": ids, "meta_info": meta}
        else:
            body = {"choices": [{"text": text or " ".join(map(str, ids)), "finish_reason": "length"}]}
        answer = plain_answer(json.dumps(body).encode())
        server.wheel.at(time.monotonic() + options.ttft_s + tokens * options.itl_s, lambda: self.write(answer))

    def chosen(self, path: str) -> str:
        """Switch to the server that the path names; the rest of the path."""
        if path.startswith("/with/"):
            _, _, words, rest = path.split("/", 3)
            self.server = self.servers.get(words) or self.servers.setdefault(
                words, Server(options_of(words.split(",")))
            )
            return f"/{rest}"
        return path

    def note(self, path: str, headers: dict[bytes, bytes], body: bytes) -> None:
        texts = {name.decode(): value.decode() for name, value in headers.items()}
        row = {"path": path, "headers": texts, "body": json.loads(body) if body else None}
        with open(self.server.options.record, "a") as file:
            file.write(json.dumps(row) + "\n")

    def serve(self, path: str, body: bytes) -> None:
        server, options = self.server, self.server.options
        if path in ("/generate", "/v1/completions"):
            server.requests += 1
            full = options.refuse_above is not None and server.running >= options.refuse_above
            if full or (options.refuse_after is not None and server.requests > options.refuse_after):
                self.write(plain_answer(b'{"error":"overloaded"}', "503 Service Unavailable"))
                return
            asked = json.loads(body)
            api = "sglang" if path == "/generate" else "openai"
            tokens = asked["sampling_params"]["max_new_tokens"] if api == "sglang" else asked["max_tokens"]
            if not asked.get("stream"):
                self.answer_whole(api, asked.get("input_ids") or asked.get("prompt") or asked["text"], tokens)
                return
            prompt = asked.get("input_ids") or asked.get("prompt") or str(asked.get("text")).split()
            self.stream = Stream(self, api, tokens, options.prompt_tokens or len(prompt))
        elif path == "/stamps":
            self.write(plain_answer(server.stamps.dump(), kind="application/octet-stream"))
        elif path == "/flush_cache":
            server.flushed += 1
            refused = server.running > 0
            self.write(plain_answer(b"pending" if refused else b"ok", "400 Bad Request" if refused else "200 OK"))
        elif path in ("/health", "/get_model_info", "/model_info"):
            self.write(plain_answer(b"{}"))
        elif path == "/v1/models":
            self.write(plain_answer(b'{"data":[{"id":"exact"}]}'))
        elif path == "/server_info":
            self.write(plain_answer(json.dumps({"model_path": "", "internal_states": [{}]}).encode()))
        elif path == "/counts":
            counts = {
                "requests": server.requests,
                "running": server.running,
                "peak": server.peak,
                "flushed": server.flushed,
            }
            self.write(plain_answer(json.dumps(counts).encode()))
        elif path == "/metrics" and options.metrics:
            lines = [
                f"sglang:num_running_reqs {server.running}",
                "sglang:num_queue_reqs 0",
                f"sglang:generation_tokens_total {server.finished_tokens * options.metrics_factor}",
            ]
            self.write(plain_answer("\n".join(lines).encode(), kind="text/plain"))
        else:
            self.write(plain_answer(b"not found", "404 Not Found"))


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--itl-s", type=float, default=0.05)
    parser.add_argument("--ttft-s", type=float, default=0.1)
    parser.add_argument("--tokens-per-event", type=int, default=1)
    parser.add_argument("--refuse-after", type=int)
    parser.add_argument("--refuse-above", type=int, help="requests in flight")
    parser.add_argument("--ttft-per-running-s", type=float, default=0.0, help="added for each request in flight")
    parser.add_argument("--slow-first-s", type=float, default=0.0)
    parser.add_argument("--slow-first-every", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="which requests stall, end early or are reset")
    parser.add_argument("--stall-after", type=int, default=0)
    parser.add_argument("--reset-after", type=int, default=0)
    parser.add_argument("--early-end-after", type=int, default=0)
    parser.add_argument("--early-end", choices=("done", "cut"), default="done")
    parser.add_argument("--wrong-count", type=int, default=0, help="added to the token count of the last event")
    parser.add_argument("--wrong-count-always", action="store_true")
    parser.add_argument("--duplicate", action="store_true", help="every fifth event is sent twice")
    parser.add_argument("--split", type=int, default=0, help="bytes per chunk")
    parser.add_argument("--utf8", action="store_true")
    parser.add_argument("--ids", action="store_true", help="cumulative output_ids in each event")
    parser.add_argument("--trickle", action="store_true", help="headers byte by byte")
    parser.add_argument("--gzip", action="store_true")
    parser.add_argument("--close", action="store_true", help="close the connection after each answer")
    parser.add_argument("--running-usage", action="store_true", help="OpenAI: a token count in each event")
    parser.add_argument("--no-usage", action="store_true", help="OpenAI: no usage at all")
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--nonsense-above", type=int, default=0, help="requests in flight; of unstreamed answers")
    parser.add_argument("--prompt-tokens", type=int, help="what it says of every prompt")
    parser.add_argument("--label", help="tells apart servers with the same options")
    parser.add_argument("--record", help="file to which each request is appended as JSON")
    parser.add_argument("--metrics-factor", type=float, default=1.0)
    return parser.parse_args(arguments)


async def main(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    server = Server(options)
    listening = await loop.create_server(lambda: Connection(server), "127.0.0.1", options.port, backlog=4096)
    print(f"port {listening.sockets[0].getsockname()[1]}", flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(options_of()))
