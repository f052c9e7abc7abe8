"""Domains as they stand in a space file: a list of values, `low`/`high`, or the options of a bundle."""

from __future__ import annotations

import math
from collections.abc import Sequence

from servetune.core.space import (
    BundleDomain,
    CategoricalDomain,
    Choice,
    Domain,
    FloatDomain,
    IntDomain,
    same_value,
)
from servetune.settings._document import Node
from servetune.settings._problems import Problems, did_you_mean, one_of
from servetune.settings._values import assignment, check_flag, choice

RANGE_KEYS = ("low", "high", "step", "log")
DOMAIN_KEYS = ("values", *RANGE_KEYS, "options")
FORMS = "a list of values, {low: …, high: …}, or {options: {label: {flag: value}}}"


def domain(name: str, node: Node, problems: Problems) -> Domain | None:
    """The domain that `node` describes (a list, or a mapping with DOMAIN_KEYS); None after a problem."""
    if node.kind == "list":
        return _categorical(name, node, problems)
    entries = node.entries
    forms = [form for form, keys in _FORM_KEYS.items() if any(key in entries for key in keys)]
    if len(forms) != 1:
        said = f"{name!r} has both {' and '.join(forms)}" if forms else f"{name!r} has no domain: got {node.shown()}"
        problems.add(node.place, node.path, f"{said}; allowed: {FORMS}")
        return None
    if forms == ["values"]:
        return _categorical(name, entries["values"], problems)
    if forms == ["options"]:
        return _bundle(entries["options"], problems)
    return _range(name, node, problems)


_FORM_KEYS = {"values": ("values",), "a range": RANGE_KEYS, "options": ("options",)}


def possible_values(values: Domain) -> str:
    """What a domain allows, for messages."""
    if isinstance(values, CategoricalDomain):
        return one_of(shown(value) for value in values.choices)
    if isinstance(values, BundleDomain):
        return one_of(values.options)
    step = f" in steps of {values.step:g}" if values.step and not (values.step == 1 and values.kind == "int") else ""
    return f"{values.low:g} to {values.high:g}{step}"


def contains(values: Domain, value: Choice) -> bool:
    """Whether a parameter with this domain can take `value` (for a bundle: the label)."""
    if isinstance(values, CategoricalDomain):
        return any(same_value(value, allowed) for allowed in values.choices)
    if isinstance(values, BundleDomain):
        return isinstance(value, str) and value in values.options
    if isinstance(value, bool) or not isinstance(value, int | float) or not values.low <= value <= values.high:
        return False
    if isinstance(values, IntDomain):
        return float(value).is_integer() and (values.log or (int(value) - values.low) % values.step == 0)
    return values.step is None or _on_grid(value - values.low, values.step)


def shown(value: Choice) -> str:
    """A value as one would write it in YAML."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _categorical(name: str, node: Node, problems: Problems) -> Domain | None:
    if node.kind != "list" or not node.items:
        problems.add(node.place, node.path, f"got {node.shown()} for {name!r}; allowed: a list of at least one value")
        return None
    found: list[Choice] = []
    for item in node.items:
        value = choice(name, item, problems)
        if any(same_value(value, earlier) for earlier in found):
            problems.add(item.place, item.path, f"the value {shown(value)} stands here twice; remove one")
        else:
            found.append(value)
    return CategoricalDomain(choices=tuple(found))


def _bundle(node: Node, problems: Problems) -> Domain | None:
    if node.kind != "mapping" or not node.entries:
        allowed = "a mapping of label → {flag: value}, with at least one label"
        problems.add(node.place, node.path, f"got {node.shown()}; allowed: {allowed}")
        return None
    options: dict[str, dict[str, Choice]] = {}
    for label, entry in node.entries.items():
        flags = _option(entry, problems)
        twin = next((other for other, set_ in options.items() if _same_flags(set_, flags)), None)
        if twin is not None:
            problems.add(entry.key_place, node.path, f"option {label!r} sets the same as {twin!r}; remove one")
        options[label] = flags
    return BundleDomain(options=options)


def _option(node: Node, problems: Problems) -> dict[str, Choice]:
    absent = {name: entry for name, entry in node.entries.items() if entry.content is None}
    plain = {name: entry for name, entry in node.entries.items() if name not in absent}
    rest = Node(plain if node.kind == "mapping" else node.content, node.place, node.path, node.text, node.key_place)
    found: dict[str, Choice] = dict(assignment(rest, problems))
    found.update({name: None for name, entry in absent.items() if check_flag(name, entry, problems)})
    return found


def _same_flags(left: dict[str, Choice], right: dict[str, Choice]) -> bool:
    return left.keys() == right.keys() and all(same_value(left[flag], right[flag]) for flag in left)


def _range(name: str, node: Node, problems: Problems) -> Domain | None:
    before = len(problems.found)
    numbers = {key: _number(node, key, problems) for key in ("low", "high", "step")}
    log = node.entries["log"].scalar if "log" in node.entries else False
    if not isinstance(log, bool):
        problems.add(node.entries["log"].place, node.entries["log"].path, "allowed: true or false")
    for key in ("low", "high"):
        if key not in node.entries:
            problems.add(node.place, node.path, f"the range of {name!r} has no {key!r}; write both low and high")
    low, high, step = numbers["low"], numbers["high"], numbers["step"]
    if len(problems.found) > before or low is None or high is None:
        return None
    for text in _range_problems(low, high, step, log is True):
        problems.add(node.place, node.path, text)
    if len(problems.found) > before:
        return None
    if all(isinstance(number, int) for number in (low, high, step) if number is not None):
        return IntDomain(low=int(low), high=int(high), step=int(step or 1), log=log is True)
    return FloatDomain(low=low, high=high, step=step, log=log is True)


def _range_problems(low: float, high: float, step: float | None, log: bool) -> Sequence[str]:
    found = []
    if not low < high:
        found.append(f"low {low:g} must be below high {high:g}")
    if log and low <= 0:
        found.append(f"a logarithmic range must begin above 0, got low {low:g}")
    if log and step is not None:
        found.append("step and log exclude each other; leave one out")
    if step is not None and not step > 0:
        found.append(f"step must be above 0, got {step:g}")
    elif step is not None and low < high and not log and not _on_grid(high - low, step):
        last = low + math.floor((high - low) / step) * step
        near = f"; the last value before it is {round(last, 9):g}" if last > low else ""
        found.append(f"high {high:g} cannot be reached from low {low:g} in steps of {step:g}{near}")
    return found


def _number(node: Node, key: str, problems: Problems) -> int | float | None:
    entry = node.entries.get(key)
    if entry is None:
        return None
    value = entry.scalar
    if isinstance(value, bool) or not isinstance(value, int | float):
        problems.add(entry.place, entry.path, f"got {entry.shown()}; allowed: a number")
        return None
    return value


def _on_grid(distance: float, step: float) -> bool:
    return abs(distance / step - round(distance / step)) < 1e-6


def suggest(value: object, values: Domain) -> str:
    """`; did you mean …?` for a value that is near one of a domain's words."""
    if isinstance(values, BundleDomain):
        return did_you_mean(str(value), values.options)
    if isinstance(values, CategoricalDomain):
        return did_you_mean(str(value), [word for word in values.choices if isinstance(word, str)])
    return ""
