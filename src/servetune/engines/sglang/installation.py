"""Layer 1 from the target itself: the flags of the SGLang that is installed on a node, whatever kind of node it is.

A small program is sent to the engine's Python over the node's own means (`core.preflight.OffersConversation`). It reads
the source without importing anything; kept here by version and content hash, so that an installation is read once.
The parser itself (`--help`) is asked only where the source does not tell: importing SGLang for it takes 9 s of CPU.
In 0.5.9, 0.5.13 and 0.5.23 it says of 331, 406 and 531 flags what the source says, and the choices of one that the
source computes; what plug-ins add, and a source of an unknown shape, only the parser knows.
"""

from __future__ import annotations

import importlib.resources
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from servetune.core.errors import ProgramEndedError
from servetune.core.preflight import Helper
from servetune.engines.sglang._source import Flag
from servetune.engines.sglang._table import Capabilities, capabilities_from, keep_flags, kept_flags

#: Reads its modules from the first line of its input, under their own names: nothing is written on the node.
BOOTSTRAP = (
    "import json, sys, types\n"
    "texts = json.loads(sys.stdin.readline())\n"
    "for name, text in texts.items():\n"
    "    module = sys.modules[name] = types.ModuleType(name)\n"
    "    module.__path__ = []\n"
    "    owner, _, last = name.rpartition('.')\n"
    "    exec(compile(text, name, 'exec'), module.__dict__)\n"
    "    owner and setattr(sys.modules[owner], last, module)\n"
    "sys.modules[name].main()\n"
)
_PACKAGE = "servetune.engines.sglang"
_PROGRAM = ("_source_modules", "_source", "_parser_program")
#: Reading the source takes a second; importing SGLang from a slow file system takes minutes.
SOURCE_S, PARSER_S = 120.0, 600.0
#: A flag of every release: without it something else was read.
_SURE = "model-path"


def read_installation(
    start: Callable[[Sequence[str]], Helper], python: str, version: str, named: Iterable[str]
) -> tuple[Capabilities | None, str]:
    """What the installed `version` takes, and a sentence where that is not plain.

    `start` starts a command on the node. `named`: flags that a study names; one that the source does not know is looked
    for in the parser before it is called unknown. None where the installation cannot be read, or is another version:
    the shipped tables answer then.
    """
    try:
        with closing(start((python, "-u", "-c", BOOTSTRAP))) as talk:
            return _read(_Talk(talk), version, frozenset(named))
    except ProgramEndedError as error:
        return None, f"the installed SGLang's own flags cannot be read ({error}): the shipped tables answer"


def _read(talk: _Talk, version: str, named: frozenset[str]) -> tuple[Capabilities | None, str]:
    found = talk.ask("installation", SOURCE_S)
    if "error" in found or found["version"] != version:
        return None, ""  # an engine that only the study names, or none: nothing is said about it
    digest, plugins = found["hash"], found["plugins"]
    flags, complete = kept_flags(version, digest)
    note = ""
    if flags is None:
        flags = _sure(talk.ask("source", SOURCE_S))
    if not complete and (not flags or plugins or named - _spellings(flags)):
        said = talk.ask("parser", PARSER_S)
        told = _sure(said)
        complete = bool(told)
        flags = _merged(flags or {}, told) if told else flags
        if not told and (plugins or not flags):
            note = f"the parser of SGLang {version} cannot be asked ({said.get('error', 'it has no --model-path')})"
    if not flags:
        return None, f"{note or 'the installed flags cannot be read'}: the shipped tables answer"
    keep_flags(version, digest, flags, complete)
    if plugins and complete:
        note = f"SGLang {version} has plug-ins ({', '.join(plugins)}): its flags are those of its own parser"
    return capabilities_from(version, flags), note


def _merged(source: Mapping[str, Flag], parser: Mapping[str, Flag]) -> dict[str, Flag]:
    """The parser knows which flags and choices there are; the source knows kinds and what to write instead."""
    found = {}
    for name, flag in parser.items():
        read = source.get(name, {})
        known: Flag = {key: flag[key] for key in ("choices", "nargs", "aliases") if key in flag}
        if set(known.get("choices", ())) == set(read.get("choices", ())):
            known.pop("choices", None)  # a set of them has another order each time
        found[name] = {**flag, **read, **known}
    return found


def _sure(told: Mapping[str, Any]) -> dict[str, Flag]:
    flags: dict[str, Flag] = told.get("flags") or {}
    return flags if _SURE in _spellings(flags) else {}


def _spellings(flags: Mapping[str, Flag]) -> frozenset[str]:
    return frozenset(word for name, flag in flags.items() for word in (name, *flag.get("aliases", ())))


class _Talk:
    def __init__(self, talk: Helper) -> None:
        self._talk = talk
        self._lines: list[str] = []
        folder = importlib.resources.files(_PACKAGE)
        owners: dict[str, str] = {"servetune": "", "servetune.engines": "", _PACKAGE: ""}
        texts: dict[str, str] = {
            f"{_PACKAGE}.{name}": folder.joinpath(f"{name}.py").read_text("utf-8") for name in _PROGRAM
        }
        talk.send(json.dumps({**owners, **texts}))

    def ask(self, question: str, timeout_s: float) -> dict[str, Any]:
        """Raises ProgramEndedError."""
        self._talk.send(json.dumps(question))
        until_s = time.monotonic() + timeout_s
        while not self._lines:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise ProgramEndedError(f"no answer within {timeout_s:g} s")
            self._lines += self._talk.receive(left_s)
        line = self._lines.pop(0)
        try:
            told = json.loads(line)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise ProgramEndedError(f"it answered {line[:200]!r}")
        return told
