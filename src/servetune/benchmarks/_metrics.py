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

from servetune.benchmarks._intervals import MOST_BATCHES, Interval, batch_means, quantile_errors
from servetune.benchmarks._records import Outcome, Records
from servetune.core.benchmark import Percentiles

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class TimeMap:
    """Wall seconds → node seconds: a straight line through the readings at the beginning and the end of a level."""

    wall_origin_s: float
    node_origin_s: float
    scale: float

    def node(self, wall: Floats) -> Floats:
        """Node time of wall times."""
        return (wall - self.wall_origin_s) * self.scale + self.node_origin_s

    def wall(self, node_s: float) -> float:
        """Wall time of a node time."""
        return (node_s - self.node_origin_s) / self.scale + self.wall_origin_s


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
    counted = _joined(parts, "request_counted", np.int64) == 1
    known = counted & (brought > 0) & (tokens > 0)
    correction = np.ones(len(tokens))
    if np.any(known):  # of answers that are not complete, the mean
        correction[counted] = np.sum(tokens[known]) / np.sum(brought[known])
    correction[known] = tokens[known] / brought[known]
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
    p50, p90, p95, p99 = (float(np.interp(q, rank, ordered)) for q in QUANTILES.values())
    return Percentiles(mean=float(np.average(ordered, weights=weight)), p50=p50, p90=p90, p95=p95, p99=p99)


@dataclass(frozen=True)
class PerRequest:
    """One row per request completed in the window; node seconds. TPOT is NaN for answers of one event."""

    ended_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    tokens: Ints


def completed_requests(requests: Requests, events: Events, begin_s: float, end_s: float) -> PerRequest:
    """TPOT is the time after the first event per token after it."""
    done = np.flatnonzero(
        (requests.outcome == Outcome.COMPLETED) & (requests.ended_s > begin_s) & (requests.ended_s <= end_s)
    )
    first_s = np.full(len(requests.sent_s), np.nan)
    first_tokens = np.zeros(len(requests.sent_s))
    first_s[events.request[events.first]] = events.time_s[events.first]
    first_tokens[events.request[events.first]] = events.tokens[events.first]
    after_first = requests.tokens[done] - first_tokens[done]
    span_s = requests.ended_s[done] - first_s[done]
    return PerRequest(
        ended_s=requests.ended_s[done],
        ttft_s=first_s[done] - requests.sent_s[done],
        tpot_s=np.divide(span_s, after_first, out=np.full(len(done), np.nan), where=after_first > 0),
        e2e_s=requests.ended_s[done] - requests.sent_s[done],
        tokens=requests.tokens[done],
    )


@dataclass(frozen=True)
class Series:
    """Values of one latency metric in seconds, each with its moment and how often it counts."""

    at_s: Floats
    values: Floats
    weights: Floats | None = None

    def percentiles(self) -> Percentiles | None:
        """None when there is no value."""
        return percentiles(self.values, self.weights)


def latency_series(requests: Requests, events: Events, begin_s: float, end_s: float) -> dict[str, Series]:
    """TTFT: requests whose first token came in the window. ITL: one value per later token in the window, the gap of an
    event divided by its tokens. E2E and TPOT: requests completed in the window.
    """
    inside = (events.time_s > begin_s) & (events.time_s <= end_s)
    first = inside & events.first
    later = inside & ~events.first
    gap = events.time_s - events.since_s
    done = completed_requests(requests, events, begin_s, end_s)
    paced = ~np.isnan(done.tpot_s)
    return {
        "ttft": Series(events.time_s[first], gap[first]),
        "tpot": Series(done.ended_s[paced], done.tpot_s[paced]),
        "itl": Series(events.time_s[later], gap[later] / events.tokens[later], events.tokens[later]),
        "e2e": Series(done.ended_s, done.e2e_s),
    }


def interval_details(series: dict[str, Series], begin_s: float, end_s: float, batches: int) -> dict[str, float]:
    """`<metric>_<mean|p50|p90|p95|p99>_<low|high>_s`: 95 % intervals by batches of the window."""
    found: dict[str, float] = {}
    for name, one in series.items():
        known = one.percentiles()
        if known is None or len(one.values) < 2:
            continue
        batch = np.clip(((one.at_s - begin_s) / (end_s - begin_s) * batches).astype(np.int64), 0, batches - 1)
        halves = dict(
            zip(QUANTILES, quantile_errors(one.values, batch, np.array(list(QUANTILES.values()))), strict=True)
        )
        sums = np.bincount(batch, weights=one.values, minlength=batches)
        counts = np.bincount(batch, minlength=batches)
        mean = batch_means(sums[counts > 0] / counts[counts > 0])
        found[f"{name}_mean_low_s"] = known.mean - (mean.value - mean.low)
        found[f"{name}_mean_high_s"] = known.mean + (mean.high - mean.value)
        for statistic, half in halves.items():
            value = float(getattr(known, statistic))
            found[f"{name}_{statistic}_low_s"] = max(0.0, value - float(half))
            found[f"{name}_{statistic}_high_s"] = value + float(half)
    return found
