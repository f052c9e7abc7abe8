"""The two request forms: SGLang's own `/generate`, and OpenAI's `/v1/completions`. Both take prompts as token ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from servetune.core.errors import SpecError

SHORTEST_SECRET = 6
#: Calls with which an address may end by mistake; longer ones first.
API_PATHS = ("/v1/chat/completions", "/v1/completions", "/generate")


@dataclass(frozen=True)
class Target:
    """Where requests go."""

    host: str
    port: int
    prefix: str  # path before the API's own, without a slash at its end
    tls: bool
    headers: Mapping[str, str]

    @property
    def authority(self) -> str:
        """Host and port as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def hide(self, text: str) -> str:
        """`text`, such as a server's answer, without the values of headers: they may be keys."""
        for value in self.headers.values():
            for secret in (value, value.rpartition(" ")[2]):  # `Bearer KEY`, and the key alone
                if len(secret) >= SHORTEST_SECRET:
                    text = text.replace(secret, "…")
        return text

    def message(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """A whole HTTP request. Compressed answers are declined: each event should be on the wire as it is."""
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {self.authority}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


def parse_target(base_url: str, headers: Mapping[str, str]) -> Target:
    """Split a base URL; `/v1` at its end, as OpenAI's clients are given it, is taken for the API's own.

    Raises SpecError for anything but http and https, for a bare word (neither scheme nor port), for an address that
    names a call, and for headers that HTTP cannot carry.
    """
    for name, value in headers.items():
        if not name.isascii() or not value.isascii() or not f"{name}{value}".isprintable():
            raise SpecError(f"the header {name!r} has a character that HTTP headers cannot carry")
    bare = "://" not in base_url
    try:
        url = urlsplit(f"http://{base_url}" if bare else base_url)
        wordy = bare and url.port is None
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError as error:
        raise SpecError(f"the server's address is {base_url!r}: {error}") from error
    if url.username is not None:
        raise SpecError("the server's address holds a name or password; send them in a header")
    if wordy or url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise SpecError(f"the server's address is {base_url!r}; expected http://host:port, or with a path after it")
    path = url.path.rstrip("/")
    if named := next((end for end in API_PATHS if path.endswith(end)), None):
        raise SpecError(f"the server's address is {base_url!r}; leave out {named}, which --api chooses{_chat(named)}")
    return Target(url.hostname, port, path.removesuffix("/v1"), url.scheme == "https", dict(headers))


def _chat(path: str) -> str:
    return "; chat completions are not measured: prompts are token ids" if "chat" in path else ""


@dataclass(frozen=True)
class RequestForm:
    """Builds the requests of one API. `model` is only sent with the OpenAI API."""

    api: Literal["sglang", "openai"]
    target: Target
    model: str = "default"

    def request(self, ids_json: bytes, output_tokens: int) -> bytes:
        """A streaming request for exactly `output_tokens` tokens, greedy, going on past an end-of-text token."""
        if self.api == "sglang":
            body = (
                b'{"input_ids":%b,"sampling_params":{"temperature":0,"max_new_tokens":%d,"ignore_eos":true},'
                b'"stream":true}'
            )
            return self.target.message("POST", "/generate", body % (ids_json, output_tokens))
        body = (
            b'{"model":%b,"prompt":%b,"temperature":0,"max_tokens":%d,"ignore_eos":true,"stream":true,'
            b'"stream_options":{"include_usage":true,"continuous_usage_stats":true}}'
        )
        return self.target.message(
            "POST", "/v1/completions", body % (json.dumps(self.model).encode(), ids_json, output_tokens)
        )
