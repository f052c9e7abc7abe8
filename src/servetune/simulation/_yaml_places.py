"""YAML with places: the plain data of a file, and the line on which each key of it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from servetune.core.errors import SpecError

Path = Sequence[int | str]


class PlacedYaml:
    """A parsed YAML document. `data` is plain Python; `line(path)` is the 1-based line of a key or list entry.

    Raises SpecError with file and line when the text is not YAML, or when a mapping has a key twice.
    """

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        try:
            self._root = yaml.compose(text, Loader=yaml.SafeLoader)
            self.data: Any = yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise SpecError(f"{file}, line {line}: not valid YAML: {error.problem}") from error
        except (yaml.YAMLError, ValueError) as error:
            raise SpecError(f"{file}, line 1: not valid YAML: {error}") from error
        _refuse_duplicates(self._root, file, set())

    def line(self, path: Path) -> int:
        """Line of the deepest part of `path` that exists; 1 when the document is empty."""
        node, line = self._root, 1
        for step in path:
            found = _child(node, step)
            if found is None:
                break
            node, line = found
        return line


def _child(node: yaml.Node | None, step: int | str) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if str(key.value) == str(step):
                return value, key.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        entry = node.value[step]
        return entry, entry.start_mark.line + 1
    return None


def _refuse_duplicates(node: yaml.Node | None, file: str, seen: set[int]) -> None:
    """PyYAML lets the last of two equal keys win in silence. `seen`: anchored nodes are visited once."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            _refuse_duplicates(entry, file, seen)
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if key.value in keys:
                raise SpecError(f"{file}, line {key.start_mark.line + 1}: key {key.value!r} stands twice; remove one")
            keys.add(key.value)
            _refuse_duplicates(value, file, seen)
