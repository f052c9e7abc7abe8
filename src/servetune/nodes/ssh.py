"""A node that is reached over SSH: the tuner here, the server there, and nothing lost when the connection is."""

from __future__ import annotations

import hashlib
import itertools
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from servetune.core.clock import WallClock
from servetune.core.doctor import Finding, Purpose
from servetune.core.errors import ProgramEndedError, SpecError
from servetune.core.node import LaunchSpec, NodeFacts, Running, Text
from servetune.nodes import _redact, _shell
from servetune.nodes import _ssh_doctor as doctor
from servetune.nodes._checkup import Checkup, Row, capacity_arguments, load_generator, rehearsal
from servetune.nodes._ending import end
from servetune.nodes._environment import resolved
from servetune.nodes._far_gpus import await_free_gpus, conditions
from servetune.nodes._gpus import MemoryGuard, gpu_facts, gpus
from servetune.nodes._installing import installing
from servetune.nodes._launch import writing
from servetune.nodes._marks import Mark
from servetune.nodes._rehearsal import Rehearsal, rehearsed_facts, scenario_file, simulated_argv
from servetune.nodes._server import Guard
from servetune.nodes._shell import Detached, Started, read_started
from servetune.nodes._ssh_archive import archive
from servetune.nodes._ssh_auth import Secrets
from servetune.nodes._ssh_config import Wanted, resolve
from servetune.nodes._ssh_facts import Place, engine_versions, model_config, place_of
from servetune.nodes._ssh_leases import FarLease, LeaseFiles, alone, hold
from servetune.nodes._ssh_link import Link
from servetune.nodes._ssh_load import HELPERS, FarProgram, helper
from servetune.nodes._ssh_machine import FarMachine, FarPortGuard, far_free_port, pushed, reclaimed_with_segments
from servetune.nodes._ssh_refusal import refusal
from servetune.nodes._ssh_server import FarServer, LogCopy, write_far_state
from servetune.nodes._ssh_settings import Settings, near_path, secret_of
from servetune.nodes._starter import is_far, lives, this_tuner, tuner_of

_CAPACITY_MODULE = "servetune.benchmarks._capacity"
_LOAD_MODULE = "servetune.benchmarks._far"
_START_S = 120.0
_START_TRIES = 3
_COULD_NOT = "could not be started"
_launches = itertools.count()


def create(settings: Settings, base_dir: Path) -> SshNode:
    """The node; nothing is connected yet. Raises SpecError for settings that cannot be used."""
    wanted = Wanted(
        settings.host,
        settings.port,
        settings.user,
        near_path(settings.identity_file, base_dir),
        settings.jump,
        near_path(settings.known_hosts, base_dir),
    )
    target = resolve(wanted, Path(settings.config).expanduser())
    secrets = Secrets(secret_of("password", settings.password), secret_of("passphrase", settings.passphrase))
    if settings.rehearse is not None:
        rehearsed_facts(settings.rehearse, base_dir.resolve())
    notes: list[str] = []
    return SshNode(settings, base_dir.resolve(), Link(target, secrets, settings.reconnect_s, notes.append), notes)


class SshNode:
    """Starts servers on a machine that is reached over SSH, detached, so that they outlive connection and tuner."""

    name = "ssh"

    def __init__(self, settings: Settings, base_dir: Path, link: Link, notes: list[str]) -> None:
        self.clock = WallClock(settings.rehearse.time_scale if settings.rehearse else 1.0)
        self.link = link
        self._settings = settings
        self._base_dir = base_dir
        self._notes = notes
        self._engine: tuple[str | None, str | None] | None = None
        self._where: Place | None = None
        self._held: FarLease | None = None

    def identity(self) -> str:
        """The machine, by its boot id, and the GPUs that are used."""
        return f"{self._place().boot_id}/gpus={self._visible() or 'all'}"

    def identities(self) -> Sequence[str]:
        """The machine and each of its GPUs that is used."""
        return [f"{self._place().boot_id}/{name}" for name in self._lease_names()]

    def hold(self, study: str) -> FarLease:
        """Keep the GPUs for a study by lease files on the node. Raises NodeBusyError."""
        self._held = hold(self._leases, self._lease_names(), study)
        return self._held

    def measuring(self, study: str, go_on: Callable[[str], bool]) -> AbstractContextManager[bool]:
        """While it lasts no other study of other GPUs of this node measures."""
        if self._settings.gpus is None or not self._settings.measure_alone:
            return nullcontext(True)
        return alone(self._leases, study, go_on)

    def conditions(self) -> Mapping[str, Any]:
        """Driver, engine version, and how each GPU does now."""
        python, engine = self._engine_versions(again=True) if self._settings.rehearse is None else (None, None)
        found = conditions(self.link.ask)
        xid = self.link.run("dmesg 2>/dev/null | grep 'NVRM: Xid' | tail -n 3").text.splitlines()
        driver = next((gpu["driver_version"] for gpu in found.values()), None)
        told = {"driver_version": driver, "engine_version": engine, "python_version": python, "gpus": found, "xid": xid}
        return {name: value for name, value in told.items() if value}

    def facts(self) -> NodeFacts:
        """Facts about the machine, its GPUs (none without `nvidia-smi`) and the engine's interpreter.

        Raises NodeUnreachableError, HostKeyError, NodeUnusableError when `nvidia-smi` fails or hangs, SpecError when
        the interpreter cannot be run.
        """
        place = self._place()
        if self._settings.rehearse is not None:
            return rehearsed_facts(self._settings.rehearse, self._base_dir).model_copy(update={"node": self.name})
        python, engine = self._engine_versions()
        return NodeFacts(
            node=self.name,
            host=place.host,
            cpu_count=place.cpu_count,
            engine_name=self._settings.engine_package if engine else None,
            engine_version=engine,
            python_version=python,
            config_json=model_config(self.link, self._settings),
            **gpu_facts(self.link.ask, self._visible()),
        )

    def environment(self) -> Mapping[str, str]:
        """What this node adds to a launch's environment, for the spec that is stored and exported."""
        chosen = self._settings.gpus
        return {} if chosen is None else {"CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in chosen)}

    def free_port(self) -> int:
        """A TCP port of the node in 30000–39999 on which nothing listens, nor on those that SGLang derives from it."""
        return far_free_port(self.link)

    def start(self, spec: LaunchSpec, study: str, trial: int, log_dir: str) -> FarServer:
        """Start `spec` on the node; a copy of its log comes into `log_dir`. See `core.node.Node.start`.

        Raises NodeUnusableError when a log cannot be written, here or there.
        """
        spec = spec.model_copy(update={"env": {**self.environment(), **spec.env}})
        argv, environment, secrets = resolved(self._played(spec, log_dir), os.environ, far=True)
        self._check_relative(argv[0])
        folder = Path(log_dir).resolve()
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        launch = Detached(
            argv=argv,
            environment=environment,
            mark=Mark(study, str(trial), ""),
            folder=self._folder(study, trial, log_dir),
            token="",
            digest=_digest(spec),
            activate=self._settings.activate,
            cwd=self._at_home(self._settings.cwd) if self._settings.cwd else "",
            output_filter=self._log_filter(secrets),
            filter_environment=secrets,
        )
        await_free_gpus(self.link.ask, self._visible(), self._settings.wait_for_gpus_s)
        guards: list[Guard] = [
            FarPortGuard(self.link, spec.port),
            MemoryGuard(self.link.ask, self._visible(), self._settings.wait_for_memory_s),
        ]
        write_far_state(folder, launch, spec)
        launch, started = self._started(launch)
        copy = LogCopy(folder, fresh=False)
        asked = (self.link.ask, self._visible())
        return FarServer(self.link, launch, started, spec.port, copy, self.clock.time_scale, guards, self._load, asked)

    def reclaim(self, study: str) -> Sequence[str]:
        """End what an earlier tuner, or this one, left running for `study`; not the server of a tuner that lives."""
        machine = FarMachine(self.link)
        end(machine, lambda mark: mark.study == HELPERS and is_far(mark) and lives(tuner_of(mark)) is False, 0.0)
        return reclaimed_with_segments(self.link, lambda mark: mark.study == study and self._left_behind(mark))

    def adopt(self, spec: LaunchSpec, study: str, trial: int, log_dir: str) -> tuple[FarServer, Running] | None:
        """A server that a dead tuner left running; see `core.node.Adopting`."""
        spec = spec.model_copy(update={"env": {**self.environment(), **spec.env}})
        for mark in {replace(m, role="") for m in FarMachine(self.link).snapshot().marks.values()}:
            if (mark.study, mark.trial) != (study, str(trial)) or not self._left_behind(mark):
                continue
            token = _token(mark)
            launch = Detached((), {}, mark, self._folder(study, trial, log_dir), token)
            said = self.link.run(_shell.found(launch.folder, token, _digest(spec))).text
            started = read_started(said)
            if isinstance(started, Started):
                age_s = float(said.split()[1]) * self.clock.time_scale
                server = FarServer(
                    self.link,
                    launch,
                    started,
                    spec.port,
                    LogCopy(Path(log_dir), fresh=True),
                    self.clock.time_scale,
                    [FarPortGuard(self.link, spec.port, was_free=True)],
                    self._load,
                    (self.link.ask, self._visible()),
                )
                return server, Running(age_s=age_s)
        return None

    def examine(self, purpose: Purpose) -> Iterator[Finding]:
        """The doctor's rows; see `core.doctor.Examined`."""
        first = doctor.connection(self.link, self._place)
        yield first
        if first.state == "error":
            return
        settings = self._settings
        checkup = Checkup(
            run=lambda script: (lambda done: (done.code, done.text))(self.link.run(script)),
            ask=self.link.ask,
            visible=self._visible(),
            python=settings.engine_python or "python3",
            package=settings.engine_package,
            activate=settings.activate,
            workdir=self._at_home(settings.workdir),
        )
        install = partial(installing, checkup.run, settings.activate, self._python(), key="node.python")
        rehearsed = partial(self._rehearsable, install) if settings.rehearse else None
        yield from doctor.rows(checkup, purpose, rehearsed, self._rows_of_the_link(purpose, install))

    def _rehearsable(self, install: Callable[[Sequence[str]], str]) -> Finding:
        assert self._settings.rehearse is not None
        words = ["servetune.simulation.server", "--scenario", self._scenario(self._settings.rehearse), "--facts"]
        return rehearsal(lambda: self._ran(words), self._settings.rehearse.scenario, install)

    def _rows_of_the_link(self, purpose: Purpose, install: Callable[[Sequence[str]], str]) -> list[Row]:
        module = [_CAPACITY_MODULE, *capacity_arguments(purpose)] if purpose.thorough else [_LOAD_MODULE]
        return [
            ("ports", lambda: doctor.ports(self.link)),
            ("clock", lambda: doctor.clock(self.link)),
            ("lease", lambda: doctor.lease(self._leases, self._lease_names(), purpose.study)),
            ("load generator", lambda: load_generator(lambda: self._ran(module), purpose, install)),
        ]

    def _ran(self, module: Sequence[str]) -> str:
        """What a module of ours prints there. Raises ProgramEndedError, NodeUnusableError."""
        words = shlex.join([self._python(), self._push(archive(), ".pyz"), *module])
        done = self.link.run(_shell.under(self._settings.activate, f"timeout 80 {words} </dev/null"))
        if done.code != 0:
            raise ProgramEndedError((done.text.strip().splitlines() or ["it said nothing"])[-1])
        return done.text

    def converse(self, argv: Sequence[str], env: Mapping[str, Text]) -> FarProgram:
        """Start a helper process on the node; see `core.preflight.OffersConversation`."""
        mark = Mark(HELPERS, "0", f"{this_tuner()}/{next(_launches)}")
        return helper(self.link, mark, argv, {**self.environment(), **env}, self._settings.activate)

    def take_notes(self) -> Sequence[str]:
        """What happened to the connection since the last call, for the person who watches."""
        taken = list(self._notes)
        del self._notes[: len(taken)]
        return taken

    def close(self) -> None:
        """Let go of the connection. What runs on the node goes on."""
        self.link.close()

    def _load(self, mark: Mark) -> FarProgram:
        argv = [self._python(), self._push(archive(), ".pyz"), _LOAD_MODULE]
        return FarProgram(self.link, mark, argv, self._settings.activate)

    def _started(self, launch: Detached) -> tuple[Detached, Started]:
        """Start it; again under another name when the node lost it between two of its own steps."""
        said = ""
        for _ in range(_START_TRIES):
            number = next(_launches)
            mark = replace(launch.mark, starter=f"{this_tuner()}/{number}")
            fence = self._held.fence if self._held is not None else None
            launch = replace(launch, mark=mark, token=_token(mark), fence=fence)
            answer = read_started(self.link.run(_shell.start(launch), _START_S).text)
            if isinstance(answer, Started):
                return launch, answer
            said = answer
            if self._held is not None and said == _shell.LOST_LEASE:
                self._held.renew()
            elif _COULD_NOT not in said:
                break
            else:  # it may come yet
                end(FarMachine(self.link), partial(_same_launch, mark), 0.0)
        raise refusal(launch, said, self.link.target.host)

    def _check_relative(self, program: str) -> None:
        if "/" in program and not program.startswith("/") and self._settings.cwd is None:
            raise SpecError(
                f"program {program!r} is a relative path, and a server runs in its log directory; give an absolute "
                "path, or a name on PATH there, as engine.python in the study file"
            )

    def _played(self, spec: LaunchSpec, log_dir: str) -> LaunchSpec:
        """The spec, or the simulated server that a rehearsal starts in its place."""
        rehearse = self._settings.rehearse
        if rehearse is None:
            return spec
        simulated = simulated_argv(rehearse, self._scenario(rehearse), log_dir)
        program = (self._python(), self._push(archive(), ".pyz"), *simulated)
        return spec.model_copy(update={"argv": (*program, *spec.argv)})

    def _scenario(self, rehearse: Rehearsal) -> str:
        file = scenario_file(rehearse, self._base_dir)
        return rehearse.scenario if file is None else self._push(file.read_bytes(), ".yaml")

    def _log_filter(self, secrets: Mapping[str, str]) -> Sequence[str]:
        if not secrets:
            return ()
        program = self._push(Path(_redact.__file__).read_bytes(), ".py")
        return (self._python(), "-I", "-S", program, *secrets)

    def _push(self, data: bytes, suffix: str) -> str:
        return pushed(self.link, f"{self._at_home(self._settings.workdir)}/programs", data, suffix)

    def _python(self) -> str:
        return self._settings.python or self._settings.engine_python or "python3"

    def _folder(self, study: str, trial: int, log_dir: str) -> str:
        """One for each place where logs go here: two databases may hold studies of one name."""
        key = hashlib.sha256(str(PurePath(log_dir)).encode()).hexdigest()[:8]
        return f"{self._at_home(self._settings.workdir)}/{study}/{trial}-{key}"

    def _at_home(self, path: str) -> str:
        home = self._place().home
        return path if path.startswith("/") else f"{home}/{path.removeprefix('~').lstrip('/')}".rstrip("/")

    def _left_behind(self, mark: Mark) -> bool:
        """Whether the tuner that started it is gone, or is this very process.

        One of another host lives while it renews its lease on the node.
        """
        if not is_far(mark):
            return False
        tuner = tuner_of(mark)
        alive = lives(tuner)
        if alive is None:
            alive = any(owner.get("tuner") == tuner for _, owner in self._leases.owners())
        return tuner == this_tuner() or not alive

    def _visible(self) -> str | None:
        return self.environment().get("CUDA_VISIBLE_DEVICES")

    def _place(self) -> Place:
        if self._where is None:
            self._where = place_of(self.link)
        return self._where

    def _lease_names(self) -> list[str]:
        """One for each GPU by its UUID; by its index, or for the whole machine, where none is seen."""
        found = gpus(self.link.ask, self._visible())
        named = [gpu.uuid for gpu in found] or [f"gpu-{index}" for index in self._settings.gpus or ()]
        return named or ["machine"]

    @property
    def _leases(self) -> LeaseFiles:
        return LeaseFiles(self.link, self._at_home(self._settings.lease_dir))

    def _engine_versions(self, again: bool = False) -> tuple[str | None, str | None]:
        """(Python version, engine version) of the engine's interpreter, asked once or `again`."""
        if self._engine is None or again:
            self._engine = engine_versions(self.link, self._settings)
        return self._engine


def _same_launch(mark: Mark, other: Mark) -> bool:
    return (other.study, other.starter) == (mark.study, mark.starter)


def _token(mark: Mark) -> str:
    return hashlib.sha256(mark.starter.encode()).hexdigest()[:12]


def _digest(spec: LaunchSpec) -> str:
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:24]
