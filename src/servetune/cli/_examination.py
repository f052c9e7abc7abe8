"""Examining a study's node, and what a start does with the findings."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from servetune.core.doctor import Examined, Finding, Purpose
from servetune.core.errors import NodeUnusableError, UsageError
from servetune.core.node import Node
from servetune.core.space import Assignment
from servetune.core.study import StudySpec
from servetune.tuner.opening import at_node
from servetune.tuner.session import study_dir

_QUOTED = re.compile("`([^`]+)`")
_SETTING = re.compile(r"\w+: ")  # a line of a study file, such as `gpus: [1]`
_COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


def purpose_of(spec: StudySpec) -> Purpose:
    """What a study wants of its node."""
    return Purpose(
        study=spec.study,
        model=spec.engine.model,
        gpus_needed=_gpus_of({**spec.space.fixed, **spec.baseline}),
        concurrency=max(spec.workload.concurrency),
        load_processes=spec.load_generator.settings.get("processes"),
        logs=str(study_dir(spec).parent),
    )


def _gpus_of(baseline: Assignment) -> int:
    """Of the launch that every study makes first. Data parallelism takes more of them unless it is attention's only."""
    if baseline.get("device") == "cpu":
        return 0
    names = ("tp-size", "pp-size", *(() if baseline.get("enable-dp-attention") else ("dp-size",)))
    sizes = [baseline.get(name) for name in names]
    return math.prod(size for size in sizes if isinstance(size, int))


def examined(spec: StudySpec) -> list[Finding]:
    """Every row. Raises UsageError for a kind of node that has none."""
    with at_node(spec) as node:
        if not isinstance(node, Examined):
            raise UsageError(
                f"the doctor examines nodes of name ssh and local, and that of study {spec.study!r} is "
                f"{spec.node.name!r}; "
                "`servetune validate` says what can be known about it"
            )
        return list(node.examine(purpose_of(spec)))


def check_before_start(spec: StudySpec, node: Node, forced: Sequence[str], shown: Console) -> None:
    """Examine a node that can be examined. Raises NodeUnusableError when a row that is not forced found an error.

    Raises UsageError for a forced row that there is not, such as any row of a node that cannot be examined.
    """
    findings: list[Finding] = []
    if isinstance(node, Examined):
        findings = list(node.examine(purpose_of(spec).model_copy(update={"thorough": False})))
    rows = {finding.row for finding in findings}
    if unknown := [row for row in forced if row not in rows]:
        known = ", ".join(sorted(rows)) or f"none, since a node of name {spec.node.name} has no doctor"
        raise UsageError(f"--force {unknown[0]!r} is no row of the doctor; rows: {known}")
    errors = [finding for finding in findings if finding.state == "error" and finding.row not in forced]
    if any(finding.state != "ok" for finding in findings):
        show([finding for finding in findings if finding.state != "ok"], shown)
    if errors:
        named = ", ".join(finding.row for finding in errors)
        words = " ".join(f"--force {finding.row!r}" for finding in errors)
        raise NodeUnusableError(f"the node is not ready: {named} (above, with what to do). Start all the same: {words}")


def show(findings: Sequence[Finding], shown: Console) -> None:
    """A table for people, and under it, each on one line, the commands that it names: a column breaks them."""
    shown.print(table_of(findings))
    quoted = dict.fromkeys(words for finding in findings for words in _QUOTED.findall(finding.remedy))
    for words in quoted:
        if " " in words and not _SETTING.match(words):
            shown.print(Text(f"  {words}"), soft_wrap=True)


def table_of(findings: Sequence[Finding]) -> Table:
    """Rows for people, each with its remedy. What was found is text, never markup."""
    table = Table("row", "", "found", "what to do", box=None, pad_edge=False)
    for finding in findings:
        state = Text(finding.state, style=_COLOURS[finding.state])
        table.add_row(Text(finding.row), state, Text(finding.found), Text(finding.remedy))
    return table
