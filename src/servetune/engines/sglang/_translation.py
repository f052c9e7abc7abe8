"""The same thing in another version's words: flags that were renamed, replaced by a value, or split in two.

Sources: the deprecated spellings that SGLang registers itself (`ServerArgs.add_cli_args`), and the resolution code
that maps them (`__post_init__` of 0.5.2 for the MoE switches, `_handle_dp_attention` of 0.5.22).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servetune.core.space import Assignment, Value, same_value
from servetune.engines.sglang._table import Capabilities, version_key

#: Flags with the same meaning and the same values: older name, newer name.
RENAMED = (
    ("cuda-graph-max-bs", "cuda-graph-max-bs-decode"),
    ("cuda-graph-bs", "cuda-graph-bs-decode"),
    ("piecewise-cuda-graph-max-tokens", "cuda-graph-max-bs-prefill"),
    ("piecewise-cuda-graph-tokens", "cuda-graph-bs-prefill"),
    ("piecewise-cuda-graph-compiler", "cuda-graph-tc-compiler"),
    ("nsa-prefill", "nsa-prefill-backend"),
    ("nsa-decode", "nsa-decode-backend"),
    ("nsa-prefill-backend", "dsa-prefill-backend"),
    ("nsa-decode-backend", "dsa-decode-backend"),
    ("nsa-prefill-cp-mode", "dsa-prefill-cp-mode"),
    ("enable-nsa-prefill-context-parallel", "enable-dsa-prefill-context-parallel"),
    ("stream-output", "incremental-streaming-output"),
    ("mamba-scheduler-strategy", "mamba-radix-cache-strategy"),
    ("speculative-dflash-draft-window-size", "speculative-draft-window-size"),
    ("enable-gdn-replayssm-spec", "enable-linear-replayssm-spec"),
    ("enable-deepep-waterfill", "enable-waterfill"),
    ("max-micro-batch-size", "pp-max-micro-batch-size"),
    ("optimistic-prefill-retries", "optimistic-prefill-attempts"),
    ("oltp-traces-endpoint", "otlp-traces-endpoint"),
    ("env.SGLANG_CUTEDSL_MOE_NVFP4_DISPATCH", "env.SGLANG_MOE_NVFP4_DISPATCH"),
)


@dataclass(frozen=True)
class Form:
    """One way to say something, for releases from `since` up to and including `until`."""

    flags: Mapping[str, Value]
    since: str = "0"
    until: str = "999"

    def fits(self, capabilities: Capabilities) -> bool:
        """Whether the version accepts every flag and choice of it."""
        if not version_key(self.since) <= version_key(capabilities.version) <= version_key(self.until):
            return False
        return all(_accepted(flag, value, capabilities) for flag, value in self.flags.items())

    def current(self, capabilities: Capabilities) -> bool:
        """Whether none of its flags is deprecated."""
        return not any(capabilities.spellings[flag].deprecated for flag in self.flags)


def _runner(old: str, value: str) -> tuple[Form, ...]:
    return Form({"moe-runner-backend": value}), Form({old: True})


def _backend(flag: str, *words: str) -> tuple[Form, ...]:
    return tuple(Form({flag: word}) for word in words)


#: Each group lists ways to say one and the same thing, best first.
EQUIVALENT: tuple[tuple[Form, ...], ...] = (
    (  # no graph for prefill; before 0.5.10 that is what leaving everything out means
        Form({"cuda-graph-backend-prefill": "disabled"}),
        Form({"disable-prefill-cuda-graph": True}),
        Form({"disable-piecewise-cuda-graph": True}),
        Form({"enable-piecewise-cuda-graph": False}, until="0.5.9"),
        Form({}, until="0.5.3"),
    ),
    (  # prefill graph compiled piece by piece, whatever the automatic choice would be
        Form({"cuda-graph-backend-prefill": "tc_piecewise"}),
        Form({"enforce-piecewise-cuda-graph": True}),
        Form({"enable-piecewise-cuda-graph": True}, until="0.5.9"),
    ),
    (Form({"cuda-graph-backend-prefill": "breakable"}), Form({"enable-breakable-cuda-graph": True})),
    (Form({"cuda-graph-backend-decode": "full"}), Form({}, until="0.5.13")),
    (Form({"cuda-graph-backend-decode": "disabled"}), Form({"disable-decode-cuda-graph": True})),
    (Form({"flashinfer-allreduce-fusion-backend": "auto"}), Form({"enable-flashinfer-allreduce-fusion": True})),
    (Form({"moe-a2a-backend": "deepep"}), Form({"enable-deepep-moe": True})),
    _runner("enable-flashinfer-cutlass-moe", "flashinfer_cutlass"),
    _runner("enable-flashinfer-trtllm-moe", "flashinfer_trtllm"),
    _runner("enable-flashinfer-mxfp4-moe", "flashinfer_mxfp4"),
    _runner("enable-flashinfer-cutedsl-moe", "flashinfer_cutedsl"),
    _runner("enable-triton-kernel-moe", "triton_kernel"),
    *(
        _backend(flag, *words)
        for flag in ("attention-backend", "prefill-attention-backend", "decode-attention-backend")
        for words in (("dsa", "nsa"), ("cutedsl_mla", "tokenspeed_mla"), ("dsv4", "compressed"))
    ),
)

#: Each group with every flag that one of its forms is made of: most assignments have none of them.
_GROUPS = tuple((group, frozenset(flag for form in group for flag in form.flags)) for group in EQUIVALENT)


def translate(assignment: Assignment, capabilities: Capabilities) -> tuple[dict[str, Value], list[str]]:
    """The assignment in the spelling of the version, and one sentence per thing that was changed.

    Only exact equivalents are used. What has none stays as it is (`violations` then names it); a switch that is false
    and unknown is left out, which is what false means. Aliases become the flag's own name.
    """
    found, notes = dict(assignment), list[str]()
    for name in list(found):
        flag = capabilities.spellings.get(name)
        if flag is not None and flag.name != name:
            _put(found, (name,), {flag.name: found[name]})
    for pair in RENAMED:
        _rename(found, pair, capabilities, notes)
    for group, flags in _GROUPS:
        if not flags.isdisjoint(found):
            _say_otherwise(found, group, capabilities, notes)
    _translate_sizes(found, capabilities, notes)
    for name, value in list(found.items()):
        if value is False and name not in capabilities.spellings and not name.startswith("env."):
            del found[name]
    return found, notes


def _rename(found: dict[str, Value], pair: tuple[str, str], capabilities: Capabilities, notes: list[str]) -> None:
    for name, other in (pair, pair[::-1]):
        stale = name in found and other not in found and _is_stale(name, capabilities)
        if stale and _is_known(other, capabilities) and _takes(other, found[name], name, capabilities):
            notes.append(f"{_word(name)} becomes {_word(other)} for SGLang {capabilities.version}")
            _put(found, (name,), {other: found[name]})


def _takes(other: str, value: Value, name: str, capabilities: Capabilities) -> bool:
    """Whether nothing is refused that was accepted: an old spelling may take words that the new one does not."""
    flag = capabilities.spellings.get(other)
    return name not in capabilities.spellings or flag is None or flag.choices is None or value in flag.choices


def _word(name: str) -> str:
    return name.removeprefix("env.") if name.startswith("env.") else f"--{name}"


def _say_otherwise(
    found: dict[str, Value], group: Sequence[Form], capabilities: Capabilities, notes: list[str]
) -> None:
    used = next((form for form in group if form.flags and _contains(found, form.flags)), None)
    if used is None or (used.fits(capabilities) and used.current(capabilities)):
        return
    fitting = [form for form in group if form.fits(capabilities)]
    better = next((form for form in fitting if form.current(capabilities)), None)
    if better is not None and all(flag not in found or flag in used.flags for flag in better.flags):
        _note(notes, used.flags, better.flags, capabilities)
        _put(found, tuple(used.flags), better.flags)


def _translate_sizes(found: dict[str, Value], capabilities: Capabilities, notes: list[str]) -> None:
    """Sizes whose equivalent depends on another size."""
    attention, switch = found.get("attn-dp-size"), capabilities.spellings.get("enable-dp-attention")
    if attention is not None and not capabilities.knows("attn-dp-size") and "dp-size" not in found:
        old = {"dp-size": attention, "enable-dp-attention": True} if attention != 1 else {}
        _note(notes, {"attn-dp-size": attention}, old, capabilities)
        _put(found, ("attn-dp-size",), old)
    size = found.get("dp-size", 1)
    outdated = switch is not None and switch.deprecated and capabilities.knows("attn-dp-size")
    if outdated and found.get("enable-dp-attention") is True and size != 1 and attention is None:
        old = {"dp-size": size, "enable-dp-attention": True}
        _note(notes, old, {"attn-dp-size": size}, capabilities)
        _put(found, tuple(old), {"attn-dp-size": size})
    if found.get("enable-ep-moe") is True and not capabilities.knows("enable-ep-moe") and "ep-size" not in found:
        _note(notes, {"enable-ep-moe": True}, {"ep-size": found.get("tp-size", 1)}, capabilities)
        _put(found, ("enable-ep-moe",), {"ep-size": found.get("tp-size", 1)})


def equivalents(name: str, value: Value, capabilities: Capabilities) -> tuple[str, ...]:
    """What to write instead of one unknown flag, as on the command line; empty when nothing is the same."""
    translated, notes = translate({name: value}, capabilities)
    return (written(translated),) if notes and translated else ()


def written(flags: Mapping[str, Value]) -> str:
    """Flags as on the command line; a word for nothing."""
    words = []
    for flag, value in flags.items():
        if flag.startswith("env."):
            words.append(f"{flag.removeprefix('env.')}={value}")
        elif isinstance(value, bool):
            words.append(f"--{flag}" if value else f"no --{flag}")
        else:
            words.append(f"--{flag} {value}")
    return " ".join(words) or "nothing (left out)"


def _note(notes: list[str], old: Mapping[str, Value], new: Mapping[str, Value], capabilities: Capabilities) -> None:
    notes.append(f"{written(old)} becomes {written(new)} for SGLang {capabilities.version}")


def _put(found: dict[str, Value], old: Sequence[str], new: Mapping[str, Value]) -> None:
    """Replace flags where they stand, so that the order of the others is kept."""
    entries = list(found.items())
    place = min((position for position, (flag, _) in enumerate(entries) if flag in old), default=len(entries))
    rest = [(flag, value) for flag, value in entries if flag not in old and flag not in new]
    found.clear()
    found.update([*rest[:place], *new.items(), *rest[place:]])


def _contains(found: Assignment, flags: Mapping[str, Value]) -> bool:
    return all(flag in found and same_value(found[flag], value) for flag, value in flags.items())


def _is_known(name: str, capabilities: Capabilities) -> bool:
    if name.startswith("env."):
        return not capabilities.has_no_effect(name.removeprefix("env."))
    return capabilities.knows(name)


def _is_stale(name: str, capabilities: Capabilities) -> bool:
    flag = capabilities.spellings.get(name)
    return not _is_known(name, capabilities) or (flag is not None and flag.deprecated)


def _accepted(name: str, value: Value, capabilities: Capabilities) -> bool:
    flag = capabilities.spellings.get(name)
    if flag is None or not capabilities.knows(name):
        return False
    return isinstance(value, bool) == (not flag.valued) and (flag.choices is None or value in flag.choices)
