"""A closed loop over raw sockets for tests: holds a concurrency and counts tokens by what the server says."""

import asyncio
import json
import re
import time
from dataclasses import dataclass, field

COMPLETED = re.compile(rb'"completion_tokens":(\d+)')


@dataclass
class Loop:
    """What a closed loop saw. `marks`: wall time and tokens so far, at each event."""

    port: int
    concurrency: int
    output_tokens: int
    input_tokens: int = 8
    tokens: int = 0
    events: int = 0
    completed: int = 0
    wrong: list = field(default_factory=list)
    marks: list = field(default_factory=list)
    over: bool = False

    def rate(self, begin, end):
        """Tokens per wall second between two wall times."""
        before = [mark for mark in self.marks if mark[0] <= begin]
        within = [mark for mark in self.marks if mark[0] <= end]
        return (within[-1][1] - (before[-1][1] if before else 0)) / (end - begin)

    async def hold(self, duration):
        """Hold the concurrency for some wall seconds, then cut every connection."""
        slots = [asyncio.create_task(self._slot(number)) for number in range(self.concurrency)]
        await asyncio.sleep(duration)
        self.over = True
        for slot in slots:
            slot.cancel()
        await asyncio.gather(*slots, return_exceptions=True)

    async def _slot(self, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=2**20)
        try:
            # the first answers have different lengths, so that later ones do not end together
            wanted = max(1, self.output_tokens * (number + 1) // self.concurrency)
            while not self.over:
                await self._one(reader, writer, wanted)
                wanted = self.output_tokens
        finally:
            writer.transport.abort()

    async def _one(self, reader, writer, wanted):
        ids = ",".join(str(100 + index) for index in range(self.input_tokens))
        sampling = f'{{"max_new_tokens":{wanted},"ignore_eos":true}}'
        body = f'{{"input_ids":[{ids}],"sampling_params":{sampling},"stream":true}}'.encode()
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await reader.readuntil(b"\r\n\r\n")
        got = 0
        while True:
            size = int((await reader.readuntil(b"\r\n"))[:-2], 16)
            chunk = await reader.readexactly(size + 2)
            if not size:
                break
            counts = COMPLETED.findall(chunk)
            new = int(counts[-1]) - got
            got += new
            self.tokens += new
            self.events += 1
            self.marks.append((time.monotonic(), self.tokens))
        self.completed += 1
        if got != wanted:
            self.wrong.append((got, wanted))


def control(port, path, method="GET", body=None, headers=None):
    """Status and body of one request on a connection of its own."""

    async def ask():
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        data = b"" if body is None else json.dumps(body).encode()
        fields = {"Host": "x", "Connection": "close", "Content-Length": len(data), **(headers or {})}
        head = "\r\n".join(
            [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        )
        writer.write(head.encode() + data)
        answer = await reader.read(-1)
        writer.close()
        head, _, rest = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), rest

    return asyncio.run(ask())
