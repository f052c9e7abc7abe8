"""Request bodies in, response bodies out, in the forms of `/generate` and `/v1/completions`."""

from __future__ import annotations

import json
import zlib
from typing import Any, NamedTuple

from servetune.simulation.batching import Answer
from servetune.simulation.passage import Passage

DEFAULT_MAX_NEW_TOKENS = 128  # SGLang's own default
DONE = b"data: [DONE]\n\n"


class BadRequestError(Exception):
    """The body cannot be understood; the message goes to the client with status 400."""


class Asked(NamedTuple):
    """A request as read."""

    prompt_tokens: int
    wanted: int
    stop_early: bool  # the answer ends by itself before max_new_tokens
    stream: bool
    usage: bool  # of /v1/completions: a last chunk with the counts
    continuous_usage: bool
    start: int  # where in the passage the answer begins: the same prompt, the same answer


def read_generate(body: bytes, passage: Passage) -> Asked:
    """`{"text" | "input_ids", "sampling_params": {...}, "stream"}`. Raises BadRequestError."""
    asked = _object(body)
    sampling = asked.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise BadRequestError("sampling_params must be one object: the simulated server answers single prompts only")
    prompt = asked.get("input_ids", asked.get("text"))
    wanted = sampling.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    return _asked(prompt, wanted, sampling.get("ignore_eos"), bool(asked.get("stream")), passage)


def read_completions(body: bytes, passage: Passage) -> Asked:
    """`{"prompt": text or ids, "max_tokens", "ignore_eos", "stream", "stream_options"}`. Raises BadRequestError."""
    asked = _object(body)
    options = asked.get("stream_options") or {}
    wanted = asked.get("max_tokens", 16)
    read = _asked(asked.get("prompt"), wanted, asked.get("ignore_eos"), bool(asked.get("stream")), passage)
    continuous = bool(options.get("continuous_usage_stats"))
    return read._replace(usage=bool(options.get("include_usage")), continuous_usage=continuous)


def _object(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(asked, dict):
        raise BadRequestError("the body must be a JSON object")
    return asked


def _asked(prompt: object, wanted: object, ignore_eos: object, stream: bool, passage: Passage) -> Asked:
    if isinstance(prompt, str):
        tokens, key = max(1, (len(prompt) + 3) // 4), zlib.crc32(prompt.encode())
    elif isinstance(prompt, list) and set(map(type, prompt)) == {int}:
        tokens, key = len(prompt), hash(tuple(prompt))  # of numbers: the same in every process
    else:
        raise BadRequestError("one prompt is needed: text, or a list of token ids")
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1:
        raise BadRequestError(f"max_new_tokens must be a whole number above 0, got {wanted!r}")
    start = key % passage.period
    natural = wanted if ignore_eos else min(wanted, 24 + start % 200)
    return Asked(tokens, natural, natural < wanted, stream, False, False, start)


def _finish(asked: Asked, answer: Answer) -> bytes:
    if answer.sent < answer.wanted:
        return b'{"type":"abort","message":"Aborted"}' if answer.ended else b"null"
    return b'{"type":"stop","matched":2}' if asked.stop_early else b'{"type":"length","length":%d}' % answer.wanted


def generate_event(asked: Asked, answer: Answer, passage: Passage, rid: bytes, e2e_s: float) -> bytes:
    """One server-sent event: all text and ids so far, which is SGLang's default."""
    end = DONE if answer.ended else b""
    return b"data: %b\n\n%b" % (generate_whole(asked, answer, passage, rid, e2e_s), end)


def generate_whole(asked: Asked, answer: Answer, passage: Passage, rid: bytes, e2e_s: float) -> bytes:
    """The answer so far as one object."""
    first, last = asked.start, asked.start + answer.sent
    meta = _meta(asked, answer, rid, e2e_s)
    return b'{"text":"%b","output_ids":[%b],%b}' % (passage.text(first, last), passage.ids(first, last), meta)


def _meta(asked: Asked, answer: Answer, rid: bytes, e2e_s: float) -> bytes:
    return (
        b'"meta_info":{"id":"%b","finish_reason":%b,"prompt_tokens":%d,"weight_version":"default",'
        b'"completion_tokens":%d,"cached_tokens":0,"e2e_latency":%.6f}'
    ) % (rid, _finish(asked, answer), asked.prompt_tokens, answer.sent, e2e_s)


def completions_event(asked: Asked, answer: Answer, passage: Passage, rid: bytes, before: int, model: bytes) -> bytes:
    """The text since the last event; after the last one the counts, where asked for, and the end mark."""
    text = passage.text(asked.start + before, asked.start + answer.sent)
    usage = b',"usage":%b' % _usage(asked, answer) if asked.continuous_usage else b""
    chunk = b"data: " + _completion(rid, model, text, _reason(asked, answer), usage) + b"\n\n"
    if not answer.ended:
        return chunk
    counts = b""
    if asked.usage:
        head = b'data: {"id":"%b","object":"text_completion","created":0,"choices":[],' % rid
        counts = head + b'"model":%b,"usage":%b}\n\n' % (model, _usage(asked, answer))
    return chunk + counts + DONE


def completions_whole(asked: Asked, answer: Answer, passage: Passage, rid: bytes, model: bytes) -> bytes:
    """The whole completion as one object."""
    text = passage.text(asked.start, asked.start + answer.sent)
    return _completion(rid, model, text, _reason(asked, answer), b',"usage":%b' % _usage(asked, answer))


def _completion(rid: bytes, model: bytes, text: bytes, reason: bytes, usage: bytes) -> bytes:
    choice = b'{"index":0,"text":"%b","logprobs":null,"finish_reason":%b,"matched_stop":null}' % (text, reason)
    head = b'{"id":"%b","object":"text_completion","created":0,"choices":[' % rid
    return head + choice + b'],"model":%b%b}' % (model, usage)


def _reason(asked: Asked, answer: Answer) -> bytes:
    if answer.sent < answer.wanted:
        return b'"abort"' if answer.ended else b"null"
    return b'"stop"' if asked.stop_early else b'"length"'


def _usage(asked: Asked, answer: Answer) -> bytes:
    total = asked.prompt_tokens + answer.sent
    counts = (asked.prompt_tokens, total, answer.sent)
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null}' % counts
