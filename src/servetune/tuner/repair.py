"""Mended configurations: what a failure's computed repairs make of the assignment that failed."""

from __future__ import annotations

from collections.abc import Sequence

from servetune.core.failure import Failure
from servetune.core.space import Assignment, BundleDomain, FloatDomain, IntDomain, SearchSpace, Value

#: At most this many repairs of a repair.
REPAIR_DEPTH = 2


def repaired(
    assignment: Assignment, failure: Failure, space: SearchSpace, depth: int, most: int
) -> Sequence[dict[str, Value]]:
    """At most `most` assignments to try next, best first. Only flags of the space are touched, within their ranges.

    Of several values of one flag the first is tried: what lies beyond it is the sampler's to find.
    """
    if depth > REPAIR_DEPTH:
        return ()
    mended: list[dict[str, Value]] = []
    refused = _refused(failure, space)
    first = {repair.flag: repair for repair in reversed(failure.repairs)}
    for repair in failure.repairs:
        if first[repair.flag] is not repair:
            continue
        candidate = {flag: value for flag, value in assignment.items() if flag != repair.flag and flag not in refused}
        if repair.value is not None:
            candidate[repair.flag] = repair.value
        if _allowed(repair.flag, repair.value, space) and candidate != dict(assignment) and candidate not in mended:
            mended.append(candidate)
    return mended[:most]


def _refused(failure: Failure, space: SearchSpace) -> set[str]:
    """Flags that the parser does not take: what replaces one helps only without it."""
    if failure.slug != "cli_parse":
        return set()
    return {repair.flag for repair in failure.repairs if repair.value is None and _allowed(repair.flag, None, space)}


def _allowed(flag: str, value: Value | None, space: SearchSpace) -> bool:
    for parameter in space.parameters:
        domain = parameter.domain
        if isinstance(domain, BundleDomain):
            if any(flag in option for option in domain.options.values()):
                return True
        elif parameter.name == flag:
            if isinstance(domain, IntDomain | FloatDomain):
                return isinstance(value, int | float) and domain.low <= value <= domain.high
            return value in domain.choices
    return False
