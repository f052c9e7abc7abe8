"""A search space in the spelling of the installed version: translated, or cut down to what that version knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from servetune.core.engine import Violation
from servetune.core.errors import FlagProblem, FlagsError
from servetune.core.space import (
    BundleDomain,
    CategoricalDomain,
    Choice,
    Condition,
    Parameter,
    SearchSpace,
    Value,
    same_value,
)
from servetune.engines.sglang.capabilities import Capabilities, translate

Judge = Callable[[Mapping[str, Value]], Sequence[Violation]]


@dataclass
class _Resolution:
    """What has been found so far. `moved`: parameter or flag → its new name and a function old value → new value."""

    capabilities: Capabilities
    judge: Judge
    notes: list[str] = field(default_factory=list)
    problems: list[FlagProblem] = field(default_factory=list)
    moved: dict[str, tuple[str, Callable[[Choice], Choice]]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def note(self, texts: Sequence[str]) -> None:
        self.notes += [text for text in texts if text not in self.notes]


def resolved(space: SearchSpace, capabilities: Capabilities, judge: Judge) -> tuple[SearchSpace, list[str]]:
    """The space as the version can run it, and one sentence per thing translated or dropped.

    `judge` says what is wrong with a partial assignment. Values that the version does not know are dropped with a
    sentence; a flag that is unknown altogether is dropped only where the space offers to leave it out (null, or false
    of a switch). Anything else raises SpecError with every problem by name.
    """
    work = _Resolution(capabilities, judge)
    fixed = _fixed(space.fixed, work)
    parameters = []
    for parameter in space.parameters:
        kept = _parameter(parameter, work)
        if kept is not None:
            parameters.append(kept.model_copy(update={"when": _condition(kept.when, work)}))
    _check_overlap(parameters, fixed, work)
    if work.problems:
        head = f"the search space {space.name!r} does not fit SGLang {capabilities.version}:"
        raise FlagsError(head, tuple(dict.fromkeys(work.problems)))
    hints = tuple(hint for hint in (_hint(hint, parameters, work) for hint in space.hints) if hint)
    update = {"parameters": tuple(parameters), "fixed": fixed, "hints": hints}
    return space.model_copy(update=update), work.notes


def _check_overlap(parameters: Sequence[Parameter], fixed: Mapping[str, Value], work: _Resolution) -> None:
    """Translation can make two parameters, or a parameter and a fixed flag, set one flag."""
    owners: dict[str, Parameter] = {}
    for parameter in parameters:
        domain = parameter.domain
        options = domain.options.values() if isinstance(domain, BundleDomain) else ({parameter.name: True},)
        for flag in sorted({flag for option in options for flag, value in option.items() if value is not None}):
            if flag in fixed or owners.setdefault(flag, parameter) is not parameter:
                before = [name for name, (new_name, _) in work.moved.items() if new_name == flag]
                words = " and ".join(repr(name) for name in [*before, flag])
                text = f"{words} set the same flag in this version, --{flag}; drop one of the two"
                work.problems.append(FlagProblem(before[0] if before else flag, text))


def _fixed(flags: Mapping[str, Value], work: _Resolution) -> dict[str, Value]:
    found, notes = translate(flags, work.capabilities)
    work.note(notes)
    work.problems += [FlagProblem(violation.flags[0], _said(violation), "fixed") for violation in work.judge(found)]
    for name in found:
        if _is_idle(name, work):
            work.note([f"fixed {name} has no effect: SGLang {work.capabilities.version} does not know it"])
    return found


def _said(violation: Violation) -> str:
    ways = f"; alternatives: {', '.join(violation.alternatives)}" if violation.alternatives else ""
    return violation.message + ways


def _brief(violation: Violation) -> str:
    return violation.message.split("; allowed:")[0]


def _is_idle(name: str, work: _Resolution) -> bool:
    return name.startswith("env.") and work.capabilities.has_no_effect(name.removeprefix("env."))


def _parameter(parameter: Parameter, work: _Resolution) -> Parameter | None:
    """The parameter in the version's words; None when only leaving it out remains."""
    domain = parameter.domain
    if isinstance(domain, BundleDomain):
        return _bundle(parameter, domain, work)
    if isinstance(domain, CategoricalDomain):
        return _categorical(parameter, domain, work)
    name = parameter.name
    low, notes = translate({name: domain.low}, work.capabilities)
    high, _ = translate({name: domain.high}, work.capabilities)
    work.note(notes)
    violations = [*work.judge(low), *work.judge(high)]
    if violations or len(low) != 1 or low.keys() != high.keys():
        work.problems += [FlagProblem(name, _said(violation)) for violation in violations]
        return parameter
    (new_name,) = low
    if new_name != name:
        work.moved[name] = (new_name, lambda value: value)
    return parameter.model_copy(update={"name": new_name})


def _categorical(parameter: Parameter, domain: CategoricalDomain, work: _Resolution) -> Parameter | None:
    """Each choice translated by itself; a bundle when the choices become different flags."""
    name = parameter.name
    kept: list[tuple[Choice, dict[str, Value]]] = []
    dropped: list[Violation] = []
    for choice in domain.choices:
        flags, notes = translate({} if choice is None else {name: choice}, work.capabilities)
        violations = work.judge(flags)
        dropped += violations
        if not violations and not any(_is_idle(flag, work) for flag in flags):
            work.note(notes)
            kept.append((choice, flags))
    idle = any(_is_idle(flag, work) for flag in (name,))
    if not kept and not idle:
        work.problems += [FlagProblem(name, _said(violation)) for violation in dropped]
        return parameter
    if idle or (len(kept) < len(domain.choices) and all(not flags for _, flags in kept)):
        reason = _brief(dropped[0]) if dropped else f"SGLang {work.capabilities.version} does not know {name}"
        work.note([f"{name} is not searched over: {reason}"])
        work.gone.add(name)
        return None
    work.note([f"{name}: a value is dropped: {_brief(violation)}" for violation in dropped])
    return _rebuilt(parameter, _distinct(kept), work)


def _distinct(kept: Sequence[tuple[Choice, dict[str, Value]]]) -> list[tuple[Choice, dict[str, Value]]]:
    found: list[tuple[Choice, dict[str, Value]]] = []
    for choice, flags in kept:
        if not any(flags == other for _, other in found):
            found.append((choice, flags))
    return found


def _rebuilt(parameter: Parameter, kept: Sequence[tuple[Choice, dict[str, Value]]], work: _Resolution) -> Parameter:
    names = {flag for _, flags in kept for flag in flags}
    if len(names) == 1 and all(len(flags) <= 1 for _, flags in kept):
        (new_name,) = names
        table = [(old, flags.get(new_name)) for old, flags in kept]
        domain = CategoricalDomain(choices=tuple(new for _, new in table))
    else:
        new_name = parameter.name
        table = [(old, _label(old)) for old, _ in kept]
        options = {_label(old): flags for old, flags in kept}
        update = {"domain": BundleDomain(options=options)}
        work.moved[parameter.name] = (new_name, _lookup(table))
        return parameter.model_copy(update=update)
    if new_name != parameter.name or any(not same_value(old, new) for old, new in table):
        work.moved[parameter.name] = (new_name, _lookup(table))
    return parameter.model_copy(update={"name": new_name, "domain": domain})


def _lookup(table: Sequence[tuple[Choice, Choice]]) -> Callable[[Choice], Choice]:
    def new_value(old: Choice) -> Choice:
        return next((new for known, new in table if same_value(known, old)), old)

    return new_value


def _label(value: Choice) -> str:
    return "default" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _bundle(parameter: Parameter, domain: BundleDomain, work: _Resolution) -> Parameter | None:
    options: dict[str, dict[str, Choice]] = {}
    dropped: list[str] = []
    for label, option in domain.options.items():
        plain = {flag: value for flag, value in option.items() if value is not None}
        absent = {flag: None for flag, value in option.items() if value is None and work.capabilities.knows(flag)}
        flags, notes = translate(plain, work.capabilities)
        reasons = [_brief(violation) for violation in work.judge(flags)]
        reasons += [
            f"{flag} has no effect in SGLang {work.capabilities.version}" for flag in flags if _is_idle(flag, work)
        ]
        if reasons:
            dropped.append(f"{parameter.name}: option {label!r} is dropped: {'; '.join(reasons)}")
        else:
            work.note(notes)
            options[label] = {**absent, **flags}
    if not options:
        work.problems += [FlagProblem(parameter.name, text) for text in dropped]
        return parameter
    work.note(dropped)
    return parameter.model_copy(update={"domain": BundleDomain(options=_unlike(options, parameter.name, work))})


def _unlike(options: Mapping[str, dict[str, Choice]], name: str, work: _Resolution) -> dict[str, dict[str, Choice]]:
    """Options that differ; translation can make two of them the same."""
    found: dict[str, dict[str, Choice]] = {}
    for label, flags in options.items():
        twin = next((other for other, set_ in found.items() if _launched(set_) == _launched(flags)), None)
        if twin is None:
            found[label] = flags
        else:
            work.note([f"{name}: option {label!r} is dropped: it is the same as {twin!r} in this version"])
    return found


def _launched(flags: Mapping[str, Choice]) -> dict[str, Choice]:
    """Without switches that are false: they do not stand on a command line."""
    return {flag: value for flag, value in flags.items() if value is not False}


def _condition(when: Condition, work: _Resolution) -> Condition:
    clauses = {}
    for name, wanted in when.any_of.items():
        new_name, new_value = work.moved.get(name, (name, None))
        clauses[new_name] = tuple(new_value(value) for value in wanted) if new_value else wanted
    return Condition(any_of=clauses)


def _hint(hint: Mapping[str, Choice], parameters: Sequence[Parameter], work: _Resolution) -> dict[str, Choice] | None:
    """The hint in the new words; None when one of its values was dropped. A hint may name plain flags, too."""
    domains = {parameter.name: parameter.domain for parameter in parameters}
    found: dict[str, Choice] = {}
    for name, value in hint.items():
        new_name, new_value = work.moved.get(name, (name, None))
        value = new_value(value) if new_value else value
        domain = domains.get(new_name)
        if name in work.gone and value in (None, False):
            continue
        if domain is None:
            found.update(translate({} if value is None else {new_name: value}, work.capabilities)[0])
            continue
        if isinstance(domain, CategoricalDomain) and not any(same_value(value, other) for other in domain.choices):
            return None
        if isinstance(domain, BundleDomain) and value not in domain.options:
            return None
        found[new_name] = value
    return found or None
