"""What SGLang's bench_serving reports of each request, and the steady part of it. Pure but for reading the file."""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servetune.benchmarks._checks import CONCURRENCY_AT_LEAST, FAILED_AT_MOST
from servetune.benchmarks._intervals import batch_count, batch_means
from servetune.benchmarks._metrics import Events, percentiles, tokens_until
from servetune.core.benchmark import Level, Measurement
from servetune.core.quantities import counted

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Request:
    """One answer in wall seconds: begin by the order of the closed loop, tokens as the server counted them."""

    begin_s: float
    ttft_s: float
    gaps_s: tuple[float, ...]
    tokens: int
    error: str

    @property
    def end_s(self) -> float:
        """When its last token came."""
        return self.begin_s + self.ttft_s + sum(self.gaps_s)


@dataclass(frozen=True)
class Reported:
    """A whole run. `throughput`: its own figure, output tokens per wall second with ramp and tail."""

    requests: tuple[Request, ...]
    throughput: float
    held: int


def read_report(path: Path) -> Reported | None:
    """The last line of its output file; None when there is none of the known shape."""
    try:
        document = json.loads(path.read_text("utf-8").splitlines()[-1])
        held = int(document["max_concurrency"])
        return Reported(_requests(document, held), float(document["output_throughput"]), held)
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def _requests(document: dict[str, Any], held: int) -> tuple[Request, ...]:
    """Begins are not told: a place is filled when the earliest answer is over, in the order of the prompts.

    At once: what its client needs from one answer to the next request is not told either. On the exact-rate server it
    was about 3 ms, by the stamps. The report's duration cannot tell: it holds 0.2 s of the program's own beginning.
    """
    free: list[float] = [0.0] * held
    heapq.heapify(free)
    found = []
    for ttft_s, gaps, tokens, error in zip(
        document["ttfts"], document["itls"], document["output_lens"], document["errors"], strict=True
    ):
        begin_s = heapq.heappop(free)
        gaps_s = tuple(float(gap) for gap in gaps)
        found.append(Request(begin_s, float(ttft_s), gaps_s, int(tokens), str(error or "")))
        heapq.heappush(free, found[-1].end_s)
    return tuple(found)


def steady(
    reported: Reported, level: Level, node_s_per_wall_s: float, notes: Sequence[str], least_tokens: int
) -> Measurement:
    """The part between the end of the first wave and the begin of the last request, in node seconds.

    `least_tokens`: the fewest that any request asked for.
    """
    good = [r for r in reported.requests if not r.error and r.tokens > 0 and r.ttft_s > 0]
    bad = len(reported.requests) - len(good)
    begin_s = min((r.end_s for r in reported.requests[: reported.held]), default=0.0)
    end_s = max((r.begin_s for r in reported.requests), default=0.0)
    warnings, reasons = list(notes), list[str]()
    if bad:
        reason = next(r.error for r in reported.requests if r not in good) or "no token"
        warnings.append(f"{counted(bad, 'request')} failed: {' '.join(reason.split())[:160]}")
        reasons += warnings[-1:] if bad > FAILED_AT_MOST * len(reported.requests) else []
    short = sum(r.tokens < least_tokens for r in good)
    if short:
        warnings.append(f"{counted(short, 'answer')} had fewer tokens than the {least_tokens} asked for")
        reasons += warnings[-1:] if short > FAILED_AT_MOST * len(good) else []
    if not good or end_s <= begin_s:
        warnings.append("no part of the run had every place filled")
        reasons += warnings[-1:]
        good, end_s = [], begin_s + 1.0
    return _figures(good, (begin_s, end_s), reported, level, node_s_per_wall_s, (bad, reasons, warnings))


def _figures(
    good: Sequence[Request],
    window: tuple[float, float],
    reported: Reported,
    level: Level,
    scale: float,
    judged: tuple[int, list[str], list[str]],
) -> Measurement:
    begin_s, end_s = window
    bad, reasons, warnings = judged
    done = [r for r in good if begin_s < r.end_s <= end_s]
    events = _events(good)
    edges = np.linspace(begin_s, end_s, batch_count(len(done)) + 1)
    flow = batch_means(np.diff(tokens_until(events, edges)) / np.diff(edges)) if good else batch_means(np.zeros(1))
    held = sum(max(0.0, min(r.end_s, end_s) - max(r.begin_s, begin_s)) for r in good) / (end_s - begin_s)
    if good and held < CONCURRENCY_AT_LEAST * level.concurrency:
        warnings.append(f"only {held:.1f} of {level.concurrency} requests were in flight on average")
    gaps = np.array([gap for r in done for gap in r.gaps_s])
    paced = np.array([sum(r.gaps_s) / (r.tokens - 1) for r in done if r.tokens > 1])
    return Measurement(
        concurrency=level.concurrency,
        output_tokens_per_s=flow.value / scale,
        low=max(0.0, flow.low) / scale,
        high=flow.high / scale,
        duration_s=(end_s - begin_s) * scale,
        requests_completed=len(done),
        requests_failed=bad,
        output_tokens=round(flow.value * (end_s - begin_s)),
        ttft_s=percentiles(np.array([r.ttft_s for r in done]) * scale),
        tpot_s=percentiles(paced * scale),
        itl_s=percentiles(gaps * scale),
        e2e_s=percentiles(np.array([r.end_s - r.begin_s for r in done]) * scale),
        valid=not reasons,
        warnings=tuple(warnings),
        invalid_because=tuple(reasons),
        details={
            "concurrency_held": held,
            "reported_output_tokens_per_s": reported.throughput / scale,
            "window_begin_to_end_of_run_s": (max((r.end_s for r in good), default=begin_s) - begin_s) * scale,
        },
    )


def _events(requests: Sequence[Request]) -> Events:
    """First events bring one token, the others share the rest evenly."""
    rows: list[tuple[float, float, bool, float, int]] = []
    for number, request in enumerate(requests):
        at, each = request.begin_s + request.ttft_s, (request.tokens - 1) / max(1, len(request.gaps_s))
        rows.append((at, request.begin_s, True, 1.0 if request.gaps_s else float(request.tokens), number))
        for gap_s in request.gaps_s:
            rows.append((at + gap_s, at, False, each, number))
            at += gap_s
    rows.sort()
    time_s, since_s, first, tokens, request_ = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 5
    )
    return Events(
        np.array(time_s),
        np.array(since_s),
        np.array(first, dtype=bool),
        np.array(tokens),
        np.array(request_, dtype=int),
    )
