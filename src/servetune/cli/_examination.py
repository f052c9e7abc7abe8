"""Examining a study's node, and what a start does with the findings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from servetune.core.doctor import Examined, Finding, Purpose
from servetune.core.errors import NodeUnusableError, UsageError
from servetune.core.node import Node
from servetune.core.study import StudySpec
from servetune.tuner.opening import open_node

_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


def purpose_of(spec: StudySpec) -> Purpose:
    """What a study wants of its node: GPUs for tensor and pipeline parallelism, unless it runs on the CPU."""
    fixed = spec.space.fixed
    needed = 0 if fixed.get("device") == "cpu" else 1
    for name in ("tp-size", "pp-size"):
        size = fixed.get(name, 1)
        needed *= size if isinstance(size, int) else 1
    return Purpose(
        study=spec.study, model=spec.engine.model, gpus_needed=needed, concurrency=max(spec.workload.concurrency)
    )


def examined(spec: StudySpec) -> list[Finding]:
    """Every row. Raises UsageError for a kind of node that has none."""
    node = open_node(spec)
    try:
        if not isinstance(node, Examined):
            raise UsageError(
                f"the doctor examines nodes of name ssh, and that of study {spec.study!r} is {spec.node.name!r}; "
                "`servetune validate` says what can be known about it"
            )
        return list(node.examine(purpose_of(spec)))
    finally:
        _close(node)


def check_before_start(spec: StudySpec, forced: Sequence[str], shown: Console) -> None:
    """Examine a node that can be examined. Raises NodeUnusableError when a row that is not forced found an error."""
    node = open_node(spec)  # what is wrong with its settings, or a scenario's file, is said before anything is written
    try:
        if not isinstance(node, Examined):
            return
        findings = list(node.examine(purpose_of(spec).model_copy(update={"thorough": False})))
    finally:
        _close(node)
    rows = {finding.row for finding in findings}
    if unknown := [row for row in forced if row not in rows]:
        raise UsageError(f"--force {unknown[0]!r} is no row of the doctor; rows: {', '.join(sorted(rows))}")
    errors = [finding for finding in findings if finding.state == "error" and finding.row not in forced]
    if any(finding.state != "ok" for finding in findings):
        shown.print(table_of([finding for finding in findings if finding.state != "ok"]))
    if errors:
        named = ", ".join(finding.row for finding in errors)
        words = " ".join(f"--force {finding.row!r}" for finding in errors)
        raise NodeUnusableError(f"the node is not ready: {named} (above, with what to do). Start all the same: {words}")


def table_of(findings: Sequence[Finding]) -> Table:
    """Rows for people, each with its remedy. What was found is text, never markup."""
    table = Table("row", "", "found", "what to do", box=None, pad_edge=False)
    for finding in findings:
        state = Text(finding.state, style=_COLOURS[finding.state])
        table.add_row(Text(finding.row), state, Text(finding.found), Text(finding.remedy))
    return table


def _close(node: Node) -> None:
    if hasattr(node, "close"):
        node.close()
