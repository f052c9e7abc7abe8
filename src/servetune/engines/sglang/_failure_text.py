"""What is said of a cause: the deciding lines, the sentence, and nothing secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from servetune.core.failure import Evidence
from servetune.core.wording import ELLIPSIS, shortened
from servetune.engines.sglang import _log_notices
from servetune.engines.sglang._failure_causes import Cause
from servetune.engines.sglang._log_run import MAX_EVIDENCE_TEXT, Run
from servetune.engines.sglang._repair_numbers import Numbers

_SECRET = re.compile(
    r"(?i)((?:(?<!#)(?:api[-_]?key|token|password|secret|authorization)['\"]?\s*[=:]\s*"
    r"|(?:api[-_]?key|password|authorization|[-_](?:token|secret)) +)(?:['\"]?bearer +)?)"
    r"(?!\d+(?:\.\d+)?\b)(?:'[^']*'|\"[^\"]*\"|[^\s,)]+)"
)


#: Within so many lines a compiler's error and the exception are about the same build.
ONE_BUILD = 400


def explanation(cause: Cause, run: Run) -> tuple[int, str] | None:
    """An earlier line that says why: an NCCL warning, the kernel's assertion, a compile session that one rank is in."""
    assert cause.entry is not None
    kind = cause.entry.signature.explained_by
    if kind == "jit_session":
        return run.progress.jit_line
    if kind == "compiler_error" and _log_notices.COMPILER_ERROR.search(cause.line_text):
        return None
    for number, text, _ in run.explaining.get(kind, ()):
        if kind == "nccl_warn" and number < run.progress.ready_line < cause.line:
            continue  # of its start, which it survived
        if number < cause.line and (kind != "compiler_error" or cause.line - number <= ONE_BUILD):
            return number, text
    return None


def evidence_of(cause: Cause, lead: tuple[int, str] | None, causes: Sequence[Cause], run: Run) -> Iterator[Evidence]:
    """The deciding line first; then its wrapper, the numbers it rests on, and other ranks where none knows more."""
    assert cause.entry is not None
    lines = [lead] if lead else []
    lines.append((cause.line, cause.line_text))
    if cause.wrapper:
        lines.append(cause.wrapper)
    if cause.trace is None and cause.stack:
        lines.append(run.native.line)
    if cause.trace is not None and not cause.trace.fatal:  # logged once where it arose, once where the process died
        lines += [(one.line, one.line_text) for one in causes if one.line_text == cause.line_text][:2]
    lines += [(number, text) for number, text, _ in run.explaining.get(cause.entry.signature.beside, ())][:2]
    if cause.entry.signature.all_ranks:
        lines += [(one.line, one.line_text) for one in causes if one.entry == cause.entry][:8]
    memory = run.progress.memory_lines
    if cause.entry.owner.slug in ("kv_budget", "oom_weights", "oom_graph", "oom_runtime"):
        keys = ("before_load_gib", "after_load_gib", "pool_end_gib", "capture_begin_gib")
        lines += [memory[key] for key in keys if key in memory]
    yield from as_evidence(lines)


def as_evidence(lines: Sequence[tuple[int, str]]) -> Iterator[Evidence]:
    seen = set()
    for number, text in lines:
        if number not in seen:
            seen.add(number)
            yield Evidence(line=number, text=_quoted(text))


def _quoted(text: str) -> str:
    """A line without secrets. One that was kept in part only, because it is so long, ends with an ellipsis."""
    kept = masked(text.strip())
    whole = len(text) < MAX_EVIDENCE_TEXT
    return shortened(kept if whole else kept + ELLIPSIS, MAX_EVIDENCE_TEXT)


def masked(text: str) -> str:
    """The text without keys, tokens and passwords."""
    return _SECRET.sub(r"\1***", text)


def sentence(template: str, cause: Cause, lead: tuple[int, str] | None, numbers: Numbers, run: Run) -> str:
    frames = [frame.split("> ")[0] for frame in cause.stack.split("\n") if frame]
    first = lead[1] if lead else cause.line_text
    values = {
        **{name: value or "" for name, value in cause.groups.items()},
        "first_line": shortened(first.strip(), 200),
        "at_frame": f" in {frames[-1]}" if frames else "",
        "kv_tokens": run.progress.kv_tokens,
        "memory_sentence": _memory_sentence(numbers),
        "oom_sentence": _oom_sentence(numbers),
    }
    return masked(template.format(**values))


def _memory_sentence(numbers: Numbers) -> str:
    if numbers.before is None or numbers.after is None:
        return "the weights leave no memory for the KV pool under this fraction"
    left = f"{numbers.after:.1f} of {numbers.before:.1f} GB are left after the weights"
    if numbers.fraction is None:
        return f"{left}, and the fraction keeps more than that outside the pool"
    kept_out = numbers.before * (1 - numbers.fraction)
    return f"{left}, and --mem-fraction-static {numbers.fraction:g} keeps {kept_out:.1f} GB outside the KV pool"


def _oom_sentence(numbers: Numbers) -> str:
    if numbers.tried is None:
        return "no allocation was possible"
    free = f", {numbers.free:.2f} GiB free" if numbers.free is not None else ""
    total = f" of {numbers.capacity:.1f}" if numbers.capacity is not None else ""
    return f"{numbers.tried:.2f} GiB wanted{free}{total}"
