"""`servetune resume`."""

from __future__ import annotations

from pathlib import Path

import click

from servetune.cli._options import console, open_store, storage_option
from servetune.cli._sitting import say_result, sit
from servetune.core.errors import UsageError
from servetune.core.study import StoredStudy, StudyRunState, StudySpec
from servetune.settings import load_study
from servetune.storage import StudyStore
from servetune.tuner.confirm import next_launch

EXAMPLE = """
\b
Example:
  servetune resume quickstart
"""

#: What a study file may change between two sittings: none of it makes results incomparable.
CHANGEABLE = ("budget", "timeouts", "retries", "confirm", "storage", "source_file")


@click.command(epilog=EXAMPLE)
@click.argument("study")
@storage_option
@click.option("--file", type=click.Path(path_type=Path), help="Study file, when it moved since the start.")
def command(study: str, storage: str, file: Path | None) -> None:
    """Go on with STUDY exactly where it was: after Ctrl-C, kill -9 or a reboot.

    The study file is read again: its budget, timeouts, retries and confirmation may have changed, nothing else.
    """
    with open_store(storage) as store:
        stored = store.study(study)
        spec = current(stored, file, storage)
        if stored.state is StudyRunState.FINISHED and not _has_more_to_do(spec, stored, store):
            console().print(
                f"study {study!r} is finished ({stored.reason}); raise `budget` or `confirm` in its file to go on",
                markup=False,
                soft_wrap=True,
            )
            say_result(spec, store)
            return
        sit(spec, store)


def _has_more_to_do(spec: StudySpec, stored: StoredStudy, store: StudyStore) -> bool:
    """Whether a finished study may go on: its file asks for more, or its best configuration was not confirmed."""
    longer = spec.confirm != stored.spec.confirm
    return spec.budget != stored.spec.budget or next_launch(spec, store.trials(stored.name), longer) is not None


def current(stored: StoredStudy, file: Path | None, storage: str) -> StudySpec:
    """The stored study with what its file may change. Raises UsageError when the file changed anything else."""
    kept = stored.spec.model_copy(update={"storage": storage})
    path = file or (Path(stored.spec.source_file) if stored.spec.source_file else None)
    if path is None or not (path.exists() or file is not None):
        if path is not None:
            click.echo(
                f"note: {path} is gone: the study goes on as it was stored (--file names a file that moved)", err=True
            )
        return kept
    fresh = load_study(path, {"study": stored.name, "storage": storage})
    _check_unchanged(stored, fresh, path)
    return kept.model_copy(update={key: getattr(fresh, key) for key in CHANGEABLE})


def _check_unchanged(stored: StoredStudy, fresh: StudySpec, path: Path) -> None:
    remedy = (
        f"results would not be comparable. Undo it, or start a new study that begins with this one's best: "
        f"`servetune start {path} --new-name NAME --seed-from {stored.name}`"
    )
    if fresh.space.fingerprint() != stored.fingerprint:
        raise UsageError(f"{path}: the search space changed since study {stored.name!r} began, so {remedy}")
    names = [name for name in StudySpec.model_fields if name not in (*CHANGEABLE, "space")]
    # as they are written: what was stored came back from JSON, where a pair is a list
    now, then = fresh.model_dump(mode="json"), stored.spec.model_dump(mode="json")
    changed = [name for name in names if now[name] != then[name]]
    if changed:
        raise UsageError(f"{path}: {', '.join(changed)} changed since study {stored.name!r} began, so {remedy}")
