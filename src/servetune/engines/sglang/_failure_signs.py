"""Lines that mean a standstill, or refused load, only together with the rest of the log."""

from __future__ import annotations

import re

from servetune.core.failure import Phase
from servetune.engines.sglang._log_run import Event, Run

#: Signs of a standstill that a later batch refutes.
REFUTED = (
    "health_check",
    "request_timeout",
    "the_tuner_waits",
    "broadcast_waits",
    "health_unanswered",
    "stands_still",
)
#: Signs that mean something only when they come several times; a client that tries again has not lost anything.
_SEVERAL = {"broadcast_waits": 2, "health_unanswered": 3, "no_worker_takes_it": 3}
_ONCE_IS_ENOUGH = re.compile(
    r"consecutive|^(?!.*(?i:\bretr(?:y|ies|ying)\b))(?!.*/health)(?!.*broadcast)(?!.*waiting for)"
)


def is_too_little(event: Event, run: Run) -> bool:
    """Whether a sign came too seldom to mean anything, or where it means nothing."""
    name = event.entry.signature.name
    if name == "unlike_samples":
        flag = "enable-deterministic-inference"
        return not (run.effective.get(flag) or run.command.get(flag))
    seen = len(run.first_events.get(name, ()))
    return seen < _SEVERAL.get(name, 0) and not _ONCE_IS_ENOUGH.search(event.text)


#: A server that printed a batch so shortly before, in seconds, was working.
_WORKING_S = 120.0


def is_impatience(event: Event, run: Run) -> bool:
    """Whether a client gave up while the server was working off its queue."""
    if event.entry.signature.name != "request_timeout" or "0 tokens" in event.text:
        return False
    last = run.throughput.last
    return last is not None and last.queued > 0 and last.tokens_per_s > 0 and event.stamp_s - run.decode_s <= _WORKING_S


def stuck_phase(phase: Phase, run: Run) -> Phase:
    """The phase in which a start hangs whose last step was `phase`: the next one, where that was over."""
    progress = run.progress
    if phase is not Phase.KV_ALLOC:
        return phase
    if progress.still_loading:
        return Phase.LOAD
    over = "draft_pool_end_gib" if progress.loads > 1 else "pool_end_gib"
    captures = over in progress.memory and not run.effective.get("disable-cuda-graph")
    return Phase.GRAPH_CAPTURE if captures else phase
