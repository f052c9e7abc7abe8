"""Repairs of sizes that do not fit: dispatch buffers, batch sizes of graphs, redundant experts, the host's cache."""

from __future__ import annotations

import math
import re

from servetune.engines.sglang._repair_advice import raised, variables_to_raise
from servetune.engines.sglang._repair_memory import SMALLEST_CHUNK, shrink_chunk, shrink_running
from servetune.engines.sglang._repair_numbers import Draft

#: "exceeds workspace (256)", "capacity 1024, got 1028": what is needed and what there is, in either order.
_EXCEEDS = re.compile(
    r"(?:\(|=)(?P<need>\d{1,9})\)? exceeds (?:\w+ )?\w+ ?(?:\(|=)(?P<have>\d{1,9})\b"
    r"|\b(?:capacity|limit|maximum|at most)\D{0,12}(?P<limit>\d{1,9})\b\D{0,12}\bgot (?P<got>\d{1,9})"
)
#: "num_heads (28) must be divisible by tp_size (8)", "151936 is not divisible by 7"
_DIVISIBLE = re.compile(
    r"\b(?P<whole>\d{1,9})\b[^\d\n]{0,60}(?:divisible|divided|multiple)\b[^\d\n]{0,60}\b(?P<by>\d{1,9})\b"
)
#: The variable of a library's dispatch buffers, as a message calls it.
_CAP_NAME = re.compile(r"\b([A-Z][A-Z0-9]+_\w*TOKENS(?:_[A-Z]+)*)\b")
#: Default caps of the engine, tokens per rank.
_CAPS = {"FLASHINFER": 1024, "DEEPEP": 128}
#: "Requesting 263.99 GB but only have 241.62 GB free"
_HOST = re.compile(r"[Rr]equest\w* (?P<need>\d{1,6}(?:\.\d{1,4})?) ?GB\D{1,40}(?P<have>\d{1,6}(?:\.\d{1,4})?) ?GB")
#: Of the host's free memory, what a smaller cache may take.
HOST_SHARE = 0.9
#: Tensor-parallel ranks of the largest server that is thought of.
MOST_RANKS = 4096
#: The engine's default ratio of the host's cache to the GPU's pool; below 1 the cache holds less than the pool.
DEFAULT_RATIO, SMALLEST_RATIO = 2.0, 1.0


def raise_dispatch_cap(draft: Draft) -> None:
    """A larger dispatch buffer, by the variable that the message names, else by that of the all-to-all backend."""
    told = variables_to_raise(draft.text)
    named = _CAP_NAME.search(draft.text)
    need, have = _shortage(draft)
    if told and not have:
        raised(draft)
        return
    a2a = str(draft.flags.value("moe-a2a-backend") or "")
    kind = "FLASHINFER" if a2a == "flashinfer" or "max_num_tokens" in draft.text else "DEEPEP"
    own = told[0] if told else named[1] if named else None
    name = f"env.{own or f'SGLANG_{kind}_NUM_MAX_DISPATCH_TOKENS_PER_RANK'}"
    now = str(draft.flags.asked.get(name))
    cap = int(now) if now.isdecimal() and len(now) < 16 else (have if own and have else _CAPS[kind])
    times = 2 ** min(6, max(1, math.ceil(math.log2(need / have)))) if need > have > 0 else 2
    draft.add(name, str(cap * times), f"{times} times the buffers of {cap} tokens per rank (costs memory)")


def _shortage(draft: Draft) -> tuple[int, int]:
    """Tokens that the message says were needed, and how many the buffers hold; zeros where it has no numbers."""
    match = _EXCEEDS.search(draft.text)
    if match is None:
        return 0, 0
    return int(match["need"] or match["got"]), int(match["have"] or match["limit"])


def running_within_cap(draft: Draft) -> None:
    """No more running requests than the buffers hold: low-latency dispatch counts the tokens of one decode step."""
    if not _low_latency(draft):
        shrink_running(draft)
        return
    asked = str(draft.flags.asked.get("env.SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"))
    cap = int(asked) if asked.isdecimal() and len(asked) < 16 else _CAPS["DEEPEP"]
    tokens, ranks = max(1, int(draft.current("speculative-num-draft-tokens") or 1)), draft.attention_ranks
    fitting, limit = cap // tokens * ranks, draft.running_limit
    if limit and 0 < fitting < limit:
        each = f" of {tokens} tokens" if tokens > 1 else ""
        reason = f"{cap} tokens per rank in the buffers: {cap // tokens} requests{each} on each of {ranks} ranks"
        draft.add("max-running-requests", fitting, reason)


def _low_latency(draft: Draft) -> bool:
    """Whether DeepEP's dispatch of decode steps met its cap, in a message that does not say how much it needed."""
    return "low_latency" in draft.text and not _shortage(draft)[0]


def chunk_within_cap(draft: Draft) -> None:
    """A prefill chunk that the buffers hold, by the numbers of the message; half without; none for decode steps."""
    need, have = _shortage(draft)
    if need > have > 0 and (draft.current("chunked-prefill-size") or 0) >= need:
        _fitting_chunk(draft, need, have)
    elif not _low_latency(draft):
        shrink_chunk(draft)


def chunk_within_buffer(draft: Draft) -> None:
    """A prefill chunk whose message fits a communicator's buffer of `a` elements, where `b` were needed.

    The batch is taken for a full chunk where its elements divide by one; without such numbers half of the chunk.
    """
    need, have = _size(draft, "b"), _size(draft, "a")
    chunk = draft.current("chunked-prefill-size")
    if need > have > 0 and chunk and chunk >= 1 and need % int(chunk) == 0:
        _fitting_chunk(draft, need, have)
    else:
        shrink_chunk(draft)


def _fitting_chunk(draft: Draft, need: int, have: int) -> None:
    chunk = draft.current("chunked-prefill-size")
    if not need > have > 0 or not chunk:
        return
    tokens = int(chunk) * have // need
    fitting = 2 ** (tokens.bit_length() - 1) if tokens >= SMALLEST_CHUNK else tokens // 64 * 64
    if fitting:
        draft.add("chunked-prefill-size", fitting, f"{have} of {need} fit, so {tokens} of {chunk:g} tokens at once")


def fitting_tp(draft: Draft) -> None:
    """The largest smaller tensor-parallel size by which the size that the message names divides."""
    tp, numbers = min(MOST_RANKS, int(draft.current("tp-size") or 1)), _DIVISIBLE.search(draft.text)
    for fewer in range(tp - 1, 0, -1):
        share, block = _share(draft, numbers, tp, fewer)
        if share is None:
            break
        if tp % fewer == 0 and share and share % block == 0:
            sum_ = f"{share} = {share // block} × {block}" if block > 1 else f"{share} on each"
            draft.add("tp-size", fewer, f"a rank of {fewer} holds {sum_}")
            return
    if tp >= 2:
        known = _share(draft, numbers, tp, 1)[0] is not None
        why = "its own size divides for no number of ranks; fewer may take another layer" if known else "half of it may"
        draft.add("tp-size", tp // 2, f"tp-size {tp} does not fit; {why}")


def _size(draft: Draft, group: str) -> int:
    """A size that the message names; 0 without one, or where it is larger than any."""
    digits = draft.groups.get(group) or ""
    return int(digits) if digits.isdecimal() and len(digits) < 16 else 0


def _share(draft: Draft, numbers: re.Match[str] | None, tp: int, fewer: int) -> tuple[int | None, int]:
    """What one of `fewer` ranks holds (0: not whole) and the block that it has to divide by; None: not known."""
    size, block = _size(draft, "size"), _size(draft, "block")
    if size and block:
        return size * tp // fewer, block
    if numbers is not None and int(numbers["by"]) == tp:
        whole = int(numbers["whole"])
        return (whole // fewer if whole % fewer == 0 else 0), 1
    return None, 1


def other_graph_sizes(draft: Draft) -> None:
    """The engine's own list of batch sizes, and a largest one that the ranks can share."""
    for flag in ("cuda-graph-bs", "cuda-graph-bs-decode", "cuda-graph-bs-prefill"):
        if draft.flags.on(flag) and (flag in draft.flags.asked or not draft.flags.asked):
            draft.add(flag, None, "none of these sizes goes with the parallel sizes; the engine's own list does")
    for flag in ("cuda-graph-max-bs", "cuda-graph-max-bs-decode"):
        now = draft.current(flag) if flag in draft.flags.asked else None
        if now is not None:
            least = 2 * int(draft.current("tp-size") or 1)
            draft.add(flag, max(2 * int(now), least), "sizes have to be multiples of what the ranks share")


def fitting_redundancy(draft: Draft) -> None:
    """The next number of redundant experts that spreads evenly, where the model's own experts do."""
    redundant, ranks = draft.current("ep-num-redundant-experts"), draft.current("ep-size")
    if redundant and ranks and ranks > 1 and redundant % ranks:
        fitting = math.ceil(redundant / ranks) * int(ranks)
        draft.add("ep-num-redundant-experts", fitting, f"a multiple of --ep-size {ranks:g}, as the model's experts are")


def shrink_host_cache(draft: Draft) -> None:
    """A hierarchical cache that the host's free memory holds."""
    match = _HOST.search(draft.text)
    share = HOST_SHARE * float(match["have"]) / float(match["need"]) if match and float(match["need"]) else 0.5
    size = draft.current("hicache-size")
    if size:
        smaller = int(size * min(share, HOST_SHARE))
        draft.add("hicache-size", smaller or None, f"the host has no memory for {size:g} GB on each rank")
        return
    ratio = draft.current("hicache-ratio") or DEFAULT_RATIO
    smaller_ratio = math.floor(ratio * min(share, HOST_SHARE) * 10) / 10
    if smaller_ratio > SMALLEST_RATIO:
        draft.add("hicache-ratio", smaller_ratio, f"the host has no memory for {ratio:g} times the GPU's pool")
