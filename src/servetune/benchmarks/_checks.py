"""Honesty checks: can these figures be trusted? Each gives sentences with numbers; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from servetune.benchmarks._holder import EffortSeries
from servetune.benchmarks._metrics import Events, Requests, TimeMap, throughput, tokens_until
from servetune.benchmarks._observer import Reading
from servetune.benchmarks._records import Outcome, Records
from servetune.core.benchmark import Percentiles
from servetune.core.quantities import counted, latency

FAILED_AT_MOST = 0.01
CONCURRENCY_AT_LEAST = 0.9
BUSY_AT_MOST = 0.9
BUSY_NOTED = 0.7
LATE_AT_MOST = 0.05  # mean lateness of the loop's timer against the mean time of an answer
LATE_SHARE = 0.15  # of the loop's timer at p99 in ITL's p99
TIMER_STEP_S = 0.001  # libuv counts whole milliseconds: on a quiet machine its timers are up to this late
COMPRESSED = 1.5  # node seconds per wall second
SERVER_DIFFERS_BY = 0.02
HALVES_DIFFER_BY = 0.05
GRAPHS_NOTED = 0.02  # share of decode steps outside captured graphs
CACHED_NOTED = 0.02  # share of prompt tokens out of the prefix cache
GROWS_BY = 1.3  # requests in flight of an open loop, from one half to the other


@dataclass(frozen=True)
class Finding:
    """A sentence with numbers; `fatal`: the measurement must not be used."""

    text: str
    fatal: bool = False


@dataclass(frozen=True)
class Window:
    """The measured part, in node seconds."""

    begin_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Its length."""
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class Effort:
    """What the busiest worker spent in the window, in wall seconds."""

    cpu_s: float
    waiting_s: float  # runnable without a core
    wall_s: float
    mean_lag_s: float
    p99_lag_s: float
    worst_lag_s: float
    total_cpu_s: float  # of all workers
    queued: float  # open loop: arrived and not sent, on average

    @property
    def busy_share(self) -> float:
        """Share of the time in which the event loop had work; 1 is a saturated client."""
        return (self.cpu_s + self.waiting_s) / self.wall_s if self.wall_s > 0 else 0.0


def effort_between(series: Sequence[EffortSeries], wall_begin_s: float, wall_end_s: float) -> Effort:
    """Costs between two wall times, from the readings of each worker."""
    found = [effort for one in series if (effort := _effort(one, wall_begin_s, wall_end_s)) is not None]
    if not found:
        return Effort(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    worst = max(found, key=lambda effort: effort.busy_share)
    return Effort(
        worst.cpu_s,
        worst.waiting_s,
        worst.wall_s,
        max(effort.mean_lag_s for effort in found),
        max(effort.p99_lag_s for effort in found),
        max(effort.worst_lag_s for effort in found),
        sum(effort.cpu_s for effort in found),
        sum(effort.queued for effort in found),
    )


def _effort(one: EffortSeries, wall_begin_s: float, wall_end_s: float) -> Effort | None:
    wall = np.array(one.wall_s)
    inside = np.flatnonzero((wall >= wall_begin_s) & (wall <= wall_end_s))
    if len(inside) < 2:
        return None
    first, last = inside[0], inside[-1]
    lags = np.array(one.lag_s)[inside]
    cpu_s = one.cpu_s[last] - one.cpu_s[first]
    waiting_s = one.waiting_s[last] - one.waiting_s[first]
    queued = float(np.mean(np.array(one.queued)[inside]))
    spent_s = float(wall[last] - wall[first])
    late = (float(np.mean(lags)), float(np.quantile(lags, 0.99)), float(np.max(lags)))
    return Effort(cpu_s, waiting_s, spent_s, *late, cpu_s, queued)


def concurrency_held(requests: Requests, window: Window) -> float:
    """Mean number of requests in flight over the window, by the client's own records."""
    ended = np.where(requests.outcome == Outcome.IN_FLIGHT, np.inf, requests.ended_s)
    overlap = np.minimum(ended, window.end_s) - np.maximum(requests.sent_s, window.begin_s)
    return float(np.sum(np.maximum(overlap, 0.0)) / window.duration_s)


def of_requests(
    requests: Requests, reasons: Counter[str], window: Window | None, outlook: str = ""
) -> Iterable[Finding]:
    """Failed, refused and short answers; nothing completed. `outlook`: why nothing could be, where tokens flowed."""
    within = np.ones(len(requests.ended_s), dtype=bool)
    if window is not None:
        within = (requests.ended_s > window.begin_s) & (requests.ended_s <= window.end_s)
    completed = int(np.sum(within & (requests.outcome == Outcome.COMPLETED)))
    failed = int(np.sum(within & (requests.outcome == Outcome.FAILED)))
    if not completed:
        yield Finding(f"no request was completed in the measured part{outlook}", fatal=True)
    if reasons:
        listed = "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common(4))
        yield Finding(
            f"{counted(reasons.total(), 'request')} failed, {failed} of {failed + completed} in the measured part: "
            f"{listed}",
            fatal=failed > FAILED_AT_MOST * (failed + completed),
        )


def of_client(effort: Effort, mean_answer_s: float | None) -> Iterable[Finding]:
    """A client that cannot keep up measures itself. `mean_answer_s`: wall time of an answer."""
    busy = effort.busy_share
    if busy > BUSY_NOTED:
        what = "saturated" if busy > BUSY_AT_MOST else "near its limit"
        yield Finding(
            f"the client was {what}: its event loop was busy {busy:.0%} of the time ({effort.cpu_s:.2f} s of CPU and "
            f"{effort.waiting_s:.2f} s waiting for a core in {effort.wall_s:.2f} s; {BUSY_AT_MOST:.0%} is the most)",
            fatal=busy > BUSY_AT_MOST,
        )
    if mean_answer_s is not None and effort.mean_lag_s > LATE_AT_MOST * mean_answer_s:
        yield Finding(
            f"the client's event loop was {latency(effort.mean_lag_s)} late on average (at worst "
            f"{latency(effort.worst_lag_s)}) while an answer took {latency(mean_answer_s)}: that is "
            f"{effort.mean_lag_s / mean_answer_s:.1%}, and {LATE_AT_MOST:.0%} is the most",
            fatal=True,
        )


def of_delays(effort: Effort, itl: Percentiles | None, node_s_per_wall_s: float) -> Iterable[Finding]:
    """Latencies that hold much of the client's own lateness. Not in compressed time: small delays count there."""
    if itl is None or node_s_per_wall_s >= COMPRESSED:
        return
    if effort.p99_lag_s - TIMER_STEP_S > LATE_SHARE * itl.p99:
        yield Finding(
            f"latencies hold delays of the client: its event loop was {effort.p99_lag_s * 1e3:.1f} ms late at p99, "
            f"where ITL p99 is {itl.p99 * 1e3:.1f} ms"
        )


def of_concurrency(held: float, wanted: int) -> Iterable[Finding]:
    """Closed loop: were as many requests in flight as asked for?"""
    if held < CONCURRENCY_AT_LEAST * wanted:
        yield Finding(
            f"only {held:.1f} of {wanted} requests were in flight on average; {CONCURRENCY_AT_LEAST:.0%} is the least",
            fatal=True,
        )


def of_arrivals(requests: Requests, window: Window, queued: tuple[float, float], most: int) -> Iterable[Finding]:
    """Open loop: requests that had to wait in the client, and a server that falls behind.

    `queued`: of the window's halves, requests that had come and were not sent, on average. Of those the table has only
    the ones that were sent later.
    """
    mean = sum(queued) / 2
    if mean >= 1:
        yield Finding(f"{mean:.1f} requests on average waited in the client: at most {most} were in flight")
    middle_s = (window.begin_s + window.end_s) / 2
    earlier = min(most, concurrency_held(requests, Window(window.begin_s, middle_s))) + queued[0]
    later = min(most, concurrency_held(requests, Window(middle_s, window.end_s))) + queued[1]
    if later > GROWS_BY * earlier + 3:
        yield Finding(
            f"the server falls behind: {earlier:.1f} requests had come and were not answered in the first half, "
            f"{later:.1f} in the second; latencies depend on how long one measures"
        )


def of_silence(requests: Requests, events: Events, end_s: float) -> Iterable[Finding]:
    """Answers under way at `end_s` whose last token is much longer ago than tokens usually take."""
    gaps = (events.time_s - events.since_s)[~events.first]
    if not len(gaps):
        return
    last_s = np.zeros(len(requests.sent_s))
    np.maximum.at(last_s, events.request, events.time_s)
    open_ = (requests.outcome == Outcome.IN_FLIGHT) & (last_s > 0)
    quiet_s = end_s - last_s[open_]
    silent = quiet_s[quiet_s > 20 * float(np.quantile(gaps, 0.99))]
    if len(silent):
        yield Finding(
            f"{len(silent)} of {int(np.sum(open_))} answers under way at the end had given no token for "
            f"{float(np.min(silent)):.1f} to {float(np.max(silent)):.1f} s",
            fatal=len(silent) > FAILED_AT_MOST * len(quiet_s),
        )


def of_unanswered(requests: Requests, end_s: float) -> Iterable[Finding]:
    """A server that takes requests and says nothing, told where no token came at all."""
    waiting = requests.sent_s[requests.outcome == Outcome.IN_FLIGHT]
    if len(waiting):
        waited_s = end_s - float(np.min(waiting))
        yield Finding(f"{counted(len(waiting), 'request')} had not been answered after {waited_s:.1f} s")


def of_steadiness(events: Events, window: Window, half_width: float, settled: bool) -> Iterable[Finding]:
    """Drift beyond noise, and a start before two windows agreed. `half_width`: of the throughput's interval."""
    middle_s = (window.begin_s + window.end_s) / 2
    earlier = throughput(events, window.begin_s, middle_s, 1).value
    later = throughput(events, middle_s, window.end_s, 1).value
    # the halves' difference has twice the standard error of the whole: three of its own are three half widths
    if abs(later - earlier) > max(HALVES_DIFFER_BY * max(earlier, later), 3 * half_width):
        yield Finding(f"the halves of the measured part differ: {earlier:.1f} and {later:.1f} output tokens/s")
    if not settled:
        yield Finding("the load had not settled when measuring began: two windows before it differed by over 5 %")


@dataclass(frozen=True)
class ServerView:
    """What the server's own counters say of the window; None: it does not tell."""

    running: float | None = None
    most: float | None = None  # running and queued in the reading that counted most
    queued: float | None = None
    retracted: float | None = None
    outside_graphs: float | None = None  # share of decode steps, or of readings
    readings: int = 0


def server_view(readings: Sequence[Reading], window: Window, times: TimeMap) -> ServerView:
    """Means of gauges and increases of counters over the readings inside the window."""
    at_s = times.node(np.array([reading.wall_s for reading in readings]))
    inside = [reading for reading, s in zip(readings, at_s, strict=True) if window.begin_s <= s <= window.end_s]

    def mean(name: str) -> float | None:
        values = [reading.values[name] for reading in inside if name in reading.values]
        return sum(values) / len(values) if values else None

    def increase(name: str) -> float | None:
        # a counter appears in the export when it is first counted
        known = any(name in reading.values for reading in inside)
        return inside[-1].values.get(name, 0.0) - inside[0].values.get(name, 0.0) if known else None

    counts = [r.values["running"] + r.values.get("queued", 0.0) for r in inside if "running" in r.values]
    decodes, eager, graph = increase("decodes"), increase("eager_decodes"), mean("graph")
    outside = eager / decodes if decodes and eager is not None else None if graph is None else 1 - min(1.0, graph)
    return ServerView(
        running=mean("running"),
        most=max(counts, default=None),
        queued=mean("queued"),
        retracted=increase("retracted"),
        outside_graphs=outside,
        readings=len(inside),
    )


def of_prompts(parts: Sequence[Records]) -> Iterable[Finding]:
    """Prompts that the server read with another length, or partly out of its cache."""
    counted, sent = sum(part.prompt_tokens for part in parts), sum(part.input_tokens for part in parts)
    cached, prompts = sum(part.cached_tokens for part in parts), sum(part.prompts_counted for part in parts)
    if prompts and abs(counted - sent) > max(0.01 * sent, 2 * prompts):  # a token or two more: begin of text
        yield Finding(f"the server read {counted / prompts:.1f} prompt tokens where {sent / prompts:.1f} were sent")
    if counted and cached > CACHED_NOTED * counted:
        yield Finding(f"{cached / counted:.1%} of the prompt tokens came out of the server's prefix cache")


def of_server(view: ServerView, held: float) -> Iterable[Finding]:
    """Requests in flight, queueing, retractions and graphs as the server counts them."""
    if view.most is not None and view.most < CONCURRENCY_AT_LEAST * held - 1 and view.readings >= 3:
        # never fatal: a real server's gauge moves with its log lines and reads 0 between them
        yield Finding(
            f"the server counted {view.most:.0f} requests at most in {view.readings} readings where the client held "
            f"{held:.1f}"
        )
    if view.queued is not None and view.queued > 0.02 * held and view.queued >= 1:
        running = "" if view.running is None else f", {view.running:.1f} ran"
        yield Finding(f"{view.queued:.1f} of {held:.1f} requests waited in the server's queue on average{running}")
    if view.retracted:
        yield Finding(f"the server retracted {counted(round(view.retracted), 'request')}: its KV pool was full")
    if view.outside_graphs is not None and view.outside_graphs > GRAPHS_NOTED:
        yield Finding(f"{view.outside_graphs:.0%} of the decode steps ran outside captured graphs")


@dataclass(frozen=True)
class Comparison:
    """Tokens between the first and the last reading of the server's counter, by the server and by the client."""

    server: float
    client: float
    slack: float  # what may fall on either side of a reading
    span_s: float

    @property
    def differs(self) -> bool:
        """By more than 2 % beyond what the readings' moments explain."""
        return abs(self.server - self.client) > SERVER_DIFFERS_BY * max(self.server, self.client) + self.slack


def compare_counters(
    readings: Sequence[Reading], requests: Requests, events: Events, window: Window, times: TimeMap
) -> Comparison | None:
    """Server against client over the readings in the window; None with fewer than two.

    SGLang adds an answer's tokens to `generation_tokens_total` when it is complete, vLLM at each step: whichever fits.
    """
    at_s = times.node(np.array([reading.wall_s for reading in readings]))
    usable = [
        (float(s), reading.values["generated"])
        for s, reading in zip(at_s, readings, strict=True)
        if "generated" in reading.values and s >= window.begin_s  # the load goes on until the last reading
    ]
    if len(usable) < 2:
        return None
    (first_s, first), (last_s, last) = usable[0], usable[-1]
    done = (requests.outcome == Outcome.COMPLETED) & (requests.ended_s > first_s) & (requests.ended_s <= last_s)
    largest = float(np.max(requests.tokens)) if len(requests.tokens) else 0.0
    until = tokens_until(events, np.array([first_s, last_s]))
    finished = Comparison(last - first, float(np.sum(requests.tokens[done])), 2 * largest, last_s - first_s)
    stepwise = Comparison(last - first, float(until[1] - until[0]), 0.0, last_s - first_s)
    return min(finished, stepwise, key=lambda comparison: abs(comparison.server - comparison.client))


def of_restart(readings: Sequence[Reading]) -> Iterable[Finding]:
    """A counter never falls while one process runs."""
    counts = [reading.values["generated"] for reading in readings if "generated" in reading.values]
    fallen = next(((a, b) for a, b in pairwise(counts) if b < a), None)
    if fallen is not None:
        yield Finding(
            f"the server was started anew during the level: its count of output tokens fell from {fallen[0]:.0f} to "
            f"{fallen[1]:.0f}",
            fatal=True,
        )


def of_counters(comparison: Comparison | None) -> Iterable[Finding]:
    """Do both sides count the same tokens?"""
    if comparison is not None and comparison.differs:
        yield Finding(
            f"the server counted {comparison.server:.0f} output tokens where the client received "
            f"{comparison.client:.0f} in the same {comparison.span_s:.1f} s: more than 2 % apart",
            fatal=True,
        )
