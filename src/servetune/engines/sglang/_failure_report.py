"""A diagnosis as scripts and readers of a report see it."""

from __future__ import annotations

import re
from typing import Any

from servetune.core.failure import Failure
from servetune.core.space import Assignment
from servetune.core.wording import shortened
from servetune.engines.sglang._failure_blame import blamed_flags
from servetune.engines.sglang._failure_causes import survived
from servetune.engines.sglang._failure_text import as_evidence, masked
from servetune.engines.sglang._log_args import spelled
from servetune.engines.sglang._log_flags import LaunchFlags
from servetune.engines.sglang._log_phases import timeline
from servetune.engines.sglang._log_run import Run
from servetune.engines.sglang._replaced_options import resolved

#: The parent names the scheduler that ended.
_ENDED = re.compile(r"Subprocess scheduler_(\d+)\b|Rank (\d+) scheduler (?:is dead|died)")


def report(run: Run, assignment: Assignment, failure: Failure, starts: int) -> dict[str, Any]:
    """A failure of `run`, one of `starts` servers in the log; flags spelled as typed, variables by their names.

    `{class, phase, verdict, deterministic, first_rank, evidence: [{line, text}], blamed: […],
    repair: [{flag, value, reason}], advice, timeline: […], not_in_effect: […], confidence}`, then `cause`, `survived`,
    `blamed_flags`, `starts` and `start`. docs/failures.md has their types and units.
    """
    flags = LaunchFlags.of(run, assignment)
    return {
        "class": failure.slug,
        "phase": failure.phase.value,
        "verdict": failure.verdict.value,
        "deterministic": failure.deterministic,
        "first_rank": first_rank(run, failure),
        "evidence": [evidence.model_dump() for evidence in failure.evidence],
        "blamed": [spelled(flag) for flag in failure.blamed],
        "repair": [{"flag": spelled(one.flag), "value": one.value, "reason": one.reason} for one in failure.repairs],
        "advice": failure.advice,
        "timeline": timeline(run.progress, run.end_s),
        "not_in_effect": [{**item, "flag": spelled(item["flag"])} for item in not_in_effect(run, assignment)],
        "confidence": failure.confidence,
        "cause": failure.message,
        "survived": [evidence.model_dump() for evidence in as_evidence(survived(run, failure.slug == "none"))],
        "blamed_flags": blamed_flags(failure, flags),
        "starts": starts,
        "start": run.start,
    }


def first_rank(run: Run, failure: Failure) -> str | None:
    """Rank of the first evidence whose line names one, as the log prints it; a traceback's before a library line's."""
    lines = [evidence.line for evidence in failure.evidence]
    ranks = {number: trace.rank for trace in run.traces for one in trace.raised for number, _ in one.lines}
    ranks.update({trace.line: trace.rank for trace in run.traces})
    loose = {event.number: event.rank for event in run.events}
    loose.update({number: rank for known in run.explaining.values() for number, _, rank in known})
    for known_ranks in (ranks, loose):
        for line in lines:
            if known_ranks.get(line):
                return known_ranks[line]
    ended = [match for _, text in run.deaths if (match := _ENDED.search(text))]
    return f"TP{ended[0][1] or ended[0][2]}" if ended and _of_one_process(failure) else None


def _of_one_process(failure: Failure) -> bool:
    """Whether the failure is that of one process: the parent then says whose."""
    return failure.slug in ("device_fault", "host_env")


def not_in_effect(run: Run, assignment: Assignment) -> list[dict[str, Any]]:
    """Options that the engine did not honour: `{flag, what, why, line, text}`, once per flag; `what` is off."""
    flags = LaunchFlags.of(run, assignment)
    found: dict[str, dict[str, Any]] = {}
    for number, text, said, _ in run.notices:
        notice = resolved(said, flags)
        for flag in notice.flags:
            if flags.asked_off(flag) or (notice.why in ("override", "adapted") and not flags.on(flag)):
                continue
            found.setdefault(
                flag,
                {
                    "flag": flag,
                    "what": what(flag),
                    "why": notice.why,
                    "line": number,
                    "text": shortened(masked(text.strip()), 300),
                },
            )
    return list(found.values())


def in_effect(run: Run) -> dict[str, int]:
    """Numbers that the scheduler says it works with, by flag, whatever was asked for.

    `/server_info` repeats their arguments (0.5.23: `max_running_requests` 100000 where 10000 fit the pool). The log
    counts the running requests of one data-parallel rank of the attention, the flag those of all.
    """
    pool = run.progress.pool
    ranks = run.effective.get("dp-size") if run.effective.get("enable-dp-attention") else 1
    times = ranks if isinstance(ranks, int) else 1
    found = {
        "max-total-tokens": pool.get("max_total_num_tokens"),
        "max-running-requests": pool.get("max_running_requests"),
    }
    scales = {"max-running-requests": times}
    return {flag: number * scales.get(flag, 1) for flag, number in found.items() if number is not None}


def what(flag: str) -> str:
    """The option as a person names it: `--disable-custom-all-reduce` switches "custom all-reduce" off."""
    plain = flag.removeprefix("disable-")
    if plain == flag:
        return spelled(flag)
    return plain.replace("-", " ").replace("all reduce", "all-reduce")


def _said(item: dict[str, Any]) -> str:
    """The flag, by which others find the sentence; one that switches off is said the other way round."""
    name: str = item["what"] if item["flag"].startswith("disable-") else item["flag"]
    return name


def _fate(item: dict[str, Any]) -> str:
    return "changed" if item["why"] == "adapted" else "not in effect"


def warnings(run: Run, assignment: Assignment) -> list[str]:
    """Sentences that a reader of a report wants to see, each with its line."""
    lines = [
        f"line {item['line']}: {_said(item)} is {_fate(item)}: {item['text']}"
        for item in not_in_effect(run, assignment)
    ]
    throughput = run.throughput
    if throughput.retractions:
        lines.append(f"the KV pool was full: {throughput.retractions} retraction lines")
    if throughput.decode_lines >= 10 and throughput.eager_lines > throughput.decode_lines / 2:
        share = throughput.eager_lines / throughput.decode_lines
        lines.append(f"{share:.0%} of the decode lines ran without a CUDA graph")
    return lines
