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

from servetune.cli._options import console, json_option, open_store, storage_option
from servetune.cli._seen import seen
from servetune.core.errors import UsageError
from servetune.core.failure import Failure, Phase, Verdict
from servetune.core.node import Exit
from servetune.core.space import Assignment
from servetune.core.trial import TrialRecord
from servetune.engines.sglang.logs import SglangLogReader
from servetune.report import SIMULATED
from servetune.storage import StudyStore
from servetune.tuner.launches import log_dir
from servetune.tuner.session import study_dir

EXAMPLE = """
\b
Example:
  servetune diagnose server.log
  docker logs sglang 2>&1 | servetune diagnose - --json
  servetune diagnose quickstart --trial 7
"""

_CHUNK_BYTES = 1 << 20
#: As `core.node.Node.start` promises.
LOG_FILE = "server.log"
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
#: A simulated server stamps its lines by the real clock and speaks of its own, which runs faster.
CLOCKS = (
    "Timeline (seconds between the log's stamps; what its lines say, such as elapsed=…, is the simulated node's time)"
)


@click.command(epilog=EXAMPLE)
@click.argument("log", default="-", metavar="[LOG|-|STUDY]")
@click.option("--trial", type=click.IntRange(min=0), help="Of this study: what became of the trial, from its log.")
@storage_option
@json_option
def command(log: str, trial: int | None, storage: str, as_json: bool) -> None:
    """Say why an SGLang server died, from its log: class, deciding lines, flags to blame, what to change.

    LOG is a file, or - for stdin. STUDY with --trial reads the log of a trial's last launch.
    """
    if trial is not None:
        with open_store(storage) as store:
            reader, failure, simulated = of_trial(store, log, trial)
        show(reader, failure, as_json, simulated)
        return
    if log == "-":
        reader = read_log(sys.stdin.buffer)
    else:
        try:
            with open(log, "rb") as stream:
                reader = read_log(stream)
        except OSError as error:
            message = f"cannot read the log {log!r}: {error.strerror}; give a file, - for stdin, or a study and --trial"
            raise UsageError(message) from error
    if reader.is_empty:
        place = "stdin had no data" if log == "-" else f"the log {log!r} is empty"
        raise UsageError(f"{place}; give what the server printed on stdout and stderr: servetune diagnose server.log")
    show(reader, reader.diagnose(None), as_json)


def of_trial(store: StudyStore, study: str, trial: int) -> tuple[SglangLogReader, Failure, bool]:
    """The log of a trial's last finished launch, the failure that the tuner stored, which knows more than the log, and
    whether the node was simulated.

    Raises UsageError for a trial that does not exist or was never launched. A log that is not on this machine counts
    as empty.
    """
    found = seen(store, study)
    spec, records = found.study.spec, found.records
    if trial >= len(records):
        raise UsageError(f"study {study!r} has no trial {trial}; it has {len(records)}, numbered from 0")
    record = records[trial]
    runs = [run for run in record.runs if run.finished_at is not None]
    if not runs:
        raise UsageError(f"trial {trial} of study {study!r} was never launched{_why_not(record)}")
    try:
        with open(log_dir(study_dir(spec), trial, runs[-1].attempt) / LOG_FILE, "rb") as stream:
            reader = read_log(stream, record.assignment)
    except OSError as error:
        click.echo(f"the log is not here ({error.filename}: {error.strerror}); this is what was stored", err=True)
        reader = SglangLogReader(record.assignment)
    stored, simulated = runs[-1].failure, runs[-1].facts.simulated
    if stored is None and reader.facts()["lines"]:
        return reader, reader.diagnose(None), simulated
    return reader, stored or WORKED, simulated


def _why_not(record: TrialRecord) -> str:
    """Why a trial has no finished launch, as the end of a sentence."""
    if record.runs:
        return f" to an end: it is {record.state.value}"
    if record.duplicate_of is not None:
        return f": it is the same configuration as trial {record.duplicate_of}, diagnose that one"
    if record.rejected:
        return f": it was rejected before any launch: {'; '.join(one.message for one in record.rejected)}"
    return f": {record.message or f'it is {record.state.value}'}"


#: Of a launch without a failure whose log is not here.
WORKED = Failure(
    slug="none",
    phase=Phase.SERVING,
    verdict=Verdict.NONE,
    message="healthy: it was measured to its end",
    confidence=0.9,
)


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


def show(reader: SglangLogReader, failure: Failure, as_json: bool, simulated: bool = False) -> None:
    """One screen for people, or one JSON object, which says `simulated` of a simulated node's log."""
    report = {**reader.report(failure), **({"simulated": True} if simulated else {})}
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    shown = console()
    if simulated:
        shown.print(SIMULATED, markup=False, soft_wrap=True)
    _verdict(shown, report, failure.message, reader.is_foreign)
    _evidence(shown, report["evidence"])
    _blamed(shown, reader, report["blamed"])
    _repairs(shown, report["repair"])
    _not_in_effect(shown, report["not_in_effect"])
    _timeline(shown, report["timeline"], CLOCKS if simulated else "Timeline")


def _verdict(shown: Console, report: Mapping[str, Any], cause: str, foreign: bool) -> None:
    healthy = report["class"] == "none"
    rank = f", first on {report['first_rank']}" if report["first_rank"] else ""
    head = Text("no failure" if healthy else report["class"], style="bold green" if healthy else "bold red")
    head.append(" (class none)" if healthy else f" in phase {report['phase']}{rank}", style="bold")
    head.append(f"  (confidence {report['confidence']:.0%})", style="dim")
    shown.print(head)
    shown.print(Text(cause))
    if foreign and report["class"] == "unknown":
        shown.print(Text("Give what the server printed on stdout and stderr; this text says nothing of one."))
    elif not healthy:
        alive = report["verdict"] == "none"
        again = "the server works" if alive else _AGAIN[report["deterministic"]]
        shown.print(Text(f"{report['verdict']}: {_SAYS[report['verdict']]}; {again}"))
    if report["advice"]:
        shown.print(Text.assemble(("Next: ", "bold"), report["advice"]))


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
        table.add_row(Text(str(item["line"]), justify="right"), Text(item["what"]), Text(item["text"][:200]))
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
