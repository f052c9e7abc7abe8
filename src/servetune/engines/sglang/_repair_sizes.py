"""Repairs of sizes that do not fit: dispatch buffers, batch sizes of graphs, redundant experts, the host's cache."""

from __future__ import annotations

import math
import re

from servetune.engines.sglang._repair_advice import raised, variables_to_raise
from servetune.engines.sglang._repair_numbers import Draft

#: "exceeds workspace (256)", "capacity 1024, got 1028": what is needed and what there is, in either order.
_EXCEEDS = re.compile(
    r"(?:\(|=)(?P<need>\d{1,9})\)? exceeds (?:\w+ )?\w+ ?(?:\(|=)(?P<have>\d{1,9})\b"
    r"|\b(?:capacity|limit|maximum|at most)\D{0,12}(?P<limit>\d{1,9})\b\D{0,12}\bgot (?P<got>\d{1,9})"
)
#: The variable of a library's dispatch buffers, as a message calls it.
_CAP_NAME = re.compile(r"\b([A-Z][A-Z0-9]+_\w*TOKENS(?:_[A-Z]+)*)\b")
#: Default caps of the engine, tokens per rank.
_CAPS = {"FLASHINFER": 1024, "DEEPEP": 128}
#: "Requesting 263.99 GB but only have 241.62 GB free"
_HOST = re.compile(r"[Rr]equest\w* (?P<need>\d{1,6}(?:\.\d{1,4})?) ?GB\D{1,40}(?P<have>\d{1,6}(?:\.\d{1,4})?) ?GB")
#: Of the host's free memory, what a smaller cache may take.
HOST_SHARE = 0.9
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
        draft.add("ep-num-redundant-experts", fitting, f"a multiple of ep-size {ranks:g}, as the model's experts are")


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
