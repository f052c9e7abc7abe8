"""What the node says about itself, its engine and its model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from servetune.core.errors import InterpreterError, NodeUnusableError
from servetune.nodes._checkup import spell_out
from servetune.nodes._python import ASK_ENGINE, read_versions
from servetune.nodes._shell import under
from servetune.nodes._ssh_link import Link
from servetune.nodes._ssh_settings import Settings

_CONFIG_BYTES = 1 << 22


@dataclass(frozen=True)
class Place:
    """What never changes while the node runs."""

    host: str
    boot_id: str
    home: str
    cpu_count: int


def place_of(link: Link) -> Place:
    """Raises NodeUnusableError for a machine that is no Linux."""
    done = link.run('uname -n; cat /proc/sys/kernel/random/boot_id; echo "$HOME"; nproc')
    lines = done.text.splitlines()
    if done.code != 0 or len(lines) != 4:
        raise NodeUnusableError(f"{link.target.host} is no Linux machine with coreutils: {done.text[-300:]!r}")
    return Place(lines[0], lines[1], lines[2].rstrip("/"), int(lines[3]))


def engine_versions(link: Link, settings: Settings) -> tuple[str | None, str | None]:
    """(Python version, engine version) of the engine's interpreter. Raises InterpreterError."""
    program = settings.engine_python
    if program is None:
        return None, None
    words = shlex.join([program, "-c", ASK_ENGINE, settings.engine_package])
    done = link.run(under(settings.activate, words))
    if done.code != 0:
        raise InterpreterError(
            f"engine.python {program!r} cannot be run on {link.target.host} (status {done.code}: "
            f"{done.text.strip()[-300:]}); name the interpreter that has the engine, or set node.activate"
            f"{spell_out(program)}"
        )
    return read_versions(done.text)


def model_config(link: Link, settings: Settings) -> Mapping[str, Any]:
    """The model's config.json, where its folder lies on the node; empty where it does not."""
    if settings.engine_model is None:
        return {}
    done = link.run(f"head -c {_CONFIG_BYTES} {shlex.quote(settings.engine_model)}/config.json")
    try:
        loaded = json.loads(done.data) if done.code == 0 else {}
    except ValueError:
        return {}
    return loaded if isinstance(loaded, dict) else {}
