"""Records → figures: token flow over a window, latency percentiles. Pure; times in node seconds.

An event brings tokens that were made since the event before it (or since the request was sent), so its tokens are
spread evenly over that span. Otherwise a window would gain or lose up to a whole event per stream at its edges, which
is much when events carry many tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from servetune.benchmarks._intervals import MOST_BATCHES, Interval, batch_means
from servetune.benchmarks._records import Outcome, Records
from servetune.core.benchmark import Percentiles

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class TimeMap:
    """Wall seconds → node seconds: a straight line through the readings at the beginning and the end of a level."""

    wall_origin_s: float
    node_origin_s: float
    scale: float

    def node(self, wall: Floats) -> Floats:
        """Node time of wall times."""
        return (wall - self.wall_origin_s) * self.scale + self.node_origin_s


@dataclass(frozen=True)
class Requests:
    """One row per request. `tokens_per_event_token`: 1, or the correction where events were counted as tokens."""

    sent_s: Floats
    ended_s: Floats
    tokens: Ints
    outcome: Ints
    tokens_per_event_token: Floats


@dataclass(frozen=True)
class Events:
    """One row per event that brought tokens, by arrival; those of failed requests are left out."""

    time_s: Floats
    since_s: Floats  # time of the event before it in the same request; of the first: when the request was sent
    first: Bools
    tokens: Floats
    request: Ints


def read_tables(parts: Sequence[Records], times: TimeMap) -> tuple[Requests, Events]:
    """Requests and events of all workers together, in node time."""
    requests = _read_requests(parts, times)
    return requests, _read_events(parts, requests, times)


def _joined(parts: Sequence[Records], column: str, dtype: DTypeLike) -> NDArray[Any]:
    return np.concatenate([np.array(getattr(records, column), dtype=dtype) for records in parts])


def _event_requests(parts: Sequence[Records]) -> Ints:
    """Row of each event's request in the joined request table."""
    offsets = np.cumsum([0, *(len(records.request_sent) for records in parts[:-1])])
    pairs = zip(parts, offsets, strict=True)
    return np.concatenate([np.array(records.event_request, dtype=np.int64) + offset for records, offset in pairs])


def _read_requests(parts: Sequence[Records], times: TimeMap) -> Requests:
    tokens = _joined(parts, "request_tokens", np.int64)
    brought = np.bincount(
        _event_requests(parts), weights=_joined(parts, "event_tokens", np.float64), minlength=len(tokens)
    )
    counted = (_joined(parts, "request_counted", np.int64) == 1) & (brought > 0) & (tokens > 0)
    correction = np.ones(len(tokens))
    correction[counted] = tokens[counted] / brought[counted]
    return Requests(
        sent_s=times.node(_joined(parts, "request_sent", np.float64)),
        ended_s=times.node(_joined(parts, "request_ended", np.float64)),
        tokens=tokens,
        outcome=_joined(parts, "request_outcome", np.int64),
        tokens_per_event_token=correction,
    )


def _read_events(parts: Sequence[Records], requests: Requests, times: TimeMap) -> Events:
    request = _event_requests(parts)
    time_s = times.node(_joined(parts, "event_time", np.float64))
    tokens = _joined(parts, "event_tokens", np.float64) * requests.tokens_per_event_token[request]
    first = np.ones(len(request), dtype=bool)
    since = requests.sent_s[request]
    order = np.argsort(request, kind="stable")
    same = np.flatnonzero(request[order[1:]] == request[order[:-1]]) + 1
    first[order[same]] = False
    since[order[same]] = time_s[order[same - 1]]
    kept = np.flatnonzero(requests.outcome[request] != Outcome.FAILED)
    if len(parts) > 1:
        kept = kept[np.argsort(time_s[kept], kind="stable")]
    return Events(time_s[kept], since[kept], first[kept], tokens[kept], request[kept])


def tokens_until(events: Events, edges_s: Floats) -> Floats:
    """Tokens made up to each edge, events spread over their spans."""
    total = np.concatenate(([0.0], np.cumsum(events.tokens)))
    made = np.empty(len(edges_s))
    for index, edge in enumerate(edges_s):
        after = int(np.searchsorted(events.time_s, edge, side="right"))
        open_ = np.flatnonzero(events.since_s[after:] < edge) + after
        span = events.time_s[open_] - events.since_s[open_]  # above 0: it begins before the edge and ends after it
        made[index] = total[after] + float(np.sum(events.tokens[open_] * (edge - events.since_s[open_]) / span))
    return made


def throughput(events: Events, begin_s: float, end_s: float, batches: int = MOST_BATCHES) -> Interval:
    """Output tokens per second in the window with its 95 % interval."""
    edges = np.linspace(begin_s, end_s, batches + 1)
    return batch_means(np.diff(tokens_until(events, edges)) / np.diff(edges))


def percentiles(values: Floats, weights: Floats | None = None) -> Percentiles | None:
    """Of a latency in seconds; None when there is no value. With `weights`, each value counts that often."""
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    weight = np.ones(len(values)) if weights is None else weights[order]
    rank = (np.cumsum(weight) - 0.5 * weight) / np.sum(weight)
    p50, p90, p95, p99 = (float(np.interp(q, rank, ordered)) for q in (0.50, 0.90, 0.95, 0.99))
    return Percentiles(mean=float(np.average(ordered, weights=weight)), p50=p50, p90=p90, p95=p95, p99=p99)


@dataclass(frozen=True)
class Latencies:
    """Of the requests and events of a window; see `latencies`."""

    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    itl_s: Percentiles | None
    e2e_s: Percentiles | None


def latencies(requests: Requests, events: Events, begin_s: float, end_s: float) -> Latencies:
    """TTFT: requests whose first token came in the window. ITL: one value per later token in the window, the gap of an
    event divided by its tokens. E2E and TPOT: requests completed in the window; TPOT is the time after the first event
    per token after it.
    """
    inside = (events.time_s > begin_s) & (events.time_s <= end_s)
    first = inside & events.first
    later = inside & ~events.first
    gap = events.time_s - events.since_s
    ttft = gap[first]
    completed = requests.outcome == Outcome.COMPLETED
    done = completed & (requests.ended_s > begin_s) & (requests.ended_s <= end_s)
    first_time = np.full(len(requests.sent_s), np.nan)
    first_tokens = np.zeros(len(requests.sent_s))
    first_time[events.request[events.first]] = events.time_s[events.first]
    first_tokens[events.request[events.first]] = events.tokens[events.first]
    after_first = requests.tokens - first_tokens
    paced = done & (after_first > 0)
    return Latencies(
        ttft_s=percentiles(ttft),
        tpot_s=percentiles((requests.ended_s[paced] - first_time[paced]) / after_first[paced]),
        itl_s=percentiles(gap[later] / events.tokens[later], events.tokens[later]),
        e2e_s=percentiles(requests.ended_s[done] - requests.sent_s[done]),
    )
