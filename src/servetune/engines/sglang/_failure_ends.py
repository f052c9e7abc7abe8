"""Ends of a log that no cause explains: cut within an exception, interrupted, or no log of a server at all."""

from __future__ import annotations

import re

from servetune.core.failure import Failure, Phase, Verdict
from servetune.engines.sglang._failure_text import as_evidence
from servetune.engines.sglang._log_run import Run


def cut_off(run: Run) -> Failure | None:
    """A log that ends within the frames of an exception that kills the server: its last lines would say why."""
    open_traces = [trace for trace in run.traces if not trace.complete] if run.tracebacks.is_open else []
    cut = next((trace for trace in open_traces if trace.fatal or trace.in_main or not run.progress.ready), None)
    if cut is None:
        return None
    where = f" on rank {cut.rank}" if cut.rank else ""
    return Failure(
        slug="unknown",
        phase=Phase(cut.phase),
        verdict=Verdict.RETRY,
        message=f"the log is cut within an exception{where}: the rest of it is needed to say what it is",
        evidence=tuple(as_evidence([(cut.line, cut.header or "Traceback (most recent call last):"), run.last_line])),
        confidence=0.2,
    )


def unlike(run: Run) -> str:
    """A warning where nothing looks like SGLang."""
    return "this is no SGLang log, no line looks like the server's: " if is_foreign(run) else ""


#: A text with headings, the first at its start.
_DOCUMENT = re.compile(rb"\s*#{1,3} \S[^\n]*\n(?:[^\n]*\n)*?#{2,4} \S")


def is_foreign(run: Run, head: bytes = b"") -> bool:
    """Whether no line looks like SGLang's or like a Python program's end. Any text may name flags, not the model's.

    `head`: the begin of the text. A document with headings may show a command or a line of a server, and is no log.
    """
    known = run.effective or run.stamp_s or run.deaths or run.traces
    if known or "--model-path" in run.usage_flags:
        return False
    return not (run.progress.steps or run.command) or bool(_DOCUMENT.match(head))


def interrupted(run: Run) -> bool:
    """Whether somebody pressed Ctrl-C: the launcher ended by it, and nothing else was raised."""
    endings = [trace.raised[-1].text for trace in run.traces if trace.raised]
    return bool(endings) and all(text.startswith("KeyboardInterrupt") for text in endings)
