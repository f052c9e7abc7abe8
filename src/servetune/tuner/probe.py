"""The correctness probe: one short greedy answer before any load, so that nonsense is never measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import httpx

from servetune.core.engine import ProbeResult
from servetune.core.errors import NodeUnusableError
from servetune.core.node import ServerProcess

PROBE_TOKENS = 32
#: An answer in which one token fills more than this share is taken for nonsense.
MOST_COMMON_SHARE = 0.9
TIMEOUT_S = httpx.Timeout(connect=5.0, read=120.0, write=5.0, pool=5.0)
#: Errors of the request that we made, whatever a server would have answered.
OUR_OWN = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL)
INFO_TIMEOUT_S = httpx.Timeout(10.0)
#: Token ids that every vocabulary has; a fixed, unremarkable sequence.
PROMPT_IDS = tuple(range(100, 164, 4))


class Probe(Protocol):
    """Asks a ready server for something and judges the answer."""

    def __call__(self, process: ServerProcess, headers: Mapping[str, str], random_weights: bool) -> ProbeResult:
        """Never raises for what the server does. `random_weights`: nonsense is expected, only lengths are judged."""
        ...


def probe_http(process: ServerProcess, headers: Mapping[str, str], random_weights: bool) -> ProbeResult:
    """Ask for 32 greedy tokens, unstreamed, and require as many tokens that are not one token repeated.

    Raises NodeUnusableError where the request itself cannot be made, which says nothing about the server.
    """
    body = {
        "input_ids": list(PROMPT_IDS),
        "sampling_params": {"temperature": 0, "max_new_tokens": PROBE_TOKENS, "ignore_eos": True},
    }
    try:
        with process.endpoint() as url:
            answer = httpx.post(f"{url}/generate", json=body, headers=dict(headers), timeout=TIMEOUT_S)
    except OUR_OWN as error:
        what = f"{type(error).__name__}: {error}"
        text = f"the probe cannot ask {url!r}, the address that the node gives for its server, anything: {what}"
        raise NodeUnusableError(text) from error
    except httpx.HTTPError as error:
        return ProbeResult(ok=False, message=f"the probe got no answer: {type(error).__name__}: {error}")
    if answer.status_code != 200:
        return ProbeResult(ok=False, message=f"the probe got HTTP {answer.status_code}: {answer.text[:200]}")
    return judge(answer.json(), random_weights)


def server_info(process: ServerProcess, headers: Mapping[str, str]) -> Any:
    """What the server says of its own arguments; None where it does not say. Never raises for what the server does."""
    try:
        with process.endpoint() as url:
            for path in ("/server_info", "/get_server_info") if url.startswith("http") else ():
                answer = httpx.get(f"{url}{path}", headers=dict(headers), timeout=INFO_TIMEOUT_S)
                if answer.status_code == 200:
                    return answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        pass
    return None


def judge(answer: Any, random_weights: bool = False) -> ProbeResult:
    """Judge one `/generate` answer: as many tokens as asked, and no single token or character that fills it."""
    meta = answer.get("meta_info", {}) if isinstance(answer, dict) else {}
    tokens = meta.get("completion_tokens")
    if tokens != PROBE_TOKENS:
        return ProbeResult(ok=False, message=f"the probe asked for {PROBE_TOKENS} tokens and got {tokens}")
    if random_weights:
        return ProbeResult(ok=True, message="")
    words: list[Any] = answer.get("output_ids") or list(answer.get("text") or "")
    if not words:
        return ProbeResult(ok=False, message="the probe's answer is empty")
    word, count = Counter(words).most_common(1)[0]
    if count / len(words) > MOST_COMMON_SHARE:
        return ProbeResult(ok=False, message=f"the probe's answer repeats {word!r} {count} times in {len(words)}")
    return ProbeResult(ok=True, message="")
