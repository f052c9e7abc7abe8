"""Launches of a study as learning sees them: the configuration in effect, how far it came, and its crash, if any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from servetune.core.failure import Failure, Phase
from servetune.core.space import BundleDomain, CategoricalDomain, Choice, Parameter, SearchSpace, flags_of, same_value

#: What a launch that worked to its end has reached.
END = 1_000_000
_ORDER = tuple(Phase)
_STEP = 1000
#: A flag and its value; None stands for "left out" and for a switch that is off.
Setting = tuple[str, Choice]
#: Names of flags that choose kernels or algorithms: two of these can exclude each other.
_KERNELS = ("-backend", "-dtype", "-algorithm", "-mode", "quantization")
_PARALLEL = frozenset(("tp-size", "dp-size", "ep-size", "pp-size"))


@dataclass(frozen=True)
class Launched:
    """One finished launch. `values`: every flag in effect, defaults included. `reached`: see `position`.

    `crash`: a failure that says something about the configuration. `facts`: memory in GiB, as `memory_facts`.
    """

    trial: int
    values: Mapping[str, Choice]
    reached: int
    crash: Failure | None = None
    facts: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def settings(self) -> Mapping[str, Choice]:
        """The values with switches that are off left out."""
        return settled(self.values)

    def has(self, what: Iterable[Setting]) -> bool:
        """Whether every one of the settings is in effect."""
        return has(self.settings, what)


def has(settings: Mapping[str, Choice], what: Iterable[Setting]) -> bool:
    """Whether every one of `what` is among the settings."""
    return all(same_value(settings.get(flag), value) for flag, value in what)


def settled(values: Mapping[str, Choice]) -> dict[str, Choice]:
    """Switches that are off, and flags that are left out, are the same."""
    return {flag: value for flag, value in values.items() if value is not None and value is not False}


def position(phase: Phase, levels_done: int, slug: str = "") -> int:
    """How far a launch came: its phase, and while serving the levels that it had finished. Larger is later."""
    place = _ORDER.index(phase) * _STEP
    if slug == "wrong_output" and levels_done == 0:
        return place - 1  # found by the probe, before any load
    return place + levels_done


def chooses_kernels(flag: str) -> bool:
    """Whether a flag chooses a kernel or an algorithm, by its name."""
    return flag.endswith(_KERNELS)


def is_context(flag: str) -> bool:
    """Whether what crashes may depend on this flag although a study keeps it fixed."""
    return flag in _PARALLEL or chooses_kernels(flag)


def is_ordered(parameter: Parameter) -> bool:
    """Whether its values are numbers with an order: what grows along it is memory and time, rarely a crash."""
    domain = parameter.domain
    if isinstance(domain, BundleDomain):
        return False
    if isinstance(domain, CategoricalDomain):
        numbers = [v for v in domain.choices if isinstance(v, int | float) and not isinstance(v, bool)]
        return len(numbers) == len(domain.choices) > 2
    return True


def kinds_of(space: SearchSpace) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """The flags of each categorical parameter, and the ordered flags."""
    plain = {p.name: tuple(sorted(flags_of(p))) for p in space.parameters if not is_ordered(p)}
    return plain, tuple(p.name for p in space.parameters if is_ordered(p))
