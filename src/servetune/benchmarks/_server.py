"""The server beside the load: what it says of itself, and emptying its cache."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass, replace
from typing import Any

from servetune.benchmarks._api import Target
from servetune.benchmarks._http import AnswerReader, MalformedAnswerError


@dataclass(frozen=True)
class Reply:
    """An answer to a control request. Status 0: none came, `body` says why."""

    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; empty when it is none or the status is not 200."""
        try:
            decoded = json.loads(self.body) if self.status == 200 else {}
        except ValueError:
            return {}
        return decoded if isinstance(decoded, dict) else {}


async def ask(target: Target, method: str, path: str, timeout_s: float = 10.0) -> Reply:
    """One request on a connection of its own. Never raises for what the server does. Wall seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _ask(target, method, path)
    except TimeoutError:
        return Reply(0, b"no answer within %d s" % timeout_s)
    except (OSError, MalformedAnswerError) as error:
        return Reply(0, str(error).encode())


async def _ask(target: Target, method: str, path: str) -> Reply:
    closing = replace(target, headers={**target.headers, "Connection": "close"})
    context = ssl.create_default_context() if target.tls else None
    reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
    try:
        writer.write(closing.message(method, path, b"" if method == "POST" else None))
        answer, body = AnswerReader(), b""
        while not answer.complete:
            data = await reader.read(262_144)
            body += answer.feed(data) if data else b""
            if not data and not answer.end_of_input():
                return Reply(0, b"the answer is cut")
        return Reply(answer.status, body)
    finally:
        writer.transport.abort()


async def ask_first(target: Target, *paths: str) -> dict[str, Any]:
    """The JSON of the first path that the server knows: newer and older names of one endpoint."""
    for path in paths:
        reply = await ask(target, "GET", path)
        if reply.status == 200:
            return reply.json()
        if reply.status not in (404, 405):
            return {}
    return {}


async def flush_cache(target: Target, patience_s: float) -> str | None:
    """Empty the prefix cache. None when done, else why not. 400 (requests still running) is tried again."""
    deadline = asyncio.get_running_loop().time() + patience_s
    while True:
        reply = await ask(target, "POST", "/flush_cache")
        if reply.status == 200:
            return None
        if reply.status == 404:
            return "the server has no /flush_cache (HTTP 404): its prefix cache was not emptied; prompts are unique"
        if reply.status != 400 or asyncio.get_running_loop().time() > deadline:
            text = reply.body.decode("utf-8", "replace").strip()[:120]
            return f"the prefix cache was not emptied: HTTP {reply.status} {text}"
        await asyncio.sleep(min(0.2, patience_s / 10))
