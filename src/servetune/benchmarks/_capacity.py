"""How fast the load generator can be where it runs: it reads from a server that does nothing but stream.

`python -m servetune.benchmarks._capacity CONCURRENCY [PROCESSES]` prints `{"tokens_per_s": …, "concurrency": …}`. The
stub has a process of its own and sends one token an event, so what comes out is a lower bound of what one client can
read.
"""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import sys
from collections import deque
from multiprocessing.connection import Connection
from typing import cast

import uvloop

from servetune.benchmarks._measure import measure
from servetune.benchmarks._settings import LoadSettings
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock

EVENTS = 30_000  # in all, at least
LIMIT_S = 6.0


def main(concurrency: int, processes: int | None = None) -> None:
    """Measure and print. `processes`: as in a study's `load_generator:`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    stub = context.Process(target=serve, args=(theirs,), daemon=True)
    stub.start()
    try:
        port = ours.recv()
        workload = Workload(
            input_tokens=16,
            output_tokens=max(32, EVENTS // concurrency),
            concurrency=(concurrency,),
            requests_per_level=2 * concurrency,
            warmup=0,
        )
        level = Level(concurrency=concurrency, workload=workload, limit_s=LIMIT_S)
        demand = LoadSettings(processes=processes).demand(workload)
        found = measure(f"http://127.0.0.1:{port}", level, WallClock(), lambda progress: True, {}, demand)
    finally:
        stub.kill()
    tokens_per_s = 0.0 if found is None else found.output_tokens_per_s
    print(json.dumps({"tokens_per_s": tokens_per_s, "concurrency": concurrency}), flush=True)


def serve(pipe: Connection) -> None:
    """Body of the stub's process: tells its port, then streams until it is killed."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    pump = _Pump(asyncio.get_running_loop())
    server = await asyncio.get_running_loop().create_server(lambda: _Stream(pump), "127.0.0.1", 0, backlog=4096)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


class _Pump:
    """Gives every stream its next token, in turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[_Stream] = deque()

    def add(self, stream: _Stream) -> None:
        self._waiting.append(stream)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        for _ in range(len(self._waiting)):
            stream = self._waiting.popleft()
            if stream.step():
                self._waiting.append(stream)
        if self._waiting:
            self._loop.call_soon(self._turn)


class _Stream(asyncio.Protocol):
    """One connection: any request for tokens is streamed, anything else answered with an empty object."""

    def __init__(self, pump: _Pump) -> None:
        self._pump = pump
        self._held = b""
        self._made = self._asked = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, found, rest = self._held.partition(b"\r\n\r\n")
        lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(lines.get(b"content-length", 0))
        if not found or len(rest) < length:
            return
        self._held = rest[length:]
        if not head.startswith(b"POST /generate"):
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
            return
        self._made, self._asked = 0, json.loads(rest[:length])["sampling_params"]["max_new_tokens"]
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self._pump.add(self)

    def step(self) -> bool:
        """Send the next token; False after the last one."""
        if self._transport.is_closing():
            return False
        if self._paused:
            return True
        self._made += 1
        self._transport.write(_event(self._made, self._asked))
        if self._made < self._asked:
            return True
        self._transport.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        return False


@functools.cache
def _event(made: int, asked: int) -> bytes:
    reason = {"type": "length", "length": asked} if made == asked else None
    meta = {"id": "0123456789abcdef", "finish_reason": reason, "prompt_tokens": 16, "completion_tokens": made}
    return _chunk(b"data: " + json.dumps({"text": " tide", "output_ids": [7], "meta_info": meta}).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


if __name__ == "__main__":
    from servetune.benchmarks import _capacity  # the stub's process has to find it under its name

    _capacity.main(*map(int, sys.argv[1:]))
