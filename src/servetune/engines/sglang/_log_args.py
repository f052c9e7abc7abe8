"""Arguments out of a log: the effective `server_args=` that the engine prints, and the command where one is shown.

Both are read by a tokenizer of our own; nothing of a log is ever evaluated.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from servetune.core.space import Value

_ARGS = re.compile(r"server_args=(?:ServerArgs\(|\{)")
#: The same in a raw line.
ARGUMENTS = re.compile(_ARGS.pattern.encode())
_COMMAND = re.compile(r"(?:sglang\.launch_server|launch_server(?:\.py)?|sglang serve|sglang::launch)\s+(?=-|\S+ -)")
_ENV = re.compile(r"^[+$# ]*(?:export )?([A-Z][A-Z0-9_]{2,})=(\S+)$")
_CONSTANTS = {"None": None, "True": True, "False": False}
_ESCAPED = re.compile(r"\\(['\"\\])")
_NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_PIECE = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^'"\[\](){}<>,]+|.""", re.S)
#: Spellings that mean the same flag, to the name that servetune uses (0.4.6 to 0.5.23).
ALIASES = {
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
    "attention-data-parallel-size": "attn-dp-size",
    "model": "model-path",
    "fp4-gemm-runner-backend": "fp4-gemm-backend",
    "fp8-gemm-runner-backend": "fp8-gemm-backend",
}
#: Values that mean that the option is off or left to the engine.
UNSET = (None, False, "", "auto", "none", "None", "[]", "{}", -1)


def flag_name(name: str) -> str:
    """The flag of a field or of an option as typed: `tp_size`, `--tp` → `tp-size`."""
    plain = name.strip().lstrip("-").replace("_", "-")
    return ALIASES.get(plain, plain)


def spelled(flag: str) -> str:
    """A flag as typed on a command line: `--tp-size`; an environment variable by its name."""
    return flag.removeprefix("env.") if flag.startswith("env.") else f"--{flag}"


def shows_arguments(text: str) -> bool:
    """Whether the engine prints its arguments in this line; the code in a frame only passes them on."""
    return "server_args=" in text and _ARGS.search(text) is not None


@lru_cache(maxsize=64)
def parse_server_args(text: str) -> Mapping[str, Any]:
    """Flag → value out of `server_args=ServerArgs(a=1, …)` or `server_args={'a': 1, …}`; empty when there is none.

    A cut line gives what is complete. Values that are not plain literals stay text.
    """
    match = _ARGS.search(text)
    if match is None:
        return {}
    separator = ":" if match.group().endswith("{") else "="
    found: dict[str, Any] = {}
    for item in _items(text, match.end()):
        key, mark, value = item.partition(separator)
        if mark:
            found[flag_name(key.strip().strip("'\""))] = _literal(value.strip())
    return found


def _items(text: str, start: int) -> Iterator[str]:
    """Top-level items of a bracketed list, up to the closing bracket or the end of the text."""
    depth, item = 0, list[str]()
    for match in _PIECE.finditer(text, start):
        piece = match.group()
        if piece in ("(", "[", "{", "<"):
            depth += 1
        elif piece in (")", "]", "}", ">"):
            depth -= 1
            if depth < 0:
                yield "".join(item)
                return
        if piece == "," and not depth:
            yield "".join(item)
            item = []
        else:
            item.append(piece)


def _literal(text: str) -> Any:
    """None, a truth value, a number or a quoted text; anything else stays as it is printed."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return _ESCAPED.sub(r"\1", text[1:-1])
    return _typed(text) if _NUMBER.fullmatch(text) else text


@lru_cache(maxsize=64)
def parse_command(text: str) -> tuple[dict[str, Value], dict[str, str]] | None:
    """Flags and environment of a launch command shown in a log line; None when it shows none.

    A crash loop shows the same commands again and again. A flag without a value is True. Words are split as a shell
    does, and as far as that works.
    """
    match = _COMMAND.search(text)
    if match is None or "Example:" in text or "<model>" in text:  # the engine's own advice shows no launch
        return None
    if text.lstrip().startswith("usage:"):  # of the parser: what may be given, not what was
        return None
    env = dict(re.findall(r"(?:^|\s)([A-Z][A-Z0-9_]{2,})=(\S+)", text[: match.start()]))
    return dict(_flags(_words(text[match.end() :]))), env


def parse_export(text: str) -> tuple[str, str] | None:
    """Name and value of an `export NAME=value` line as a shell trace prints it."""
    match = _ENV.match(text)
    return (match[1], match[2].strip("'\"")) if match and text.lstrip("+$# ").startswith("export") else None


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _flags(words: list[str]) -> Iterator[tuple[str, Value]]:
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--") or len(word) < 3:
            continue
        name, mark, value = word.partition("=")
        if not mark and index < len(words) and not words[index].startswith("--"):
            value, mark = words[index], "="
            index += 1
        yield flag_name(name), _typed(value) if mark else True


def _typed(text: str) -> Value:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return text if value in (math.inf, -math.inf) or value != value else value
    return text


def is_set(value: Any) -> bool:
    """Whether a value switches something on (as opposed to off, absent or left to the engine)."""
    return not any(value is off or (value == off and type(value) is type(off)) for off in UNSET)


def differences(passed: Mapping[str, Value], effective: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Flags that the engine changed: flag → (passed, effective). Only flags that were passed."""
    changed = {}
    for flag, value in passed.items():
        if flag in effective and effective[flag] != value and str(effective[flag]) != str(value):
            changed[flag] = (value, effective[flag])
    return changed
