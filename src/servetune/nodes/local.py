"""The node on which the tuner itself runs. The only module that starts processes."""

from __future__ import annotations

import errno
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import Field

from servetune.core.clock import WallClock
from servetune.core.doctor import Finding, Purpose
from servetune.core.errors import InterpreterError, NodeUnusableError, ProgramEndedError, ServetuneError, SpecError
from servetune.core.node import LaunchSpec, NodeFacts, Text
from servetune.core.space import Frozen
from servetune.nodes import _local_doctor
from servetune.nodes._by_log import LOG_FILE, boot_id
from servetune.nodes._checkup import Checkup
from servetune.nodes._conversation import LocalConversation
from servetune.nodes._ending import reclaimed
from servetune.nodes._environment import inherited, resolved
from servetune.nodes._gpus import Command, MemoryGuard, gpu_facts
from servetune.nodes._launch import Launch, left_behind, note_started, prepared, write_state, writing
from servetune.nodes._marks import FILTER, Mark, members
from servetune.nodes._ports import PortGuard, free_port
from servetune.nodes._processes import ThisMachine
from servetune.nodes._python import ASK_ENGINE, read_versions
from servetune.nodes._segments import Segments
from servetune.nodes._server import Guard, LocalServer

_COMMAND_S = 60.0
_FILTER_PROGRAM = str(Path(__file__).with_name("_redact.py"))


class Settings(Frozen):
    """Keys of a study file's `node:` beside `name: local`."""

    gpus: tuple[int, ...] | None = Field(default=None, min_length=1)  # absent: those that the tuner itself sees
    cwd: str | None = None  # working directory of the server; absent: the run's log directory
    engine_python: str | None = None  # interpreter that is asked for the engine's version
    engine_package: str = "sglang"


def create(settings: Settings, base_dir: Path) -> LocalNode:
    """The local node. Relative paths in `settings` are taken from `base_dir`. Raises SpecError without /proc."""
    if not Path("/proc/self/stat").exists():
        raise SpecError("node local needs Linux (/proc); run servetune on the GPU machine itself")
    return LocalNode(settings, base_dir)


class LocalNode:
    """Starts servers on this machine, each in a session of its own, so that they outlive the tuner until reclaimed."""

    name = "local"

    def __init__(self, settings: Settings, base_dir: Path) -> None:
        self.clock = WallClock()
        self._settings = settings
        self._base_dir = base_dir
        self._engine: tuple[str | None, str | None] | None = None

    def identity(self) -> str:
        """The machine, by its boot id, and the GPUs that are used."""
        return f"{boot_id()}/gpus={self._visible() or 'all'}"

    def facts(self) -> NodeFacts:
        """Facts about the machine, its GPUs (none without `nvidia-smi`) and the engine's interpreter.

        Raises NodeUnusableError when `nvidia-smi` fails or hangs, InterpreterError when the interpreter cannot be run.
        """
        python, engine = self._engine_versions()
        return NodeFacts(
            node=self.name,
            host=platform.node(),
            cpu_count=len(os.sched_getaffinity(0)),
            engine_name=self._settings.engine_package if engine else None,
            engine_version=engine,
            python_version=python,
            **gpu_facts(run_command, self._visible()),
        )

    def environment(self) -> Mapping[str, str]:
        """What this node adds to a launch's environment, for the spec that is stored and exported."""
        chosen = self._settings.gpus
        return {} if chosen is None else {"CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in chosen)}

    def free_port(self) -> int:
        """A TCP port in 30000–39999 on which nothing listens, nor on those that SGLang derives from it."""
        return free_port()

    def start(self, spec: LaunchSpec, study: str, trial: int, log_dir: str) -> LocalServer:
        """Start `spec`; see `core.node.Node.start`. Raises NodeUnusableError when `log_dir` cannot be written."""
        spec = spec.model_copy(update={"env": {**self.environment(), **spec.env}})
        cwd = None if self._settings.cwd is None else (self._base_dir / self._settings.cwd).resolve()
        launch = prepared(spec, study, trial, log_dir, cwd)
        guards: Sequence[Guard] = [PortGuard(spec.port), MemoryGuard(run_command, self._visible())]
        return start_server(launch, self.clock.time_scale, guards)

    def converse(self, argv: Sequence[str], env: Mapping[str, Text]) -> LocalConversation:
        """Start a helper process, with the environment that a server gets; see `core.preflight.OffersConversation`."""
        spec = LaunchSpec(argv=tuple(argv), env={**self.environment(), **env}, port=0)
        words, environment, _ = resolved(spec, os.environ)
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise ProgramEndedError(f"{argv[0]!r} cannot be started: {error.strerror}") from error
        return LocalConversation(process)

    def examine(self, purpose: Purpose) -> Iterator[Finding]:
        """The doctor's rows; see `core.doctor.Examined`."""
        checkup = Checkup(
            run=partial(_local_doctor.script, run_command),
            ask=run_command,
            visible=self._visible(),
            python=self._settings.engine_python or "python3",
            package=self._settings.engine_package,
            activate="",
            workdir=_local_doctor.existing(purpose.logs),
        )
        yield from _local_doctor.rows(checkup, purpose, run_command)

    def reclaim(self, study: str) -> Sequence[str]:
        """End what an earlier tuner, or this one, left running for `study`; not the server of a tuner that lives."""

        def left(mark: Mark) -> bool:
            return mark.study == study and left_behind(mark)

        segments = Segments(run_script, lambda: [found.process for found in members(ThisMachine().snapshot(), left)])
        segments.look()
        ended = reclaimed(ThisMachine(), left)
        segments.remove()
        return ended

    def _visible(self) -> str | None:
        return self.environment().get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))

    def _engine_versions(self) -> tuple[str | None, str | None]:
        """(Python version, engine version) of the engine's interpreter, asked once: it takes a quarter of a second."""
        program = self._settings.engine_python
        if self._engine is None and program is not None:
            answer = run_command([program, "-c", ASK_ENGINE, self._settings.engine_package])
            if answer is None or answer.code != 0:
                why = "no such program" if answer is None else f"status {answer.code}: {answer.text.strip()[-300:]}"
                raise InterpreterError(
                    f"engine.python {program!r} cannot be run ({why}); name the interpreter that has the engine"
                )
            self._engine = read_versions(answer.text)
        return self._engine or (None, None)


def run_command(argv: Sequence[str], timeout_s: float = _COMMAND_S) -> Command | None:
    """Run to the end; None when the program does not exist. Raises NodeUnusableError after `timeout_s` of wall time."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NodeUnusableError(
            f"{argv[0]} did not answer within {timeout_s:g} s; run it by hand: when it hangs there too, the driver or "
            "a file system does, and the node needs a person"
        ) from error
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    return Command(done.returncode, done.stdout.decode("utf-8", "replace"))


def run_script(text: str) -> str:
    """What shell text prints; nothing when it hangs, as what reads the memory map of a process in the kernel does."""
    try:
        done = subprocess.run(
            ["sh", "-s"],
            input=text.encode("utf-8", "surrogateescape"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.decode("utf-8", "surrogateescape")


def start_server(launch: Launch, time_scale: float, guards: Sequence[Guard]) -> LocalServer:
    """Start a checked launch in a session of its own. Raises SpecError or NodeUnusableError; nothing runs then."""
    log_path = launch.folder / LOG_FILE
    with writing(log_path):
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        log_from_bytes = os.fstat(log).st_size  # a second attempt in the same folder appends
        write_state(launch, None, log_from_bytes)
        server, log_filter = _spawned(launch, log)
    finally:
        os.close(log)
    note_started(launch, server.pid, log_from_bytes)
    return LocalServer(launch, server, log_filter, log_from_bytes, time_scale, guards, run_script)


def _spawned(launch: Launch, log: int) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes] | None]:
    """(Server, log filter if the launch has secrets). The filter first: a server must never write to a pipe unread."""
    if not launch.secrets:
        return _popen(launch, log), None
    reading, writing_end = os.pipe2(os.O_CLOEXEC)
    with os.fdopen(reading), os.fdopen(writing_end, "wb") as output:
        log_filter = subprocess.Popen(
            [sys.executable, "-I", "-S", _FILTER_PROGRAM, *launch.secrets],
            stdin=reading,
            stdout=log,
            stderr=log,
            env={**inherited(os.environ), **launch.secrets, **replace(launch.mark, role=FILTER).environment()},
            cwd=launch.folder,
            start_new_session=True,  # it cannot join the group of a session that does not exist yet; its mark finds it
        )
        try:
            return _popen(launch, writing_end), log_filter
        except ServetuneError:
            output.close()  # the filter ends with its last writer
            log_filter.wait()
            raise


def _popen(launch: Launch, output: int) -> subprocess.Popen[bytes]:
    try:
        with _heard_signals():
            return subprocess.Popen(
                launch.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**launch.environment, **launch.mark.environment()},
                cwd=launch.cwd,
                start_new_session=True,
            )
    except OSError as error:
        kind = NodeUnusableError if error.errno in (errno.EAGAIN, errno.ENOMEM) else SpecError
        raise kind(
            f"{launch.argv[0]!r} cannot be started in {launch.cwd}: {error.strerror}; see engine.python and node.cwd"
        ) from error


@contextmanager
def _heard_signals() -> Iterator[None]:
    """While it lasts, INT and TERM are not ignored but handled by doing nothing.

    A tuner started in the background by a shell ignores INT, and what is ignored stays ignored in the server: each stop
    would take the grace of INT for nothing. A handler, unlike that, does not survive the exec of the server.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda _number, _frame: None)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
