"""SearchSpace → Optuna's suggest calls in a fixed order; assignment ↔ trial."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from servetune.core.space import (
    Assignment,
    BundleDomain,
    CategoricalDomain,
    Choice,
    Domain,
    FloatDomain,
    IntDomain,
    Parameter,
    Point,
    SearchSpace,
    same_value,
)

if TYPE_CHECKING:
    from servetune.search.objections import Objections
    from servetune.search.refusals import Refusals


def distribution(domain: Domain) -> BaseDistribution:
    """Optuna's distribution for a domain; a bundle is a categorical over its labels."""
    match domain:
        case CategoricalDomain():
            return CategoricalDistribution(domain.choices)
        case BundleDomain():
            return CategoricalDistribution(tuple(domain.options))
        case IntDomain():
            return IntDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
        case FloatDomain():
            return FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)


def suggest(trial: Trial, space: SearchSpace) -> dict[str, Choice]:
    """Suggest every parameter of the active branch, in the space's order, before anything is judged.

    A trial that suggests only some parameters would shrink the sampler's joint space for good.
    """
    point: dict[str, Choice] = {}
    for parameter in space.parameters:
        if space.active(parameter, point):
            point[parameter.name] = _suggest(trial, parameter)
    return point


def _suggest(trial: Trial, parameter: Parameter) -> Choice:
    match parameter.domain:
        case CategoricalDomain(choices=choices):
            return trial.suggest_categorical(parameter.name, choices)
        case BundleDomain(options=options):
            return trial.suggest_categorical(parameter.name, tuple(options))
        case IntDomain() as domain:
            return trial.suggest_int(parameter.name, domain.low, domain.high, step=domain.step, log=domain.log)
        case FloatDomain() as domain:
            got = trial.suggest_float(parameter.name, domain.low, domain.high, step=domain.step, log=domain.log)
            return round(got, 12)  # a stepped float arrives as 0.8500000000000001


def point_of(assignment: Assignment, space: SearchSpace, defaults: Assignment) -> dict[str, Choice]:
    """The point nearest to an assignment: how a baseline, a hint or a repair is shown to the sampler.

    A flag that the assignment leaves out counts with the engine's default where that is known, else as "left out",
    else as the domain's middle. Values outside a domain move to its nearest value, so the stored assignment, not the
    point, is what is launched.
    """
    point: dict[str, Choice] = {}
    for parameter in space.parameters:
        if space.active(parameter, point):
            point[parameter.name] = _nearest(parameter, assignment, defaults)
    return point


def _nearest(parameter: Parameter, assignment: Assignment, defaults: Assignment) -> Choice:
    domain = parameter.domain
    if isinstance(domain, BundleDomain):
        return _nearest_label(domain, assignment, defaults)
    wanted = assignment.get(parameter.name)
    value = defaults.get(parameter.name) if wanted is None else wanted
    if isinstance(domain, CategoricalDomain):
        return _nearest_choice(domain.choices, wanted, value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _middle(domain)
    return _snap(domain, value)


def _nearest_label(domain: BundleDomain, assignment: Assignment, defaults: Assignment) -> str:
    """The label that sets what the assignment does; else, with the defaults of what both leave out, the nearest one.

    The first label wins a tie. The assignment alone goes first: a default (an algorithm of NCCL, say) that only one
    label names must not speak for that label.
    """
    every = {flag for option in domain.options.values() for flag in option}
    assumed = {flag: assignment.get(flag, defaults.get(flag)) for flag in every}

    def agreement(label: str) -> tuple[bool, int]:
        flags = domain.options[label]
        exact = all(same_value(flags.get(flag) or None, assignment.get(flag) or None) for flag in every)
        return exact, sum(same_value(flags.get(flag) or None, assumed[flag] or None) for flag in every)

    return max(domain.options, key=agreement)


def _nearest_choice(choices: tuple[Choice, ...], wanted: Choice, value: Choice) -> Choice:
    for candidate in (wanted, value, False if value is None else None):
        for choice in choices:
            if same_value(choice, candidate):
                return choice
    numbers = [c for c in choices if isinstance(c, int | float) and not isinstance(c, bool)]
    if numbers and isinstance(value, int | float):
        return min(numbers, key=lambda number: abs(number - value))
    return choices[0]


def _middle(domain: IntDomain | FloatDomain) -> float | int:
    middle = math.sqrt(domain.low * domain.high) if domain.log else (domain.low + domain.high) / 2
    return _snap(domain, middle)


def _snap(domain: IntDomain | FloatDomain, value: float) -> float | int:
    inside = min(max(value, domain.low), domain.high)
    if domain.step is not None and not domain.log:
        steps = math.floor((inside - domain.low) / domain.step + 0.5)
        last = math.floor((domain.high - domain.low) / domain.step + 1e-9)
        inside = domain.low + min(steps, last) * domain.step
    return round(inside) if isinstance(domain, IntDomain) else round(inside, 12)


class Guide(Protocol):
    """What the loop tells a sampler, and hears from it."""

    def key(self, point: Point) -> str | None:
        """Key of the effective configuration; None for a point that the engine refuses."""
        ...

    def effective_key(self, point: Point) -> str:
        """Key of the effective configuration, whether the point is known not to work or not."""
        ...

    @property
    def refusals(self) -> Refusals:
        """What is known of the points that have no key; the sampler adds to it."""
        ...

    @property
    def objections(self) -> Objections:
        """What crashes taught against points."""
        ...

    def blocks(self, rule: str, point: Point) -> bool:
        """Hear that a rule of `objections` kept a point from being proposed; False when something else did too."""
        ...

    def expects(self, gain_per_node_hour: float) -> None:
        """What the proposal may bring: expected improvement of the best value, as a share of it, per node-hour."""
        ...


@runtime_checkable
class Guided(Protocol):
    """A sampler that proposes only what the engine accepts and has not seen."""

    def heed(self, guide: Guide) -> None:
        """Take the guide; called once, before the first question."""
        ...


SamplerFactory = Callable[[int], BaseSampler]
Bounds = Callable[[Point], Mapping[str, tuple[float, float]]]
"""A point, perhaps not whole yet → parameter → (lowest, highest) number that can work."""


class Reseeded(BaseSampler):
    """Makes any sampler a pure function of the study's history: built anew, from seed and trial number, at each ask.

    A study that was killed and resumed therefore asks what it would have asked without the kill. An independent
    suggestion is seeded by the parameter's name as well, so it does not depend on what was suggested before the kill.
    """

    def __init__(self, factory: SamplerFactory, seed: int, bounds: Bounds | None = None) -> None:
        """`bounds`: which numbers can work beside the other parameters; proposals are moved in between."""
        self._factory = factory
        self._seed = seed
        self._bounds = bounds
        self._relative: tuple[int, BaseSampler] | None = None

    def _inner(self, trial: FrozenTrial, word: str = "") -> BaseSampler:
        text = f"{self._seed}:{trial.number}:{word}"
        return self._factory(int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big"))

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """As the inner sampler, which is kept for `sample_relative`: it may remember the space between the two."""
        inner = self._inner(trial)
        self._relative = (trial.number, inner)
        return inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """As the inner sampler."""
        if self._relative is None or self._relative[0] != trial.number:
            self.infer_relative_search_space(study, trial)
        assert self._relative is not None
        proposed = self._relative[1].sample_relative(study, trial, search_space)
        return {**proposed, **self._moved({**trial.params, **proposed}, {n: search_space[n] for n in proposed})}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """As the inner sampler, seeded by the parameter's name as well."""
        inner = self._inner(trial, param_name)
        value = inner.sample_independent(study, trial, param_name, param_distribution)
        return self._moved({**trial.params, param_name: value}, {param_name: param_distribution}).get(param_name, value)

    def _moved(self, point: Point, distributions: Mapping[str, BaseDistribution]) -> dict[str, Any]:
        """The numbers that lie outside what can work, moved to where they lie in their own range, but in between."""
        numeric = {n: d for n, d in distributions.items() if isinstance(d, FloatDistribution | IntDistribution)}
        if self._bounds is None or not numeric:
            return {}
        bounds = self._bounds(point)
        inside = {n: _inside(point[n], numeric[n], *bounds[n]) for n in numeric if n in bounds}
        return {name: value for name, value in inside.items() if value is not None}

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        """As the inner sampler: Optuna's own samplers store what they need for later asks here."""
        self._inner(trial).after_trial(study, trial, state, values)


def _inside(value: Any, domain: FloatDistribution | IntDistribution, low: float, high: float) -> float | None:
    """`value` of a domain moved into [low, high], on the domain's grid; None when it is inside or nothing is."""
    low, high = max(low, domain.low), min(high, domain.high)
    if low <= value <= high or low > high:
        return None
    share = (float(value) - domain.low) / (domain.high - domain.low)
    wanted: float = low + share * (high - low)
    if not domain.step:
        return wanted
    first = math.ceil((low - domain.low) / domain.step - 1e-9)
    last = math.floor((high - domain.low) / domain.step + 1e-9)
    if first > last:
        return None
    steps = min(last, max(first, round((wanted - domain.low) / domain.step)))
    moved: float = domain.low + steps * domain.step
    return moved if isinstance(domain, IntDistribution) else round(moved, 12)


def quiet_optuna() -> None:
    """Leave Optuna's log to warnings: the live view and the report say the rest."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
