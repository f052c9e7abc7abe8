"""What is wrong with a command for one SGLang version, and the version's capabilities (layer 1 of the checks).

`capabilities_of(version)` answers from the shipped tables, `read_capabilities(site_dir)` from an installed package;
`translate` puts an assignment into the version's spelling; `violations` judges one as it is written.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Sequence

from servetune.core.engine import Violation
from servetune.core.space import Assignment, Value
from servetune.engines.sglang._table import (
    Capabilities,
    FlagSpec,
    capabilities_of,
    in_some_release,
    newest,
    read_capabilities,
    releases_with,
    version_key,
)
from servetune.engines.sglang._translation import equivalents, translate

__all__ = [
    "RESERVED",
    "Capabilities",
    "FlagSpec",
    "capabilities_of",
    "read_capabilities",
    "releases_with",
    "translate",
    "unchecked",
    "unknown_flag",
    "version_key",
    "violation_of",
    "violations",
]

#: Set by servetune itself on every launch; a study cannot give them.
RESERVED = frozenset({"model-path", "host", "port"})

_SOURCE = "server_args.py (flags of SGLang {version})"
_SHOWN = 8
_HUMAN_INT = re.compile(r"\d+(\.\d+)?[kMGT]|\d+[KMGT]i")


def violations(assignment: Assignment, capabilities: Capabilities) -> list[Violation]:
    """What is wrong with a command as written: unknown flags, values of a wrong type, choices that do not exist."""
    found = []
    for name, value in assignment.items():
        if not name.startswith("env."):
            violation = _judged(name, value, capabilities)
            if violation is not None:
                found.append(violation)
    return found


def _judged(name: str, value: Value, capabilities: Capabilities) -> Violation | None:
    flag = capabilities.spellings.get(name)
    if value is False and (flag is None or flag.kind in ("switch", "removed")):
        return None  # it does not stand on the command line
    if flag is None or flag.kind == "removed":
        return unknown_flag(name, value, capabilities)
    if flag.kind == "ignored":
        return None
    if not flag.valued:
        if isinstance(value, bool):
            return None
        text = f"--{name} is a switch and takes no value, got {value!r}; write true or leave it out"
        return violation_of("wrong-type", name, text, capabilities, ("true", "false"))
    if isinstance(value, bool):
        if value and flag.nargs in ("?", "*"):
            return None
        allowed = f"one of {_words(flag.choices)}" if flag.choices else _wanted(flag)
        text = f"--{name} needs a value, got {str(value).lower()}; allowed: {allowed}"
        return violation_of("wrong-type", name, text, capabilities)
    words = str(value).split() if flag.nargs in ("+", "*") else [str(value)]
    for word in words or [""]:
        if not _has_kind(word, flag.kind):
            text = f"--{name} takes {_wanted(flag)}, got {word!r}"
            return violation_of("wrong-type", name, text, capabilities)
        if flag.choices is not None and word not in map(str, flag.choices):
            return _wrong_choice(flag, word, capabilities)
    return None


def unknown_flag(name: str, value: Value, capabilities: Capabilities) -> Violation:
    """The violation for a flag that this version does not know: the translation, or else the nearest flags."""
    known = releases_with(name)
    since = f"; releases with it: {known}" if known else ""
    flag = capabilities.spellings.get(name)
    advice = f"; {flag.instead}" if flag is not None and flag.instead else ""
    same = equivalents(name, value, capabilities)
    near = same or tuple(f"--{other}" for other in capabilities.nearest(name))
    text = f"SGLang {capabilities.version} has no flag --{name}{since}{advice}"
    return violation_of("unknown-flag", name, text, capabilities, near)


def unchecked(names: Iterable[str]) -> Iterator[str]:
    """Of flags named where nobody knows the version: that they are not checked, and which no release has."""
    flags = [name for name in names if not name.startswith("env.")]
    unknown = [name for name in flags if not in_some_release(name)]
    named = sorted(flags, key=lambda name: name not in unknown)
    if named:
        shown = ", ".join(named[:_SHOWN]) + (", …" if len(named) > _SHOWN else "")
        yield (
            f"{len(named)} flag{'s' if len(named) > 1 else ''} could not be checked ({shown}): the engine's version is "
            "not known; add --engine-version, or name the version in the file (engine: {version: …})"
        )
    for name in unknown:
        near = " or ".join(f"--{other}" for other in newest().nearest(name))
        yield f"--{name} is in no table of SGLang's flags, of any release{f'; did you mean {near}?' if near else ''}"


def _wrong_choice(flag: FlagSpec, word: str, capabilities: Capabilities) -> Violation:
    known = releases_with(flag.name, word)
    since = f"; releases with it: {known}" if known else ""
    choices = tuple(map(str, flag.choices or ()))
    same = equivalents(flag.name, word, capabilities)
    near = same or tuple(difflib.get_close_matches(word, choices, n=3, cutoff=0.5)) or choices
    text = f"--{flag.name} {word} is no choice of SGLang {capabilities.version}{since}; allowed: {_words(choices)}"
    return violation_of("unknown-choice", flag.name, text, capabilities, near)


def violation_of(
    rule: str, name: str, message: str, capabilities: Capabilities, alternatives: Sequence[str] = ()
) -> Violation:
    """A violation of the capability layer."""
    source = _SOURCE.format(version=capabilities.table or capabilities.version)
    return Violation(
        rule=rule,
        layer="capability",
        flags=(name,),
        message=message,
        alternatives=tuple(alternatives),
        source=source,
    )


def _has_kind(word: str, kind: str) -> bool:
    try:
        if kind == "int" or (kind == "human_int" and not _HUMAN_INT.fullmatch(word.strip())):
            int(word)
        elif kind == "float":
            float(word)
        elif kind == "json":
            json.loads(word)
    except ValueError:
        return False
    return True


def _wanted(flag: FlagSpec) -> str:
    word = {"int": "a whole number", "human_int": "a whole number (8k and 1Mi are allowed)", "float": "a number"}
    one = word.get(flag.kind, "JSON text" if flag.kind == "json" else "text")
    return f"one or more of {one}" if flag.nargs in ("+", "*") else one


def _words(values: Iterable[object] | None) -> str:
    return ", ".join(map(str, values or ()))
