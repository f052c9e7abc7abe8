"""What an installed SGLang says of its own flags: read from its source, and where that does not do, from its parser.

Runs with the engine's Python, on the node. Lines of JSON on standard input and output, one answer for each question:

    "installation"  {"version": "0.5.9", "hash": "…", "plugins": ["name=module:function", …]}   imports nothing
    "source"        {"flags": {name: {…}}}                                                       imports nothing
    "parser"        {"flags": {name: {…}}}      what `--help` prints, as data; imports SGLang, and so torch: seconds

An answer may be {"error": "…"} instead. Plug-ins of SGLang are entry points that may replace any of its functions, the
parser's too; `sglang.launch_server` loads them before it parses, and so does "parser".
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from servetune.engines.sglang import _source
from servetune.engines.sglang._source import Flag

PLUGIN_GROUPS = ("sglang.srt.plugins", "sglang.srt.platforms")
_SWITCHES = ("_StoreTrueAction", "_StoreFalseAction", "_StoreConstAction", "DeprecatedStoreTrueAction")

#: What somebody else's code raises while it is imported or read.
_TROUBLE = (
    *(ImportError, OSError, SyntaxError, LookupError, AttributeError, TypeError, ValueError, RuntimeError),
    *(AssertionError, argparse.ArgumentError, SystemExit),
)


def answer(question: str) -> dict[str, Any]:
    """The answer to one question; whatever goes wrong while it is answered is one, too."""
    try:
        return _ANSWERS[question]()
    except _TROUBLE as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def site_dir() -> Path:
    """The folder in which the package `sglang` lies. Raises FileNotFoundError."""
    found = importlib.util.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(f"{sys.executable} has no package sglang")
    return Path(next(iter(found.submodule_search_locations))).parent


def installation() -> dict[str, Any]:
    site = site_dir()
    plugins = sorted(
        f"{point.name}={point.value}"
        for group in PLUGIN_GROUPS
        for point in importlib.metadata.entry_points(group=group)
    )
    digest = _source.content_hash(site)
    if plugins:
        of_plugins = "\n".join([*plugins, os.environ.get("SGLANG_PLUGINS", ""), os.environ.get("SGLANG_PLATFORM", "")])
        digest += hashlib.sha256(of_plugins.encode()).hexdigest()[:8]
    return {"version": _source.read_version(site), "hash": digest, "plugins": plugins}


def source() -> dict[str, Any]:
    return {"flags": _source.read_flags(site_dir())}


def parser() -> dict[str, Any]:
    with contextlib.suppress(ImportError):
        importlib.import_module("sglang.srt.plugins").load_plugins()
    found = argparse.ArgumentParser(add_help=False)
    importlib.import_module("sglang.srt.server_args").ServerArgs.add_cli_args(found)
    flags = map(described, found._actions)
    return {"flags": {flag["name"]: flag for flag in flags if flag is not None}}


def described(action: argparse.Action) -> Flag | None:
    """One option of a parser as `_source.read_flags` describes it; None for what is no flag."""
    kind = type(action).__name__
    words = [word.lstrip("-") for word in action.option_strings if word.startswith("--")]
    if kind == "BooleanOptionalAction":
        words = [word for word in words if not (word.startswith("no-") and word[3:] in words)]
    if not words:
        return None
    name = next((word for word in words if word == action.dest.replace("_", "-")), words[0])
    flag: Flag = {"name": name, "kind": _kind(kind, action)}
    aliases = [word for word in words if word != name]
    flag.update({"aliases": aliases} if aliases else {})
    if action.choices is not None:
        flag["choices"] = [choice for choice in action.choices if isinstance(choice, bool | int | float | str)]
    if action.nargs not in (None, 0):
        flag["nargs"] = action.nargs
    if isinstance(action.default, int | float | str) and flag["kind"] not in ("switch", "ignored"):
        flag["default"] = action.default
    return flag


def _kind(name: str, action: argparse.Action) -> str:
    if name == "BooleanOptionalAction":
        return "on_off"
    if name == "DeprecatedAction":
        return "ignored"
    if name in _SWITCHES or (action.nargs == 0 and name != "DeprecatedAction"):
        return "switch"
    word = getattr(action.type, "__name__", "str")
    kinds: Mapping[str, str] = {"int": "int", "float": "float", "human_readable_int": "human_int", "loads": "json"}
    return kinds.get(word, "json" if "json" in word else "str")


_ANSWERS = {"installation": installation, "source": source, "parser": parser}


def main(heard: Iterator[bytes]) -> None:
    """Answer every line heard. What the engine prints goes to standard error, never between the answers."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in heard:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
