"""What a study file says about a node that is reached over SSH."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from servetune.core.errors import SpecError
from servetune.core.node import EnvRef
from servetune.core.space import Frozen
from servetune.nodes._rehearsal import Rehearsal


class Settings(Frozen):
    """Keys of a study file's `node:` beside `name: ssh`. Paths with `~` are those of the user there, or here for keys.

    `host` may be an alias of `config`, whose settings hold where none is given here. `workdir`, `cwd` and `activate`
    (a shell line before each program) are the node's. `reconnect_s`: how long a broken connection is waited for.
    `wait_for_gpus_s`: how long foreign processes on the GPUs are waited for before a launch;
    `wait_for_memory_s`: and its memory after a stop. `lease_dir`: where tuners
    that share no database see each other. `measure_alone`: with `gpus`, no other study measures at the same time.
    `rehearse`: start a simulated server there in place of the engine.
    """

    host: str = Field(min_length=1)
    port: int | None = Field(default=None, ge=1, le=65535)
    user: str | None = None
    identity_file: str | None = None
    jump: str | None = None
    password: EnvRef | None = None
    passphrase: EnvRef | None = None
    config: str = "~/.ssh/config"
    known_hosts: str | None = None
    workdir: str = "~/.servetune"
    cwd: str | None = None
    activate: str = ""
    gpus: tuple[int, ...] | None = Field(default=None, min_length=1)
    python: str | None = None  # for the load generator and the log filter; absent: the engine's
    engine_python: str | None = None  # interpreter that is asked for the engine's version
    engine_package: str = "sglang"
    engine_model: str | None = None  # folder whose config.json is read for the engine's rules
    reconnect_s: float = Field(default=600.0, ge=0)
    wait_for_gpus_s: float = Field(default=60.0, ge=0)
    wait_for_memory_s: float = Field(default=60.0, ge=0)
    lease_dir: str = "/tmp/servetune-leases"  # noqa: S108 -- every user of the node has to find it
    measure_alone: bool = True
    rehearse: Rehearsal | None = None


def near_path(path: str | None, base_dir: Path) -> str | None:
    return None if path is None else str(base_dir.resolve() / Path(path).expanduser())


def secret_of(key: str, reference: EnvRef | None) -> str | None:
    if reference is None:
        return None
    value = os.environ.get(reference.from_env)
    if not value:
        raise SpecError(
            f"node.{key}: the environment variable {reference.from_env} is not set; export it in the shell that runs "
            "servetune"
        )
    return value
