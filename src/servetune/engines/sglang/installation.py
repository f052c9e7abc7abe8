"""Layer 1 from the target itself: the flags of the SGLang that is installed on a node, whatever kind of node it is.

A small program is sent to the engine's Python over the node's own means (`core.preflight.OffersConversation`). It reads
the source without importing anything; kept here by version and content hash, so that an installation is read once.
The parser itself (`--help`) is asked only where the source does not tell: importing SGLang for it takes 9 s of CPU.
In 0.5.9, 0.5.13 and 0.5.23 it says of 331, 406 and 531 flags what the source says, and the choices of one that the
source computes; what plug-ins add, and a source of an unknown shape, only the parser knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from servetune.core.errors import ProgramEndedError
from servetune.core.preflight import Helper
from servetune.engines.sglang._sent_program import SentProgram, argv_of, text_of
from servetune.engines.sglang._source import Flag
from servetune.engines.sglang._table import Capabilities, capabilities_from, keep_flags, kept_flags

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
        with closing(start(argv_of(python))) as talk:
            return _read(_Reader(talk), version, frozenset(named))
    except ProgramEndedError as error:
        return None, f"the installed SGLang's own flags cannot be read ({error}): the shipped tables answer"


def _read(talk: _Reader, version: str, named: frozenset[str]) -> tuple[Capabilities | None, str]:
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


class _Reader:
    """The program on the node, asked by name."""

    def __init__(self, talk: Helper) -> None:
        owners = {"servetune": "", "servetune.engines": "", _PACKAGE: ""}
        texts = {f"{_PACKAGE}.{name}": text_of(name) for name in _PROGRAM}
        self._program = SentProgram(talk, {**owners, **texts}, "the readers of its flags")

    def ask(self, question: str, timeout_s: float) -> dict[str, Any]:
        """Raises ProgramEndedError."""
        self._program.say(question)
        return self._program.heard(timeout_s)
