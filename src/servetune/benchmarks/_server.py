"""The server beside the load: what it says of itself, and emptying its cache. Blocking; wall seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

from servetune.benchmarks._api import Target

CONTROL_TIMEOUT_S = 5.0


class ControlClient:
    """Control requests. Never raises for what the server does."""

    def __init__(self, target: Target, timeout_s: float = CONTROL_TIMEOUT_S) -> None:
        scheme = "https" if target.tls else "http"
        self.unanswered = 0  # requests that got no answer in time
        self._client = httpx.Client(
            base_url=f"{scheme}://{target.authority}{target.prefix}",
            headers=dict(target.headers),
            timeout=timeout_s,
            trust_env=False,  # a proxy for the outside must not stand between us and the node
        )

    def close(self) -> None:
        """Close its connection."""
        self._client.close()

    def ask(self, method: str, path: str, body: Any = None) -> Reply:
        """One request."""
        try:
            answer = self._client.request(method, path, json=body)
            return Reply(answer.status_code, answer.content)
        except httpx.HTTPError as error:
            self.unanswered += isinstance(error, httpx.TimeoutException)
            return Reply(0, f"{type(error).__name__}: {error}".encode())

    def first_json(self, *paths: str) -> Any:
        """The JSON of the first path that the server knows (newer and older names of one endpoint); None: none."""
        for path in paths:
            reply = self.ask("GET", path)
            if reply.status == 200:
                return reply.json()
            if reply.status not in (404, 405, 501):
                return None
        return None


@dataclass(frozen=True)
class Reply:
    """Status 0: no answer came, and `body` says why."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The decoded body; None when it is not JSON."""
        try:
            return httpx.Response(200, content=self.body).json()
        except ValueError:
            return None

    @property
    def text(self) -> str:
        """The body's first 160 characters on one line."""
        return " ".join(self.body.decode("utf-8", "replace").split())[:160]


@dataclass(frozen=True)
class ServerFacts:
    """What a server told before the load began."""

    model: str = "default"
    model_path: str = ""
    info: dict[str, Any] = field(default_factory=dict)


def read_facts(client: ControlClient) -> ServerFacts:
    """Model name and SGLang's `/server_info`, as far as the server has them."""
    info = client.first_json("/server_info", "/get_server_info")
    info = info if isinstance(info, dict) else {}
    if client.unanswered:
        return ServerFacts(info=info)  # each further question would cost as long
    listed = client.first_json("/v1/models")
    entries = listed.get("data") if isinstance(listed, dict) else None
    first = entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}
    return ServerFacts(str(first.get("id", "default")), str(info.get("model_path") or first.get("root") or ""), info)


def flush_cache(client: ControlClient, patience_s: float, ended: threading.Event) -> str | None:
    """Empty the prefix cache. None when done, else why not. 400 (requests still running) is tried again.

    Gives up when `ended` is set.
    """
    deadline = time.monotonic() + patience_s
    pause_s = 0.05
    while True:
        reply = client.ask("POST", "/flush_cache")
        if reply.status == 200:
            return None
        if reply.status in (404, 405):
            return f"the prefix cache was not emptied: the server has no /flush_cache (HTTP {reply.status})"
        if reply.status == 0:
            return f"the prefix cache was not emptied: no answer ({reply.text})"
        if reply.status != 400 or time.monotonic() > deadline:
            return f"the prefix cache was not emptied: HTTP {reply.status} {reply.text}"
        if ended.wait(pause_s):
            return "the prefix cache was not emptied: ended"
        pause_s = min(1.0, 2 * pause_s)


def numbers(document: Any, keys: Iterable[str]) -> list[float]:
    """Every number under one of the keys, anywhere in decoded JSON."""
    wanted, found, left = set(keys), [], [document]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            found += [float(v) for k, v in item.items() if k in wanted and isinstance(v, int | float)]
            left += list(item.values())
        elif isinstance(item, list):
            left += item
    return found
