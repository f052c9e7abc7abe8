"""Bounds out of crashes for lack of memory: what needs less, or gets more, than what crashed may work; the rest cannot.

The engine leaves `1 - fraction` of the memory before the weights outside the KV pool. Hence a KV pool needs a fraction
above `1 - after / before` (GiB free after and before the weights), and graphs and activations need more, or have less
room, the larger the fraction, the captured batch, the chunk and the number of requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from servetune.core.knowledge import Clause
from servetune.search.launched import Launched, Setting

FRACTION = "mem-fraction-static"
#: What takes memory beside the KV pool, by the phase that needs it.
GRAPH = ("cuda-graph-max-bs", "cuda-graph-max-bs-decode")
RUNTIME = (*GRAPH, "chunked-prefill-size", "max-running-requests", "max-prefill-tokens")
#: Two launches whose memory after the weights differs by less than this share have the same weights.
SAME = 0.02


def pool_bound(crash: Launched) -> Clause:
    """The fraction below which no KV pool fits beside these weights."""
    low = _number(crash, FRACTION) or 0.0
    before, after = crash.facts.get("pre", 0.0), crash.facts.get("avail")
    if before > 0 and after is not None:
        low = max(low, 1 - after / before)
    else:
        low += 1e-4  # the fraction itself failed, and bounds are exclusive
    return Clause(flag=FRACTION, below=round(math.ceil(round(low * 1e4, 6)) / 1e4, 4))


def heavier(crash: Launched, launches: Sequence[Launched], flags: Mapping[str, tuple[str, ...]]) -> frozenset[Setting]:
    """The settings that may be why more memory is gone after the weights than in other launches."""
    before, after = crash.facts.get("pre", 0.0), crash.facts.get("avail")
    if not before or after is None:
        lighter = [one for one in launches if one.reached > crash.reached]
    else:
        lighter = [one for one in launches if one.facts.get("avail", 0.0) > after + SAME * before]
    if not lighter:
        return frozenset()
    mine = {(flag, crash.settings.get(flag)) for own in flags.values() for flag in own}
    return frozenset(one for one in mine if not any(light.has((one,)) for light in lighter))


def room_bounds(crash: Launched, what: Sequence[str]) -> tuple[Clause, ...]:
    """At least the crashed launch's fraction, and at least its value of every flag of `what` that is in effect."""
    fraction = _number(crash, FRACTION)
    clauses = [] if fraction is None else [Clause(flag=FRACTION, above=round(fraction - 5e-4, 5))]
    for flag in what:
        number = _number(crash, flag)
        if number is not None:
            clauses.append(Clause(flag=flag, above=number - 1))
    return tuple(clauses)


def told_apart(
    crash: Launched, worked: Sequence[Launched], clauses: Sequence[Clause], flags: Mapping[str, tuple[str, ...]]
) -> frozenset[Setting] | None:
    """Settings of the crash that, beside the bounds, exclude all that worked within them; None when nothing does."""
    within = [one for one in worked if all(clause.holds(one.values) for clause in clauses)]
    mine = sorted({(flag, crash.settings.get(flag)) for own in flags.values() for flag in own}, key=str)
    chosen: set[Setting] = set()
    while within:
        best = max(mine, key=lambda one: sum(not other.has((one,)) for other in within), default=None)
        if best is None or all(other.has((best,)) for other in within):
            return None
        chosen.add(best)
        within = [other for other in within if other.has((best,))]
    return frozenset(chosen)


def _number(launched: Launched, flag: str) -> float | None:
    value = launched.values.get(flag)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
