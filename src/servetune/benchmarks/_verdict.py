"""A finished level → Measurement: figures, warnings with numbers, and whether the figures may be used."""

from __future__ import annotations

from collections import Counter

import numpy as np

from servetune.benchmarks._checks import (
    Effort,
    Finding,
    ServerView,
    Window,
    compare_counters,
    concurrency_held,
    effort_between,
    of_arrivals,
    of_client,
    of_concurrency,
    of_counters,
    of_delays,
    of_prompts,
    of_requests,
    of_restart,
    of_server,
    of_silence,
    of_steadiness,
    of_unanswered,
    server_view,
)
from servetune.benchmarks._goodput import goodput
from servetune.benchmarks._intervals import batch_count
from servetune.benchmarks._level import Outcome as LevelOutcome
from servetune.benchmarks._metrics import (
    Events,
    Requests,
    TimeMap,
    completed_requests,
    interval_details,
    latency_series,
    read_tables,
    throughput,
)
from servetune.benchmarks._records import Outcome
from servetune.core.benchmark import Measurement


def judge(outcome: LevelOutcome) -> Measurement:
    """Summarise a level that was not aborted."""
    times = TimeMap(outcome.wall_origin_s, outcome.node_origin_s, outcome.node_s_per_wall_s)
    requests, events = read_tables([harvest.records for harvest in outcome.harvests], times)
    reasons = sum((harvest.records.failures for harvest in outcome.harvests), Counter[str]())
    window = _window(outcome, times, events)
    over_s = float(times.node(np.array([outcome.over_wall_s]))[0])
    noted = [Finding(note) for note in outcome.notes]
    if outcome.given_up is not None:
        noted.append(Finding(outcome.given_up, fatal=True))
    noted += of_silence(requests, events, over_s)
    if window is None:
        noted += of_unanswered(requests, over_s) if not len(events.time_s) else ()
        effort = effort_between([harvest.effort for harvest in outcome.harvests], 0.0, outcome.over_wall_s)
        return _nothing(outcome, requests, [*noted, *of_requests(requests, reasons, None), *of_client(effort, None)])
    noted += of_requests(requests, reasons, window, _outlook(outcome))
    return _figures(outcome, times, window, requests, events, noted)


def _outlook(outcome: LevelOutcome) -> str:
    """How long an answer takes against how long the level may last, as a half sentence."""
    answer_s, limit_s = outcome.pace.wave_s(), outcome.level.limit_s
    if answer_s is None or answer_s < 0.5 * limit_s:
        return ""
    return f": at this pace an answer takes about {answer_s:.0f} s, and the level may last {limit_s:.0f} s"


def _window(outcome: LevelOutcome, times: TimeMap, events: Events) -> Window | None:
    """The measured part without its last moment, whose tokens are made but have not come yet."""
    if outcome.measured is None or not len(events.time_s):
        return None
    begin_s, end_s = (float(edge) for edge in times.node(np.array(outcome.measured)))
    gaps = (events.time_s - events.since_s)[~events.first & (events.time_s > begin_s)]
    open_s = float(np.quantile(gaps, 0.95)) if len(gaps) else 0.0
    window = Window(begin_s, end_s - min(open_s, 0.2 * (end_s - begin_s)))
    return window if np.any((events.time_s > window.begin_s) & (events.time_s <= window.end_s)) else None


def _figures(
    outcome: LevelOutcome,
    times: TimeMap,
    window: Window,
    requests: Requests,
    events: Events,
    findings: list[Finding],
) -> Measurement:
    within = (requests.ended_s > window.begin_s) & (requests.ended_s <= window.end_s)
    completed = int(np.sum(within & (requests.outcome == Outcome.COMPLETED)))
    batches = batch_count(completed)
    flow = throughput(events, window.begin_s, window.end_s, batches)
    series = latency_series(requests, events, window.begin_s, window.end_s)
    seen = {name: one.percentiles() for name, one in series.items()}
    answer = seen["e2e"]
    held = concurrency_held(requests, window)
    assert outcome.measured is not None
    costs = [harvest.effort for harvest in outcome.harvests]
    effort = effort_between(costs, *outcome.measured)
    view = server_view(outcome.readings, window, times)
    compared = compare_counters(outcome.readings, requests, events, window, times)
    findings += of_client(effort, None if answer is None else answer.mean / outcome.node_s_per_wall_s)
    findings += of_delays(effort, seen["itl"], outcome.node_s_per_wall_s)
    if outcome.demand.arrivals is None:
        findings += of_concurrency(held, outcome.level.concurrency)
    else:
        begin_s, end_s = outcome.measured
        middle_s = (begin_s + end_s) / 2
        queued = (effort_between(costs, begin_s, middle_s).queued, effort_between(costs, middle_s, end_s).queued)
        findings += of_arrivals(requests, window, queued, outcome.level.concurrency)
    findings += of_steadiness(
        events, window, (flow.high - flow.low) / 2, outcome.pace.settled or outcome.level.workload.warmup != "auto"
    )
    findings += of_prompts([harvest.records for harvest in outcome.harvests])
    findings += of_server(view, min(held, outcome.level.concurrency))  # what waits in the client is not the server's
    findings += [*of_restart(outcome.readings)] or of_counters(compared)
    return Measurement(
        concurrency=outcome.level.concurrency,
        output_tokens_per_s=flow.value,
        low=max(0.0, flow.low),
        high=flow.high,
        duration_s=window.duration_s,
        requests_completed=completed,
        requests_failed=int(np.sum(within & (requests.outcome == Outcome.FAILED))),
        output_tokens=round(flow.value * window.duration_s),
        ttft_s=seen["ttft"],
        tpot_s=seen["tpot"],
        itl_s=seen["itl"],
        e2e_s=answer,
        valid=not any(finding.fatal for finding in findings),
        warnings=tuple(finding.text for finding in findings),
        invalid_because=tuple(finding.text for finding in findings if finding.fatal),
        details=_details(effort, view, held)
        | _window_details(window, times, events)
        | ({} if compared is None else {"server_output_tokens_per_s": compared.server / compared.span_s})
        | interval_details(series, window.begin_s, window.end_s, batches)
        | _goodput(outcome, requests, events, window),
    )


def _window_details(window: Window, times: TimeMap, events: Events) -> dict[str, float]:
    """Begin and end on this machine's monotonic clock, to compare with logs and counters; events inside; all tokens."""
    inside = (events.time_s > window.begin_s) & (events.time_s <= window.end_s)
    begin_s, end_s = times.wall(window.begin_s), times.wall(window.end_s)
    return {
        "window_begin_s": begin_s,
        "window_end_s": end_s,
        "events_in_window": float(np.sum(inside)),
        "tokens_in_all": float(np.sum(events.tokens)),
    }


def _goodput(outcome: LevelOutcome, requests: Requests, events: Events, window: Window) -> dict[str, float]:
    if outcome.demand.goodput is None:
        return {}
    done = completed_requests(requests, events, window.begin_s, window.end_s)
    return goodput(done, outcome.demand.goodput, window.duration_s)


def _details(effort: Effort, view: ServerView, held: float) -> dict[str, float]:
    told = {
        "server_running": view.running,
        "server_queued": view.queued,
        "server_retracted": view.retracted,
        "server_outside_graphs_share": view.outside_graphs,
    }
    return {
        "client_cpu_s": effort.total_cpu_s,
        "client_busy_share": effort.busy_share,
        "client_mean_lag_s": effort.mean_lag_s,
        "client_p99_lag_s": effort.p99_lag_s,
        "client_worst_lag_s": effort.worst_lag_s,
        "concurrency_held": held,
        **{name: value for name, value in told.items() if value is not None},
    }


def _nothing(outcome: LevelOutcome, requests: Requests, findings: list[Finding]) -> Measurement:
    """Not a single usable token, or none in the measured part."""
    findings = [*findings, Finding("no token came in the measured part", fatal=True)]
    return Measurement(
        concurrency=outcome.level.concurrency,
        output_tokens_per_s=0.0,
        low=0.0,
        high=0.0,
        duration_s=0.0,
        requests_completed=int(np.sum(requests.outcome == Outcome.COMPLETED)),
        requests_failed=int(np.sum(requests.outcome == Outcome.FAILED)),
        output_tokens=0,
        valid=False,
        warnings=tuple(finding.text for finding in findings),
        invalid_because=tuple(finding.text for finding in findings if finding.fatal),
    )
