"""What to change after a crash: values computed from the numbers of the log, a step for each name in the table.

The memory fraction is never bisected. Lower bound: `1 - available_after_load / available_before_load`; what the
fraction leaves out, `before_load * (1 - fraction)`, must hold graphs, activations and workspaces. When the bounds
cross, the window is empty and another flag is turned.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from servetune.core.failure import Phase, Repair
from servetune.core.space import Value
from servetune.engines.sglang._failure_table import Step
from servetune.engines.sglang._log_args import flag_name, is_set
from servetune.engines.sglang._log_flags import LaunchFlags
from servetune.engines.sglang._log_run import Run

#: Added to the computed minimum, so that the pool holds more than nothing.
MARGIN = 0.01
#: Above, nothing is left beside the pool on any GPU that we know of.
HIGHEST_FRACTION = 0.97
SMALLEST_GRAPH_BATCH = 8
SMALLEST_CHUNK = 1024

#: Flags that were renamed or replaced: old → (new, value; None keeps the old value).
RENAMED: Mapping[str, tuple[str, Value | None]] = {
    "enable-ep-moe": ("ep-size", None),
    "enable-deepep-moe": ("moe-a2a-backend", "deepep"),
    "enable-flashinfer-cutlass-moe": ("moe-runner-backend", "flashinfer_cutlass"),
    "enable-flashinfer-trtllm-moe": ("moe-runner-backend", "flashinfer_trtllm"),
    "enable-triton-kernel-moe": ("moe-runner-backend", "triton_kernel"),
    "enable-flashinfer-mxfp4-moe": ("moe-runner-backend", "flashinfer_mxfp4"),
    "cuda-graph-max-bs": ("cuda-graph-max-bs-decode", None),
    "cuda-graph-bs": ("cuda-graph-bs-decode", None),
    "enable-reasoning": ("reasoning-parser", None),
    "enable-piecewise-cuda-graph": ("cuda-graph-backend-prefill", "breakable"),
    "disable-piecewise-cuda-graph": ("cuda-graph-backend-prefill", "disabled"),
}
_NUMBER = r"(\d+(?:\.\d+)?)"
_TRIED = re.compile(rf"Tried to allocate {_NUMBER} (?P<unit>[KMG]i?B)")
_FREE = re.compile(rf"{_NUMBER} (?P<unit>[KMG]i?B) is free")
_CAPACITY = re.compile(rf"total capacity of {_NUMBER} (?P<unit>[KMG]i?B)")
_ADVISED = re.compile(
    r"(?i)(?:use|set|add|try|specify|pass)(?: the)?(?: option| flag| argument)? "
    r"[`'\"]*--([a-z][a-z0-9-]+)(?:[ =]([\w.]+))?"
)
_GIB = {"K": 1 / 1024**2, "M": 1 / 1024, "G": 1.0}


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of a crash, GiB: `before` and `after` the weights, what was `tried` and `free` when memory ran out."""

    before: float | None = None
    after: float | None = None
    minimum: float | None = None
    fraction: float | None = None
    tried: float | None = None
    free: float | None = None
    capacity: float | None = None
    occupied: float | None = None  # memory that another process holds

    @property
    def window_low(self) -> float | None:
        """The smallest fraction that leaves a KV pool: the engine's own number, else `1 - after / before`."""
        if self.minimum is not None:
            return self.minimum
        if self.before and self.after is not None and self.before > 0:
            return 1 - self.after / self.before
        return None


def numbers_of(run: Run, flags: LaunchFlags, text: str, groups: Mapping[str, str | None]) -> Numbers:
    """The numbers of a log and of its deciding text."""
    memory = run.progress.memory
    fraction = groups.get("fraction") or flags.number("mem-fraction-static")
    minimum = groups.get("minimum")
    return Numbers(
        before=memory.get("before_load_gib"),
        after=memory.get("after_load_gib"),
        minimum=float(minimum) if minimum else None,
        fraction=float(fraction) if fraction is not None else _fraction_in(text),
        tried=_gib(_TRIED, text),
        free=_gib(_FREE, text),
        capacity=_gib(_CAPACITY, text),
        occupied=_occupied(run, text),
    )


def _fraction_in(text: str) -> float | None:
    match = re.search(r"mem_fraction_static=(\d*\.\d+)", text)
    return float(match.group(1)) if match else None


def _gib(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return float(match.group(1)) * _GIB[match["unit"][0]] if match else None


def _occupied(run: Run, text: str) -> float | None:
    """GiB that a foreign process holds: one rank starts with far less than the others, or than the GPU has."""
    begin = run.progress.before_load
    if len(begin) > 1:
        missing = max(begin.values()) - min(begin.values())
        if missing > 0.1 * max(begin.values()):
            return missing
    capacity = _gib(_CAPACITY, text)
    lowest = min(begin.values()) if begin else None
    if capacity and lowest is not None and lowest < 0.8 * capacity:
        return capacity - lowest
    return None


@dataclass(slots=True)
class Draft:
    """What a step works with, and the repairs so far."""

    run: Run
    flags: LaunchFlags
    numbers: Numbers
    text: str
    groups: Mapping[str, str | None]
    blamed: tuple[str, ...]
    phase: Phase
    repairs: list[Repair] = field(default_factory=list)

    def add(self, flag: str, value: Value | None, reason: str) -> None:
        """Append a repair, unless the flag already has that value or a repair."""
        if any(repair.flag == flag for repair in self.repairs) or len(self.repairs) >= 5:
            return
        self.repairs.append(Repair(flag=flag, value=value, reason=reason))

    def current(self, flag: str) -> float | None:
        """The flag's value as a number, asked for, effective or from the log's own ready line."""
        number = self.flags.number(flag)
        if number is not None and number >= 0:
            return number
        known = self.run.progress.pool.get(flag.replace("-", "_"))
        return float(known) if known is not None and known > 0 else None

    @property
    def drafted(self) -> bool:
        """Whether a draft model's own pool failed: the target's pool had already taken its share."""
        return self.run.progress.loads > 1


def repairs_for(steps: tuple[Step, ...], draft: Draft) -> tuple[Repair, ...]:
    """Apply the steps of a signature in order."""
    for step in steps:
        if isinstance(step, str):
            STEPS[step](draft)
            continue
        for verb, argument in step.items():
            _verb(verb, argument, draft)
    return tuple(draft.repairs)


def _verb(verb: str, argument: Any, draft: Draft) -> None:
    if verb == "drop":
        _drop(draft, argument)
    elif verb == "halve":
        _halve(draft, argument)
    else:
        for flag, value in argument.items():
            if verb == "set_to":
                value = _typed(draft.groups.get(value))
                if value is None:
                    continue
            if verb == "set_if" and not draft.flags.on(flag):
                continue
            if not is_set(value) and draft.flags.known and not draft.flags.on(flag):
                continue
            if draft.flags.value(flag) != value:
                draft.add(flag, value, f"{flag} {value} avoids it")


def _typed(text: str | None) -> Value | None:
    if text is None:
        return None
    return int(text) if text.isdigit() else text


def _drop(draft: Draft, flag: str) -> None:
    if draft.flags.on(flag):
        draft.add(flag, None, f"leave out {flag}")


def _halve(draft: Draft, flag: str) -> None:
    value = draft.current(flag)
    if value is not None and value >= 2:
        draft.add(flag, int(value) // 2, f"{flag} {value:g} does not fit; half of it may")


def _drop_blamed(draft: Draft) -> None:
    for flag in draft.blamed:
        if flag.startswith("disable-") and not draft.flags.on(flag):
            draft.add(flag, True, f"{flag}: the engine then takes another path")
        elif draft.flags.on(flag) and not flag.startswith(("tp-size", "mem-fraction", "model-path")):
            draft.add(flag, None, f"leave out {flag}: without it the engine takes another path")


def _raise_fraction(draft: Draft) -> None:
    low, now = draft.numbers.window_low, draft.numbers.fraction
    if draft.drafted and draft.numbers.minimum is None:
        _empty_window(draft, "the target's pool had taken its share before the draft model's was sized")
        return
    if low is None:
        if now is not None and now < 0.9:
            draft.add("mem-fraction-static", round(min(now + 0.05, 0.95), 3), _no_numbers(now))
        return
    value = round(math.ceil(round(low * 1000, 6)) / 1000 + MARGIN, 3)
    if value > HIGHEST_FRACTION:
        _empty_window(draft, f"the fraction would have to be {value}, which leaves nothing for graphs and activations")
        return
    if now is not None and value <= now:
        value = round(min(now + 0.02, HIGHEST_FRACTION), 3)
    draft.add("mem-fraction-static", value, _minimum_reason(draft.numbers, low))


def _no_numbers(now: float) -> str:
    return f"the log does not show the memory around the weights; {now:g} leaves no KV pool, so more is needed"


def _minimum_reason(numbers: Numbers, low: float) -> str:
    least = math.ceil(round(low * 1000, 6)) / 1000
    if numbers.before and numbers.after is not None:
        return (
            f"at least {least:.3f} (1 - {numbers.after:g}/{numbers.before:g}): "
            f"{numbers.after:.1f} of {numbers.before:.1f} GB were left after the weights"
        )
    return f"at least {least:.3f}: the engine's own minimum"


def _empty_window(draft: Draft, why: str) -> None:
    """No fraction works: free memory elsewhere."""
    _shrink_graphs(draft, f"{why}; smaller graphs free memory")
    for flag in ("speculative-algorithm", "moe-a2a-backend", "enable-eplb"):
        if draft.flags.on(flag):
            draft.add(flag, None, f"{why}; {flag} costs memory beside the pool")
    _more_parallel(draft, why)


def _more_parallel(draft: Draft, why: str) -> None:
    tp = draft.current("tp-size") or 1
    draft.add("tp-size", int(tp) * 2, f"{why}; twice the GPUs halve the weights on each")


def _lower_fraction(draft: Draft) -> None:
    numbers = draft.numbers
    now = numbers.fraction
    if now is None:
        now = _fraction_from_pool(draft)
    if now is None:
        return
    total = numbers.before or numbers.capacity
    deficit = max(0.0, (numbers.tried or 0.0) - (numbers.free or 0.0))
    step = max(0.02, (deficit + 0.5) / total if total else 0.03)
    value = math.floor(round((now - step) * 1000, 6)) / 1000
    low = numbers.window_low
    if low is not None and not draft.drafted and value < low + 0.002:
        highest = math.floor(round((now - 0.01) * 1000, 6)) / 1000
        if highest < low + 0.002:
            _empty_window(draft, f"the fraction cannot go below {low:.3f} and {now:g} is too high")
            return
        value = highest
    if value > 0:
        draft.add("mem-fraction-static", value, _lower_reason(numbers, now, deficit))


def _fraction_from_pool(draft: Draft) -> float | None:
    """The automatic fraction, from what the pool left: `1 - pool_end / before_load`."""
    memory = draft.run.progress.memory
    before, end = memory.get("before_load_gib"), memory.get("pool_end_gib")
    return round(1 - end / before, 3) if before and end is not None and before > end else None


def _lower_reason(numbers: Numbers, now: float, deficit: float) -> str:
    if numbers.tried is not None and numbers.free is not None:
        return (
            f"{numbers.tried:.2f} GiB were wanted and {numbers.free:.2f} free: {deficit:.2f} GiB missing beside {now:g}"
        )
    return f"{now:g} leaves too little beside the pool"


def _graph_flag(draft: Draft) -> str:
    if draft.flags.value("cuda-graph-max-bs-decode") is not None:
        return "cuda-graph-max-bs-decode"
    return "cuda-graph-max-bs"


def _shrink_graphs(draft: Draft, why: str = "graphs of large batches take most of the memory") -> None:
    flag = _graph_flag(draft)
    sizes = [size for what, found in draft.run.progress.sizes.items() if "prefill" not in what for size in found]
    largest = draft.current(flag) or (float(max(sizes)) if sizes else None)
    if largest is None or largest <= SMALLEST_GRAPH_BATCH:
        return
    draft.add(flag, max(SMALLEST_GRAPH_BATCH, int(largest) // 2), f"{why} (now up to {largest:g})")


def _shrink_prefill_graphs(draft: Draft) -> None:
    progress = draft.run.progress.capture_progress
    largest = draft.current("piecewise-cuda-graph-max-tokens") or (progress[1] if progress else None)
    if largest and largest > 256:
        value = max(256, 2 ** (int(largest).bit_length() - 2))
        draft.add("piecewise-cuda-graph-max-tokens", value, f"prefill graphs of up to {largest:g} tokens do not fit")
    _no_prefill_graph(draft)


def _no_prefill_graph(draft: Draft) -> None:
    if draft.flags.on("enable-piecewise-cuda-graph"):
        draft.add("enable-piecewise-cuda-graph", None, "leave out the piecewise CUDA graph")
    elif draft.flags.on("cuda-graph-backend-prefill"):
        draft.add("cuda-graph-backend-prefill", "disabled", "switch the prefill graph off")
    else:
        draft.add("disable-piecewise-cuda-graph", True, "the prefill graph is on by default in this version")


def _shrink_chunk(draft: Draft) -> None:
    chunk = draft.current("chunked-prefill-size")
    if chunk and chunk > SMALLEST_CHUNK:
        draft.add("chunked-prefill-size", int(chunk) // 2, f"half of {chunk:g}: a smaller prefill needs less at once")
    elif chunk is None:
        draft.add("chunked-prefill-size", 4096, "a smaller prefill needs less at once")


def _shrink_running(draft: Draft) -> None:
    seen = max((entry[2] for entry in draft.run.throughput.sample), default=0)
    limit = draft.current("max-running-requests")
    value = int(min(limit, seen) if limit and seen else (limit or seen))
    if value >= 2:
        what = "that ran at once" if seen and value == seen else "that are allowed at once"
        draft.add("max-running-requests", value // 2, f"half of the {value} requests {what}")


def _less_weight_memory(draft: Draft) -> None:
    for flag in ("moe-a2a-backend", "speculative-algorithm", "enable-eplb", "ep-num-redundant-experts"):
        if draft.flags.on(flag):
            draft.add(flag, None, f"{flag} adds weights on each GPU")
    _more_parallel(draft, "the weights do not fit (the memory fraction does not matter here)")


def _rename_flags(draft: Draft) -> None:
    known = {flag.lstrip("-") for flag in draft.run.usage_flags}
    asked = re.findall(r"--([A-Za-z][\w-]*)(?:[ =]([^\s-]\S*))?", draft.groups.get("flags") or "")
    choices = re.findall(r"--([a-z][\w-]*)", draft.groups.get("choices") or "")
    for name, value in asked:
        old = name.replace("_", "-")
        draft.add(name if "_" in name else flag_name(name), None, f"--{name} does not exist in this version")
        renamed, fixed = RENAMED.get(old, (None, None))
        new = choices[0] if choices else renamed
        if new is None and "_" in name:
            new = old
        if new is None:
            near = difflib.get_close_matches(old, sorted(known), n=1, cutoff=0.8)
            new = near[0] if near else None
        if new and new != name:
            draft.add(new, _new_value(draft, old, new, fixed, value), f"--{new} takes the place of --{name}")


def _new_value(draft: Draft, old: str, new: str, fixed: Value | None, value: str) -> Value:
    if fixed is not None:
        return fixed
    if value:
        return int(value) if value.isdigit() else value
    asked = draft.flags.asked.get(old)
    if asked is not None and asked is not True:
        return asked if isinstance(asked, bool | int | float) else str(asked)
    if new == "ep-size":
        tp = draft.current("tp-size")
        return int(tp) if tp else "<tp-size>"
    return True


def _nearest_choice(draft: Draft) -> None:
    flags = re.findall(r"--([a-z][\w-]*)", draft.groups.get("flags") or "")
    value = (draft.groups.get("value") or "").strip("'\"")
    choices = re.findall(r"'?([\w.\-]+)'?", draft.groups.get("choices") or "")
    if not flags:
        return
    near = difflib.get_close_matches(value, choices, n=1, cutoff=0.6)
    if near:
        draft.add(flag_name(flags[0]), near[0], f"{value!r} is not a choice; {near[0]!r} is the nearest")
    else:
        draft.add(flag_name(flags[0]), None, f"{value!r} is not a choice of this version")


def _other_runner(draft: Draft) -> None:
    now = str(draft.flags.value("moe-runner-backend") or "auto")
    fp4 = "fp4" in str(draft.flags.value("quantization") or "")
    if draft.flags.on("moe-a2a-backend") and str(draft.flags.value("moe-a2a-backend")).startswith("deepep"):
        other = "flashinfer_cutedsl" if fp4 else "deep_gemm"
    elif draft.flags.on("moe-a2a-backend"):
        other = "flashinfer_cutlass"
    else:
        other = "flashinfer_cutlass" if fp4 and now != "flashinfer_cutlass" else "triton"
    if other == now:
        other = "auto"
    draft.add("moe-runner-backend", other, f"the runner {now} does not work with the rest of this configuration")


def _other_kernels(draft: Draft) -> None:
    for flag in draft.blamed:
        if flag == "moe-runner-backend":
            _other_runner(draft)
        elif flag == "attention-backend":
            now = draft.flags.value(flag)
            other = "triton" if now != "triton" else "flashinfer"
            draft.add(flag, other, f"the attention kernels of {now} fail here")
        elif draft.flags.on(flag) and not flag.startswith(("tp-size", "model-path", "mem-fraction")):
            draft.add(flag, None, f"leave out {flag}: other kernels are then used")


def _advised(draft: Draft) -> None:
    """What the message itself proposes, when it is not about the memory fraction below an unrelated error."""
    for name, value in _ADVISED.findall(draft.text):
        if name.startswith("mem-fraction") or name == "disable-cuda-graph":
            continue
        draft.add(flag_name(name), _typed(value) if value else True, "the message proposes it")


def _no_autotune(draft: Draft) -> None:
    draft.add("disable-flashinfer-autotune", True, "if it fails again: run without kernel autotuning")


def _raise_dispatch_cap(draft: Draft) -> None:
    a2a = str(draft.flags.value("moe-a2a-backend") or "")
    kind = "FLASHINFER" if a2a == "flashinfer" or "max_num_tokens" in draft.text else "DEEPEP"
    name = f"env.SGLANG_{kind}_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
    now = draft.flags.asked.get(name)
    cap = int(now) if now is not None and str(now).isdigit() else (1024 if kind == "FLASHINFER" else 128)
    draft.add(name, str(cap * 2), f"twice the buffers of {cap} tokens per rank (costs memory)")


def _expert_parallel(draft: Draft) -> None:
    tp, ep = draft.current("tp-size"), draft.current("ep-size") or 1
    if tp and tp > 1 and ep != tp and re.search(r"(?i)moe|expert|gate's and up's|down's", draft.text):
        draft.add("ep-size", int(tp), "whole experts on each rank keep the block size")


def _dp_attention(draft: Draft) -> None:
    tp = draft.current("tp-size")
    if tp and tp > 1:
        draft.add("enable-dp-attention", True, "the backend needs data-parallel attention")
        draft.add("dp-size", int(tp), f"over all {tp:g} ranks")


def _other_mode(draft: Draft) -> None:
    normal = "normal" in draft.text.lower()
    other = "low_latency" if normal else "normal"
    draft.add("deepep-mode", other, "the other dispatch mode")


def _longer_timeout(draft: Draft) -> None:
    if draft.run.progress.jit_line is not None or draft.flags.on("dist-timeout"):
        draft.add(
            "dist-timeout", 3600, "a rank was still compiling; a longer timeout, or compile the kernels beforehand"
        )


def _lower_host_memory(draft: Draft) -> None:
    if draft.numbers.fraction is not None:
        value = math.floor(min(draft.numbers.fraction, 1.0) * 0.85 * 1000) / 1000
        draft.add("mem-fraction-static", value, "on a CPU the KV pool is host memory")


def _ablate(draft: Draft) -> None:
    """After a device fault the frame is asynchronous: leave out what is optional, one at a time."""
    _drop_blamed(draft)


def _eagle3(draft: Draft) -> None:
    draft_model = str(draft.flags.value("speculative-draft-model-path") or "")
    if "eagle3" in draft_model.lower().replace("-", ""):
        draft.add("speculative-algorithm", "EAGLE3", "the draft model is an EAGLE-3 one")


STEPS: Mapping[str, Callable[[Draft], None]] = {
    "raise_fraction": _raise_fraction,
    "lower_fraction": _lower_fraction,
    "shrink_graphs": _shrink_graphs,
    "shrink_prefill_graphs": _shrink_prefill_graphs,
    "no_prefill_graph": _no_prefill_graph,
    "shrink_chunk": _shrink_chunk,
    "shrink_running": _shrink_running,
    "less_weight_memory": _less_weight_memory,
    "rename_flags": _rename_flags,
    "nearest_choice": _nearest_choice,
    "drop_blamed": _drop_blamed,
    "other_runner": _other_runner,
    "other_kernels": _other_kernels,
    "advised": _advised,
    "no_autotune": _no_autotune,
    "raise_dispatch_cap": _raise_dispatch_cap,
    "expert_parallel": _expert_parallel,
    "dp_attention": _dp_attention,
    "other_mode": _other_mode,
    "longer_timeout": _longer_timeout,
    "lower_host_memory": _lower_host_memory,
    "ablate": _ablate,
    "eagle3": _eagle3,
}
