"""What a study file says twice or in contradiction: checks across its sections."""

from __future__ import annotations

import re
from collections.abc import Mapping

from servetune.core.benchmark import Workload
from servetune.core.objective import LATENCIES as LIMITS
from servetune.core.objective import OUTPUT_TOKENS, Objective
from servetune.core.space import BundleDomain, Parameter, SearchSpace, Value
from servetune.settings._adjust import option_of
from servetune.settings._document import Node
from servetune.settings._domains import possible_values
from servetune.settings._problems import Problems, did_you_mean, one_of

MAX_CONCURRENCY = 100_000
_SCHEMES = re.compile(r"(sqlite|postgresql)(\+[a-z0-9]+)?://")


def check_workload(node: Node, workload: Workload, problems: Problems) -> None:
    """Concurrency levels are positive and differ; counts are positive."""
    levels = node.entries.get("concurrency", node)
    if not workload.concurrency:
        problems.add(levels.place, levels.path, "got an empty list; allowed: at least one concurrency level")
    for position, level in enumerate(workload.concurrency):
        at = levels.items[position] if position < len(levels.items) else levels
        if not 1 <= level <= MAX_CONCURRENCY:
            problems.add(at.place, at.path, f"got {level}; allowed: 1 to {MAX_CONCURRENCY:,} concurrent requests")
        if level in workload.concurrency[:position]:
            problems.add(at.place, at.path, f"the level {level} stands here twice; remove one")
    for key, low in (("requests_per_level", 1), ("warmup", 0)):
        count = getattr(workload, key)
        if isinstance(count, int) and count < low:
            at = node.entries[key]
            problems.add(at.place, at.path, f"got {count}; allowed: at least {low}, or 'auto'")


def check_objective(node: Node, objective: Objective, workload: Workload, problems: Problems) -> None:
    """Its levels are measured, its weights make sense, its limits are known."""
    measured = one_of(workload.concurrency)
    if objective.level is not None and objective.level not in workload.concurrency:
        at = node.entries["level"]
        problems.add(at.place, at.path, f"got {objective.level}, which is not measured; allowed: {measured}")
    if objective.level is not None and objective.weights:
        at = node.entries["weights"]
        problems.add(at.key_place, at.path, "level and weights exclude each other; leave one out")
    for level, weight in objective.weights.items():
        at = node.entries["weights"].entries[str(level)]
        if level not in workload.concurrency:
            problems.add(at.key_place, at.path, f"level {level} is not measured; allowed: {measured}")
        if weight < 0:
            problems.add(at.place, at.path, f"got {weight:g}; allowed: a weight of at least 0")
    if objective.weights and not sum(objective.weights.values()) > 0:
        at = node.entries["weights"]
        problems.add(at.place, at.path, "every weight is 0; one must be above 0")
    if objective.minimize is not None and objective.minimize not in LIMITS:
        at = node.entries["minimize"]
        near = did_you_mean(objective.minimize, LIMITS)
        problems.add(at.place, at.path, f"got {at.shown()}; allowed: {one_of(LIMITS)}{near}")
    for name, bound in objective.limits.items():
        at = node.entries["limits"].entries[name]
        if name not in LIMITS:
            text = f"unknown limit {name!r}; allowed: {one_of(LIMITS)}{did_you_mean(name, LIMITS)}"
            problems.add(at.key_place, node.path, text)
        if not bound > 0:
            problems.add(at.place, at.path, f"got {bound:g}; allowed: above 0 seconds")


def check_goodput(entries: Mapping[str, Node], objective: Objective, problems: Problems) -> None:
    """Goodput needs limits of one request, which are the load generator's."""
    generator = entries.get("load_generator")
    if objective.maximize == OUTPUT_TOKENS or (generator is not None and "goodput" in generator.entries):
        return
    at = entries["objective"].entries["maximize"]
    remedy = "load_generator: {name: closed_loop, goodput: {ttft_s: 2.0, tpot_s: 0.1}}"
    problems.add(at.place, at.path, f"{objective.maximize} needs limits of one request; write them as `{remedy}`")


def check_storage(node: Node, problems: Problems) -> None:
    """A database URL of SQLite or PostgreSQL, without a password."""
    url = node.scalar
    if not isinstance(url, str) or not _SCHEMES.match(url):
        allowed = "sqlite:///PATH or postgresql://USER@HOST/DATABASE"
        problems.add(node.place, node.path, f"got {node.shown()}; allowed: {allowed}")
    elif re.match(r"[^/]*//[^@/]*:[^@/]+@", url):
        way = "leave it out and set PGPASSWORD or use ~/.pgpass"
        problems.add(node.place, node.path, f"a password in the address of the database is refused; {way}")


def baseline_of(
    node: Node, flags: Mapping[str, Value], whole: SearchSpace, fixed: Mapping[str, object], problems: Problems
) -> dict[str, Value]:
    """`baseline:` with bundles unfolded; values must have the type that the space gives the flag."""
    found: dict[str, Value] = {}
    for name, value in flags.items():
        entry = node.entries[name]
        parameter = next((parameter for parameter in whole.parameters if parameter.name == name), None)
        if name in fixed:
            text = f"{name!r} stands under fixed, too; the baseline holds what is set beside the fixed flags"
            problems.add(entry.key_place, entry.path, text)
        elif parameter is not None and isinstance(parameter.domain, BundleDomain):
            found.update(option_of(parameter, value, entry, problems))
        else:
            if parameter is not None:
                _check_type(parameter, value, entry, problems)
            found[name] = value
    return found


def _check_type(parameter: Parameter, value: Value, node: Node, problems: Problems) -> None:
    values = parameter.domain
    if values.kind in ("int", "float"):
        right = isinstance(value, int | float) and not isinstance(value, bool)
        right = right and (values.kind == "float" or float(value).is_integer())
    else:
        assert values.kind == "categorical"  # bundles are unfolded by the caller
        kinds = {isinstance(choice, bool) for choice in values.choices if choice is not None}
        right = isinstance(value, bool) in kinds or not kinds
    if not right:
        text = f"got {node.shown()} for {parameter.name!r}; the space has {possible_values(values)}"
        problems.add(node.place, node.path, text)
