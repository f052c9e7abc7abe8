"""A launch, checked before anything starts: program, directories, environment, mark."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servetune.core.errors import NodeError, NodeUnusableError, SpecError
from servetune.core.node import LaunchSpec
from servetune.nodes._by_log import STATE_FILE, boot_id
from servetune.nodes._environment import resolved
from servetune.nodes._marks import Mark
from servetune.nodes._processes import read

_launches = itertools.count()


@dataclass(frozen=True)
class Launch:
    """Everything that starting needs. `secrets`: variable name → value, never written anywhere."""

    spec: LaunchSpec
    argv: Sequence[str]
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    mark: Mark
    folder: Path
    cwd: Path


def prepared(spec: LaunchSpec, study: str, trial: int, log_dir: str, cwd: Path | None) -> Launch:
    """Check `spec` and make the log directory. `cwd` None: the log directory, where nothing shadows a Python module.

    Raises SpecError for a secret that is not set or a program that does not exist, NodeUnusableError for a log
    directory that cannot be written.
    """
    argv, environment, secrets = resolved(spec, os.environ)
    _check_program(argv[0], environment, cwd)
    folder = _writable(log_dir)
    return Launch(spec, argv, environment, secrets, _fresh_mark(study, trial), folder, cwd or folder)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a failing write to the log directory into NodeUnusableError."""
    try:
        yield
    except OSError as error:
        raise NodeUnusableError(
            f"cannot write {path}: {error.strerror}; free space there, correct its owner, or start the study where "
            "its results can be written"
        ) from error


def left_behind(mark: Mark) -> bool:
    """Whether the tuner that started it is gone, or is this very process. A malformed mark is not ours: False."""
    words = mark.starter.split("/")
    if len(words) != 3 or not all(word.isdigit() for word in words):
        return False
    starter = read(int(words[0]))
    alive = starter is not None and starter.start_ticks == int(words[1]) and starter.running
    return not alive or int(words[0]) == os.getpid()


def _fresh_mark(study: str, trial: int) -> Mark:
    me = read(os.getpid())
    assert me is not None
    return Mark(study, str(trial), f"{me.pid}/{me.start_ticks}/{next(_launches)}")


def _writable(log_dir: str) -> Path:
    folder = Path(log_dir).resolve()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _check_program(program: str, environment: Mapping[str, str], cwd: Path | None) -> None:
    advice = "give an absolute path, or a name on PATH, as engine.python in the study file"
    if "/" in program and not program.startswith("/"):
        if cwd is None:
            raise SpecError(f"program {program!r} is a relative path, and a server runs in its log directory; {advice}")
        program = str(cwd / program)
    if shutil.which(program, path=environment.get("PATH", os.defpath)) is None:
        with contextlib.suppress(OSError):
            if Path(program).exists():
                raise SpecError(f"program {program!r} is not executable; {advice}")
        raise SpecError(f"program {program!r} does not exist; {advice}")


def write_state(launch: Launch, pid: int | None, log_from_bytes: int) -> None:
    """`server.json` for people and post-mortems: recovery goes by the mark, which no kill separates from the process.

    Raises NodeUnusableError.
    """
    process = read(pid) if pid is not None else None
    state = {
        "study": launch.mark.study,
        "trial": int(launch.mark.trial),
        "starter": launch.mark.starter,
        "pid": pid,
        "start_ticks": process.start_ticks if process else None,
        "boot_id": boot_id(),
        "log_from_bytes": log_from_bytes,
        "launch": launch.spec.model_dump(mode="json"),  # a secret is its reference here
    }
    path = launch.folder / STATE_FILE
    with writing(path):
        beside = path.with_suffix(".json.new")
        beside.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)


def note_started(launch: Launch, pid: int, log_from_bytes: int) -> None:
    """Complete `server.json`. The server runs already: a disk that fills at this moment must not orphan it."""
    with contextlib.suppress(NodeError):
        write_state(launch, pid, log_from_bytes)
