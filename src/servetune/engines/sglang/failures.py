"""Triage: from what a log holds to one Failure. Evidence with precedence, never a bag of words.

1. The earliest root cause in time decides: of the first failing rank, the inner exception before its wrapper.
2. A failure that no signature explains comes next, then a warning that foretold the end, then mere consequences.
3. What the server survived (a later ready line, a later step of the start) is no cause.
4. With nothing in the log: what the tuner saw (`hint`), then how the process ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servetune.core.failure import Evidence, Failure, Phase, Repair, Verdict
from servetune.core.node import Exit
from servetune.core.space import Assignment
from servetune.engines.sglang import repair
from servetune.engines.sglang._failure_phase import phase_of
from servetune.engines.sglang._failure_table import Entry, entries, entry
from servetune.engines.sglang._log_flags import LaunchFlags, accused, kept
from servetune.engines.sglang._log_notices import Notice
from servetune.engines.sglang._log_phases import timeline
from servetune.engines.sglang._log_run import MAX_EVIDENCE_TEXT, Event, Run
from servetune.engines.sglang._log_tracebacks import Raised, Trace

#: Signatures with an order from here on say little; another exception of the same chain may say more.
VAGUE_ORDER = 60
#: Two ranks that fail within this time failed together: the one that is understood decides.
TOGETHER_S = 1.0
#: The process was asked to stop, or its peer is gone: never a cause.
_CONSEQUENCE = re.compile(
    r"^(?:KeyboardInterrupt|SystemExit|(?:asyncio\.(?:exceptions\.)?)?CancelledError|EOFError|BrokenPipeError"
    r"|ConnectionResetError|zmq\.error\.\w+)"
)
_SECRET = re.compile(
    r"(?i)((?:api[-_]?key|token|password|secret|authorization)['\"]?\s*[=: ]\s*)(?:'[^']*'|\"[^\"]*\"|[^\s,)]+)"
)
_SIGNALS = {137: -9, 139: -11, 134: -6, 143: -15, 130: -2}


#: What the tuner saw itself (`hint`) when nothing moves.
_SEEN = {
    "stall": "no new log line",
    "deadline": "not ready before the deadline",
    "hang": "requests get no answer",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """A candidate: a signature (None: not understood) with the text, frames and lines that it rests on."""

    entry: Entry | None
    line: int
    line_text: str
    text: str
    stack: str
    groups: Mapping[str, str | None]
    stamp_s: float
    rank: str | None
    phase: Phase
    wrapper: tuple[int, str] | None = None
    trace: Trace | None = None

    @property
    def strength(self) -> str:
        """Of the signature; `unknown` without one."""
        return self.entry.signature.strength if self.entry else "unknown"

    @property
    def when(self) -> tuple[float, int]:
        """Order in time; the place in the file decides within a second."""
        return self.stamp_s, self.line


def diagnose(run: Run, assignment: Assignment, exit: Exit | None, hint: str | None) -> Failure:
    """One failure for one log; see `SglangLogReader.diagnose`."""
    flags = LaunchFlags.of(run, assignment)
    causes = list(_causes(run, flags))
    chosen = _choose(causes, run)
    if chosen is not None and not (hint in ("wrong_output", "overload") and chosen.strength == "secondary"):
        return _failure(chosen, causes, run, flags)
    seen = _hinted(hint, run, flags) or _alive(causes, run, flags) or _by_end(run, flags, exit)
    return seen if seen is not None else _none(run)


def _causes(run: Run, flags: LaunchFlags) -> Iterator[Cause]:
    for trace in run.traces:
        cause = _trace_cause(trace, run, flags)
        if cause is not None:
            yield cause
    for event in run.events:
        if not _survived_event(event, run):
            yield _event_cause(event)


def _trace_cause(trace: Trace, run: Run, flags: LaunchFlags) -> Cause | None:
    raised = trace.raised
    if not raised or _CONSEQUENCE.match(raised[-1].text) or _survived_trace(trace, run):
        return None
    phase = phase_of(trace, run.progress.ready)
    matches = []
    for one in raised:
        found = _match(one, phase, run, flags)
        if found is not None:
            matches.append((one, *found))
    specific = [match for match in matches if match[1].signature.order < VAGUE_ORDER]
    if not matches:
        return _of_raised(raised[-1], None, None, trace, phase)
    one, found_entry, match = specific[0] if specific else min(matches, key=lambda m: m[1].signature.order)
    return _of_raised(one, found_entry, match, trace, phase)


def _match(one: Raised, phase: Phase, run: Run, flags: LaunchFlags) -> tuple[Entry, re.Match[str]] | None:
    text, stack = one.text, one.stack
    for candidate in entries("exception"):
        signature = candidate.signature
        if signature.phases and phase not in signature.phases:
            continue
        if signature.when and not _holds(signature.when, text, run, flags):
            continue
        match = signature.matches(text, stack)
        if match:
            return candidate, match
    return None


def _holds(condition: str, text: str, run: Run, flags: LaunchFlags) -> bool:
    numbers = repair.numbers_of(run, flags, text, {})
    if condition == "occupied":
        return numbers.occupied is not None
    if condition == "drafted":
        return run.progress.loads > 1
    if condition == "cpu_pool":
        return str(flags.value("device")) == "cpu"
    if condition == "big_allocation":
        return (numbers.tried or 0.0) >= 4.0
    return run.progress.autotuning


def _of_raised(one: Raised, found: Entry | None, match: re.Match[str] | None, trace: Trace, phase: Phase) -> Cause:
    line, text = one.line_at(match.start()) if match else one.lines[0]
    last = trace.raised[-1]
    wrapper = last.lines[0] if last is not one and "failed" in last.lines[0][1] else None
    forced = found.signature.phase if found else None
    return Cause(
        entry=found,
        line=line,
        line_text=text,
        text=one.text,
        stack=one.stack or last.stack,
        groups=match.groupdict() if match else {},
        stamp_s=trace.stamp_s,
        rank=trace.rank,
        phase=forced or phase,
        wrapper=wrapper,
        trace=trace,
    )


def _event_cause(event: Event) -> Cause:
    signature = event.entry.signature
    match = signature.matches(event.text, "")
    return Cause(
        entry=event.entry,
        line=event.number,
        line_text=event.text,
        text=event.text,
        stack="",
        groups=match.groupdict() if match else {},
        stamp_s=event.stamp_s,
        rank=event.rank,
        phase=signature.phase or (Phase.VALIDATE if event.phase is Phase.PARSE else event.phase),
    )


def _survived_trace(trace: Trace, run: Run) -> bool:
    """Whether the server went on after a traceback, or was already asked to stop."""
    progress = run.progress
    if run.stop_line and trace.line > run.stop_line:
        return True
    if progress.ready and not trace.ready:
        return True
    if trace.fatal:
        return False
    if trace.ready:
        return not any(line > trace.line for line, _ in run.deaths)
    in_child = "multiprocessing/process.py" in (trace.chain[-1].first_frame if trace.chain else "")
    return progress.markers > trace.progress and not in_child


def _survived_event(event: Event, run: Run) -> bool:
    progress = run.progress
    if run.stop_line and event.number > run.stop_line:
        return True
    if progress.ready and not event.ready and event.entry.owner.slug != "cli_parse":
        return True
    name = event.entry.signature.name
    answered = max(run.last_decode_line, run.last_answer_line if name == "health_check" else 0)
    return name in ("health_check", "request_timeout") and answered > event.number


def _choose(causes: Sequence[Cause], run: Run) -> Cause | None:
    ordered = sorted(causes, key=lambda cause: cause.when)
    decisive = [cause for cause in ordered if cause.strength in ("root", "unknown")]
    if decisive:
        first = decisive[0]
        together = [one for one in decisive if one.stamp_s - first.stamp_s <= TOGETHER_S]
        understood = [one for one in together if one.strength == "root"]
        return _least_vague(understood) if understood else first
    ended = bool(run.deaths) or not run.progress.ready
    for strength in ("warning", "secondary"):
        found = [cause for cause in ordered if cause.strength == strength]
        if found and (ended or strength == "secondary" or _decides_alive(found[0])):
            return found[0]
    return None


def _decides_alive(cause: Cause) -> bool:
    return cause.entry is not None and cause.entry.owner.slug == "hang"


def _least_vague(causes: Sequence[Cause]) -> Cause:
    """The earliest, unless it says little and another one of the same moment says more."""
    specific = [cause for cause in causes if cause.entry and cause.entry.signature.order < VAGUE_ORDER]
    return specific[0] if specific else causes[0]


def _failure(cause: Cause, causes: Sequence[Cause], run: Run, flags: LaunchFlags) -> Failure:
    if cause.entry is None:
        return _unknown(cause, run, flags)
    signature = cause.entry.signature
    lead = _explanation(cause, run)
    text = lead[1] + "\n" + cause.text if lead else cause.text
    numbers = repair.numbers_of(run, flags, text, cause.groups)
    blamed = tuple(_blamed(cause, text, flags))
    draft = repair.Draft(run, flags, numbers, text + "\n" + cause.stack, cause.groups, blamed, cause.phase)
    repairs = repair.repairs_for(signature.repair, draft)
    return Failure(
        slug=cause.entry.owner.slug,
        phase=cause.phase,
        verdict=_verdict(cause, blamed, flags),
        message=_sentence(signature.cause, cause, lead, numbers, run),
        deterministic=cause.entry.deterministic,
        evidence=tuple(_evidence(cause, lead, causes, run)),
        blamed=blamed,
        repairs=repairs,
        confidence=_confidence(cause, causes),
    )


def _blamed(cause: Cause, text: str, flags: LaunchFlags) -> list[str]:
    assert cause.entry is not None
    signature = cause.entry.signature
    if cause.entry.owner.slug == "cli_parse":
        named = re.findall(r"--([A-Za-z][\w-]*)", cause.groups.get("flags") or cause.text)
        return list(dict.fromkeys(named))[:3]
    if signature.blame != "auto":
        return kept(signature.blame, flags)[:3]
    found = accused(text, cause.stack, flags)
    if not found and cause.entry.owner.slug == "device_fault" and "event_loop_overlap" in cause.stack:
        return ["disable-overlap-schedule"]
    return found


def _verdict(cause: Cause, blamed: Sequence[str], flags: LaunchFlags) -> Verdict:
    assert cause.entry is not None
    unasked = cause.entry.signature.unasked
    if unasked is not None and flags.known and not any(flags.on(flag) for flag in blamed):
        return unasked
    return cause.entry.verdict


def _explanation(cause: Cause, run: Run) -> tuple[int, str] | None:
    """An earlier line that says why: an NCCL warning, the kernel's assertion, a compile session that one rank is in."""
    assert cause.entry is not None
    kind = cause.entry.signature.explained_by
    if kind == "jit_session":
        return run.progress.jit_line
    for number, text, _ in run.explaining.get(kind, ()):
        if number < cause.line:
            return number, text
    return None


def _evidence(cause: Cause, lead: tuple[int, str] | None, causes: Sequence[Cause], run: Run) -> Iterator[Evidence]:
    """The deciding line first; then its wrapper, the numbers it rests on, and other ranks where none knows more."""
    assert cause.entry is not None
    lines = [lead] if lead else []
    lines.append((cause.line, cause.line_text))
    if cause.wrapper:
        lines.append(cause.wrapper)
    if cause.trace is not None and not cause.trace.fatal:  # logged once where it arose, once where the process died
        lines += [(one.line, one.line_text) for one in causes if one.line_text == cause.line_text][:2]
    if cause.entry.signature.all_ranks:
        lines += [(one.line, one.line_text) for one in causes if one.entry == cause.entry][:8]
    memory = run.progress.memory_lines
    if cause.entry.owner.slug in ("kv_budget", "oom_weights", "oom_graph", "oom_runtime"):
        keys = ("before_load_gib", "after_load_gib", "pool_end_gib", "capture_begin_gib")
        lines += [memory[key] for key in keys if key in memory]
    yield from _as_evidence(lines)


def _as_evidence(lines: Sequence[tuple[int, str]]) -> Iterator[Evidence]:
    seen = set()
    for number, text in lines:
        if number not in seen:
            seen.add(number)
            yield Evidence(line=number, text=_masked(text.strip())[:MAX_EVIDENCE_TEXT])


def _masked(text: str) -> str:
    """The text without keys, tokens and passwords."""
    return _SECRET.sub(r"\1***", text)


def _confidence(cause: Cause, causes: Sequence[Cause]) -> float:
    """Of the signature; less when another rank failed for another understood reason at the same time."""
    assert cause.entry is not None
    value = cause.entry.signature.confidence
    if cause.strength == "secondary":
        value = min(value, 0.6)
    others = {one.entry.owner.slug for one in causes if one.entry and one.strength == "root"}
    return round(value - (0.1 if len(others - {cause.entry.owner.slug}) else 0.0), 2)


def _sentence(template: str, cause: Cause, lead: tuple[int, str] | None, numbers: repair.Numbers, run: Run) -> str:
    frames = [frame.split("> ")[0] for frame in cause.stack.split("\n") if frame]
    first = lead[1] if lead else cause.line_text
    values = {
        **{name: value or "" for name, value in cause.groups.items()},
        "first_line": first.strip()[:200],
        "at_frame": f" in {frames[-1]}" if frames else "",
        "kv_tokens": run.progress.kv_tokens,
        "memory_sentence": _memory_sentence(numbers),
        "oom_sentence": _oom_sentence(numbers),
    }
    return _masked(template.format(**values))


def _memory_sentence(numbers: repair.Numbers) -> str:
    if numbers.before is None or numbers.after is None:
        return "the weights leave no memory for the KV pool under this fraction"
    left = f"{numbers.after:.1f} of {numbers.before:.1f} GB are left after the weights"
    if numbers.fraction is None:
        return f"{left}, and the fraction keeps more than that outside the pool"
    kept_out = numbers.before * (1 - numbers.fraction)
    return f"{left}, and mem-fraction-static {numbers.fraction:g} keeps {kept_out:.1f} GB outside the KV pool"


def _oom_sentence(numbers: repair.Numbers) -> str:
    if numbers.tried is None:
        return "no allocation was possible"
    free = f", {numbers.free:.2f} GiB free" if numbers.free is not None else ""
    total = f" of {numbers.capacity:.1f}" if numbers.capacity is not None else ""
    return f"{numbers.tried:.2f} GiB wanted{free}{total}"


def _unknown(cause: Cause, run: Run, flags: LaunchFlags) -> Failure:
    blamed = tuple(accused(cause.text, cause.stack, flags))
    lines = [(cause.line, cause.line_text), *([cause.wrapper] if cause.wrapper else [])]
    return Failure(
        slug="unknown",
        phase=cause.phase,
        verdict=Verdict.INFEASIBLE,
        message=f"no known class; the first failure says: {_masked(cause.line_text.strip()[:200])}",
        evidence=tuple(_as_evidence(lines)),
        blamed=blamed,
        confidence=0.3,
    )


def _table_failure(
    name: str, run: Run, flags: LaunchFlags, lines: Sequence[tuple[int, str]], phase: Phase, **values: Any
) -> Failure:
    """A failure of a signature that was found otherwise than by its text."""
    found = entry(name)
    signature = found.signature
    text = "\n".join(text for _, text in lines)
    blamed = tuple(accused(text, "", flags) if signature.blame == "auto" else kept(signature.blame, flags)[:3])
    numbers = repair.numbers_of(run, flags, "", {})
    draft = repair.Draft(run, flags, numbers, text, {}, blamed, phase)
    values = {"first_line": lines[0][1].strip()[:200] if lines else "", **values}
    return Failure(
        slug=found.owner.slug,
        phase=phase,
        verdict=found.verdict,
        message=_masked(signature.cause.format(**values)),
        deterministic=found.deterministic,
        evidence=tuple(_as_evidence(lines)),
        blamed=blamed,
        repairs=repair.repairs_for(signature.repair, draft),
        confidence=signature.confidence,
    )


def _hinted(hint: str | None, run: Run, flags: LaunchFlags) -> Failure | None:
    """What the tuner saw itself, where the log has no cause."""
    last = [run.last_line] if run.last_line[0] else []
    phase = run.progress.phase
    if hint == "wrong_output":
        found = _table_failure("failed_probe", run, flags, last, Phase.SERVING, wanted_text="the expected text")
        return found.model_copy(update={"message": "the correctness probe got a wrong answer"})
    if hint == "overload":
        return _table_failure("queue_full", run, flags, last, Phase.SERVING)
    if hint in ("stall", "deadline", "hang"):
        lead = [run.progress.jit_line] if run.progress.jit_line else []
        found = _table_failure("request_timeout", run, flags, [*lead, *last], phase)
        words = _SEEN[hint]
        doing = " while kernels were compiled" if lead or run.progress.autotuning else ""
        return found.model_copy(update={"message": f"{words} in phase {phase.value}{doing}", "confidence": 0.7})
    return None


def _alive(causes: Sequence[Cause], run: Run, flags: LaunchFlags) -> Failure | None:
    """Trouble of a server that is alive: refused load, options without effect, retractions, useless drafts."""
    if not run.progress.ready:
        return None
    alive = sorted((cause for cause in causes if cause.strength == "alive"), key=lambda cause: cause.when)
    if alive:
        return _failure(alive[0], [], run, flags)
    throughput = run.throughput
    accept = throughput.accept_length
    if accept is not None and accept <= 1.05 and len(throughput.sample) >= 2 and throughput.first_decode:
        number, raw = throughput.first_decode
        lines = [(number, raw.decode("utf-8", "replace"))]
        return _table_failure("draft_never_accepted", run, flags, lines, Phase.SERVING, accept_length=accept)
    if throughput.retractions:
        lines = [(number, text) for number, text, _ in run.explaining.get("retraction", ())][:2]
        return _table_failure("retractions", run, flags, lines, Phase.SERVING, retractions=throughput.retractions)
    return _without_effect(run, flags)


def _without_effect(run: Run, flags: LaunchFlags) -> Failure | None:
    for number, text, notice, phase in run.notices:
        if notice.why == "internal" or _asked_in_vain(notice, flags):
            failure = _table_failure(
                "option_without_effect", run, flags, [(number, text)], phase, notice=text.strip()[:200]
            )
            on = [flag for flag in notice.flags if flags.on(flag)]
            blamed = [*(flag for flag, _ in notice.repair), *(on or notice.flags[:1])]
            steps = [Repair(flag=flag, value=value, reason="takes another path") for flag, value in notice.repair]
            drop = [
                Repair(flag=flag, value=None, reason=f"leave out {flag}: it does nothing here")
                for flag in notice.flags
                if flags.on(flag) and notice.why != "override"
            ]
            return failure.model_copy(update={"blamed": tuple(blamed), "repairs": tuple([*steps, *drop])})
    return None


def _asked_in_vain(notice: Notice, flags: LaunchFlags) -> bool:
    """Whether somebody asked for what a notice says is not there: a switch that is on, or custom all-reduce kept on."""
    for flag in notice.flags:
        if flag == "disable-custom-all-reduce":
            if flags.asked.get(flag) is False:
                return True
        elif flag.startswith("enable-") and flags.on(flag) and (notice.why != "override" or flag in flags.asked):
            return True
    return False


def _by_end(run: Run, flags: LaunchFlags, exit: Exit | None) -> Failure | None:
    """From how the process ended, or from an end in the log that nothing explains."""
    code = _SIGNALS.get(exit.code, exit.code) if exit is not None and exit.code is not None else None
    last = [run.last_line] if run.last_line[0] else []
    if run.stop_line or code in (-15, -2):
        return None
    lines = [*run.deaths[:2], *last]
    phase = run.progress.phase
    if code == -9 and not run.deaths:
        return _table_failure("killed", run, flags, lines, phase)
    if code is not None and code in (-6, -7, -8, -11, -4):
        return _table_failure("signal_exit", run, flags, lines, phase)
    if not run.deaths and not (code or 0) and run.progress.ready:
        return None
    if not run.deaths and not code and not run.progress.steps and not run.last_line[0]:
        message = "the log is empty"
    elif run.deaths:
        message = "the server died and its log does not say why"
    elif code:
        message = f"the process ended with status {code} and its log does not say why"
    else:
        message = f"the log ends in phase {phase.value} without an error: still starting, or ended from outside"
    return Failure(
        slug="unknown",
        phase=phase,
        verdict=Verdict.RETRY,
        message=message,
        evidence=tuple(_as_evidence(lines)),
        confidence=0.2,
    )


def _none(run: Run) -> Failure:
    """A healthy log. When it has alarming words, their phase and line are named: they mean nothing."""
    worry = run.worry if run.worry and run.worry[2] is not Phase.SERVING else None
    words = f"; line {worry[0]} looks alarming and was survived" if worry else ""
    return Failure(
        slug="none",
        phase=worry[2] if worry else run.progress.phase,
        verdict=Verdict.NONE,
        message=f"healthy: the server became ready on line {run.progress.ready_line}{words}"
        if run.progress.ready
        else "no failure: the server was asked to stop",
        deterministic=None,
        confidence=0.9 if run.progress.ready else 0.5,
    )


def report(run: Run, assignment: Assignment, failure: Failure) -> dict[str, Any]:
    """A failure as scripts read it; flags spelled as on the command line, variables by their names.

    `{class, phase, verdict, deterministic, first_rank, evidence: [{line, text}], blamed: […],
    repair: [{flag, value, reason}], timeline: […], not_in_effect: […], confidence}`.
    """
    return {
        "class": failure.slug,
        "phase": failure.phase.value,
        "verdict": failure.verdict.value,
        "deterministic": failure.deterministic,
        "first_rank": first_rank(run, failure),
        "evidence": [evidence.model_dump() for evidence in failure.evidence],
        "blamed": [typed(flag) for flag in failure.blamed],
        "repair": [{"flag": typed(one.flag), "value": one.value, "reason": one.reason} for one in failure.repairs],
        "timeline": timeline(run.progress, max(run.stamp_s, run.end_stamp_s) or None),
        "not_in_effect": [{**item, "flag": typed(item["flag"])} for item in not_in_effect(run, assignment)],
        "confidence": failure.confidence,
    }


def typed(flag: str) -> str:
    """A flag as typed on a command line: `--tp-size`; an environment variable by its name."""
    return flag.removeprefix("env.") if flag.startswith("env.") else f"--{flag}"


def first_rank(run: Run, failure: Failure) -> str | None:
    """Rank of the first evidence whose line names one, as the log prints it; a traceback's before a library line's."""
    lines = [evidence.line for evidence in failure.evidence]
    ranks = {number: trace.rank for trace in run.traces for one in trace.raised for number, _ in one.lines}
    loose = {event.number: event.rank for event in run.events}
    loose.update({number: rank for known in run.explaining.values() for number, _, rank in known})
    for known_ranks in (ranks, loose):
        for line in lines:
            if known_ranks.get(line):
                return known_ranks[line]
    return None


def not_in_effect(run: Run, assignment: Assignment) -> list[dict[str, Any]]:
    """Options that the engine did not honour: `{flag, why, line, text}`, once per flag."""
    flags = LaunchFlags.of(run, assignment)
    found: dict[str, dict[str, Any]] = {}
    for number, text, notice, _ in run.notices:
        for flag in notice.flags:
            if notice.why == "override" and not flags.on(flag):
                continue
            found.setdefault(
                flag, {"flag": flag, "why": notice.why, "line": number, "text": _masked(text.strip()[:300])}
            )
    return list(found.values())


def warnings(run: Run, assignment: Assignment) -> list[str]:
    """Sentences that a reader of a report wants to see, each with its line."""
    lines = [
        f"line {item['line']}: {item['flag']} is not in effect: {item['text']}"
        for item in not_in_effect(run, assignment)
    ]
    throughput = run.throughput
    if throughput.retractions:
        lines.append(f"the KV pool was full: {throughput.retractions} retraction lines")
    if throughput.decode_lines >= 10 and throughput.eager_lines > throughput.decode_lines / 2:
        share = throughput.eager_lines / throughput.decode_lines
        lines.append(f"{share:.0%} of the decode lines ran without a CUDA graph")
    return lines
