"""What is wrong with a file: several problems in one error, each with its place, key and way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from servetune.core.errors import SpecError

#: How many problems one error lists.
SHOWN = 5


class Problems:
    """Collects problems of one file and raises them together."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.found: list[str] = []

    def add(self, place: str, path: str, text: str) -> None:
        """Note one problem. `place` is `file:line:column`, `path` the key path (may be empty)."""
        line = ": ".join(part for part in (place, path, text) if part)
        if line not in self.found:
            self.found.append(line)

    def raise_if_any(self) -> None:
        """Raise SpecError when there was a problem: one line each, at most SHOWN of them."""
        if not self.found:
            return
        if len(self.found) == 1:
            raise SpecError(self.found[0])
        lines = [f"{len(self.found)} problems in {self.source}:", *(f"  {line}" for line in self.found[:SHOWN])]
        if len(self.found) > SHOWN:
            lines.append(f"  … and {len(self.found) - SHOWN} more")
        raise SpecError("\n".join(lines))


def one_of(names: Iterable[object]) -> str:
    """A list of what is allowed, in the order given, shortened when it is long."""
    words = [str(name) for name in names]
    return ", ".join(words[:40]) + (f", … ({len(words) - 40} more)" if len(words) > 40 else "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing when no known name is near. Case, dashes and underscores do not count."""
    plain = {_folded(name): name for name in known}
    near = difflib.get_close_matches(_folded(word), plain, n=1, cutoff=0.6)
    return f"; did you mean {plain[near[0]]!r}?" if near else ""


def _folded(name: str) -> str:
    return name.lower().lstrip("-").replace("-", "_").replace(" ", "_")
