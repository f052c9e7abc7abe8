"""Candidates for the cause: what in a log matched a signature, or is a failure that none explains."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from servetune.core.failure import Phase
from servetune.engines.sglang import _log_scores
from servetune.engines.sglang._failure_phase import phase_of
from servetune.engines.sglang._failure_signs import REFUTED, is_impatience, is_too_little, stuck_phase
from servetune.engines.sglang._failure_table import Entry, entries, entry
from servetune.engines.sglang._log_answers import Answer, compared
from servetune.engines.sglang._log_flags import LaunchFlags, accused, kept, names_flags
from servetune.engines.sglang._log_fragment import is_fragment, is_served, is_worker
from servetune.engines.sglang._log_run import MAX_EVIDENCE_TEXT, PER_SIGNATURE, Event, Run
from servetune.engines.sglang._log_tracebacks import Raised, Trace
from servetune.engines.sglang._repair_numbers import numbers_of

#: Signatures with an order from here on say little; another exception of the same chain may say more.
VAGUE_ORDER = 60
#: Two ranks that fail within this time failed together: the one that is understood decides.
TOGETHER_S = 1.0
#: From here on, rules of last resort for what would be unknown.
LAST_ORDER = 91
#: The process was asked to stop, or its peer is gone: never a cause.
_CONSEQUENCE = re.compile(
    r"^(?:KeyboardInterrupt|SystemExit|(?:asyncio\.(?:exceptions\.)?)?CancelledError|EOFError|BrokenPipeError"
    r"|ConnectionResetError|RuntimeError: Rank \d+ \w+ died during initialization \(exit code: \d|zmq\.error\."
    r"(?![^\n]*(?:in use|Too many open|No such file|denied|Invalid argument|Cannot assign|too long))\w+)"
)


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


def causes_of(run: Run, flags: LaunchFlags) -> Iterator[Cause]:
    for trace in run.traces:
        cause = _trace_cause(trace, run, flags)
        if cause is not None:
            yield cause
    low, good = _log_scores.compared(run.scores)
    for event in run.events:
        if event.entry.signature.name == "low_accuracy" and event.number in good:
            continue
        if is_impatience(event, run):
            yield replace(_event_cause(event, run), entry=entry("client_gives_up"))
        elif not _survived_event(event, run) and not is_too_little(event, run):
            yield _event_cause(event, run)
    for answer, problem in _senseless(run):
        if not run.stop_line or answer.number < run.stop_line:
            yield _answer_cause(answer, problem, run)
    for score, problem in low[:PER_SIGNATURE]:
        if not run.stop_line or score.number < run.stop_line:
            found = entry("below_its_reference")
            yield Cause(
                found, score.number, score.text, score.text, "", {"problem": problem}, run.stamp_s, None, Phase.SERVING
            )


def _senseless(run: Run) -> Iterator[tuple[Answer, str]]:
    """Answers that make no sense, by themselves or beside others, in the order of the file."""
    found = {one.number: (one, problem) for one, problem in compared(run.answers)}
    found.update({one.number: (one, one.problem) for one in run.answers if one.problem})
    return iter([found[number] for number in sorted(found)][:PER_SIGNATURE])


def _answer_cause(answer: Answer, problem: str, run: Run) -> Cause:
    text, found = answer.line[:MAX_EVIDENCE_TEXT], entry("senseless_answer")
    return Cause(found, answer.number, text, text, "", {"problem": problem}, run.stamp_s, None, Phase.SERVING)


def _trace_cause(trace: Trace, run: Run, flags: LaunchFlags) -> Cause | None:
    raised = trace.raised
    if not raised:
        return _cut_off(trace, run)
    if _CONSEQUENCE.match(raised[-1].text) or _survived_trace(trace, run):
        return None
    phase = phase_of(trace, is_fragment(run), is_served(run), is_worker(run))
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


def _cut_off(trace: Trace, run: Run) -> Cause | None:
    """A traceback that the end of the log cuts before its exception: a kernel's assertion above it says enough."""
    if not trace.fatal or _survived_trace(trace, run):
        return None
    for number, text, rank in reversed(run.explaining.get("assertion_line", ())):
        if number < trace.line:
            stack, found = "\n".join(one.stack for one in trace.chain), entry("device_assert")
            phase = phase_of(trace, is_fragment(run), is_served(run), is_worker(run))
            return Cause(found, number, text, text, stack, {}, trace.stamp_s, rank or trace.rank, phase, trace=trace)
    return None


def _match(one: Raised, phase: Phase, run: Run, flags: LaunchFlags) -> tuple[Entry, re.Match[str]] | None:
    text, stack = one.text, one.stack
    for candidate in entries("exception"):
        signature = candidate.signature
        if signature.phases and phase not in signature.phases:
            continue
        if signature.when and not _holds(signature.when, text, stack, run, flags):
            continue
        match = signature.matches(text, stack)
        if match:
            return candidate, match
    return None


def _holds(condition: str, text: str, stack: str, run: Run, flags: LaunchFlags) -> bool:
    numbers = numbers_of(run, flags, text, {})
    if condition == "placed":
        return bool(stack) or not is_fragment(run)
    if condition == "named":
        return names_flags(text, flags)
    if condition in ("accused", "unaccused"):
        return bool(accused(text, stack, flags)) == (condition == "accused")
    if condition == "redundant":
        return flags.on("ep-num-redundant-experts") and flags.value("ep-num-redundant-experts") != 0
    if condition == "nccl_environment":
        return _is_refused(kept(["env.NCCL_*"], flags), run)
    if condition == "occupied":
        return numbers.occupied is not None
    if condition == "drafted":
        return run.progress.loads > 1
    if condition == "cpu_pool":
        return str(flags.value("device")) == "cpu"
    if condition == "big_allocation":
        return (numbers.tried or 0.0) >= 4.0
    return run.progress.autotuning


#: Parts of a variable's name that say nothing about what it is for.
_NAMELESS = frozenset(("NCCL", "COMM", "SIZE", "LEVEL", "ENABLE", "DISABLE", "FILE"))


def _is_refused(variables: Sequence[str], run: Run) -> bool:
    """Whether NCCL may mean one of its variables: it warns of nothing, or of what one is called or set to."""
    warned = " ".join(text for _, text, _ in run.explaining.get("nccl_warn", ())).upper()
    words = {word for name in variables for word in name.split("_") if len(word) >= 3 and word not in _NAMELESS}
    return bool(variables) and (not warned or any(re.search(rf"\b{re.escape(word)}", warned) for word in words))


def _of_raised(one: Raised, found: Entry | None, match: re.Match[str] | None, trace: Trace, phase: Phase) -> Cause:
    line, text = one.line_at(match.start()) if match else one.lines[0]
    if _FOLLOWS.search(text):
        line, text = next(filter(None, map(_compilers_own, (one, *trace.raised))), (line, text))
    elif _SAYS_NOTHING.search(text):
        line, text = next((said for said in one.lines[1:] if _LOADER_SAYS.search(said[1])), (line, text))
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


#: A compiler's or a linker's own error; that the build stopped, or a part of it failed, follows from it.
_COMPILER_SAYS = re.compile(
    r"(?:^|[\s:);])(?:fatal |catastrophic )?error(?:\s{0,4}:|\s*--)|(?:^|/)ld: (?:cannot|error|undefined)"
    r"|undefined reference to|\b(?:ptxas|nvcc|nvlink|cc1plus)\b ?(?:fatal|error)|No such file or directory"
    r"|^[A-Z]\w*(?:Error|Exception)\("
)
#: An import that failed, before the reason; and what the dynamic loader says, which is the reason.
_SAYS_NOTHING = re.compile(
    r"^(?:\w+\.)*(?:ImportError|ModuleNotFoundError|RuntimeError|OSError): ?(?:\s*\Z"
    r"|.*(?i:failed to import|(?:could not|cannot|unable to) (?:load|import) (?!name)"
    r"|because of the following error|original error|importing \S+ .*failed))"
)
_LOADER_SAYS = re.compile(
    r"undefined symbol|version `?\S+ not found|cannot open shared object|invalid ELF|file too short|wrong ELF class"
    r"|DLL load failed|cannot allocate memory in static TLS|GLIBC(?:XX)?_\d"
)
_COUNTED = re.compile(r"\d errors? (?:detected|generated)")
_FOLLOWS = re.compile(
    rf"collect2: error|^ninja: build stopped|{_COUNTED.pattern}|^FAILED:|[Nn]inja build failed\b"
    r"|assembly aborted due to errors|\bCompilationError: at \d+:\d+"
    r"|CalledProcessError: Command .{0,80}\b(?:ninja|nvcc|hipcc|g\+\+|gcc|cc)\b"
)


def _compilers_own(one: Raised) -> tuple[int, str] | None:
    """The line of a message of many lines in which the compiler says what is wrong, or else how much is."""
    own = (line for line in one.lines[1:] if _COMPILER_SAYS.search(line[1]) and not _FOLLOWS.search(line[1]))
    counted = (line for line in one.lines[1:] if _COUNTED.search(line[1]))
    return next(own, None) or next(counted, None)


#: Signatures of a crash of native code: the frames of the crashed thread belong to them.
_NATIVE = ("native_crash", "bus_error", "signal_exit", "autotune_crash_line")


def _event_cause(event: Event, run: Run) -> Cause:
    signature = event.entry.signature
    match = signature.matches(event.text, "")
    return Cause(
        entry=event.entry,
        line=event.number,
        line_text=event.text,
        text=event.text,
        stack=run.native.stack if signature.name in _NATIVE else "",
        groups=match.groupdict() if match else {},
        stamp_s=event.stamp_s,
        rank=event.rank,
        phase=signature.phase or _event_phase(event, run),
    )


#: Of these a fragment shows what happened under load, unless it says otherwise.
_UNDER_LOAD = ("device_fault", "hang", "wrong_output", "comm_runtime")


def _event_phase(event: Event, run: Run) -> Phase:
    if event.entry.owner.slug == "hang":
        moved = stuck_phase(event.phase, run)
        if moved is not event.phase:
            return moved
    if event.phase not in (Phase.PARSE, Phase.VALIDATE):
        return event.phase
    if event.entry.owner.slug == "cli_parse" or not is_fragment(run):
        return Phase.VALIDATE
    if is_served(run) or event.entry.owner.slug in _UNDER_LOAD:
        return Phase.SERVING
    return Phase.LOAD if event.entry.signature.name == "killed" else Phase.VALIDATE


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
        return run.last_death <= trace.line
    if is_fragment(run) and max(run.last_decode_line, run.last_answer_line) > trace.line >= run.last_death:
        return True
    in_child = "multiprocessing/process.py" in (trace.chain[-1].first_frame if trace.chain else "")
    return progress.markers > trace.progress and not in_child


#: At most so many lines are shown of what a server survived.
MAX_SURVIVED = 8


def survived(run: Run, healthy: bool) -> list[tuple[int, str]]:
    """The first lines that look like failures and were none, because the server went on after them.

    `healthy`: alarming words without a meaning of their own count too.
    """
    lines = [(event.number, event.text) for event in run.events if _survived_event(event, run)]
    lines += [trace.raised[-1].lines[0] for trace in run.traces if trace.raised and _survived_trace(trace, run)]
    if healthy and run.worry and run.worry[2] is not Phase.SERVING:
        lines.append(run.worry[:2])
    asked_to_stop = run.stop_line or math.inf
    return sorted({number: (number, text) for number, text in lines if number < asked_to_stop}.values())[:MAX_SURVIVED]


#: What failed had a second way, which was taken.
_FALLS_BACK = re.compile(
    r"(?i)\bfall(?:ing|s|en)?[ -]?back\b|\bfallback\b|\bfell back\b|\b(?:using|use) \S+(?: \S+){0,3} instead\b"
    r"|\b(?:continuing|proceeding|going on|carrying on|running|serving) without\b|\b(?:skipping|ignoring|ignored)\b"
)


def _fell_back(event: Event) -> bool:
    """Whether a line says that what failed was done otherwise; answers and speed are judged by other means."""
    return event.entry.owner.slug not in ("wrong_output", "overload", "perf_regression") and bool(
        _FALLS_BACK.search(event.text)
    )


def _survived_event(event: Event, run: Run) -> bool:
    """Whether the server went on after a line: became ready, came further on that rank, or answered again."""
    progress, name = run.progress, event.entry.signature.name
    if _fell_back(event) and max(run.last_decode_line, run.last_answer_line) > event.number:
        return True
    if run.stop_line and event.number > run.stop_line:
        return True
    if progress.ready and not event.ready and event.entry.owner.slug != "cli_parse":
        return True
    if not event.ready and (event.rank or name == "port_busy"):
        own = progress.last_marker.get(event.rank, 0) if event.rank else max(progress.last_marker.values(), default=0)
        if own > event.number:
            return True
    answered = max(run.last_decode_line, run.last_answer_line if name == "health_check" else 0)
    return name in REFUTED and answered > event.number


def choose(causes: Sequence[Cause], run: Run) -> Cause | None:
    """The cause that decides; see `failures`."""
    ordered = sorted(causes, key=lambda cause: cause.when)
    decisive = [cause for cause in ordered if cause.strength in ("root", "unknown")]
    if decisive and not _only_refers(decisive, ordered):
        first = decisive[0]
        together = [one for one in decisive if one.stamp_s - first.stamp_s <= TOGETHER_S]
        understood = [one for one in together if one.strength == "root"]
        return _least_vague(understood) if understood else first
    ended = bool(run.deaths) or not run.progress.ready
    for strength in ("warning", "secondary"):
        found = [cause for cause in ordered if cause.strength == strength]
        if found and (ended or strength == "secondary" or _decides_alive(found[0])):
            return _last_word(found)
    return None


#: What a launcher says while it still waits.
_WAITING = ("the_tuner_waits", "never_ready", "deadline_passed")


def _last_word(found: Sequence[Cause]) -> Cause:
    """The earliest; of a launcher that waits, the line that says that its time was over."""
    names = [cause.entry.signature.name if cause.entry else "" for cause in found]
    if names[0] in _WAITING and "ended_at_deadline" in names:
        return found[names.index("ended_at_deadline")]
    return found[0]


#: An exception that says no more than that lines above it say why.
_REFERS = re.compile(r"(?i)\b(?:see|check|refer to)\b[^.\n]{0,40}\b(?:above|earlier|logs?)\b")


def _only_refers(decisive: Sequence[Cause], ordered: Sequence[Cause]) -> bool:
    """Whether what is not understood points at the lines above it, and one of them is a warning that is."""
    if any(cause.entry is not None or not _REFERS.search(cause.line_text) for cause in decisive):
        return False
    return any(cause.strength == "warning" and cause.when < decisive[0].when for cause in ordered)


def _decides_alive(cause: Cause) -> bool:
    return cause.entry is not None and cause.entry.owner.slug == "hang"


def _least_vague(causes: Sequence[Cause]) -> Cause:
    """The earliest, unless it says little and another one of the same moment says more."""
    specific = [cause for cause in causes if cause.entry and cause.entry.signature.order < VAGUE_ORDER]
    telling = [cause for cause in causes if cause.entry and cause.entry.signature.order < LAST_ORDER]
    return (specific or telling or list(causes))[0]
