"""Lines that say that an option is not in effect, that a process ends, or that look alarming and may mean nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from servetune.engines.sglang._log_changes import CHANGED, Change, changes_of

#: Patterns look at no more of a line than this: a longer one is a prompt, a dump or broken.
MAX_READ_TEXT = 4000


Why = Literal["hardware", "internal", "override", "adapted"]


@dataclass(frozen=True, slots=True)
class Notice:
    """An option that was accepted and does nothing, or not what was asked.

    `why`: hardware, the GPU or its links do not offer it; internal, it should work here and a check failed;
    override, the engine decided otherwise; adapted, it took another number, which is in effect.
    """

    text: re.Pattern[str]
    flags: tuple[str, ...]
    why: Why
    repair: tuple[tuple[str, str], ...] = ()
    subject: str = ""  # words that stand for a flag which only the command can tell
    changes: tuple[Change, ...] = ()  # what the engine changed, in its words


def _notice(text: str, flags: str, why: Why) -> Notice:
    return Notice(re.compile(text), tuple(flags.split()), why)


_V2 = ("env.SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2", "0")
#: First match counts. Texts of 0.4.6 to 0.5.23.
NOTICES: tuple[Notice, ...] = (
    _notice(r"TorchSymmMemCommunicator: .*(?:not supported|not available)", "enable-torch-symm-mem", "hardware"),
    _notice(
        r"Setup Custom allreduce failed with (?:\. |.*(?:peer access|not supported|not permitted))",
        "disable-custom-all-reduce",
        "hardware",
    ),
    Notice(
        re.compile(r"Setup Custom allreduce failed with .*(?:[Ss]ymm|rendezvous|_v2|V2)"),
        ("disable-custom-all-reduce",),
        "internal",
        (_V2,),
    ),
    _notice(r"Setup Custom allreduce failed", "disable-custom-all-reduce", "internal"),
    _notice(r"[Cc]ustom ?[Aa]ll-?[Rr]educe is disabled", "disable-custom-all-reduce", "hardware"),
    _notice(r"^custom is not available on this device", "disable-custom-all-reduce", "hardware"),
    _notice(
        r"Failed to initialize FlashInfer workspace|[Ff]lash[Ii]nfer all-?reduce fusion (?:is )?disabl",
        "enable-flashinfer-allreduce-fusion flashinfer-allreduce-fusion-backend",
        "internal",
    ),
    _notice(
        r"(?:PyMscclpp|mscclpp|MSCCL\+\+) (?:is (?:unavailable|not available)|did not produce)",
        "enable-mscclpp",
        "hardware",
    ),
    _notice(r"NVLS is not available|NVLS multicast support is not available", "enable-nccl-nvls", "hardware"),
    _notice(r"PCIe-IPC allreduce failed", "env.SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "internal"),
    _notice(
        r"[Ss]ingle batch overlap.*(?:no effect|disabled|not supported)", "enable-single-batch-overlap", "override"
    ),
    _notice(r"[Tt]wo[- ]batch overlap.*(?:no effect|disabled|not supported)", "enable-two-batch-overlap", "override"),
    _notice(
        r"[Cc]uda graph is disabled because|Disable (?:the )?(?:decode )?cuda graph",
        "cuda-graph-max-bs cuda-graph-max-bs-decode cuda-graph-bs",
        "override",
    ),
    _notice(
        r"Disable (?:prefill|piecewise) (?:CUDA|cuda) graph|[Pp]iecewise (?:CUDA|cuda) graph is disabled",
        "enable-piecewise-cuda-graph cuda-graph-backend-prefill",
        "override",
    ),
    _notice(r"[Oo]verlap schedule[r]? is disabled", "disable-overlap-schedule", "override"),
    _notice(r"[Mm]ixed chunk\w* (?:prefill )?is disabled", "enable-mixed-chunk", "override"),
    _notice(r"[Rr]adix cache is disabled", "disable-radix-cache", "override"),
    _notice(r"deepep[-_]mode.*ignored", "deepep-mode", "override"),
    _notice(
        r"max_running_requests (?:was reduced|is capped)|[Mm]ax running requests is reset",
        "max-running-requests",
        "adapted",
    ),
    _notice(
        r"(?i)symm(?:etric)?[ -_]?mem\w*.*(?:not supported|not available|falling back)", "enable-symm-mem", "hardware"
    ),
    _notice(r"ignoring (?:the )?(?:argument |flag |option )?--", "", "override"),
)
NAMED_FLAG = re.compile(r"--[a-z][a-z0-9-]+")
NOT_AVAILABLE = re.compile(r"^(?P<what>[a-z][\w-]*) is not available on this device; falling back")

#: A process of the server ends for good; nothing after such a line brings it back.
DEATH = re.compile(
    r"Received sigquit from a child|SIGQUIT received|scheduler is dead|died during initialization"
    r"|crashed with exit code|^Killed$|: line \d+: +\d+ (?:Killed|Aborted)\b"
    r"|^Aborted|Segmentation fault|Fatal Python error|terminate called after throwing"
    r"|Initialization failed|Exit code: -?\d|taking the entire process down|server exited early"
    r"|kill_process_tree called: .*include_parent=True|[Ww]atchdog timeout \(.*soft=False"
    r"|Watchdog timeout \(self\.watchdog_timeout=[\d.]+\)|Error while finding module specification for '?sglang"
    r"|python[\d.]*: No module named '?sglang"
    r"|\b(?:python[\d.]*|sglang): (?:command )?not found|exec: \"?sglang\"?: executable file not"
)
#: Somebody asked the server to stop: what follows is its shutdown.
STOP = re.compile(
    r"SIGTERM received|Gracefully exiting|crashed with exit code -(?:15|2)\b|Received signal (?:15|2)\b"
    r"|INFO: +Shutting down|received termination signal"
)
#: Words that alarm a reader of a healthy log (it is then told why they mean nothing).
WORRYING = re.compile(
    r"Setup Custom allreduce failed|memory capacity is unbalanced|Skipping tactic|OOM detected|Detected errors"
    r"|CUDA error|out of memory|Traceback|NCCL WARN|\bFATAL\b|ERROR[: ]|[A-Za-z]Error\b|[Aa]ssertion|\b[Ff]ailed\b"
)
HARMLESS = re.compile(
    r"Warning:|Ignore import error|error in optional import|RLIMIT|request(?:s)? failed|0 failed|leaked|DEPRECAT"
)
NCCL_WARN = re.compile(r"NCCL WARN (?P<what>.*)")
ASSERTION_LINE = re.compile(
    r"Assertion [`'\"].*[`'\"]? ?failed|Assertion failed: \S+\.cuh?:\d|: block: \[\d+,\d+,\d+\], thread:"
)
#: What a compiler, an assembler or a linker prints of its own before the exception that says that a build failed.
COMPILER_ERROR = re.compile(
    r"^[^\s:()]+(?:\(\d+\)|:\d+(?::\d+)?): (?:fatal |catastrophic )?error\b|^(?:\S*/)?ld: (?:cannot|error|undefined)"
    r"|^(?:ptxas|nvcc|nvlink|cc1plus) ?(?:fatal|error)\b"
)
RETRACTION = re.compile(r"KV cache pool is full\. Retract|Retract requests|#retracted_reqs")


#: A line without any of these speaks of no option that is off, ignored or replaced (lower case).
_SPEAKS_OF_AN_OPTION = (
    "not supp",
    "not avail",
    "unavail",
    "disab",
    "failed",
    "reduc",
    "reset",
    "ignor",
    "no effect",
    "not prod",
    "fall",
    "back to",
    "cap",
    "skipping",
    "turn",
    "switch",
    "setting",
    "set to",
    "overrid",
    "overwritten",
    "chang",
    "adjust",
    "forc",
    "limit",
    "clamp",
)


#: A sentence about an option is no longer than this, and no exception's.
LONGEST = 600
_RAISED = re.compile(r"[\w.]*(?:Error|Exception)\b|\s|\S+:\d+:\d+ \[\d+\]|/")


@lru_cache(maxsize=256)
def notice_of(text: str) -> Notice | None:
    """The notice of a line, if it is one. A crash loop repeats them."""
    low = text.lower()
    if not any(map(low.__contains__, _SPEAKS_OF_AN_OPTION)):
        return None
    for notice in NOTICES:
        if notice.text.search(text):
            if not notice.flags:
                named = tuple(flag.lstrip("-") for flag in NAMED_FLAG.findall(text))
                return Notice(notice.text, named[:2], notice.why)
            return replace(notice, changes=tuple(changes_of(text))) if notice.why == "adapted" else notice
    match = NOT_AVAILABLE.match(text)
    if match:
        return Notice(NOT_AVAILABLE, (match["what"],), "hardware")
    changes = tuple(changes_of(text)) if len(text) <= LONGEST and not _RAISED.match(text) else ()
    return Notice(CHANGED, (), "override", subject=changes[0].words, changes=changes) if changes else None


def worries(text: str) -> bool:
    """Whether a reader of a healthy log would be alarmed by it."""
    return bool(WORRYING.search(text)) and not HARMLESS.search(text)
