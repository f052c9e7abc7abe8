"""The engine of a replayed table: it accepts what was measured, and tells of a launch what its log once told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servetune.core.engine import Violation
from servetune.core.failure import Evidence, Failure, Phase, Verdict
from servetune.core.node import Exit, LaunchSpec, NodeFacts
from servetune.core.space import Assignment, SearchSpace
from servetune.core.table import FailureRow, LaunchRow
from servetune.simulation.replay import FAILED, READY
from servetune.simulation.table import MeasuredTable


class ReplayEngine:
    """Implements `core.engine.Engine` for the configurations of one table, whatever engine they were measured with."""

    def __init__(self, table: MeasuredTable) -> None:
        self._table = table
        self._rows = {
            (row.study, row.trial, row.attempt): row for found in table.configurations for row in found.launches
        }

    def resolve_space(self, space: SearchSpace, facts: NodeFacts) -> tuple[SearchSpace, Sequence[str]]:
        """The space as it is: its flags are spelled as they were launched."""
        return space, ()

    def check(self, assignment: Assignment, facts: NodeFacts) -> Sequence[Violation]:
        """Whatever is not in the table cannot be launched."""
        if self._table.find(assignment) is not None:
            return ()
        words = " ".join(f"{flag}={value}" for flag, value in assignment.items())
        return (
            Violation(
                rule="not-measured",
                layer="table",
                flags=tuple(assignment),
                message=f"not in the table: {words}",
            ),
        )

    def defaults(self, facts: NodeFacts) -> Assignment:
        """None: a flag that is left out is left out."""
        return {}

    def effective(self, assignment: Assignment, facts: NodeFacts) -> Assignment:
        """What is set; a switch that is false is left out."""
        return {flag: assignment[flag] for flag in sorted(assignment) if assignment[flag] is not False}

    def launch(self, assignment: Assignment, facts: NodeFacts, port: int) -> LaunchSpec:
        """Its place in the table. Only of an assignment that `check` accepts."""
        found = self._table.find(assignment)
        if found is None:
            raise ValueError(f"not in the table: {assignment}")
        return LaunchSpec(argv=("replay", str(self._table.configurations.index(found))), port=port)

    def log_reader(self, assignment: Assignment) -> ReplayReader:
        """A fresh reader."""
        return ReplayReader(self._rows)


class ReplayReader:
    """Implements `core.engine.LogReader` on what a `ReplayServer` writes: which launch it is, and how it started."""

    def __init__(self, rows: Mapping[tuple[str, int, int], LaunchRow]) -> None:
        self._rows = rows
        self._text = ""

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the log."""
        self._text += chunk.decode()

    @property
    def _lines(self) -> Sequence[str]:
        return [line for line in self._text.split("\n")[:-1] if line]

    def _row(self) -> LaunchRow | None:
        if not self._lines:
            return None
        study, trial, attempt = self._lines[0].rsplit(" ", 2)
        return self._rows[study, int(trial), int(attempt)]

    @property
    def phase(self) -> Phase:
        """Where it failed, once that is told; serving once it is ready."""
        row = self._row()
        if row is not None and row.failure is not None and FAILED in self._lines[1:]:
            return row.failure.phase
        return Phase.SERVING if self.ready else Phase.LOAD

    @property
    def ready(self) -> bool:
        """Whether it was ready by now."""
        return READY in self._lines[1:]

    @property
    def decided(self) -> bool:
        """Whether it had failed by now."""
        return FAILED in self._lines[1:]

    @property
    def last_line(self) -> str:
        """The last complete line."""
        return self._lines[-1] if self._lines else ""

    def facts(self) -> Mapping[str, Any]:
        """Memory as the log told it."""
        row = self._row()
        if row is None:
            return {}
        told = {name: value for name, value in row.memory.items() if value is not None}
        graph = {name.partition(".")[2]: value for name, value in told.items() if name.startswith("graph_gib.")}
        plain = {name: value for name, value in told.items() if "." not in name}
        memory = {name: value for name, value in plain.items() if name.endswith("_gib")}
        rest = {name: value for name, value in plain.items() if not name.endswith("_gib")}
        return {**rest, "memory_gib": memory, "graph_gib": graph}

    def warnings(self) -> Sequence[str]:
        """As they were."""
        row = self._row()
        return () if row is None else row.log_warnings

    def diagnose(self, exit: Exit | None, hint: str | None = None) -> Failure:
        """The recorded failure."""
        row = self._row()
        if row is None or row.failure is None:
            return Failure(slug="none", phase=self.phase, verdict=Verdict.NONE, message="the launch did not fail")
        return _failure(row.failure)


def _failure(row: FailureRow) -> Failure:
    """Without repairs: they would be configurations that nobody has measured."""
    return Failure(
        slug=row.slug,
        phase=row.phase,
        verdict=row.verdict,
        message=row.message,
        evidence=(Evidence(line=0, text=row.line),) if row.line else (),
        blamed=row.blamed,
        confidence=1.0,
    )
