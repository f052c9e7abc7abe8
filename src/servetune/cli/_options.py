"""Options and openings that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from servetune.core.errors import UsageError

if TYPE_CHECKING:  # both take longer to import than a quick command takes to run
    from rich.console import Console

    from servetune.core.study import StudySpec
    from servetune.storage import StudyStore

DEFAULT_STORAGE = "sqlite:///studies/studies.db"

Command = TypeVar("Command", bound=Callable[..., Any])


def storage_option(command: Command) -> Command:
    """`--storage URL`: the study database."""
    option = click.option(
        "--storage",
        default=lambda: os.environ.get("SERVETUNE_STORAGE", DEFAULT_STORAGE),
        metavar="URL",
        help=f"Study database (default: {DEFAULT_STORAGE}, or what SERVETUNE_STORAGE says).",
    )
    return option(command)


def json_option(command: Command) -> Command:
    """`--json`: for scripts."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")(command)


def open_store(url: str) -> StudyStore:
    """An existing database. Raises UsageError when there is none."""
    from servetune.storage import StudyStore

    return StudyStore.open(url, create=False)


def named_study(study: str, storage: str) -> StudySpec:
    """That of a file, or the one of that name in the database. Raises SpecError."""
    from servetune.settings import load_study

    path = Path(study)
    if path.suffix in (".yaml", ".yml") or path.is_file() or os.sep in study:
        return load_study(path)
    try:
        with open_store(storage) as store:
            return store.study(study).spec
    except UsageError as error:
        raise UsageError(f"{study!r} is no file, and no study that was started: {error}") from error


def console(stream: TextIO | None = None) -> Console:
    """`stream` or standard output; no control codes into a pipe, no style (rich alone keeps bold) under NO_COLOR."""
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich's own way is exit status 1, which means that the job failed

    piped = not (stream or sys.stdout).isatty()
    plain = piped or bool(os.environ.get("NO_COLOR"))
    columns = os.environ.get("COLUMNS", "")
    width = None if not piped else int(columns) if columns.isdecimal() and len(columns) < 5 else 160
    return _Console(
        file=stream, width=max(width, 40) if width else width, highlight=False, color_system=None if plain else "auto"
    )
