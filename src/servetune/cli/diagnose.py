"""`servetune diagnose`."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Any, BinaryIO

import click

from servetune.cli import _diagnosis_screen
from servetune.cli._log_bytes import LogBytes, UnreadableLogError
from servetune.cli._options import json_option, open_store, storage_option
from servetune.cli._seen import seen
from servetune.core.errors import UsageError
from servetune.core.failure import Failure, Phase, Verdict
from servetune.core.node import Exit
from servetune.core.space import Assignment
from servetune.core.trial import TrialRecord
from servetune.engines.sglang.logs import SglangLogReader
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

#: As `core.node.Node.start` promises.
LOG_FILE = "server.log"
_WANTED = "what the server printed on stdout and stderr: servetune diagnose server.log"


@click.command(epilog=EXAMPLE)
@click.argument("log", default="-", metavar="[LOG|-|STUDY]")
@click.option("--trial", type=click.IntRange(min=0), help="Of this study: what became of the trial, from its log.")
@storage_option
@json_option
def command(log: str, trial: int | None, storage: str, as_json: bool) -> None:
    """Say why an SGLang server died, from its log: class, deciding lines, flags to blame, what to change.

    LOG is a file, or - for stdin, and may be packed with gzip, bzip2 or xz. STUDY with --trial reads the log of a
    trial's last launch.
    """
    if trial is not None:
        with open_store(storage) as store:
            reader, failure, simulated = of_trial(store, log, trial)
        show(reader, failure, as_json, simulated)
        return
    reader = _read(log)
    if reader.is_empty:
        place = "stdin had no data" if log == "-" else f"the log {log!r} is empty"
        raise UsageError(f"{place}; give {_WANTED}")
    show(reader, reader.diagnose(None), as_json)


def _read(log: str) -> SglangLogReader:
    """The log of that name, or of stdin. Raises UsageError for what cannot be read or is no log of a server."""
    try:
        with nullcontext(sys.stdin.buffer) if log == "-" else open(log, "rb") as stream:
            source = LogBytes(stream)
            reader = _fed(source, {})
    except UnreadableLogError as error:
        raise UsageError(f"{_name(log)} {error}") from error
    except OSError as error:
        message = f"cannot read the log {log!r}: {error.strerror}; give a file, - for stdin, or a study and --trial"
        raise UsageError(message) from error
    if source.cut is not None:
        click.echo(f"the {source.cut} data of {_name(log)} end early; this is what they hold", err=True)
    if not reader.is_empty and reader.is_foreign and reader.diagnose(None).slug == "unknown":
        what = "is binary data without a line of a server" if source.has_nul else "is no log of an SGLang server"
        raise UsageError(f"{_name(log)} {what}; give {_WANTED}")
    return reader


def _name(log: str) -> str:
    return "stdin" if log == "-" else f"the file {log!r}"


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
    """Read a whole log, in bounded memory. `assignment`: what the server was started with, where it is known.

    Raises UnreadableLogError for what is no text and cannot be unpacked.
    """
    return _fed(LogBytes(stream), assignment or {})


def _fed(source: LogBytes, assignment: Assignment) -> SglangLogReader:
    reader = SglangLogReader(assignment)
    for chunk in source:
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
    _diagnosis_screen.show(report)
