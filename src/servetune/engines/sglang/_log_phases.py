"""Where a launch is, from the lines that the engine prints on its way, and the memory numbers on these lines.

Formats of 0.4.6 to 0.5.23. All memory is in GiB as printed ("GB"); several ranks are reduced to the smallest available.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from servetune.core.failure import Phase
from servetune.core.wording import shortened
from servetune.engines.sglang._log_lines import Line

#: Ranks that are followed one by one.
MAX_RANKS = 1024
READY_TEXT = "The server is fired up and ready to roll!"

_NUMBER = r"(-?\d{1,9}(?:\.\d{1,9})?)"
_AVAILABLE = re.compile(rf"avail(?:able)?[_ ](?:gpu_|cpu_)?mem={_NUMBER} GB")
_USED = re.compile(rf"mem usage={_NUMBER} GB")
_KV = re.compile(r"KV Cache (?:is allocated|VA upper bound)\..*?#tokens: (\d{1,15})")
_POOL_NUMBERS = re.compile(
    r"max_total_num_tokens=(\d{1,15}), chunked_prefill_size=(-?\d{1,15}).*?max_running_requests=(\d{1,15})"
)
_CONTEXT = re.compile(r"context_len=(\d{1,15})")
_CAPTURE = re.compile(r"Capture (?P<what>[\w ]*?)\s?(?:cuda|CUDA|cpu) graph (?P<edge>begin|end)\.")
_SIZES = re.compile(r"(?:bs|num_tokens)[ =]\[([\d, ]{1,6000})\]?")
_OLD_SIZES = re.compile(r"Capture cuda graph bs \[([\d, ]{1,6000})\]?")
_INTEGER = re.compile(r"\d{1,9}")
_CAPTURED = re.compile(r"\| (\d{1,6})/(\d{1,6}) \[")
CAPTURING = re.compile(rf"Capturing \w+(?: \w+)* \((?P<kind>bs|num_tokens)=(?P<size>\d{{1,15}}) avail_mem={_NUMBER} GB")
VERSION = re.compile(r"\bsglang(?:[ _-]?version)?[ =:v]+['\"]?(\d+\.\d+\.\d+(?:\.?(?:post|rc|dev)\w*)?)", re.I)


@dataclass(slots=True)
class Step:
    """One entry of the timeline: a phase, when it began, and the memory last seen in it."""

    phase: Phase
    line: int
    stamp_s: float | None
    end_s: float | None = None
    available_gib: float | None = None


@dataclass(slots=True)
class Progress:
    """Phase, timeline and memory. `markers` counts phase lines: a later one means that the start went on."""

    phase: Phase = Phase.PARSE
    ready: bool = False
    ready_line: int = 0
    markers: int = 0
    loads: int = 0  # "Load weight begin" of one rank: the second is the draft model
    autotuning: bool = False
    jit_line: tuple[int, str] | None = None  # a DeepGEMM compile session that has not ended
    by_rank: dict[str, Phase] = field(default_factory=dict)
    last_marker: dict[str, int] = field(default_factory=dict)  # rank → line of its last phase line
    steps: list[Step] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    memory_lines: dict[str, tuple[int, str]] = field(default_factory=dict)
    before_load: dict[str, float] = field(default_factory=dict)  # rank → available before its first load
    graph_gib: dict[str, float] = field(default_factory=dict)
    sizes: dict[str, list[int]] = field(default_factory=dict)
    capture_progress: tuple[str, int, float] | None = None  # kind, size being captured, available
    captured: tuple[int, int] | None = None  # of the graphs of this kind: how many are done, how many there are
    kv_tokens: int | None = None
    pool: dict[str, int] = field(default_factory=dict)
    version: str | None = None
    _loads_by_rank: dict[str, int] = field(default_factory=dict)

    @property
    def still_loading(self) -> bool:
        """Whether a rank began to load its weights and never said that it ended."""
        return Phase.LOAD in self.by_rank.values()

    def enter(self, phase: Phase, line: Line) -> None:
        """Move to `phase`; a new step begins when it differs from the current one."""
        self.markers += 1
        if line.rank and (line.rank in self.by_rank or len(self.by_rank) < MAX_RANKS):
            self.by_rank[line.rank] = phase
        if (line.rank or "") in self.last_marker or len(self.last_marker) <= MAX_RANKS:
            self.last_marker[line.rank or ""] = line.number
        if self.phase is phase and self.steps:
            return
        self.phase = phase
        if self.steps:
            self.steps[-1].end_s = line.stamp_s
        if len(self.steps) < 64:
            self.steps.append(Step(phase, line.number, line.stamp_s))

    def remember(self, key: str, line: Line, pattern: re.Pattern[str] = _AVAILABLE) -> float | None:
        """Keep the smallest number that any rank printed under `key`, and its line."""
        match = pattern.search(line.text)
        if match is None:
            return None
        value = float(match.group(1))
        if key not in self.memory or value < self.memory[key]:
            self.memory[key] = value
            self.memory_lines[key] = (line.number, shortened(line.text, 300))
        if self.steps and pattern is _AVAILABLE:
            self.steps[-1].available_gib = value
        return value


def _resolved(progress: Progress, line: Line) -> None:
    progress.enter(Phase.LOAD, line)


def _weights_begin(progress: Progress, line: Line) -> None:
    rank = line.rank or ""
    count = progress._loads_by_rank.get(rank, 0) + 1
    if count > 1 or len(progress._loads_by_rank) <= MAX_RANKS:
        progress._loads_by_rank[rank] = count
    progress.loads = max(progress.loads, count)
    progress.enter(Phase.LOAD, line)
    value = progress.remember("before_load_gib" if count == 1 else "before_draft_load_gib", line)
    if value is not None and count == 1 and len(progress.before_load) < MAX_RANKS:
        progress.before_load[rank] = value


def _weights_end(progress: Progress, line: Line) -> None:
    progress.enter(Phase.KV_ALLOC, line)
    draft = progress.loads > 1
    progress.remember("after_draft_load_gib" if draft else "after_load_gib", line)
    progress.remember("draft_weights_gib" if draft else "weights_gib", line, _USED)


def _kv(progress: Progress, line: Line) -> None:
    progress.enter(Phase.KV_ALLOC, line)
    match = _KV.search(line.text)
    if match:
        tokens = int(match.group(1))
        progress.kv_tokens = tokens if progress.kv_tokens is None else min(progress.kv_tokens, tokens)


def _pool_end(progress: Progress, line: Line) -> None:
    progress.enter(Phase.KV_ALLOC, line)
    progress.remember("pool_end_gib" if progress.loads < 2 else "draft_pool_end_gib", line)


def _capture(progress: Progress, line: Line) -> None:
    match = _CAPTURE.search(line.text)
    if match is None:
        return
    what = match["what"].strip() or "decode"
    if match["edge"] == "begin":
        progress.enter(Phase.GRAPH_CAPTURE, line)
        progress.remember("capture_begin_gib", line)
    else:
        used = _USED.search(line.text)
        if used:
            progress.graph_gib[what] = max(float(used.group(1)), progress.graph_gib.get(what, 0.0))
        progress.remember("capture_end_gib", line)
        progress.capture_progress = progress.captured = None
        progress.jit_line = None
        progress.enter(Phase.WARMUP, line)
    _remember_sizes(progress, what, line.text)


def _remember_sizes(progress: Progress, what: str, text: str) -> None:
    sizes = _SIZES.search(text)
    if sizes and len(progress.sizes) < 16:
        progress.sizes[what] = [int(size) for size in _INTEGER.findall(sizes.group(1))]


def _old_sizes(progress: Progress, line: Line) -> None:
    match = _OLD_SIZES.search(line.text)
    if match:
        progress.sizes["decode"] = [int(size) for size in _INTEGER.findall(match.group(1))]


def _ready_numbers(progress: Progress, line: Line) -> None:
    match = _POOL_NUMBERS.search(line.text)
    progress.enter(Phase.WARMUP, line)
    if match:
        names = ("max_total_num_tokens", "chunked_prefill_size", "max_running_requests")
        progress.pool = {name: int(value) for name, value in zip(names, match.groups(), strict=True)}
        progress.kv_tokens = progress.pool["max_total_num_tokens"]
    context = _CONTEXT.search(line.text)
    if context:
        progress.pool["context_len"] = int(context.group(1))
    progress.remember("ready_gib", line)


def _warmup(progress: Progress, line: Line) -> None:
    progress.enter(Phase.WARMUP, line)


def _autotune_begin(progress: Progress, line: Line) -> None:
    progress.autotuning = True
    if progress.phase is not Phase.GRAPH_CAPTURE:
        progress.enter(Phase.WARMUP, line)


def _autotune_end(progress: Progress, line: Line) -> None:
    progress.autotuning = False
    progress.markers += 1


def _jit(progress: Progress, line: Line) -> None:
    if progress.jit_line is None:
        progress.jit_line = (line.number, shortened(line.text, 500))
    if progress.phase is Phase.KV_ALLOC:
        progress.enter(Phase.WARMUP, line)


def _ready(progress: Progress, line: Line) -> None:
    progress.enter(Phase.SERVING, line)
    progress.ready, progress.ready_line, progress.jit_line, progress.autotuning = True, line.number, None, False


#: Text of a line → what it means, in the order in which a start prints them. The first text found in a line counts.
MARKERS: tuple[tuple[str, Callable[[Progress, Line], None]], ...] = (
    ("server_args=", _resolved),
    ("Init torch distributed begin", _resolved),
    ("Init parallel begin", _resolved),
    ("Load weight begin.", _weights_begin),
    ("Load weight end.", _weights_end),
    ("KV Cache is allocated.", _kv),
    ("KV Cache VA upper bound.", _kv),
    ("Memory pool end.", _pool_end),
    ("Capture cuda graph bs", _old_sizes),
    (" graph begin.", _capture),
    (" graph end.", _capture),
    ("max_total_num_tokens=", _ready_numbers),
    ("Running FlashInfer autotune", _autotune_begin),
    ("Autotuning process starts", _autotune_begin),
    ("FlashInfer autotune completed", _autotune_end),
    ("Entering DeepGEMM JIT", _jit),
    ("Started server process", _warmup),
    ("Application startup complete", _warmup),
    ("Uvicorn running on", _warmup),
    (READY_TEXT, _ready),
)


#: What a launcher or a tuner says of the server.
_LAUNCHER = re.compile(
    r"\[\w{0,20}(?:tune|launch|watch|wait|monitor|supervis|harness|orchestr)\w{0,20}(?: [^\]]{0,40})?\] "
    r"(?!.*server_args=)"
)


def take_marker(progress: Progress, line: Line) -> bool:
    """Apply the first marker of the line. Whether there was one. A launcher that quotes one reports no step."""
    text = line.text
    if not line.stamped and _LAUNCHER.match(text):
        return False
    for words, apply in MARKERS:
        if words in text:
            apply(progress, line)
            return True
    match = CAPTURING.search(text)
    if match:
        progress.capture_progress = (match["kind"], int(match["size"]), float(match.group(3)))
        done = _CAPTURED.search(text, match.end())
        progress.captured = (int(done[1]), int(done[2])) if done else None
        return True
    return False


def take_version(progress: Progress, line: Line) -> None:
    """The engine's version, where a line shows it."""
    match = VERSION.search(line.text) if "glang" in line.text else None
    if match and progress.version is None:
        progress.version = match.group(1)


def timeline(progress: Progress, last_stamp_s: float | None) -> list[dict[str, Any]]:
    """One entry per phase: `{phase, line, start_s, seconds, available_gib}`, times since the first stamp of the log."""
    stamps = [step.stamp_s for step in progress.steps if step.stamp_s is not None]
    origin = min(stamps) if stamps else None
    entries = []
    for step in progress.steps:
        end = step.end_s if step.end_s is not None else last_stamp_s
        seconds = None if step.stamp_s is None or end is None else max(0.0, end - step.stamp_s)
        start = None if step.stamp_s is None or origin is None else step.stamp_s - origin
        entries.append(
            {
                "phase": step.phase.value,
                "line": step.line,
                "start_s": start,
                "seconds": seconds,
                "available_gib": step.available_gib,
            }
        )
    return entries
