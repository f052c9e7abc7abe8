"""The mapping of a search space → SearchSpace: parameters, conditions, fixed flags and hints, each checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from servetune.core.space import BundleDomain, Choice, Condition, Parameter, SearchSpace, flags_of, same_value
from servetune.settings._document import Node
from servetune.settings._domains import DOMAIN_KEYS, FORMS, contains, domain, possible_values, shown, suggest
from servetune.settings._problems import Problems, did_you_mean, one_of
from servetune.settings._sections import unknown_key
from servetune.settings._values import assignment, check_flag, choice

PARAMETER_KEYS = (*DOMAIN_KEYS, "when", "needs", "why")
SPACE_KEYS = ("space", "description", "parameters", "fixed", "hints")


@dataclass(frozen=True)
class Reading:
    """What every part of the reading needs: flags fixed by the study (secret ones with None), and the problems."""

    fixed: Mapping[str, Choice]
    problems: Problems
    skipped: set[str] = field(default_factory=set)  # declared, but what they need is not fixed


def space_of(node: Node, name: str, reading: Reading) -> SearchSpace:
    """The space in a mapping with SPACE_KEYS."""
    for key, entry in node.entries.items():
        if key not in SPACE_KEYS:
            reading.problems.add(entry.key_place, node.path, unknown_key(key, SPACE_KEYS))
    own = assignment(node.entries["fixed"], reading.problems) if "fixed" in node.entries else {}
    inner = Reading({**own, **reading.fixed}, reading.problems, reading.skipped)
    declared = node.entries.get("parameters")
    if declared is None or declared.kind != "mapping" or not declared.entries:
        at, got = (declared, declared.shown()) if declared else (node, "nothing")
        allowed = "a mapping of at least one name → domain"
        reading.problems.add(at.place, at.path or "parameters", f"got {got}; allowed: {allowed}")
        return SearchSpace(name=name)
    space = SearchSpace(name=name, parameters=parameters_of(declared, (), inner), fixed=own)
    _check_own_fixed(declared, space, reading.problems)
    return space.model_copy(update={"hints": _hints(node.entries.get("hints"), space, inner)})


def parameters_of(node: Node, before: Sequence[Parameter], reading: Reading) -> tuple[Parameter, ...]:
    """`before` and the parameters that `node` (name → definition) adds to them, in order."""
    found = list(before)
    for name, entry in node.entries.items():
        if not _needed(entry, reading):
            reading.skipped.add(name)
        elif (parameter := _parameter(name, entry, found, reading)) is not None:
            found.append(parameter)
    return tuple(found)


def _needed(node: Node, reading: Reading) -> bool:
    """False when `needs` names a flag that the study does not fix, or `when` a parameter that is left out for that."""
    if "when" in node.entries and reading.skipped & node.entries["when"].entries.keys():
        return False
    needs = node.entries.get("needs")
    if needs is None:
        return True
    names = needs.items if needs.kind == "list" else [needs]
    if not names or not all(isinstance(item.scalar, str) for item in names):
        reading.problems.add(needs.place, needs.path, f"got {needs.shown()}; allowed: a flag, or a list of flags")
    return all(item.scalar in reading.fixed for item in names)


def flags_set_by(parameter: Parameter) -> frozenset[str]:
    """Those that some value sets. A bundle may besides leave out, with null, a flag that the study fixes."""
    if not isinstance(parameter.domain, BundleDomain):
        return flags_of(parameter)
    options = parameter.domain.options.values()
    return frozenset(flag for option in options for flag, value in option.items() if value is not None)


def _parameter(name: str, node: Node, before: Sequence[Parameter], reading: Reading) -> Parameter | None:
    problems = reading.problems
    if not check_flag(name, node, problems):
        return None
    if node.kind == "scalar":
        text = f"got {node.shown()} for {name!r}; allowed: {FORMS}; one value stands under fixed"
        problems.add(node.place, node.path, text)
        return None
    for key, entry in node.entries.items():
        if key not in PARAMETER_KEYS:
            problems.add(entry.key_place, node.path, unknown_key(key, PARAMETER_KEYS))
    values = domain(name, node, problems)
    why = node.entries["why"].scalar if "why" in node.entries else ""
    if not isinstance(why, str):
        problems.add(node.entries["why"].place, node.entries["why"].path, "allowed: one line of text")
        why = ""
    if values is None:
        return None
    when = condition(node.entries["when"], before, reading) if "when" in node.entries else Condition()
    parameter = Parameter(name=name, domain=values, when=when, why=why)
    _check_overlap(parameter, node, before, reading)
    return parameter


def _check_overlap(parameter: Parameter, node: Node, before: Sequence[Parameter], reading: Reading) -> None:
    """Each flag belongs to one parameter only, and the name of a bundle to no flag."""
    at = node.key_place or node.place
    for other in before:
        if other.name == parameter.name:
            reading.problems.add(at, node.path, f"{parameter.name!r} is in the space already; narrow or drop that one")
        elif common := sorted(flags_of(parameter) & flags_of(other)):
            text = f"{parameter.name!r} and {other.name!r} both set {one_of(common)}; only one parameter may set a flag"
            reading.problems.add(at, node.path, text)


def _check_own_fixed(node: Node, space: SearchSpace, problems: Problems) -> None:
    """A space file cannot both fix a flag and sample it."""
    for parameter in space.parameters:
        for flag in sorted(flags_set_by(parameter) & space.fixed.keys()):
            at = node.entries[parameter.name]
            problems.add(at.key_place, at.path, f"{parameter.name!r} sets {flag!r}, which this space fixes; drop one")


def condition(node: Node, before: Sequence[Parameter], reading: Reading) -> Condition:
    """`when: {name: value or [values]}`; names are earlier parameters, flags that these set, or fixed flags."""
    if node.kind != "mapping" or not node.entries:
        allowed = "a mapping of earlier name → value or [values]"
        reading.problems.add(node.place, node.path, f"got {node.shown()}; allowed: {allowed}")
    clauses = {}
    for name, entry in node.entries.items():
        items = entry.items if entry.kind == "list" else [entry]
        wanted = tuple(choice(name, item, reading.problems) for item in items)
        if not wanted:
            reading.problems.add(entry.place, entry.path, "an empty list never holds; name at least one value")
        _check_clause(name, entry, wanted, before, reading)
        clauses[name] = wanted
    return Condition(any_of=clauses)


def _check_clause(
    name: str, node: Node, wanted: Sequence[Choice], before: Sequence[Parameter], reading: Reading
) -> None:
    sources = [parameter for parameter in before if name == parameter.name or name in flags_of(parameter)]
    if not sources:
        if name not in reading.fixed:
            known = [*(parameter.name for parameter in before), *reading.fixed]
            text = f"{name!r} is no earlier parameter and no fixed flag; earlier: {one_of(known) or 'none'}"
            reading.problems.add(node.key_place, node.path, text + did_you_mean(name, known))
        return
    for value in wanted:
        if not any(may_be(source, name, value) for source in sources):
            allowed = values_of(sources[0], name)
            text = f"{name!r} is never {shown(value)}; allowed: {allowed}{suggest(value, sources[0].domain)}"
            reading.problems.add(node.place, node.path, text)


def may_be(parameter: Parameter, name: str, value: Choice) -> bool:
    """Whether `name` (the parameter, or a flag that it sets) can have `value`; None: can be absent."""
    if name == parameter.name and contains(parameter.domain, value):
        return True
    if value is None:
        bundle = isinstance(parameter.domain, BundleDomain) and name != parameter.name
        return bool(parameter.when.any_of) or (bundle and any(value is None for value in _settings(parameter, name)))
    return any(same_value(value, other) for other in _settings(parameter, name))


def values_of(parameter: Parameter, name: str) -> str:
    """What `name` can be, for messages."""
    if name == parameter.name:
        return possible_values(parameter.domain)
    return one_of(dict.fromkeys(shown(value) for value in _settings(parameter, name)))


def _settings(parameter: Parameter, flag: str) -> list[Choice]:
    if not isinstance(parameter.domain, BundleDomain) or flag == parameter.name:
        return []
    return [option.get(flag) for option in parameter.domain.options.values()]


def _hints(node: Node | None, space: SearchSpace, reading: Reading) -> tuple[dict[str, Choice], ...]:
    if node is None:
        return ()
    if node.kind != "list":
        reading.problems.add(node.place, node.path, f"got {node.shown()}; allowed: a list of mappings name → value")
    return tuple(hint for item in node.items if (hint := _hint(item, space, reading)))


def _hint(node: Node, space: SearchSpace, reading: Reading) -> dict[str, Choice]:
    known = {parameter.name: parameter for parameter in space.parameters}
    found: dict[str, Choice] = {}
    if node.kind != "mapping":
        reading.problems.add(node.place, node.path, f"got {node.shown()}; allowed: a mapping name → value")
    for name, entry in node.entries.items():
        value = choice(name, entry, reading.problems)
        if name in reading.skipped:
            continue
        if name not in known:
            text = f"{name!r} is no parameter of this space; allowed: {one_of(known)}{did_you_mean(name, known)}"
            reading.problems.add(entry.key_place, entry.path, text)
        elif not contains(known[name].domain, value):
            allowed = possible_values(known[name].domain)
            text = f"got {entry.shown()} for {name!r}; allowed: {allowed}{suggest(value, known[name].domain)}"
            reading.problems.add(entry.place, entry.path, text)
        else:
            found[name] = value
    ordered = {name: found[name] for name in known if name in found}
    for name in ordered:
        before = {key: value for key, value in ordered.items() if key != name}
        if not _fixing(space, reading.fixed).active(known[name], before):
            text = f"the hint sets {name!r}, which is sampled only when {said(known[name].when)}"
            reading.problems.add(node.entries[name].key_place, node.path, text)
    return ordered


def _fixing(space: SearchSpace, fixed: Mapping[str, Choice]) -> SearchSpace:
    return space.model_copy(update={"fixed": {flag: value for flag, value in fixed.items() if value is not None}})


def said(when: Condition) -> str:
    """A condition in words."""
    return " and ".join(f"{name} is {' or '.join(map(shown, wanted))}" for name, wanted in when.any_of.items())
