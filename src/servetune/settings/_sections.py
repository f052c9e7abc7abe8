"""One section of a study file against its model: pydantic's findings, said with place, value got and values allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from servetune.settings._document import Node
from servetune.settings._problems import Problems, did_you_mean, one_of

Model = TypeVar("Model", bound=BaseModel)

_NONE: Mapping[str, Any] = {}

_WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text (in quotes when it looks like a number)",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {"greater_than": ("gt", "above"), "greater_than_equal": ("ge", "at least"), "less_than": ("lt", "below")}
_BOUNDS["less_than_equal"] = ("le", "at most")


def section(
    node: Node, model: type[Model], problems: Problems, given: Mapping[str, Any] = _NONE, strict: bool = True
) -> Model | None:
    """`node` as a `model`; None after a problem. `given` replaces entries that were read elsewhere.

    With `strict` text never becomes a number; settings of choices, which may hold paths, are read without it.
    """
    if node.kind != "mapping" and node.content is not None:
        problems.add(node.place, node.path, f"got {node.shown()}; allowed: a mapping with {one_of(_keys(model))}")
        return None
    plain = {**dict(node.plain() or {}), **given}  # type: ignore[call-overload]
    try:
        return model.model_validate(plain, strict=strict)
    except ValidationError as error:
        _explain(error.errors(include_url=False), node, model, problems)
        return None


def keys_of(node: Node, required: Sequence[str], allowed: Sequence[str], problems: Problems) -> Mapping[str, Node]:
    """Entries of a mapping whose keys must be among `allowed`, with those of `required`; others are problems."""
    if node.kind != "mapping":
        problems.add(node.place, node.path, f"got {node.shown()}; allowed: a mapping with {one_of(allowed)}")
        return {}
    for key, entry in node.entries.items():
        if key not in allowed:
            problems.add(entry.key_place, node.path, unknown_key(key, allowed))
    for key in required:
        if key not in node.entries:
            problems.add(node.place, node.path, f"the key {key!r} is missing")
    return {key: entry for key, entry in node.entries.items() if key in allowed}


def unknown_key(key: str, allowed: Sequence[str]) -> str:
    """The sentence about a key that nobody knows."""
    return f"unknown key {key!r}; allowed: {one_of(allowed)}{did_you_mean(key, allowed)}"


def _explain(errors: Sequence[ErrorDetails], node: Node, model: type[BaseModel], problems: Problems) -> None:
    wanted: dict[str, tuple[Node, list[str]]] = {}
    for error in errors:
        at, rest = _locate(node, error["loc"])
        if error["type"] == "extra_forbidden":
            problems.add(at.key_place or at.place, node.path, unknown_key(str(error["loc"][-1]), _keys(model)))
        elif error["loc"][-1] == "[key]":
            key = str(error["loc"][-2])
            problems.add(at.key_place or at.place, at.path, f"got the key {key!r}; allowed: {_allowed(error)}")
        elif error["type"] == "missing":
            problems.add(at.place, at.path, f"the key {str(rest[0] if rest else '')!r} is missing")
        else:
            wanted.setdefault(at.place + at.path, (at, []))[1].append(_allowed(error))
    for at, texts in wanted.values():
        allowed = " or ".join(dict.fromkeys(texts))
        problems.add(at.place, at.path, f"got {at.shown()}; allowed: {allowed}")


def _locate(node: Node, loc: tuple[int | str, ...]) -> tuple[Node, tuple[int | str, ...]]:
    """The deepest node on the way of `loc`, and what of `loc` lies beyond it (union branches, missing keys)."""
    for position, step in enumerate(loc):
        if isinstance(step, int) and step < len(node.items):
            node = node.items[step]
        elif str(step) in node.entries:
            node = node.entries[str(step)]
        else:
            return node, loc[position:]
    return node, ()


def _allowed(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _BOUNDS:
        key, word = _BOUNDS[kind]
        bound = context[key]
        return f"{word} {int(bound) if float(bound).is_integer() else bound:,}"
    if kind == "literal_error":
        return str(context["expected"])
    if kind == "string_pattern_mismatch":
        return f"text like {context['pattern']}"
    return _WANTED.get(kind, error["msg"][:1].lower() + error["msg"][1:])


def _keys(model: type[BaseModel]) -> list[str]:
    return list(model.model_fields)
