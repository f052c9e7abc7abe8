"""`servetune export`."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import click

from servetune import plugins
from servetune.cli._options import open_store, storage_option
from servetune.cli._provenance import how_it_failed, provenance
from servetune.cli._seen import seen
from servetune.core.errors import SpecError, UsageError
from servetune.core.study import StoredStudy
from servetune.core.trial import RunPurpose, RunRecord, TrialRecord
from servetune.tuner.confirm import winner
from servetune.tuner.front import PICKS, Pick
from servetune.tuner.front import pick as picked

EXAMPLE = """
\b
Example:
  servetune export quickstart --format shell
  servetune export quickstart --trial 3 --format json -o best.json
  servetune export quickstart --format table -o launches.jsonl
"""


@click.command(epilog=EXAMPLE)
@click.argument("study")
@click.option(
    "--format",
    "format_",
    default="shell",
    show_default=True,
    metavar="FORMAT",
    help=f"One of {', '.join(plugins.names('exports'))}.",
)
@click.option("--trial", type=int, help="Another trial than the best.")
@click.option(
    "--pick",
    type=click.Choice(PICKS),
    help="With two objectives: that end of the Pareto front, or the balanced one, which is the default.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file instead.")
@storage_option
def command(study: str, format_: str, trial: int | None, pick: Pick | None, output: Path | None, storage: str) -> None:
    """Print the best launch command of STUDY: byte for byte the argv and environment that was measured.

    The format `table` prints every launch instead, one line of JSON each, in any state of the study; `servetune
    simulate` replays such a file.
    """
    exporter = plugins.load("exports", format_)
    with open_store(storage) as store:
        found = seen(store, study)
    stored, records = found.study, found.records
    if hasattr(exporter, "render_study"):
        if trial is not None or pick is not None:
            asked = "--pick" if trial is None else "--trial"
            raise UsageError(f"{asked}: the format {format_!r} holds every launch of the study; leave it out")
        _write(exporter.render_study(stored, records), output, executable=False)
        return
    record = _chosen(stored, records, trial, pick)
    if record is None:
        raise UsageError(
            f"study {study!r} has no complete trial yet: it is {found.state}; `servetune status {study}` shows "
            "its trials"
        )
    run = _measured_run(study, record)
    if failed := how_it_failed(record):
        click.echo(f"warning: this command failed: {failed}", err=True)
    text = exporter.render(run.launch, provenance(stored, records, record, run))
    _write(text, output, executable=format_ == "shell")


def _write(text: str, output: Path | None, executable: bool) -> None:
    if output is None:
        click.echo(text, nl=False)
    else:
        write_whole(output, text, executable)


def _chosen(
    stored: StoredStudy, records: tuple[TrialRecord, ...], number: int | None, pick: Pick | None
) -> TrialRecord | None:
    """The trial of that number, the front's pick, or the winner. Raises UsageError for what cannot be chosen."""
    if number is not None and pick is not None:
        raise UsageError("--trial and --pick exclude each other; leave one out")
    if number is not None:
        return _numbered(stored.name, records, number)
    if pick is None:
        return winner(records, stored.spec)
    if stored.spec.objective.minimize is None:
        raise UsageError(
            f"--pick {pick}: study {stored.name!r} has one objective; a second one is written as "
            "`objective: {minimize: ttft_p99_s}`"
        )
    return picked(pick, records, stored.spec)


def _numbered(study: str, records: tuple[TrialRecord, ...], number: int) -> TrialRecord:
    found = next((record for record in records if record.number == number), None)
    if found is None:
        last = len(records) - 1
        raise UsageError(f"--trial {number}: study {study!r} has no such trial; it has 0 to {last}")
    return found


def _measured_run(study: str, record: TrialRecord) -> RunRecord:
    """The run whose launch spec is exported: the search's last."""
    runs = [run for run in record.runs if run.purpose is RunPurpose.SEARCH]
    if not runs:
        known = "" if record.duplicate_of is None else f"; it is the same as trial {record.duplicate_of}"
        raise UsageError(f"trial {record.number} of study {study!r} was never launched ({record.state.value}){known}")
    return runs[-1]


def write_whole(path: Path, text: str, executable: bool) -> None:
    """Write a file so that nobody ever sees half of it; a device or pipe is written to, a link's target is replaced.

    Raises SpecError when it cannot be written.
    """
    path = path.resolve()
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise SpecError(f"-o {path}: cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o755 if executable else 0o644)
        os.replace(name, path)
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise SpecError(f"-o {path}: cannot be written: {error.strerror}") from error
