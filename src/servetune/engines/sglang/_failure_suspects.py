"""Whom a failure blames: the flags that its signature, its words and its frames point at, and how surely."""

from __future__ import annotations

import re
from collections.abc import Sequence

from servetune.core.failure import Verdict
from servetune.engines.sglang._failure_causes import Cause
from servetune.engines.sglang._log_flags import (
    LaunchFlags,
    accused,
    accused_unseen,
    kept,
    suspects,
    switched_by_frames,
)
from servetune.engines.sglang._log_run import Run
from servetune.engines.sglang._repair_without import left_out_of_reference, named_before_reference

#: Where the configuration decides: without a flag in the log, what was asked for is suspected.
_SUSPICIOUS = frozenset(
    ("arch_unsupported", "graph_capture", "jit_autotune", "device_fault", "engine_bug", "invalid_combo", "comm_runtime")
)
#: Confidence in a blame that rests on suspicion alone.
SUSPICION = 0.5


def blamed_of(cause: Cause, text: str, run: Run, flags: LaunchFlags) -> tuple[list[str], bool]:
    """Flags to blame, and whether the log points at them (else they are only suspected)."""
    assert cause.entry is not None
    signature = cause.entry.signature
    if cause.entry.owner.slug == "cli_parse":
        named = re.findall(r"--([A-Za-z][\w-]*)", cause.groups.get("flags") or cause.text)
        return list(dict.fromkeys(named))[:3], True
    found = accused(text, cause.stack, flags) if signature.blame == "auto" else kept(signature.blame, flags)
    if "named_without" in signature.repair:
        compared = [*left_out_of_reference(text, run, flags), *named_before_reference(text, run, flags)]
        found = list(dict.fromkeys([*compared, *found]))
    if not found and cause.trace is None:
        found = accused_unseen(cause.stack, flags)
    if found or cause.entry.owner.slug not in _SUSPICIOUS or cause.entry.verdict is Verdict.STOP:
        return found[:3], True
    found = switched_by_frames(cause.stack, flags) or suspects(cause.phase, flags)
    if not found and cause.entry.owner.slug == "device_fault" and "event_loop_overlap" in cause.stack:
        found = ["disable-overlap-schedule"]
    return found[:3], False


#: A signature with a list of so few flags, and this sure, is about them; a longer list is one of suspects.
FEW, SURE = 3, 0.75


def named_of(cause: Cause, text: str, blamed: Sequence[str], flags: LaunchFlags) -> tuple[str, ...]:
    """Those of the blamed flags that the log's words point at; a frame alone is where it showed, not why."""
    assert cause.entry is not None
    signature = cause.entry.signature
    if cause.entry.owner.slug == "cli_parse":
        return tuple(blamed)
    listed = signature.blame != "auto" and len(signature.blame) <= FEW and signature.confidence >= SURE
    if listed and cause.entry.owner.slug != "wrong_output":
        return tuple(blamed)
    by_words = accused(text, "", flags)
    return tuple(flag for flag in blamed if flag in by_words)
