"""How an answer ends: its last event, what its events carry, and what a refusal says. Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from servetune.benchmarks._http import AnswerReader


def refusal(reader: AnswerReader, message: bytes, body: bytes) -> str:
    """What an answer other than 200 says, and what to do where that is plain."""
    status, told = reader.status, short(body)
    if 300 <= status < 400 and (place := reader.headers.get(b"location")):
        return f"HTTP {status}: redirects are not followed; give the address that it names: {short(place)}"
    if status in (404, 405):
        return f"HTTP {status} for {short(message[:200].split(b' ', 2)[1])}: {told}"
    if (after := reader.headers.get(b"retry-after")) is not None:
        return f"HTTP {status}, Retry-After {short(after)}: {told}"
    return f"HTTP {status}: {told}"


def has_content(decoded: dict[str, Any]) -> bool:
    """Whether an event without a token count carries text or ids."""
    choices = decoded.get("choices")
    if isinstance(choices, list):
        return any(_choice_text(choice) for choice in choices if isinstance(choice, dict))
    return bool(decoded.get("text") or decoded.get("output_ids"))


def _choice_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    inner = delta if isinstance(delta, dict) else choice
    return bool(inner.get("text") or inner.get("content") or inner.get("reasoning_content"))


class Closing(NamedTuple):
    """What the last event of an answer says."""

    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0


def read_closing(event: bytes) -> Closing:
    """SGLang's `meta_info`, or OpenAI's choice and usage, out of the last event; nothing where it is not JSON."""
    begin, end = event.rfind(b"\ndata:"), event.rfind(b"}")  # the last event, where it is a read of several
    try:
        decoded = json.loads(event[event.find(b"{", max(begin, 0)) : end + 1])
    except ValueError:
        return Closing()
    if not isinstance(decoded, dict):
        return Closing()
    meta, choices, usage = decoded.get("meta_info"), decoded.get("choices"), decoded.get("usage")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    source = meta if isinstance(meta, dict) else choice
    counts = meta if isinstance(meta, dict) else usage if isinstance(usage, dict) else {}
    reason, details = source.get("finish_reason"), counts.get("prompt_tokens_details")
    prompt, cached = counts.get("prompt_tokens"), counts.get("cached_tokens")
    if isinstance(details, dict):
        cached = details.get("cached_tokens")
    return Closing(
        finish_reason=reason.get("type") if isinstance(reason, dict) else reason if isinstance(reason, str) else None,
        prompt_tokens=prompt if isinstance(prompt, int) else None,
        cached_tokens=cached if isinstance(cached, int) else 0,
    )


def short(text: bytes) -> str:
    """Bytes of a server as one line of text."""
    return " ".join(text.decode("utf-8", "replace").split())[:160]
