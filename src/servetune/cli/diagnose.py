"""`servetune diagnose`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from servetune.cli._options import console, json_option
from servetune.core.errors import UsageError
from servetune.core.failure import Failure
from servetune.core.node import Exit
from servetune.core.space import Assignment
from servetune.engines.sglang.logs import SglangLogReader

EXAMPLE = """
\b
Example:
  servetune diagnose server.log
  docker logs sglang 2>&1 | servetune diagnose - --json
"""

_CHUNK_BYTES = 1 << 20
_SAYS = {
    "infeasible": "this configuration cannot work here",
    "retry": "may pass when tried again",
    "stop": "the node needs a person",
    "none": "nothing to do about the configuration",
}
_AGAIN = {
    True: "the same command would fail again",
    False: "the same command may pass",
    None: "unknown whether it repeats",
}


@click.command(epilog=EXAMPLE)
@click.argument("file", default="-", metavar="[FILE|-]")
@json_option
def command(file: str, as_json: bool) -> None:
    """Say why an SGLang server died, from its log: class, deciding lines, flags to blame, what to change."""
    if file == "-":
        reader = read_log(sys.stdin.buffer)
    else:
        try:
            with open(file, "rb") as stream:
                reader = read_log(stream)
        except OSError as error:
            raise UsageError(f"cannot read the log {file!r}: {error.strerror}; give a file, or - for stdin") from error
    show(reader, reader.diagnose(None), as_json)


def read_log(stream: BinaryIO, assignment: Assignment | None = None) -> SglangLogReader:
    """Read a whole log, in bounded memory. `assignment`: what the server was started with, where it is known."""
    reader = SglangLogReader(assignment or {})
    while chunk := stream.read(_CHUNK_BYTES):
        reader.feed(chunk)
    return reader


def diagnose_text(
    stream: BinaryIO, assignment: Assignment | None = None, exit: Exit | None = None, hint: str | None = None
) -> dict[str, Any]:
    """What `--json` prints, for the log in `stream`; see `SglangLogReader.report`."""
    reader = read_log(stream, assignment)
    return reader.report(reader.diagnose(exit, hint))


def show(reader: SglangLogReader, failure: Failure, as_json: bool) -> None:
    """One screen for people, or one JSON object."""
    report = reader.report(failure)
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    shown = console()
    _verdict(shown, report, failure.message)
    _evidence(shown, report["evidence"])
    _blamed(shown, reader, report["blamed"])
    _repairs(shown, report["repair"])
    _not_in_effect(shown, report["not_in_effect"])
    _timeline(shown, report["timeline"])


def _verdict(shown: Console, report: Mapping[str, Any], cause: str) -> None:
    healthy = report["class"] == "none"
    rank = f", first on {report['first_rank']}" if report["first_rank"] else ""
    head = Text(report["class"], style="bold green" if healthy else "bold red")
    head.append(f" in phase {report['phase']}{rank}", style="bold")
    head.append(f"  (confidence {report['confidence']:.0%})", style="dim")
    shown.print(head)
    shown.print(Text(cause))
    if not healthy:
        again = _AGAIN[report["deterministic"]]
        shown.print(Text(f"{report['verdict']}: {_SAYS[report['verdict']]}; {again}"))


def _evidence(shown: Console, evidence: Sequence[Mapping[str, Any]]) -> None:
    if not evidence:
        return
    table = Table.grid(padding=(0, 2))
    for index, item in enumerate(evidence):
        table.add_row(Text(str(item["line"]), justify="right"), Text(item["text"][:400], style="" if index else "bold"))
    _section(shown, "Deciding lines", table)


def _blamed(shown: Console, reader: SglangLogReader, blamed: Sequence[str]) -> None:
    if not blamed:
        return
    known = reader.flags()
    table = Table.grid(padding=(0, 2))
    for typed in blamed:
        flag = typed.removeprefix("--") if typed.startswith("--") else f"env.{typed}"
        passed = f"passed {known.asked[flag]}" if flag in known.asked else ("not passed" if known.asked else "")
        used = f"the engine used {known.effective[flag]}" if flag in known.effective else ""
        table.add_row(Text(typed), Text(passed), Text(used))
    _section(shown, "To blame", table)


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


def _not_in_effect(shown: Console, items: Sequence[Mapping[str, Any]]) -> None:
    if not items:
        return
    table = Table.grid(padding=(0, 2))
    for item in items:
        table.add_row(Text(str(item["line"]), justify="right"), Text(item["flag"]), Text(item["text"][:200]))
    _section(shown, "Not in effect", table)


def _timeline(shown: Console, entries: Sequence[Mapping[str, Any]]) -> None:
    if not entries:
        return
    table = Table.grid(padding=(0, 2))
    for entry in entries:
        seconds = "" if entry["seconds"] is None else f"{entry['seconds']:.0f} s"
        memory = "" if entry["available_gib"] is None else f"{entry['available_gib']:.1f} GB free"
        table.add_row(f"line {entry['line']}", entry["phase"], Text(seconds, justify="right"), memory)
    _section(shown, "Timeline", table)


def _section(shown: Console, title: str, table: Table) -> None:
    shown.print()
    shown.print(Text(title, style="underline"))
    shown.print(table)
