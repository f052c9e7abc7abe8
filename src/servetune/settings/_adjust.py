"""What a study does to a named space: narrow, fix, drop and extend it; and what follows for conditions and hints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from servetune.core.space import (
    BundleDomain,
    Choice,
    Condition,
    Domain,
    FloatDomain,
    IntDomain,
    Parameter,
    SearchSpace,
    Value,
    flags_of,
    same_value,
)
from servetune.settings._document import Node
from servetune.settings._domains import contains, domain, possible_values, suggest
from servetune.settings._problems import Problems, did_you_mean, one_of
from servetune.settings._space import Reading, flags_set_by, may_be, parameters_of
from servetune.settings._values import assignment

ADJUSTMENT_KEYS = ("base", "narrow", "fix", "drop", "extend")


def adjusted(space: SearchSpace, node: Node, reading: Reading) -> SearchSpace:
    """`space` with `narrow`, `extend`, `fix` and `drop` of `node` applied in this order."""
    entries, problems = node.entries, reading.problems
    if "narrow" in entries:
        space = _narrowed(space, entries["narrow"], problems)
    if "extend" in entries:
        if entries["extend"].kind != "mapping":
            text = f"got {entries['extend'].shown()}; allowed: a mapping of new name → domain"
            problems.add(entries["extend"].place, entries["extend"].path, text)
        inner = Reading({**space.fixed, **reading.fixed}, problems, reading.skipped)
        extended = parameters_of(entries["extend"], space.parameters, inner)
        space = space.model_copy(update={"parameters": extended})
    if "fix" in entries:
        space = fixing(space, assignment(entries["fix"], problems), entries["fix"], problems)
    if "drop" in entries:
        space = _without(space, entries["drop"], problems)
    return space


def fixing(space: SearchSpace, flags: Mapping[str, Value], node: Node, problems: Problems) -> SearchSpace:
    """`space` with flags, or bundles by their label, no longer sampled but set."""
    known = {parameter.name: parameter for parameter in space.parameters}
    plain: dict[str, Value] = {}
    for name, value in flags.items():
        if name in known and isinstance(known[name].domain, BundleDomain):
            plain.update(option_of(known[name], value, node.entries[name], problems))
        else:
            plain[name] = value
    rest = [parameter for parameter in space.parameters if parameter.name not in flags]
    for parameter in rest:
        for flag in sorted(flags_set_by(parameter) & plain.keys()):
            at = node.entries.get(flag, node)
            text = f"{flag!r} is set by the bundle {parameter.name!r}, too; fix or drop that bundle, or leave this out"
            problems.add(at.key_place or at.place, at.path, text)
    fixed = {**space.fixed, **plain}
    return _settled(space.model_copy(update={"fixed": fixed}), rest, {**flags, **plain})


def option_of(bundle: Parameter, label: Value, node: Node, problems: Problems) -> dict[str, Value]:
    """The flags of one option of a bundle; a problem when there is no such label."""
    if not contains(bundle.domain, label):
        allowed = possible_values(bundle.domain) + suggest(label, bundle.domain)
        problems.add(node.place, node.path, f"got {node.shown()} for the bundle {bundle.name!r}; allowed: {allowed}")
        return {}
    assert isinstance(bundle.domain, BundleDomain)  # the only caller's condition
    return {flag: value for flag, value in bundle.domain.options[str(label)].items() if value is not None}


def _narrowed(space: SearchSpace, node: Node, problems: Problems) -> SearchSpace:
    known = {parameter.name: parameter for parameter in space.parameters}
    for name, entry in node.entries.items():
        if name not in known:
            text = f"{name!r} is no parameter of {space.name!r}; allowed: {one_of(known)}{did_you_mean(name, known)}"
            problems.add(entry.key_place, entry.path, text)
            continue
        smaller = _smaller(known[name], entry, problems)
        if smaller is not None:
            known[name] = known[name].model_copy(update={"domain": smaller})
    if node.kind != "mapping":
        problems.add(node.place, node.path, f"got {node.shown()}; allowed: a mapping name → domain")
    return _settled(space, list(known.values()), {})


def _smaller(parameter: Parameter, node: Node, problems: Problems) -> Domain | None:
    whole = parameter.domain
    if isinstance(whole, BundleDomain):
        return _fewer_options(parameter.name, whole, node, problems)
    part = domain(parameter.name, node, problems)
    if part is None or isinstance(part, BundleDomain):
        return None
    edges = part.choices if part.kind == "categorical" else (part.low, part.high)
    for value in edges:
        if not _within(whole, value):
            allowed = possible_values(whole) + suggest(value, whole)
            text = f"{value!r} is not in the space's {parameter.name!r}; allowed: {allowed}; drop and extend to add it"
            problems.add(node.place, node.path, text)
    if whole.kind == "categorical" and part.kind != "categorical":
        problems.add(node.place, node.path, f"{parameter.name!r} has a list of values; narrow it with a list")
    return part


def _within(whole: Domain, value: Choice) -> bool:
    """Within the bounds; a narrower range may have a finer step."""
    if isinstance(whole, IntDomain | FloatDomain) and isinstance(value, int | float) and not isinstance(value, bool):
        return bool(whole.low <= value <= whole.high)
    return contains(whole, value)


def _fewer_options(name: str, whole: BundleDomain, node: Node, problems: Problems) -> Domain | None:
    labels = [str(item.scalar) for item in node.items]
    if not labels:
        text = f"got {node.shown()}; allowed: a list of options of the bundle {name!r}: {one_of(whole.options)}"
        problems.add(node.place, node.path, text)
        return None
    for label, item in zip(labels, node.items, strict=True):
        if label not in whole.options:
            text = f"{label!r} is no option of the bundle {name!r}; allowed: {one_of(whole.options)}"
            problems.add(item.place, item.path, text + did_you_mean(label, whole.options))
    return BundleDomain(options={label: whole.options[label] for label in labels if label in whole.options})


def _without(space: SearchSpace, node: Node, problems: Problems) -> SearchSpace:
    known = [parameter.name for parameter in space.parameters]
    names = [str(item.scalar) for item in node.items]
    if node.kind != "list":
        problems.add(node.place, node.path, f"got {node.shown()}; allowed: a list of names: {one_of(known)}")
    for name, item in zip(names, node.items, strict=True):
        if name not in known:
            text = f"{name!r} is no parameter of {space.name!r}; allowed: {one_of(known)}{did_you_mean(name, known)}"
            problems.add(item.place, item.path, text)
    rest = [parameter for parameter in space.parameters if parameter.name not in names]
    dropped = {name: None for name in names}
    return _settled(space, rest, dropped)


def _settled(space: SearchSpace, parameters: Sequence[Parameter], decided: Mapping[str, Choice]) -> SearchSpace:
    """The space with conditions on decided names resolved, and without parameters whose condition can never hold."""
    left = {parameter.name for parameter in parameters}
    gone = [flags_of(parameter) for parameter in space.parameters if parameter.name not in left]
    known: dict[str, Choice] = {**{flag: None for flags in gone for flag in flags}, **decided}
    kept: list[Parameter] = []
    for parameter in parameters:
        when = _remaining(parameter.when, kept, known)
        if when is None:
            known.update({name: None for name in {parameter.name, *flags_of(parameter)}})
        else:
            kept.append(parameter.model_copy(update={"when": when}))
    hints = [_fitting(hint, kept, {**known, **space.fixed}) for hint in space.hints]
    update = {"parameters": tuple(kept), "hints": tuple(hint for hint in hints if hint)}
    return space.model_copy(update=update)


def _remaining(when: Condition, before: Sequence[Parameter], known: Mapping[str, Choice]) -> Condition | None:
    """What is left of a condition; None when it can never hold."""
    left = {}
    for name, wanted in when.any_of.items():
        sources = [other for other in before if name == other.name or name in flags_of(other)]
        if sources:
            wanted = tuple(value for value in wanted if any(may_be(other, name, value) for other in sources))
        elif name in known:
            if not any(same_value(known[name], value) for value in wanted):
                return None
            continue
        if not wanted:
            return None
        left[name] = wanted
    return Condition(any_of=left)


def _fitting(
    hint: Mapping[str, Choice], parameters: Sequence[Parameter], known: Mapping[str, Choice]
) -> Mapping[str, Choice] | None:
    """The hint without what is no longer sampled; None when it contradicts what was narrowed or fixed."""
    domains = {parameter.name: parameter.domain for parameter in parameters}
    for name, value in hint.items():
        if name in domains and not contains(domains[name], value):
            return None
        if name not in domains and not same_value(known.get(name), value) and known.get(name) is not None:
            return None
    return {name: value for name, value in hint.items() if name in domains} or None
