"""What was asked for and the engine does otherwise, where a line says so: the option that the words of a change name.

A change counts against an option only when it was asked for and its words name that option and no other one.
"""

from __future__ import annotations

import re
from dataclasses import replace

from servetune.engines.sglang._log_args import ALIASES, is_set
from servetune.engines.sglang._log_changes import Change
from servetune.engines.sglang._log_flags import LaunchFlags, accused, value_in
from servetune.engines.sglang._log_notices import Notice

#: What may stand before and behind an option's name; any other word makes it another one's ("soft watchdog timeout").
_BEFORE = frozenset(("", "the", "specified", "requested", "given", "your", "and", "or", "explicit", "option", "flag"))
_BEHIND = frozenset(("", "option", "flag", "argument", "setting", "value", "parameter", "mode", "backend", "size"))
#: What nobody tunes; the engine may say what it likes of it.
_NEUTRAL = re.compile(r"path$|name$|^host|port$|^log|timeout|seed|^device|trust|parser|template|revision|api-key")
#: The engine may take less of these than was asked, as far as the memory goes; half of it is another launch.
_LIMITS = ("max-running-requests", "max-total-tokens", "cuda-graph-max-bs", "cuda-graph-max-bs-decode")
#: What an option's value stands beside when the value names it: "flashinfer_cutlass MoE runner".
_NOUNS = {
    "attention-backend": ("attention", "backend", "kernel", "kernels", "decode", "prefill", "mla", "mha"),
    "moe-runner-backend": ("moe", "runner", "backend", "kernel", "kernels", "experts"),
    "moe-a2a-backend": ("moe", "a2a", "backend", "dispatcher", "all", "to"),
}


def resolved(notice: Notice, flags: LaunchFlags) -> Notice:
    """A notice that names its option in words, with what was asked for and the words name."""
    if not notice.subject:
        return notice
    found = [flag for change in notice.changes for flag in replaced(change, flags)]
    return replace(notice, flags=tuple(dict.fromkeys(found)))


def replaced(change: Change, flags: LaunchFlags) -> list[str]:
    """What was asked for among what a change names, where the engine does otherwise."""
    switches = [flag for flag in accused(change.words, "", flags) if flag.startswith("enable-") and flags.on(flag)]
    flags = flags if flags.asked else _limits(flags)
    asked = [flag for flag, value in flags.asked.items() if is_set(value) and _is_named(flag, change, flags)]
    others = [flag for flag in asked if not flag.startswith(("enable-", "disable-")) and _is_other(flag, change, flags)]
    changed = [flag for flag in others if flags.effective.get(flag, flags.asked[flag]) != flags.asked[flag]]
    if len(others) > 1 and change.off and changed:
        others = changed  # one value, several options that have it: the arguments show which was changed
    return [*(switches if change.off else ()), *others]


def _limits(flags: LaunchFlags) -> LaunchFlags:
    """Where no command is known: limits that the arguments show were asked for, since the engine leaves them open."""
    return replace(flags, asked={flag: flags.effective[flag] for flag in _LIMITS[:2] if flag in flags.effective})


def _is_named(flag: str, change: Change, flags: LaunchFlags) -> bool:
    """Whether a change names a flag: as typed, as its field, as its words; or by the value that it was given."""
    if _NEUTRAL.search(flag):
        return False
    words = change.words
    for match in re.finditer(rf"(?i)(?:^|(?<=[^\w-]))(?:--)?(?:{_names(flag, change)})(?![\w-])", words):
        before = re.split(r"[\s_=-]+", words[: match.start()].rstrip(" -_=`'"))[-1].lower().strip("`'")
        behind = re.split(r"[\s=]+", words[match.end() :].strip("`' "))[0].lower()
        if before in _BEFORE and (behind in _BEHIND or words[match.end() : match.end() + 1] == "="):
            return True
    return change.off and _is_named_by_value(flag, words, str(flags.asked[flag]))


def _names(flag: str, change: Change) -> str:
    plain = flag.removeprefix("enable-")
    names = [plain, *(alias for alias, name in ALIASES.items() if name == flag and alias.count("-") > 1)]
    if plain.startswith("speculative-") and plain.count("-") > 1:
        names.append(plain.removeprefix("speculative-"))
    if change.off and plain.count("-") > 1:
        names.append(re.sub(r"-(?:size|backend|mode|path)$", "", plain))
    return "|".join(re.escape(name).replace(r"\-", "[-_ ]") for name in names)


def _is_named_by_value(flag: str, words: str, value: str) -> bool:
    nouns = _NOUNS.get(flag) or (flag.split("-") if flag.startswith("hicache-") else ())
    if not nouns or not value_in(value, words):
        return False
    plain = words.lower().replace("-", "_").replace(" ", "_")
    rest = {word for word in plain.replace(value.lower().replace("-", "_"), "", 1).split("_") if word}
    return bool(rest) and rest <= {*nouns, "layout", "mode", "the"}


def _is_other(flag: str, change: Change, flags: LaunchFlags) -> bool:
    """Whether what the engine made of a flag is not what was asked for."""
    asked, number = flags.asked[flag], re.fullmatch(r"\d{1,12}", change.target)
    if isinstance(asked, int | float) and not isinstance(asked, bool) and not change.off:
        return number is not None and (int(number[0]) <= asked / 2 if flag in _LIMITS else int(number[0]) != asked)
    return (change.off and not change.target) or not _same_word(str(asked), change.target)


def _same_word(asked: str, target: str) -> bool:
    """Whether a value is the one that was asked for, however it is spelt (`torch.float8_e4m3fn` for `fp8_e4m3`)."""
    plain = [re.sub(r"torch\.|[^a-z0-9.]", "", word.lower()).replace("float", "fp") for word in (asked, target)]
    one, other = (word.replace("bf16", "bfp16") for word in plain)
    return one in other
