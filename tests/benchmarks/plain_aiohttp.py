"""A plain aiohttp client on uvloop: holds streams, notes when each event came. For comparison.

Program: URL STREAMS SECONDS [read|json]; prints `events cpu_s` of the seconds after the ramp, as JSON. `read`: takes
bytes as they come and counts them as events, the least that aiohttp can do; `json`: splits lines and decodes events.
"""

import asyncio
import json
import sys
import time

import aiohttp
import uvloop

BODY = {"input_ids": list(range(100, 612)), "sampling_params": {"max_new_tokens": 256}, "stream": True}
RAMP_S = 2.0


class Client:
    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.times: list[float] = []
        self.tokens = 0

    async def hold(self, session: aiohttp.ClientSession, url: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while True:
            async with session.post(f"{url}/generate", json=BODY) as answer:
                await (self.read if self.mode == "read" else self.decode)(answer)

    async def read(self, answer: aiohttp.ClientResponse) -> None:
        async for data in answer.content.iter_any():
            now = time.monotonic()
            self.times += [now] * data.count(b"\n\n")

    async def decode(self, answer: aiohttp.ClientResponse) -> None:
        async for line in answer.content:
            text = line.strip()
            if not text or text == b"data: [DONE]":
                continue
            self.times.append(time.monotonic())
            self.tokens = json.loads(text[6:])["meta_info"]["completion_tokens"]


async def main(url: str, streams: int, seconds: float, mode: str) -> None:
    client = Client(mode)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=10 * 2**20) as session:
        tasks = [asyncio.create_task(client.hold(session, url, RAMP_S * number / streams)) for number in range(streams)]
        await asyncio.sleep(RAMP_S + 1)
        begun, events = time.process_time(), len(client.times)
        await asyncio.sleep(seconds)
        spent, events = time.process_time() - begun, len(client.times) - events
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps({"events": events, "cpu_s": spent}))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] if sys.argv[4:] else "read"))
