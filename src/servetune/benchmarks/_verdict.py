"""A finished level → Measurement: figures, warnings with numbers, and whether the figures may be used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from servetune.benchmarks._load import Load
from servetune.benchmarks._metrics import Events, Requests, TimeMap, latencies, read_events, read_requests, throughput
from servetune.benchmarks._records import Outcome
from servetune.core.benchmark import Level, Measurement

FAILED_AT_MOST = 0.01
CONCURRENCY_AT_LEAST = 0.9
BUSY_AT_MOST = 0.9
BUSY_NOTED = 0.7


@dataclass
class Circumstances:
    """What was noted beside the load."""

    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Finding:
    """A sentence with numbers; `fatal`: the measurement must not be used."""

    text: str
    fatal: bool = False


def measurement(level: Level, load: Load, circumstances: Circumstances, times: TimeMap) -> Measurement:
    """Summarise a level that was not aborted."""
    requests = read_requests(load.records, times)
    events = read_events(load.records, requests, times)
    begin_s, end_s = _window(load, times, events)
    if not len(events.time_s) or end_s <= begin_s:
        return _nothing(level, load, circumstances)
    flow = throughput(events, begin_s, end_s)
    within = (requests.ended_s > begin_s) & (requests.ended_s <= end_s)
    completed = int(np.sum(within & (requests.outcome == Outcome.COMPLETED)))
    failed = int(np.sum(within & (requests.outcome == Outcome.FAILED)))
    held = _concurrency(requests, begin_s, end_s)
    findings = [
        *(Finding(note) for note in circumstances.notes),
        *_of_failures(load, completed, failed),
        *_of_client(load, level, held),
        *_of_steadiness(load, level, events, begin_s, end_s),
    ]
    seen = latencies(requests, events, begin_s, end_s)
    return Measurement(
        concurrency=level.concurrency,
        output_tokens_per_s=flow.value,
        low=flow.low,
        high=flow.high,
        duration_s=end_s - begin_s,
        requests_completed=completed,
        requests_failed=failed,
        output_tokens=round(flow.value * (end_s - begin_s)),
        ttft_s=seen.ttft_s,
        tpot_s=seen.tpot_s,
        itl_s=seen.itl_s,
        e2e_s=seen.e2e_s,
        valid=not any(finding.fatal for finding in findings),
        warnings=tuple(finding.text for finding in findings),
        details=_details(load, held),
    )


def _window(load: Load, times: TimeMap, events: Events) -> tuple[float, float]:
    """The measured part without its last moment, whose tokens are made but have not come yet."""
    if not load.wall_begin_s or not len(events.time_s):
        return 0.0, 0.0
    begin_s, end_s = (float(edge) for edge in times.node(np.array([load.wall_begin_s, load.wall_end_s])))
    gaps = (events.time_s - events.since_s)[~events.first & (events.time_s > begin_s)]
    open_s = float(np.quantile(gaps, 0.95)) if len(gaps) else 0.0
    return begin_s, end_s - min(open_s, 0.2 * (end_s - begin_s))


def _concurrency(requests: Requests, begin_s: float, end_s: float) -> float:
    """Mean number of requests in flight over the window, by the client's own records."""
    ended = np.where(requests.outcome == Outcome.IN_FLIGHT, np.inf, requests.ended_s)
    overlap = np.minimum(ended, end_s) - np.maximum(requests.sent_s, begin_s)
    return float(np.sum(np.maximum(overlap, 0.0)) / (end_s - begin_s))


def _of_failures(load: Load, completed: int, failed: int) -> Iterable[Finding]:
    if load.given_up is not None:
        yield Finding(load.given_up, fatal=True)
    if not completed:
        yield Finding("no request was completed in the measured part", fatal=True)
    if load.records.failed:
        share = failed / max(1, failed + completed)
        listed = "; ".join(f"{count} x {reason}" for reason, count in load.records.failures.most_common(4))
        yield Finding(
            f"{load.records.failed} requests failed, {failed} of {failed + completed} in the measured part: {listed}",
            fatal=share > FAILED_AT_MOST,
        )


def _of_client(load: Load, level: Level, held: float) -> Iterable[Finding]:
    busy = load.effort.busy_share
    if busy > BUSY_NOTED:
        what = "saturated" if busy > BUSY_AT_MOST else "near its limit"
        yield Finding(
            f"the client was {what}: its event loop was busy {busy:.0%} of the time "
            f"({load.effort.cpu_s:.1f} s CPU and {load.effort.waiting_s:.1f} s waiting for a core "
            f"in {load.effort.wall_s:.1f} s)",
            fatal=busy > BUSY_AT_MOST,
        )
    if held < CONCURRENCY_AT_LEAST * level.concurrency:
        yield Finding(
            f"only {held:.1f} of {level.concurrency} requests were in flight on average; "
            f"{load.connected} connections were opened",
            fatal=True,
        )


def _of_steadiness(load: Load, level: Level, events: Events, begin_s: float, end_s: float) -> Iterable[Finding]:
    middle_s = (begin_s + end_s) / 2
    earlier = throughput(events, begin_s, middle_s, 1).value
    later = throughput(events, middle_s, end_s, 1).value
    if abs(later - earlier) > 0.05 * max(earlier, later):
        yield Finding(f"the halves of the measured part differ: {earlier:.1f} and {later:.1f} tokens/s")
    auto = level.workload.warmup == "auto"
    if auto and not load.pace.settled:
        yield Finding("the throughput had not settled when measuring began: two windows before it differed by over 5 %")


def _details(load: Load, held: float) -> dict[str, float]:
    return {
        "client_cpu_s": load.effort.cpu_s,
        "client_busy_share": load.effort.busy_share,
        "client_worst_lag_s": load.effort.worst_lag_s,
        "concurrency_held": held,
        "events": float(len(load.records.event_time)),
        "requests_failed_in_all": float(load.records.failed),
    }


def _nothing(level: Level, load: Load, circumstances: Circumstances) -> Measurement:
    """Not a single usable token."""
    findings = [*(Finding(note) for note in circumstances.notes), *_of_failures(load, 0, load.records.failed)]
    return Measurement(
        concurrency=level.concurrency,
        output_tokens_per_s=0.0,
        low=0.0,
        high=0.0,
        duration_s=0.0,
        requests_completed=load.records.completed,
        requests_failed=load.records.failed,
        output_tokens=0,
        valid=False,
        warnings=tuple(finding.text for finding in findings),
        details=_details(load, 0.0),
    )
