"""A diagnosis on one screen, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from servetune.cli._diagnosis_verdict import verdict_sentence
from servetune.cli._options import console
from servetune.core.wording import shortened
from servetune.report import SIMULATED

#: Characters of a line that are shown; `--json` has more.
_FIRST, _FURTHER = 600, 400
#: A simulated server stamps its lines by the real clock and speaks of its own, which runs faster.
CLOCKS = (
    "Timeline (seconds between the log's stamps; what its lines say, such as elapsed=…, is the simulated node's time)"
)
#: A quotation of the log that is shorter than this is no repetition.
_QUOTED = 20


def show(report: Mapping[str, Any]) -> None:
    """Print the report of `SglangLogReader.report`."""
    shown = console()
    if shown.is_terminal:
        _print(shown, report)
        return
    with shown.capture() as captured:
        _print(shown, report)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _print(shown: Console, report: Mapping[str, Any]) -> None:
    simulated = report.get("simulated", False)
    if simulated:
        shown.print(SIMULATED, markup=False, soft_wrap=True)
    _verdict(shown, report)
    _evidence(shown, report["evidence"])
    _blamed(shown, report["blamed_flags"])
    _repairs(shown, report["repair"])
    _not_in_effect(shown, report["not_in_effect"], [item["line"] for item in report["evidence"]])
    _timeline(shown, report["timeline"], CLOCKS if simulated else "Timeline")


def _verdict(shown: Console, report: Mapping[str, Any]) -> None:
    healthy = report["class"] == "none"
    rank = f", first on {report['first_rank']}" if report["first_rank"] else ""
    head = Text("no failure" if healthy else report["class"], style="bold green" if healthy else "bold red")
    head.append(" (class none)" if healthy else f" in phase {report['phase']}{rank}", style="bold")
    head.append(f"  (confidence {report['confidence']:.0%})", style="dim")
    shown.print(head)
    shown.print(Text(_unquoted(report["cause"], report["evidence"])))
    if report["starts"] > 1:
        which = "the last" if report["start"] == report["starts"] else f"number {report['start']}"
        shown.print(Text(f"the log holds {report['starts']} starts of the server; this is about {which} of them"))
    if not healthy:
        shown.print(Text(f"{report['verdict']}: {verdict_sentence(report)}"))
    if report["advice"]:
        shown.print(Text.assemble(("Next: ", "bold"), report["advice"]))


def _unquoted(cause: str, evidence: Sequence[Mapping[str, Any]]) -> str:
    """The cause without the line of the log that it ends with, where that line follows on the screen."""
    head, mark, quoted = cause.partition(": ")
    while mark:
        plain = quoted.rstrip("…")
        for item in evidence:
            if len(plain) >= _QUOTED and item["text"].startswith(plain):
                return f"{head} (line {item['line']})"
        more, mark, quoted = quoted.partition(": ")
        head = f"{head}: {more}"
    return cause


def _evidence(shown: Console, evidence: Sequence[Mapping[str, Any]]) -> None:
    if not evidence:
        return
    table = Table.grid(padding=(0, 2))
    for index, item in enumerate(evidence):
        text = shortened(item["text"], _FURTHER if index else _FIRST)
        table.add_row(Text(str(item["line"]), justify="right"), Text(text, style="" if index else "bold"))
    _section(shown, "Deciding lines", table)


def _blamed(shown: Console, blamed: Sequence[Mapping[str, Any]]) -> None:
    if not blamed:
        return
    table = Table.grid(padding=(0, 2))
    for item in blamed:
        used = "" if item["used"] is None else f"the engine used {item['used']}"
        table.add_row(Text(item["flag"]), Text(_given(item)), Text(used))
    _section(shown, "To blame", table)


def _given(item: Mapping[str, Any]) -> str:
    if item["given"] is None:
        return ""
    if not item["given"]:
        return "not passed"
    return "passed" if item["passed"] in (None, True) else f"passed {item['passed']}"


def _repairs(shown: Console, repairs: Sequence[Mapping[str, Any]]) -> None:
    if not repairs:
        return
    table = Table.grid(padding=(0, 2))
    for item in repairs:
        table.add_row(Text(_change(item["flag"], item["value"]), style="bold"), Text(item["reason"]))
    _section(shown, "What to change (one at a time, first the best)", table)


def _change(flag: str, value: Any) -> str:
    if value is None:
        return f"leave out {flag}"
    if value is True:
        return f"add {flag}"
    return f"{flag} {value}" if flag.startswith("--") else f"{flag}={value}"


def _not_in_effect(shown: Console, items: Sequence[Mapping[str, Any]], above: Sequence[int]) -> None:
    """`above`: lines that the screen has shown already."""
    if not items:
        return
    table = Table.grid(padding=(0, 2))
    for item in items:
        text = "(see above)" if item["line"] in above else shortened(item["text"], 200)
        table.add_row(Text(str(item["line"]), justify="right"), Text(item["what"]), Text(text))
    _section(shown, "Not in effect", table)


def _timeline(shown: Console, entries: Sequence[Mapping[str, Any]], title: str) -> None:
    if not entries:
        return
    table = Table.grid(padding=(0, 2))
    for entry in entries:
        seconds = "" if entry["seconds"] is None else f"{entry['seconds']:.0f} s"
        memory = "" if entry["available_gib"] is None else f"{entry['available_gib']:.1f} GB free"
        table.add_row(f"line {entry['line']}", entry["phase"], Text(seconds, justify="right"), memory)
    _section(shown, title, table)


def _section(shown: Console, title: str, table: Table) -> None:
    shown.print()
    shown.print(Text(title, style="underline"))
    shown.print(table)
