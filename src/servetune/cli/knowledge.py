"""`servetune knowledge`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from pydantic import ValidationError

from servetune.cli._options import open_store, storage_option
from servetune.core.errors import UsageError
from servetune.core.knowledge import LearnedConstraint
from servetune.core.quantities import counted
from servetune.storage import StudyStore

EXAMPLE = """
\b
Example:
  servetune knowledge export kimi.json --study kimi
  servetune knowledge import kimi.json
"""

FORMAT = "servetune-knowledge"
VERSION = 1


EXPORT_EXAMPLE = """
\b
Example:
  servetune knowledge export kimi.json --study kimi
  servetune knowledge export --withdrawn | less
"""
IMPORT_EXAMPLE = """
\b
Example:
  servetune knowledge import kimi.json
  servetune knowledge import kimi.json --storage sqlite:///elsewhere/studies.db
"""


@click.group(epilog=EXAMPLE)
def command() -> None:
    """Pass on what crashes taught: combinations of flags that cannot work, where, and how sure that is.

    They hold for one engine version, compute capability and model; studies of another kind leave them alone.
    """


@command.command("export", epilog=EXPORT_EXAMPLE, short_help="Write what was learned to a file.")
@click.argument("file", default="-", metavar="[FILE|-]")
@click.option("--study", help="Only what this study taught.")
@click.option("--withdrawn", is_flag=True, help="Also what turned out wrong.")
@storage_option
def export(file: str, study: str | None, withdrawn: bool, storage: str) -> None:
    """Write the learned constraints as JSON to FILE (or - for stdout)."""
    with open_store(storage) as store:
        if study is not None:
            store.study(study)
        every = [one for one in store.learned(withdrawn=True) if _is_of(one, study)]
    found = [one for one in every if withdrawn or not one.withdrawn]
    if not found:
        click.echo(f"note: {_why_none(study, len(every))}", err=True)
    text = json.dumps(
        {"format": FORMAT, "version": VERSION, "constraints": [one.model_dump(mode="json") for one in found]}, indent=2
    )
    if file == "-":
        click.echo(text)
        return
    try:
        Path(file).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; name another file, or - for stdout") from error
    click.echo(f"{counted(len(found), 'learned constraint')} written to {file}")


def _why_none(study: str | None, withdrawn: int) -> str:
    """Why nothing is exported."""
    whose = "this database" if study is None else f"study {study!r}"
    if withdrawn:
        return (
            f"all that {whose} learned turned out wrong; `--withdrawn` exports it: {counted(withdrawn, 'constraint')}"
        )
    return f"{whose} learned nothing: only a launch that fails for its flags, and surely so, teaches a constraint"


def _is_of(constraint: LearnedConstraint, study: str | None) -> bool:
    return study is None or any(lesson.study == study for lesson in constraint.lessons)


@command.command("import", epilog=IMPORT_EXAMPLE, short_help="Add what another database learned.")
@click.argument("file", metavar="FILE|-")
@storage_option
def import_(file: str, storage: str) -> None:
    """Add the learned constraints of FILE (or - for stdin) to the study database, which is made when there is none."""
    found = parse(_read(file), file)
    with StudyStore.open(storage) as store:
        new = store.learn_all(found)
    known = "; lessons and confidence of those known already are merged" if new < len(found) else ""
    click.echo(f"{counted(len(found), 'learned constraint')} read from {file}, {new} of them new{known}")


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}; give a file, or - for stdin") from error


def parse(text: bytes, file: str) -> tuple[LearnedConstraint, ...]:
    """The constraints of an exported file. Raises UsageError naming the file, the place and what is wrong there."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{file} is no JSON: {error}; write it with `servetune knowledge export`") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"{file} has no `format: {FORMAT}`; write it with `servetune knowledge export`")
    if document.get("version") != VERSION:
        got = document.get("version")
        raise UsageError(f"{file} has version {got!r} of its format, this servetune reads version {VERSION}")
    entries = document.get("constraints")
    if not isinstance(entries, list):
        raise UsageError(f"{file}: `constraints` is no list")
    return tuple(_constraint(entry, f"{file}: constraints[{index}]") for index, entry in enumerate(entries))


def _constraint(entry: object, place: str) -> LearnedConstraint:
    try:
        return LearnedConstraint.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        raise UsageError(f"{place}{where}: {first['msg']}, got {first['input']!r:.80}") from error
