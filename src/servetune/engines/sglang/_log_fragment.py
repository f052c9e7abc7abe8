"""Fragments: what people paste of a log. The start is missing, a traceback has lost its first lines, or all that is
there is the exception's own line. Such a log is read once more, with the headers that are missing put in.
"""

from __future__ import annotations

import re

from servetune.core.failure import Phase
from servetune.engines.sglang._log_lines import Line, LineCleaner
from servetune.engines.sglang._log_run import Run
from servetune.engines.sglang._log_tracebacks import HEADER

#: A longer log is no fragment: nobody pastes so much without the start.
MAX_BYTES = 64 * 1024
_FRAME = re.compile(r'^\s*File "[^"]+", line \d+, in \S')
_FURTHER_RANK = re.compile(r"\bTP[1-9]")
_BARE = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|OutOfResources)(?:: |:?$)|^Exception: ")


def is_fragment(run: Run) -> bool:
    """Whether the log shows neither the command nor the arguments nor any step of the start."""
    early = run.progress.phase in (Phase.PARSE, Phase.VALIDATE)
    return early and not (run.progress.ready or run.effective or run.previous)


def is_served(run: Run) -> bool:
    """Whether the log shows batches or answered requests."""
    return bool(run.throughput.decode_lines or run.throughput.prefill_lines or run.last_answer_line)


def is_worker(run: Run) -> bool:
    """Whether the log is that of a further node of a server, under load: it has batches and no rank 0.

    Only the first node has the HTTP server, warms up and says that it is ready.
    """
    ranks, throughput = run.progress.by_rank, run.throughput
    return bool((throughput.decode_lines or throughput.retractions) and ranks) and all(map(_FURTHER_RANK.search, ranks))


def completed(text: bytes) -> Run | None:
    """The state after a fragment whose tracebacks got their headers back; None where none is missing."""
    run, cleaner, missing = Run(), LineCleaner(), False
    for number, raw in enumerate(text.split(b"\n"), 1):
        for line in cleaner.clean(number, raw):
            if run.skims and _lacks_header(line):
                run.take(line._replace(text=HEADER.decode(), stamped=False))
                missing = True
            run.take(line)
    return run if missing else None


def _lacks_header(line: Line) -> bool:
    return not line.stamped and bool(_FRAME.match(line.text) or _BARE.match(line.text))
