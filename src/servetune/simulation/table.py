"""A table of measured launches as a scenario: only what was measured can be asked for, and the answer is the record.

The table is what `servetune export --format table` writes (`core.table`). Nothing in here invents a number.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from servetune.core.errors import SpecError
from servetune.core.failure import Verdict
from servetune.core.node import EnvRef, NodeFacts
from servetune.core.objective import Objective
from servetune.core.space import Assignment, CategoricalDomain, Choice, Parameter, SearchSpace, Value
from servetune.core.table import LaunchRow

SUFFIX = ".jsonl"
#: Classes that say something about the node or the load, never about the configuration.
NOT_THE_CONFIGURATION = ("host_env", "overload", "invalid_measurement")


class Configuration(NamedTuple):
    """One configuration, and every launch of it that can be replayed."""

    flags: Mapping[str, Value]
    launches: tuple[LaunchRow, ...]

    def score(self) -> float | None:
        """Geometric mean over the levels, averaged over the launches; None where none was measured whole."""
        whole = [levels for launch in self.launches if launch.failure is None and (levels := rates(launch))]
        return sum(Objective().value(levels) for levels in whole) / len(whole) if whole else None


class MeasuredTable(NamedTuple):
    """A table that was read. `configurations` in the order of their first launch; `left_out`: what is not replayed."""

    file: str
    configurations: tuple[Configuration, ...]
    left_out: tuple[str, ...]

    @property
    def first(self) -> LaunchRow:
        """A launch that says on what everything was measured: they all agree about it."""
        return self.configurations[0].launches[0]

    def find(self, assignment: Assignment) -> Configuration | None:
        """The configuration that sets exactly this."""
        wanted = key(assignment)
        return next((found for found in self.configurations if key(found.flags) == wanted), None)

    def baseline(self) -> Configuration:
        """The study's baseline; where it is not in the table the first configuration that was measured whole."""
        stated = [c for c in self.configurations if any(launch.baseline for launch in c.launches)]
        whole = [c for c in self.configurations if c.score() is not None]
        return (stated or whole or list(self.configurations))[0]

    def optimum(self) -> tuple[float, Configuration] | None:
        """The best measured configuration and its score, tokens/s. For judging results: no strategy sees it."""
        scored = [(score, c) for c in self.configurations if (score := c.score()) is not None]
        return max(scored, key=lambda pair: pair[0], default=None)


def key(assignment: Assignment) -> str:
    """One text for each assignment; a switch that is false is one that is left out, as on the command line."""
    return json.dumps({flag: assignment[flag] for flag in sorted(assignment) if assignment[flag] is not False})


def rates(launch: LaunchRow) -> dict[int, float]:
    """Level → tokens/s; empty unless every level of the load has a valid number."""
    good = {level.concurrency: level.output_tokens_per_s for level in launch.levels if level.valid}
    known = {level: rate for level in launch.load.concurrency if (rate := good.get(level)) is not None}
    return known if len(known) == len(launch.load.concurrency) else {}


def load_table(path: str) -> MeasuredTable:
    """Read a table. Raises SpecError naming file, line and key, or saying that nothing in it can be replayed."""
    rows = _rows(path)
    _one_setting(path, rows)
    left_out, grouped = [], defaultdict[str, list[LaunchRow]](list)
    for row in rows:
        reason = unusable(row)
        if reason:
            left_out.append(f"trial {row.trial}, attempt {row.attempt} of {row.study}: {reason}")
        else:
            grouped[key(_plain(row))].append(row)
    if not grouped:
        raise SpecError(f"{path}: none of its {len(rows)} launches can be replayed: {'; '.join(left_out) or 'empty'}")
    found = tuple(Configuration(_plain(launches[0]), tuple(launches)) for launches in grouped.values())
    return MeasuredTable(path, found, tuple(left_out))


def unusable(row: LaunchRow) -> str:
    """Why a launch says nothing, or too little, about its configuration; empty when it can be replayed."""
    if row.finished_at is None:
        return "interrupted"
    if row.failure is None:
        return "" if rates(row) else _without_rates(row)
    if row.failure.verdict is Verdict.STOP or row.failure.slug in NOT_THE_CONFIGURATION:
        return f"{row.failure.slug} was no fault of its configuration"
    return ""


def _without_rates(row: LaunchRow) -> str:
    measured = {level.concurrency: level.valid for level in row.levels}
    if any(level not in measured for level in row.load.concurrency):
        return "not measured at every level"
    return "its measurements are not valid at every level"


def _plain(row: LaunchRow) -> dict[str, Value]:
    """Flags without references to secrets, which are the same for all."""
    return {flag: value for flag, value in row.flags.items() if not isinstance(value, EnvRef)}


def _rows(path: str) -> list[LaunchRow]:
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SpecError(f"no table {path!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"table {path}: not UTF-8 text: {error}") from error
    return [_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _row(path: str, number: int, line: str) -> LaunchRow:
    try:
        return LaunchRow.model_validate_json(line)
    except ValidationError as error:
        told = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in told["loc"]) or "line"
        raise SpecError(
            f"{path}, line {number}: {where}: {told['msg']}; "
            "a table is what `servetune export STUDY --format table` writes"
        ) from error


def _one_setting(path: str, rows: Sequence[LaunchRow]) -> None:
    """Numbers of different models, machines, versions or loads must not stand beside each other."""
    for number, row in enumerate(rows[1:], 2):
        for name, first, other in zip(("engine", "gpu", "load"), _setting(rows[0]), _setting(row), strict=True):
            if first != other:
                raise SpecError(
                    f"{path}: launches 1 and {number} differ in {name} ({first} and {other}): a table that is replayed "
                    "holds launches of one engine, model, GPU and load; split it"
                )


def _setting(row: LaunchRow) -> tuple[object, object, object]:
    engine = (row.engine.name, row.engine.version, row.engine.model, row.simulated)
    return engine, row.gpu.names, (row.load.input_tokens, row.load.output_tokens, row.load.concurrency)


def space_of(table: MeasuredTable) -> SearchSpace:
    """What differs between the configurations, as parameters with the values that were measured; the rest is fixed.

    Most points of this space are not in the table: `points` are those that are.
    """
    flags = sorted({flag for c in table.configurations for flag in c.flags})
    values = {flag: _values([c.flags.get(flag) for c in table.configurations]) for flag in flags}
    return SearchSpace(
        name="measured",
        parameters=tuple(
            Parameter(name=flag, domain=CategoricalDomain(choices=found))
            for flag, found in values.items()
            if len(found) > 1
        ),
        fixed={flag: found[0] for flag, found in values.items() if len(found) == 1 and found[0] is not None},
    )


def _values(told: Sequence[Choice]) -> tuple[Choice, ...]:
    """Each value once: left out, switches, numbers by size, words by letter."""
    unique = {json.dumps(value): value for value in told}.values()
    return tuple(sorted(unique, key=_rank))


def _rank(value: Choice) -> tuple[int, float, str]:
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, str):
        return (2, 0.0, value)
    return (1, float(value), "")


def points(table: MeasuredTable, space: SearchSpace) -> list[dict[str, Choice]]:
    """The points of `space_of` that were measured, in the table's order."""
    names = [parameter.name for parameter in space.parameters]
    return [{name: c.flags.get(name) for name in names} for c in table.configurations]


def facts(table: MeasuredTable) -> NodeFacts:
    """The node on which everything was measured. Marked as simulated: nothing can be launched on it now."""
    row = table.first
    return NodeFacts(
        node="replay",
        host=row.study,
        simulated=True,
        gpu_names=row.gpu.names,
        gpu_memory_bytes=row.gpu.memory_bytes,
        compute_capability=row.gpu.compute_capability,
        interconnect=row.gpu.interconnect,
        engine_name=row.engine.name,
        engine_version=row.engine.version,
        engine_rules=False,
    )
