"""The doctor's rows of the machine on which the tuner itself runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from servetune.core.doctor import Finding, Purpose
from servetune.core.errors import ProgramEndedError
from servetune.nodes._checkup import SHARED_MEMORY, Checkup, Row, capacity_arguments, each, load_generator
from servetune.nodes._gpus import Command
from servetune.nodes._installing import installing
from servetune.nodes._ports import free_port

_CAPACITY = (sys.executable, "-m", "servetune.benchmarks._capacity")

Here = Callable[[Sequence[str]], Command | None]
"""Runs a program of this machine to its end; None when there is none."""


def script(here: Here, text: str) -> tuple[int, str]:
    """Run shell text: exit status and output."""
    done = here(["sh", "-c", text])
    return (127, "there is no shell") if done is None else (done.code, done.text)


def existing(folder: str) -> str:
    """The folder, or the nearest one above it that exists: where it will be made."""
    path = Path(folder).absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return str(path)


def rows(checkup: Checkup, purpose: Purpose, here: Here) -> Iterator[Finding]:
    """Every row; the load generator's speed only when asked to be thorough: it runs here, where all of it is there."""
    run = partial(script, here)
    install = partial(installing, run, "", sys.executable, key="node.python")
    of_load: Row = ("load generator", lambda: load_generator(lambda: _capacity(here, purpose), purpose, install))
    yield from each(
        [
            ("engine", checkup.engine),
            ("gpus", lambda: checkup.of_gpus(purpose)),
            (SHARED_MEMORY, lambda: checkup.shared_memory(purpose)),
            ("disk", checkup.disk),
            ("model", lambda: checkup.model(purpose)),
            ("ports", _ports),
            *([of_load] if purpose.thorough else []),
        ]
    )


def _ports() -> Finding:
    return Finding(row="ports", state="ok", found=f"30000–39999, such as {free_port()}")


def _capacity(here: Here, purpose: Purpose) -> str:
    done = here([*_CAPACITY, *capacity_arguments(purpose)])
    if done is None or done.code != 0:
        raise ProgramEndedError("it cannot be started" if done is None else done.text.strip()[-200:])
    return done.text
