"""Where servers run: facts about a node, the launch spec, and the protocols of a node and of a server process."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias, runtime_checkable

from pydantic import Field

from servetune.core.clock import Clock
from servetune.core.space import Frozen, Value


class EnvRef(Frozen):
    """A secret: the name of an environment variable of the tuner's own process. Its value is never stored or shown."""

    from_env: str


Text: TypeAlias = str | EnvRef

STUDY_MARKER = "SERVETUNE_STUDY"
TRIAL_MARKER = "SERVETUNE_TRIAL"


class LaunchSpec(Frozen):
    """The exact thing that runs and that is exported: argv (no shell), added environment, port and ready path.

    The markers `SERVETUNE_STUDY` and `SERVETUNE_TRIAL` are added by the node at start and are not part of the spec.
    """

    argv: tuple[Text, ...]
    env: Mapping[str, Text] = Field(default_factory=dict)
    port: int
    ready_path: str = "/health"

    def shown(self) -> str:
        """One line for people: environment and argv, quoted; a secret appears as `$NAME`."""
        words = [f"{name}={_shown(value)}" for name, value in self.env.items()]
        return " ".join([*words, *(_shown(word) for word in self.argv)])

    def secrets(self) -> frozenset[str]:
        """Names of the variables that hold secrets used by this spec."""
        texts = [*self.argv, *self.env.values()]
        return frozenset(text.from_env for text in texts if isinstance(text, EnvRef))


def _shown(text: Text) -> str:
    return f'"${{{text.from_env}}}"' if isinstance(text, EnvRef) else shlex.quote(text)


class NodeFacts(Frozen):
    """What is known of a node. Absent facts are None or empty; memory in bytes; `simulated` marks invented nodes."""

    node: str
    host: str = ""
    simulated: bool = False
    gpu_names: tuple[str, ...] = ()
    gpu_memory_bytes: int | None = None  # of one GPU: the smallest
    compute_capability: str | None = None  # "12.0"
    interconnect: str | None = None  # pcie | nvlink
    driver_version: str | None = None
    cuda_version: str | None = None
    engine_name: str | None = None
    engine_version: str | None = None
    python_version: str | None = None
    cpu_count: int | None = None
    engine_rules: bool = True  # False: a simulated node on which no rule or memory model of the engine holds
    flag_defaults: Mapping[str, Value] = Field(default_factory=dict)  # valued flags left out, where the node says it
    config_json: Mapping[str, Any] = Field(default_factory=dict)  # the model's, where a simulated node says it

    @property
    def gpu_count(self) -> int:
        """Number of GPUs that the server may use."""
        return len(self.gpu_names)


class Exit(Frozen):
    """How a process ended: its return code, negative for a signal (as in subprocess); None when it is not known."""

    code: int | None


class LoadProgram(Protocol):
    """A program of ours on the node, talked with line by line."""

    def send(self, line: str) -> None:
        """Say one line. Raises ConnectionLostError."""
        ...

    def receive(self, timeout_s: float) -> list[str]:
        """Every line that has come, waiting `timeout_s` (wall) for the first; empty: none yet.

        Raises ConnectionLostError, ProgramEndedError.
        """
        ...


@runtime_checkable
class LoadHost(Protocol):
    """A server process beside which the load can be generated, on a node that is not the tuner's machine."""

    def prepare_load(self) -> None:
        """Begin to start it, without waiting: it is ready when the server is. Raises NodeUnreachableError."""
        ...

    def load_program(self) -> LoadProgram:
        """`benchmarks._far`, started beside the server or still running there.

        Raises ProgramEndedError when the node's Python cannot run it, NodeUnreachableError.
        """
        ...

    @property
    def loopback(self) -> str:
        """Base URL of the server as seen on the node."""
        ...


class ServerProcess(Protocol):
    """A started server. Times are node time."""

    def poll(self) -> Exit | None:
        """None while it runs. A zombie counts as exited."""
        ...

    def read_log(self, offset_bytes: int) -> bytes:
        """At most 1 MiB of the log from `offset_bytes` on; empty when there is no more yet."""
        ...

    def endpoint(self) -> AbstractContextManager[str]:
        """Base URL, such as `http://127.0.0.1:30000`; opens a tunnel where one is needed."""
        ...

    def stop(self, grace_s: float) -> Exit:
        """INT, TERM, KILL to the group, each after `grace_s` at most; returns once every process of it is gone.

        Idempotent. Raises NodeUnusableError when a process survives KILL.
        """
        ...


@runtime_checkable
class SharedNode(Protocol):
    """A node that tuners without a common database may share."""

    def identities(self) -> Sequence[str]:
        """What leases are keyed by, in place of `identity`: one for each GPU."""
        ...

    def hold(self, study: str) -> HeldNode:
        """Keep the node's GPUs for a study, by means that every tuner sees. Raises NodeBusyError."""
        ...

    def measuring(self, study: str, go_on: Callable[[str], bool]) -> AbstractContextManager[bool]:
        """While it lasts no other study measures there. `go_on` is told who is waited for; False gives up."""
        ...


class HeldNode(Protocol):
    """A lease on a node; a context manager that gives it back."""

    def check(self) -> None:
        """Raises NodeBusyError once somebody else has it."""
        ...

    @property
    def lost(self) -> bool:
        """Whether somebody else has it."""
        ...

    def __enter__(self) -> HeldNode: ...
    def __exit__(self, *error: object) -> None: ...


@runtime_checkable
class Guarded(Protocol):
    """A server process whose GPUs somebody else might use."""

    def intruders(self) -> Sequence[str]:
        """Foreign processes on its GPUs now, each in words. The first look is made when it is ready."""
        ...


@runtime_checkable
class Observed(Protocol):
    """A node that tells how it does."""

    def conditions(self) -> Mapping[str, Any]:
        """`driver_version`, `engine_version`, `gpus` (clocks, temperatures, ECC), `xid` (last lines), where known."""
        ...


class Running(Frozen):
    """A server that an earlier sitting of the tuner left running: since when, in node seconds."""

    age_s: float


@runtime_checkable
class Adopting(Protocol):
    """A node whose servers outlive the tuner, and whose next tuner may take them up again."""

    def adopt(self, spec: LaunchSpec, study: str, trial: int, log_dir: str) -> tuple[ServerProcess, Running] | None:
        """The server that a dead tuner started from this very spec, still running; None when there is none.

        `reclaim` ends it like any other: whoever takes it up stops it first. Raises NodeUnreachableError.
        """
        ...


class Node(Protocol):
    """A place where servers are started. Not thread-safe: one tuner, one server at a time."""

    name: str
    clock: Clock

    def identity(self) -> str:
        """What a node lease is keyed by: the same for every tuner that would use the same machine and GPUs."""
        ...

    def facts(self) -> NodeFacts:
        """Facts about the node now. Raises NodeUnreachableError."""
        ...

    def environment(self) -> Mapping[str, str]:
        """Variables that this node adds to every launch (such as CUDA_VISIBLE_DEVICES); part of what is exported."""
        ...

    def free_port(self) -> int:
        """A TCP port on which nothing listens on the node at this moment."""
        ...

    def start(self, spec: LaunchSpec, study: str, trial: int, log_dir: str) -> ServerProcess:
        """Start `spec` in a process group of its own, marked with study and trial, logging to `log_dir/server.log`.

        Raises SpecError when a secret's variable is not set or the program does not exist; NodeUnreachableError.
        """
        ...

    def reclaim(self, study: str) -> Sequence[str]:
        """End what this study left behind (by its marker), nothing else; idempotent. One sentence per group ended."""
        ...
