"""Where a flag stands: in the study file, or in the file of the space that it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from servetune.core.errors import FlagProblem, FlagsError, SpecError
from servetune.core.study import StudySpec
from servetune.settings._document import Node, read_document
from servetune.settings._spaces import find_space

_ADJUSTED = ("fix", "narrow", "extend", "parameters", "fixed")


def placed(error: FlagsError, spec: StudySpec) -> SpecError:
    """The same error with file, line and column before each flag that stands in the study's files."""
    try:
        roots = list(_documents(Path(spec.source_file))) if spec.source_file else []
    except SpecError:
        roots = []  # the files have gone since the study was stored
    lines = []
    for problem in error.problems:
        place = next((found for root in roots if (found := _place(root, problem))), "")
        lines.append(f"{place}: {problem}" if place else str(problem))
    return SpecError(lines[0] if len(lines) == 1 else "\n".join([error.head, *(f"  {line}" for line in lines)]))


def _documents(study: Path) -> Iterator[Node]:
    """The study file, then the space files that it builds on."""
    root, folder = read_document(study), study.parent
    yield root
    named = root.entries.get("search_space")
    for _ in range(8):
        named = named.entries.get("base") if named is not None and named.kind == "mapping" else named
        path = find_space(named.scalar, folder) if named is not None and isinstance(named.scalar, str) else None
        if path is None:
            return
        space = read_document(path)
        yield space
        named, folder = space.entries.get("base"), path.parent


def _place(root: Node, problem: FlagProblem) -> str | None:
    """Its own section first, then a study's `fixed` and `baseline`, then its space.

    Within a space adjustments come before what they adjust.
    """
    spaces = [root, *([root.entries["search_space"]] if "search_space" in root.entries else [])]
    sections = [root.entries[key] for key in (problem.section, "fixed", "baseline") if key in root.entries]
    sections += [space.entries[key] for space in spaces for key in _ADJUSTED if key in space.entries]
    for section in [*sections, *spaces[1:]]:
        entry = section.entries.get(problem.flag) or _within(section, problem.flag)
        if entry is not None:
            return entry.key_place or entry.place
    return None


def _within(section: Node, flag: str) -> Node | None:
    """A flag that an option of a bundle sets."""
    for parameter in section.entries.values():
        for option in parameter.entries.get("options", parameter).entries.values():
            if flag in option.entries:
                return option.entries[flag]
    return None
