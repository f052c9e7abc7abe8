"""`--config FILE`: flags in a YAML file, merged into a command as SGLang's own launcher merges them.

Source: `server_args_config_parser.py:ConfigArgumentMerger` (0.5.20+: `utils/server_args_config_parser.py`), called by
`prepare_server_args`. The file's flags come first, so that those of the command win.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from servetune.core.engine import Violation
from servetune.engines.sglang.capabilities import Capabilities, version_key, violation_of

FLAG = "--config"
#: Kinds whose argparse action the launcher does not merge: it takes switches and flags of one value.
_NOT_MERGED = ("on_off", "ignored", "removed")


class _Wrong(Exception):
    """What is wrong about the file, in a sentence."""


def with_config(argv: Sequence[str], capabilities: Capabilities) -> tuple[list[str], list[Violation], str]:
    """The command with its file's flags, what is wrong about the file, and a sentence where it is not read.

    A file that does not lie on this machine may lie on the node: nothing is refused for it.
    """
    words = list(argv)
    if FLAG not in words:
        joined = any(word.startswith(f"{FLAG}=") for word in words)
        return words, [], f"SGLang reads the file of {FLAG} only where it stands as a word of its own" if joined else ""
    at, begin = words.index(FLAG), _program_words(words)
    own = [*words[begin:at], *words[at + 2 :]]
    try:
        if FLAG in own or at == len(words) - 1:
            raise _Wrong("it takes one file, and is given once")
        entries = _entries(Path(words[at + 1]))
    except OSError:
        return words, [], f"flags in the file of {FLAG} {words[at + 1]} are not read: it is not on this machine"
    except _Wrong as wrong:
        own = [word for word in own if word != FLAG]
        return [*words[:begin], *own], [_violation(f"{' '.join(words[at : at + 2])}: {wrong}", capabilities)], ""
    refused = {key for key in entries if _refused(key, capabilities)}
    problems = [
        _violation(f"{FLAG} {words[at + 1]}: {key} cannot stand in a file, only on the command line", capabilities, key)
        for key in sorted(refused)
    ]
    merged = _words({key: value for key, value in entries.items() if key not in refused}, capabilities)
    return [*words[:begin], *merged, *own], problems, ""


def _entries(path: Path) -> dict[str, Any]:
    """Raises _Wrong, OSError."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise _Wrong("the file's name ends in .yaml or .yml")
    try:
        loaded = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _Wrong(f"it is no YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(loaded, dict | None):
        raise _Wrong(f"it holds a {type(loaded).__name__}, not a mapping of flags")
    return {str(key): value for key, value in (loaded or {}).items()}


def _program_words(words: Sequence[str]) -> int:
    """How many words come before the flags: variables, and the program in whatever spelling."""
    return next((place for place, word in enumerate(words) if word.startswith("--")), len(words))


def _refused(key: str, capabilities: Capabilities) -> bool:
    flag = capabilities.spellings.get(key.replace("_", "-"))
    return flag is not None and flag.kind in _NOT_MERGED


def _words(entries: Mapping[str, Any], capabilities: Capabilities) -> Iterator[str]:
    """A key stands on the command line as it is written: one with underscores is a flag that nobody knows."""
    for key, value in entries.items():
        flag = capabilities.spellings.get(key.replace("_", "-"))
        if isinstance(value, bool):
            if flag is None or flag.kind != "switch":
                yield from (f"--{key}", str(value).lower())
            elif value:
                yield f"--{key}"
        elif isinstance(value, list):
            yield from (f"--{key}", *map(str, value)) if value else ()
        elif isinstance(value, dict) and version_key(capabilities.version) >= (0, 5, 15):
            yield from (f"--{key}", json.dumps(value))
        else:
            yield from (f"--{key}", str(value))


def _violation(text: str, capabilities: Capabilities, flag: str = "config") -> Violation:
    return violation_of("config-file", flag, text, capabilities)
