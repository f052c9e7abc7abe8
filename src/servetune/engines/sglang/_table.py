"""Which flags one SGLang version accepts, with their types, choices and defaults.

The shipped table covers the releases 0.5.2 to 0.5.23; for a version between two of them the nearest older one holds.
`read_capabilities` reads an installed package itself (see `_source.py`), which is the authority.
"""

from __future__ import annotations

import difflib
import importlib.resources
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from servetune.core.space import Value
from servetune.engines.sglang import _source

Kind = Literal["switch", "on_off", "int", "human_int", "float", "str", "json", "ignored", "removed"]


@dataclass(frozen=True)
class FlagSpec:
    """One flag. `choices` None: anything of its kind. `nargs`: `+` or `*` several words, `?` the value may be absent.

    Kinds beyond the obvious: `on_off` has a `--no-` twin; `human_int` takes `8k` and `1Mi`, too; `ignored` is accepted
    and does nothing; `removed` is named by the parser only to refuse it. `instead` is the engine's advice.
    """

    name: str
    kind: Kind
    aliases: tuple[str, ...] = ()
    choices: tuple[Value, ...] | None = None
    default: Value | None = None
    nargs: str | None = None
    deprecated: bool = False
    instead: str = ""

    @property
    def valued(self) -> bool:
        """Whether it takes a value on the command line."""
        return self.kind in ("int", "human_int", "float", "str", "json")


@dataclass(frozen=True)
class Capabilities:
    """Flags by canonical name, and the environment variables that the engine's source mentions.

    `table`: the release whose table this is, when `version` itself is not in the tables.
    """

    version: str
    flags: Mapping[str, FlagSpec]
    environment: frozenset[str] = field(default_factory=frozenset)
    table: str = ""

    @cached_property
    def spellings(self) -> Mapping[str, FlagSpec]:
        """Every way to write a flag, aliases included, without dashes."""
        return {word: flag for flag in self.flags.values() for word in (flag.name, *flag.aliases)}

    def knows(self, name: str) -> bool:
        """Whether the flag is accepted and does something."""
        flag = self.spellings.get(name)
        return flag is not None and flag.kind not in ("ignored", "removed")

    def find(self, word: str) -> tuple[FlagSpec, ...]:
        """The flags that argparse takes `word` for: the exact spelling, or every one that begins with it."""
        if word in self.spellings:
            return (self.spellings[word],)
        # argparse counts spellings, not flags: a prefix of two aliases of one flag is ambiguous to it
        found = [flag for spelling, flag in self.spellings.items() if spelling.startswith(word)]
        return tuple(found)

    def nearest(self, name: str) -> tuple[str, ...]:
        """Up to three flags whose names are near."""
        return tuple(difflib.get_close_matches(name, self.flags, n=3, cutoff=0.6))

    def has_no_effect(self, variable: str) -> bool:
        """Whether `variable` (without `env.`) looks like SGLang's own and this version never mentions it."""
        own = variable.startswith(("SGLANG_", "SGL_"))
        return own and bool(self.environment) and variable not in self.environment


def capabilities_of(version: str) -> Capabilities:
    """The shipped table for a version: its own, or the nearest older release's (the oldest for anything older)."""
    return _from_table(version)


@cache
def _from_table(version: str) -> Capabilities:
    table = _table()
    wanted = version_key(version)
    older = [release for release in table["versions"] if version_key(release) <= wanted]
    release = older[-1] if older else table["versions"][0]
    flags = {}
    for name, changes in table["flags"].items():
        state = _state(changes, release)
        if state is not None:
            flags[name] = _flag(name, state)
    present = (name for name, changes in table["environment"].items() if _mentioned(changes, release))
    return Capabilities(version, flags, frozenset(present), release)


def _mentioned(changes: Sequence[str], release: str) -> bool:
    """A variable appears and disappears in turn at these releases."""
    return sum(version_key(change) <= version_key(release) for change in changes) % 2 == 1


def _state(changes: Sequence[tuple[str, dict[str, Any] | None]], release: str) -> dict[str, Any] | None:
    state = None
    for since, described in changes:
        if version_key(since) <= version_key(release):
            state = described
    return state


def _flag(name: str, described: Mapping[str, Any]) -> FlagSpec:
    lists = {key: tuple(described[key]) for key in ("aliases", "choices") if key in described}
    return FlagSpec(name=name, **{**{key: value for key, value in described.items() if key != "name"}, **lists})


@cache
def _table() -> dict[str, Any]:
    text = importlib.resources.files("servetune.engines.sglang").joinpath("tables/flags.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@cache
def version_key(version: str) -> tuple[int, ...]:
    """`0.5.10.post1` → (0, 5, 10); what follows the first three numbers does not change flags."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


_READER = 3  #: raised when `_source` reads more than before, so that what an older one kept is read again


def read_capabilities(python_site_dir: Path) -> Capabilities:
    """Flags of the SGLang package in a `site-packages` directory, read from its source without importing it.

    Takes about a second the first time; kept in the user's cache by version and content hash. Environment variables
    are those of the shipped table. Raises FileNotFoundError when there is no SGLang, SyntaxError when its source is
    newer than this Python, and KeyError when its shape is not known; then `capabilities_of` still answers.
    """
    version, digest = _source.read_version(python_site_dir), _source.content_hash(python_site_dir)
    flags, _ = kept_flags(version, digest)
    if flags is None:
        flags = _source.read_flags(python_site_dir)
        keep_flags(version, digest, flags, complete=False)
    return capabilities_from(version, flags)


def capabilities_from(version: str, flags: Mapping[str, _source.Flag]) -> Capabilities:
    """Capabilities of described flags; environment variables are those of the shipped table."""
    specs = {name: _flag(name, described) for name, described in flags.items()}
    return Capabilities(version, specs, capabilities_of(version).environment)


def kept_flags(version: str, digest: str) -> tuple[dict[str, _source.Flag] | None, bool]:
    """What is kept of an installation, None for nothing; and whether its own parser has been asked, too."""
    try:
        loaded = json.loads(_kept(version, digest).read_text("utf-8"))
        return dict(loaded["flags"]), bool(loaded["complete"])
    except (OSError, ValueError, TypeError, KeyError):
        return None, False


def keep_flags(version: str, digest: str, flags: Mapping[str, _source.Flag], complete: bool) -> None:
    """Write beside and rename, so that a reader never sees half a file. A cache that cannot be written is no error."""
    path = _kept(version, digest)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps({"flags": dict(flags), "complete": complete}), "utf-8")
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)


def _kept(version: str, digest: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "servetune" / "sglang-flags" / f"{version or 'unknown'}-{digest}-{_READER}.json"


def releases_with(flag: str, choice: Value | None = None) -> str:
    """Releases that know a flag, or a choice of it, in words: `0.5.9 to 0.5.13`, `0.5.14 and later`; empty: none."""
    table = _table()
    spans: list[list[str]] = []
    joined = False
    for release in table["versions"]:
        described = _state(table["flags"].get(flag, ()), release)
        known = described is not None and described["kind"] not in ("ignored", "removed")
        known = known and (choice is None or choice in (described or {}).get("choices", [choice]))
        if known and joined:
            spans[-1][1] = release
        elif known:
            spans.append([release, release])
        joined = known
    return ", ".join(_span(first, last, table["versions"][-1]) for first, last in spans)


def in_some_release(word: str) -> bool:
    """Whether a table of any release has the flag, or an alias of that name."""
    flags = _table()["flags"]
    return word in flags or any(
        word in (described or {}).get("aliases", ()) for changes in flags.values() for _, described in changes
    )


def newest() -> Capabilities:
    """Of the newest release in the tables."""
    return capabilities_of(_table()["versions"][-1])


def _span(first: str, last: str, newest: str) -> str:
    if last == newest:
        return f"{first} and later" if first != newest else f"{first}"
    return first if first == last else f"{first} to {last}"
