"""YAML text → a tree in which every value and every key knows where it was written.

YAML's core schema is read: `true`/`false` are the only booleans, numbers are decimal, and a date is text. Plain
`yes`, `no`, `on` and `off` are refused, because YAML 1.1 and 1.2 disagree about them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import yaml

from servetune.core.errors import SpecError
from servetune.settings._problems import Problems

MAX_BYTES = 1 << 20
MAX_NODES = 50_000  # after aliases are unfolded: a nested alias can stand for billions
MAX_DEPTH = 32

Scalar: TypeAlias = bool | int | float | str | None

_TAG = "tag:yaml.org,2002:"
_AMBIGUOUS = frozenset(["yes", "no", "on", "off", "Yes", "No", "On", "Off", "YES", "NO", "ON", "OFF"])


@dataclass(frozen=True, eq=False)
class Node:
    """One value of a file. `place` is `file:line:column` of the value, `key_place` that of its key.

    `text` is the scalar as written (for values that are text in any case, such as environment variables).
    """

    content: Scalar | list[Node] | dict[str, Node]
    place: str
    path: str = ""
    text: str = ""
    key_place: str = ""

    @property
    def entries(self) -> Mapping[str, Node]:
        """Entries of a mapping; empty for anything else."""
        return self.content if isinstance(self.content, dict) else {}

    @property
    def items(self) -> list[Node]:
        """Items of a list; empty for anything else."""
        return self.content if isinstance(self.content, list) else []

    @property
    def kind(self) -> str:
        """`mapping`, `list` or `scalar`."""
        if isinstance(self.content, dict):
            return "mapping"
        return "list" if isinstance(self.content, list) else "scalar"

    @property
    def scalar(self) -> Scalar:
        """The scalar; None for a mapping or a list (ask `kind` first)."""
        return None if isinstance(self.content, dict | list) else self.content

    def plain(self) -> object:
        """Python values without places; lists become tuples, as the frozen models want them."""
        if isinstance(self.content, dict):
            return {key: value.plain() for key, value in self.content.items()}
        if isinstance(self.content, list):
            return tuple(item.plain() for item in self.content)
        return self.content

    def shown(self) -> str:
        """The value for a message: short, and clear about text and numbers (`'8'` or `8`)."""
        if isinstance(self.content, dict):
            keys = ", ".join(list(self.content)[:4])
            return f"a mapping with {keys}" if keys else "an empty mapping"
        if isinstance(self.content, list):
            return f"a list of {len(self.content)}"
        if self.content is None:
            return "nothing"
        text = str(self.content).lower() if isinstance(self.content, bool) else repr(self.content)
        return text if len(text) <= 80 else text[:77] + "…"


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML's core schema, which stops at MAX_DEPTH with a place."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH + 1:
            raise _TooDeep(problem_mark=self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _TooDeep(yaml.MarkedYAMLError):
    """Nested beyond MAX_DEPTH; PyYAML itself would run into Python's recursion limit."""


_Loader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)


def read_document(path: Path) -> Node:
    """The file's one YAML document. Raises SpecError, with file, line and column, for whatever is wrong with it."""
    return parse_document(read_text(path), str(path))


def parse_document(text: str, name: str) -> Node:
    """The one YAML document in `text`; `name` stands for the file in messages."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise SpecError(_yaml_problem(name, error, text)) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError(f"{name}:{line}: character {error.character!r} is not allowed in YAML; remove it") from error
    if root is None:
        raise SpecError(f"{name}:1:1: the file is empty; write a mapping of keys and values")
    return _Conversion(name).document(root)


def node_of(value: object, place: str, path: str = "") -> Node:
    """A tree for plain Python values, all at `place` (`command line`, …). Raises SpecError for other types."""
    if isinstance(value, Mapping):
        inner = {str(key): node_of(item, place, _join(path, str(key))) for key, item in value.items()}
        return Node(inner, place, path, key_place=place)
    if isinstance(value, list | tuple):
        return Node([node_of(item, place, f"{path}[{i}]") for i, item in enumerate(value)], place, path, "", place)
    if value is None or isinstance(value, bool | int | float | str):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return Node(value, place, path, text, place)
    raise SpecError(f"{place}: {path}: a value of type {type(value).__name__} cannot stand in a study file")


def overlaid(base: Node, over: Node) -> Node:
    """`base` with the entries of `over` set; mappings are merged, anything else is replaced."""
    if base.kind != "mapping" or over.kind != "mapping":
        return over
    merged = dict(base.entries)
    for key, value in over.entries.items():
        merged[key] = overlaid(merged[key], value) if key in merged else value
    return Node(merged, base.place, base.path, key_place=base.key_place)


def read_text(path: Path, most_bytes: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file. Raises SpecError when it cannot be read, is too large or not UTF-8."""
    try:
        if not path.exists():
            raise SpecError(f"{path}: there is no such file")
        if not path.is_file():
            raise SpecError(f"{path}: this is not a file")
        raw = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > most_bytes:
        raise SpecError(f"{path}: {len(raw):,} bytes are too many for such a file; at most {most_bytes:,} are read")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        byte = raw[error.start]
        raise SpecError(f"{path}:{line}: byte 0x{byte:02x} is not UTF-8; save the file with that encoding") from error


def place_within(text: str, line: int, column: int) -> tuple[int, int]:
    """Line and column (from 1) of a parser's complaint; what it misses past the end is missed on the last line."""
    lines = text.split("\n")
    while len(lines) > 1 and not lines[-1].strip():
        lines.pop()
    return (line, column) if line <= len(lines) else (len(lines), len(lines[-1].rstrip("\r")) + 1)


def _yaml_problem(name: str, error: yaml.MarkedYAMLError, source: str) -> str:
    mark = error.problem_mark or error.context_mark
    place = name
    if mark:
        line, column = place_within(source, mark.line + 1, mark.column + 1)
        place = f"{name}:{line}:{column}"
    text = ", ".join(part for part in (error.context, error.problem) if part)
    if isinstance(error, _TooDeep):
        return f"{place}: nested too deeply; at most {MAX_DEPTH} levels are read"
    if error.problem and "'\\t'" in error.problem:
        return f"{place}: a tab cannot be used for indentation; write spaces"
    if error.context == "expected a single document in the stream":
        return f"{place}: a second document begins here; a file holds one"
    return f"{place}: not valid YAML: {text}"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


class _Conversion:
    """PyYAML's nodes → ours, with limits; collects duplicate keys and unreadable scalars."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems = Problems(name)
        self.count = 0

    def document(self, root: yaml.Node) -> Node:
        node = self.node(root, "", "", 0)
        self.problems.raise_if_any()
        return node

    def node(self, node: yaml.Node, path: str, key_place: str, depth: int) -> Node:
        place = self.place(node)
        self.count += 1
        if depth > MAX_DEPTH:
            raise SpecError(f"{place}: nested too deeply; at most {MAX_DEPTH} levels are read")
        if self.count > MAX_NODES:
            raise SpecError(f"{place}: more than {MAX_NODES:,} values once aliases are unfolded; write less")
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return Node(self.mapping(node, path, depth), place, path, key_place=key_place)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            items = [self.node(item, f"{path}[{i}]", "", depth + 1) for i, item in enumerate(node.value)]
            return Node(items, place, path, key_place=key_place)
        if isinstance(node, yaml.ScalarNode):
            if any("\ud800" <= character <= "\udfff" for character in node.value):
                self.problems.add(place, path, "half of a surrogate pair is no character; write the character itself")
                return Node(None, place, path)
            return Node(self.scalar(node, path), place, path, node.value, key_place)
        self._refuse_tag(node, path)
        return Node(None, place, path)

    def _refuse_tag(self, node: yaml.Node, path: str) -> None:
        self.problems.add(self.place(node), path, f"the tag {node.tag!r} is not supported; write plain YAML")

    def mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        for key_node, value_node in node.value:
            place = self.place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.add(place, path, "a key must be a word, not a list or a mapping")
                continue
            key = key_node.value
            value = self.node(value_node, _join(path, key), place, depth + 1)
            if key in found:
                first = found[key].key_place.removeprefix(f"{self.name}:")
                self.problems.add(place, path, f"the key {key!r} stands here a second time; first at {first}")
            else:
                found[key] = value
        return found

    def scalar(self, node: yaml.ScalarNode, path: str) -> Scalar:
        kind, text = node.tag.removeprefix(_TAG), node.value
        if kind == "str":
            if node.style is None and text in _AMBIGUOUS:
                said = f"{text!r} is a boolean to some YAML readers and text to others"
                self.problems.add(self.place(node), path, f"{said}; write true or false, or put it in quotes")
            return str(text)
        if kind not in ("null", "bool", "int", "float"):
            self._refuse_tag(node, path)
            return None
        try:
            return _number_or_constant(kind, text)
        except (KeyError, ValueError):
            reason = f"{text[:40]!r} cannot be read as {kind}"
            self.problems.add(self.place(node), path, f"{reason}; write a plain number, word or quoted text")
            return None

    def place(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _number_or_constant(kind: str, text: str) -> Scalar:
    """A scalar of the core schema. Raises KeyError for another tag, ValueError for a number out of bounds."""
    if kind == "null":
        return None
    if kind == "bool":
        return {"true": True, "false": False}[text.lower()]
    if kind == "int":
        if len(text) > 20:  # beyond 64 bits: no flag takes it, and databases refuse it
            raise ValueError(text)
        return int(text)
    if kind == "float" and math.isfinite(float(text)):
        return float(text)
    raise ValueError(text)
