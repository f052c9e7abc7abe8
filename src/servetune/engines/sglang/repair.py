"""What to change after a crash: a step for each name in the table of failure classes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any

from servetune.core.failure import Repair
from servetune.core.space import Value
from servetune.engines.sglang._failure_table import Step
from servetune.engines.sglang._log_args import flag_name, is_set, spelled
from servetune.engines.sglang._repair_advice import raised
from servetune.engines.sglang._repair_memory import (
    less_weight_memory,
    lower_fraction,
    lower_host_memory,
    no_prefill_graph,
    raise_fraction,
    shrink_chunk,
    shrink_graphs,
    shrink_prefill_graphs,
    shrink_running,
    shrink_running_if_many,
)
from servetune.engines.sglang._repair_numbers import Draft
from servetune.engines.sglang._repair_sizes import (
    chunk_within_buffer,
    chunk_within_cap,
    fitting_redundancy,
    fitting_tp,
    other_graph_sizes,
    raise_dispatch_cap,
    running_within_cap,
    shrink_host_cache,
)
from servetune.engines.sglang._repair_words import advised, mend_value, named_without, typed, wanted
from servetune.engines.sglang._unused_graphs import graphs_for_all_ranks

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
                value = typed(draft.groups.get(value))
                if value is None:
                    continue
            if verb == "set_if" and not draft.flags.on(flag):
                continue
            if not is_set(value) and draft.flags.known and not draft.flags.on(flag):
                continue
            if draft.flags.value(flag) != value:
                draft.add(flag, value, "it should avoid this failure")


def _drop(draft: Draft, flag: str) -> None:
    if draft.flags.on(flag) or (flag in draft.blamed and _may_be_on(draft, flag)):
        draft.add(flag, None, "the failure is about it")


def _halve(draft: Draft, flag: str) -> None:
    value = draft.current(flag)
    if value is not None and value >= 2:
        draft.add(flag, int(value) // 2, f"{spelled(flag)} {value:g} does not fit; half of it may")


def _drop_blamed(draft: Draft) -> None:
    needed = wanted(draft.text)
    for flag in draft.blamed:
        if flag in needed and not draft.flags.on(flag):
            continue
        if flag.startswith("disable-") and not draft.flags.on(flag):
            draft.add(flag, True, "the engine then takes another path")
        elif _may_be_on(draft, flag) and not flag.startswith(("tp-size", "mem-fraction", "model-path")):
            draft.add(flag, None, "without it the engine takes another path")


def _may_be_on(draft: Draft, flag: str) -> bool:
    """Whether the flag is on; where the log shows no flags at all, what it blames was given."""
    return draft.flags.on(flag) or not draft.flags.known


def _rename_flags(draft: Draft) -> None:
    known = {flag.lstrip("-") for flag in draft.run.usage_flags}
    asked = re.findall(r"--([A-Za-z][\w-]*)(?:[ =]([^\s-]\S*))?", draft.groups.get("flags") or "")
    choices = re.findall(r"--([a-z][\w-]*)", draft.groups.get("choices") or "")
    for name, value in asked:
        old = name.replace("_", "-")
        renamed, fixed = RENAMED.get(old, (None, None))
        new = choices[0] if choices else renamed
        if new is None and "_" in name:
            new = old
        if new is None:
            near = difflib.get_close_matches(old, sorted(known), n=1, cutoff=0.8)
            new = near[0] if near else None
        if new and new != name:
            draft.add(new, _new_value(draft, old, new, fixed, value), f"--{new} takes the place of --{name}")
        draft.add(name if "_" in name else flag_name(name), None, f"--{name} does not exist in this version")


def _new_value(draft: Draft, old: str, new: str, fixed: Value | None, value: str) -> Value:
    if fixed is not None:
        return fixed
    if value:
        return int(value) if value.isdecimal() and len(value) < 16 else value
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
        if now == "flashinfer_cutlass":
            return  # the one runner that every version takes with the other all-to-all backends
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
        elif flag == "ep-size":
            draft.add(flag, 1, "each rank then holds a part of every expert")
        elif _may_be_on(draft, flag) and not flag.startswith(("tp-size", "model-path", "mem-fraction")):
            draft.add(flag, None, "other kernels are then used")


def _no_autotune(draft: Draft) -> None:
    draft.add("disable-flashinfer-autotune", True, "if it fails again: run without kernel autotuning")


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
    """The dispatch mode that a message allows ("low_latency mode only"), else the other than the one it refuses."""
    said = draft.text.partition("\n")[0].lower()
    normal = ("normal" in said) == ("only" in said)
    draft.add("deepep-mode", "normal" if normal else "low_latency", "the other dispatch mode")


def _longer_timeout(draft: Draft) -> None:
    if draft.run.progress.jit_line is not None or draft.flags.on("dist-timeout"):
        draft.add(
            "dist-timeout", 3600, "a rank was still compiling; a longer timeout, or compile the kernels beforehand"
        )


def _ablate(draft: Draft) -> None:
    """After a device fault the frame is asynchronous: leave out what is optional, one at a time."""
    _drop_blamed(draft)


def _eagle3(draft: Draft) -> None:
    draft_model = str(draft.flags.value("speculative-draft-model-path") or "")
    if "eagle3" in draft_model.lower().replace("-", ""):
        draft.add("speculative-algorithm", "EAGLE3", "the draft model is an EAGLE-3 one")


STEPS: Mapping[str, Callable[[Draft], None]] = {
    "raise_fraction": raise_fraction,
    "lower_fraction": lower_fraction,
    "shrink_graphs": shrink_graphs,
    "shrink_prefill_graphs": shrink_prefill_graphs,
    "no_prefill_graph": no_prefill_graph,
    "shrink_chunk": shrink_chunk,
    "shrink_running": shrink_running,
    "shrink_running_if_many": shrink_running_if_many,
    "running_within_cap": running_within_cap,
    "chunk_within_cap": chunk_within_cap,
    "chunk_within_buffer": chunk_within_buffer,
    "fitting_tp": fitting_tp,
    "less_weight_memory": less_weight_memory,
    "rename_flags": _rename_flags,
    "mend_value": mend_value,
    "nearest_choice": _nearest_choice,
    "drop_blamed": _drop_blamed,
    "other_runner": _other_runner,
    "other_kernels": _other_kernels,
    "advised": advised,
    "named_without": named_without,
    "no_autotune": _no_autotune,
    "raise_dispatch_cap": raise_dispatch_cap,
    "raise_named": raised,
    "other_graph_sizes": other_graph_sizes,
    "graphs_for_all_ranks": graphs_for_all_ranks,
    "fitting_redundancy": fitting_redundancy,
    "shrink_host_cache": shrink_host_cache,
    "expert_parallel": _expert_parallel,
    "dp_attention": _dp_attention,
    "other_mode": _other_mode,
    "longer_timeout": _longer_timeout,
    "lower_host_memory": lower_host_memory,
    "ablate": _ablate,
    "eagle3": _eagle3,
}
