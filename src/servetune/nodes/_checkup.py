"""Rows of the doctor that any Linux node can be asked for by shell text."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from servetune.core.doctor import Finding, Purpose
from servetune.core.errors import HostKeyError, NodeError, NodeUnreachableError, NodeUnusableError, SpecError
from servetune.nodes import _nvidia
from servetune.nodes._far_gpus import gpu_processes
from servetune.nodes._gpus import Ask, gpus
from servetune.nodes._installing import installing
from servetune.nodes._python import ASK_ENGINE, read_versions
from servetune.nodes._shell import under

GIB = 1 << 30
TOOLS = ("setsid", "flock", "timeout", "base64", "stat", "tail", "head", "grep", "getconf")
SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- the very place
_SHM_LEAST, _SHM_GOOD = GIB, 8 * GIB
_SHM_ALONE = GIB // 32  # one GPU, or none: a container's default of 64 MiB serves
_DISK_LEAST, _DISK_GOOD = GIB // 4, 2 * GIB
_USED_MUCH = GIB
_BAD_DRIVER = "mend the driver (see dmesg)"
_STALE_DRIVER = "reboot the node: its driver was updated while the old one's kernel module is loaded"
LOAD_PACKAGES = ("numpy", "pydantic", "httpx", "uvloop")
REHEARSAL_PACKAGES = ("PyYAML", "httptools")
#: Tokens per second: what a node may serve at most, in all and to one request. Faster ones are not known.
FASTEST, FASTEST_OF_ONE = 20_000.0, 200.0

Row = tuple[str, Callable[[], Finding | Iterable[Finding]]]
"""A row's name, and what finds it."""

Run = Callable[[str], tuple[int, str]]
"""Runs shell text on the node to its end: exit status and output."""


@dataclass(frozen=True)
class Checkup:
    """The rows. `activate`: shell line before the interpreters; `workdir`: absolute, of logs."""

    run: Run
    ask: Ask
    visible: str | None
    python: str
    package: str
    activate: str
    workdir: str

    def tools(self) -> Finding:
        """Programs that the shell texts need."""
        _, text = self.run("\n".join(f"command -v {tool} >/dev/null || echo {tool}" for tool in TOOLS))
        if missing := text.split():
            return _error(
                "tools", f"missing: {', '.join(missing)}",
                "install coreutils, util-linux and grep on the node (Debian: `apt-get install -y coreutils util-linux "
                "grep libc-bin` as root)",
            )  # fmt: skip
        return Finding(row="tools", state="ok", found="coreutils, util-linux")

    def engine(self) -> Finding:
        """Python and engine version."""
        words = shlex.join([self.python, "-c", ASK_ENGINE, self.package])
        code, text = self.run(under(self.activate, words))
        if code != 0:
            return _error(
                "engine", f"{self.python} cannot be run: {_last(text)}",
                "name the interpreter that has the engine as engine.python, or set node.activate"
                + spell_out(self.python),
            )  # fmt: skip
        python, version = read_versions(text)
        if version is None:
            return _error(
                "engine", f"Python {python} without {self.package}",
                installing(self.run, self.activate, self.python, [self.package], "engine.python"),
            )  # fmt: skip
        return Finding(row="engine", state="ok", found=f"{self.package} {version}, Python {python}")

    def of_gpus(self, purpose: Purpose) -> Iterator[Finding]:
        """GPUs, driver, interconnect, their memory and who uses it."""
        try:
            found = gpus(self.ask, self.visible)
        except (NodeError, SpecError) as error:
            what, _, remedy = str(error).partition("; ")
            yield _error("gpus", what, _STALE_DRIVER if "version mismatch" in what else remedy or _BAD_DRIVER)
            return
        if not found and not purpose.gpus_needed:
            yield Finding(row="gpus", state="ok", found="none, and none needed")
            return
        if len(found) < purpose.gpus_needed:
            shown = f"{len(found)} GPUs" if found else "no GPU (nvidia-smi is missing or shows none)"
            yield _error(
                "gpus", f"{shown}, and the study needs {purpose.gpus_needed}",
                "install the driver, pass the GPUs to the container, or correct node.gpus or tp-size",
            )  # fmt: skip
        else:
            memory = min((gpu.memory_bytes or 0) for gpu in found) / GIB
            kinds = ", ".join(sorted({gpu.name for gpu in found}))
            yield Finding(
                row="gpus",
                state="ok",
                found=f"{len(found)} × {kinds}, {memory:.0f} GiB, compute capability {found[0].compute_capability}",
            )
        if found and purpose.gpus_needed:
            yield self._driver(found[0].driver_version)
            yield self._interconnect([gpu.index for gpu in found])
            yield self._users(found, purpose.gpus_needed)

    def _driver(self, version: str | None) -> Finding:
        banner = self.ask(["nvidia-smi"])
        cuda = _nvidia.cuda_version(banner.text) if banner else None
        return Finding(row="driver", state="ok", found=f"driver {version}, CUDA up to {cuda or '?'}")

    def _interconnect(self, indices: list[int]) -> Finding:
        answer = self.ask(["nvidia-smi", *_nvidia.TOPOLOGY_QUERY])
        links = _nvidia.links(answer.text, indices) if answer is not None else {}
        kind = _nvidia.interconnect(answer.text, indices) if answer is not None else None
        shown = ", ".join(f"{count} × {link}" for link, count in links.items())
        found = f"{kind} ({shown})" if kind else "one GPU" if len(indices) == 1 else "not known"
        if "SYS" in links:
            return Finding(
                row="interconnect", state="warning", found=f"{found}; pairs talk across NUMA nodes (SYS)",
                remedy="expect slow all-reduce there; a subset within one NUMA node is node.gpus (nvidia-smi topo -m)",
            )  # fmt: skip
        return Finding(row="interconnect", state="ok", found=found)

    def _users(self, found: tuple[_nvidia.Gpu, ...], needed: int) -> Finding:
        if there := gpu_processes(self.ask, self.visible):
            pids = " ".join(dict.fromkeys(str(process.pid) for process in there))
            return _error(
                "gpu users",
                "; ".join(map(str, there)),
                f"wait for these processes, or end them: `kill {pids}` on the node (of a container: on its host)"
                + _others(found, {process.uuid for process in there}, needed),
            )
        used = {gpu.index: gpu.used_bytes or 0 for gpu in found if (gpu.used_bytes or 0) > _USED_MUCH}
        if used:
            shown = ", ".join(f"GPU {index}: {size / GIB:.1f} GiB" for index, size in used.items())
            reset = f"nvidia-smi --gpu-reset -i {','.join(map(str, used))}"
            return _error(
                "gpu users", f"memory in use by no process that is shown: {shown}",
                "somebody outside of this container holds it: see `nvidia-smi` on the host and end that process there; "
                f"or the driver does: reset the GPU with `{reset}` as root"
                + _others(found, {gpu.uuid for gpu in found if gpu.index in used}, needed),
            )  # fmt: skip
        return Finding(row="gpu users", state="ok", found="memory free, no process")

    def shared_memory(self, purpose: Purpose) -> Finding:
        """Size of /dev/shm: the processes of a server of several GPUs talk through it."""
        size, free = self._space(SHARED_MEMORY)
        remedy = "`mount -o remount,size=32G /dev/shm` as root, or give the container --shm-size 32g or --ipc host"
        found = f"{free / GIB:.1f} of {size / GIB:.1f} GiB free"
        if purpose.gpus_needed <= 1:
            state = "ok" if free >= _SHM_ALONE else "warning"
        else:
            state = "error" if free < _SHM_LEAST else "warning" if free < _SHM_GOOD else "ok"
        return Finding(row=SHARED_MEMORY, state=state, found=found, remedy="" if state == "ok" else remedy)

    def disk(self) -> Finding:
        """Room for logs."""
        place = shlex.quote(self.workdir)
        code, text = self.run(f"mkdir -p {place} && touch {place}/.probe.$$ && rm -f {place}/.probe.$$")
        if code != 0:
            return _error(
                "disk", f"{self.workdir} cannot be written: {_last(text)}",
                "free space there, correct its owner, or name another node.workdir",
            )  # fmt: skip
        size, free = self._space(self.workdir)
        found = f"{free / GIB:.1f} of {size / GIB:.1f} GiB free for logs in {self.workdir}"
        state = "error" if free < _DISK_LEAST else "warning" if free < _DISK_GOOD else "ok"
        remedy = "" if state == "ok" else "free space there, or name another node.workdir"
        return Finding(row="disk", state=state, found=found, remedy=remedy)

    def model(self, purpose: Purpose) -> Finding:
        """The model's folder and its config.json."""
        path = purpose.model
        if re.fullmatch(r"[\w.-]+/[\w.-]+", path):
            return Finding(
                row="model", state="warning", found=f"{path} is a name on a hub: the first launch may download it",
                remedy="name a folder on the node as engine.model",
            )  # fmt: skip
        code, text = self.run(f"cat {shlex.quote(path)}/config.json")
        if code != 0:
            return _error(
                "model", f"{path} has no config.json that can be read there: {_last(text)}",
                f"correct engine.model: it is a path on the node{spell_out(path)}",
            )  # fmt: skip
        try:
            config = json.loads(text)
            kind = config.get("model_type", "?")
        except (ValueError, AttributeError) as error:
            return _error("model", f"{path}/config.json is no JSON object: {error}", "copy the model there again")
        return Finding(row="model", state="ok", found=f"{path} ({kind})")

    def _space(self, path: str) -> tuple[int, int]:
        _, text = self.run(f"df -PB1 {shlex.quote(path)} | tail -n 1")
        words = text.split()
        return (int(words[1]), int(words[3])) if len(words) >= 4 and words[1].isdigit() else (0, 0)


def rehearsal(run: Callable[[], str], scenario: str, install: Callable[[Sequence[str]], str]) -> Finding:
    """Whether the node can run the simulated server. `run`: what it prints about its scenario."""
    try:
        json.loads(run().strip().splitlines()[-1])
    except (NodeError, ValueError, IndexError) as error:
        what, remedy = _not_run(error, (*LOAD_PACKAGES, *REHEARSAL_PACKAGES), install)
        return _error("engine", f"the simulated server cannot be run: {what}", remedy)
    return Finding(row="engine", state="ok", found=f"rehearsed: a simulated server of scenario {scenario}")


def capacity_arguments(purpose: Purpose) -> list[str]:
    """Of the test of the load generator's speed."""
    return [str(number) for number in (purpose.concurrency, purpose.load_processes) if number is not None]


def load_generator(run: Callable[[], str], purpose: Purpose, install: Callable[[Sequence[str]], str]) -> Finding:
    """Whether the node can run it, and how fast it is there. `run`: what it, or the test of its speed, prints.

    `install`: what to type to have packages there.
    """
    try:
        told = json.loads(run().strip().splitlines()[-1])
        reached = float(told["tokens_per_s"]) if purpose.thorough else None
    except (NodeError, ValueError, KeyError, IndexError, TypeError) as error:
        what, remedy = _not_run(error, LOAD_PACKAGES, install)
        return Finding(
            row="load generator",
            state="warning",
            found=f"the node's Python cannot run it: {what}",
            remedy=f"{remedy}; else a tunnel is used",
        )
    if reached is None:
        return Finding(row="load generator", state="ok", found="runs on the node")
    wanted = min(FASTEST, FASTEST_OF_ONE * purpose.concurrency)
    of_processes = f" with {purpose.load_processes} processes" if purpose.load_processes else ""
    found = f"reads {reached:,.0f} tokens/s at concurrency {purpose.concurrency}{of_processes}"
    if reached >= wanted:
        return Finding(row="load generator", state="ok", found=found)
    return Finding(
        row="load generator",
        state="warning",
        found=f"{found}; a server may be faster ({wanted:,.0f} tokens/s)",
        remedy="leave the node alone while measuring"
        + ("" if purpose.load_processes else ", or write load_generator: {name: closed_loop, processes: 4}"),
    )


def _not_run(error: Exception, packages: Sequence[str], install: Callable[[Sequence[str]], str]) -> tuple[str, str]:
    """(What is wrong, what to do) when a program of ours did not run there."""
    if isinstance(error, NodeUnusableError):  # it could not even be brought there
        what, _, remedy = str(error).partition("; ")
        return what, remedy
    if "No module named" in str(error):
        return str(error), install(packages)
    return str(error), f"name a Python 3.11 or newer with {', '.join(packages)} as node.python"


def _others(found: Sequence[_nvidia.Gpu], taken: Collection[str], needed: int) -> str:
    """The end of a remedy: GPUs that would do as well."""
    free = [gpu.index for gpu in found if gpu.uuid not in taken]
    return f"; or take others: `gpus: {free}` under node:" if free and len(free) >= needed else ""


def spell_out(path: str) -> str:
    """The end of a remedy for a path whose `~` no shell of the node's will ever see."""
    return "; write its `~` out as the home directory there" if path.startswith("~") else ""


def each(rows: Iterable[Row]) -> Iterator[Finding]:
    """Findings of rows by name. What keeps one from being found is that row's finding, and the others follow.

    Raises NodeUnreachableError and HostKeyError only.
    """
    for name, find in rows:
        try:
            found = find()
            yield from [found] if isinstance(found, Finding) else found
        except (NodeUnreachableError, HostKeyError):
            raise
        except (NodeError, SpecError) as error:
            yield trouble(name, error)


def trouble(row: str, error: Exception) -> Finding:
    """An error whose message says what is wrong, and after a semicolon what to do."""
    what, _, remedy = str(error).partition("; ")
    return _error(row, what, remedy or what)


def _error(row: str, found: str, remedy: str) -> Finding:
    return Finding(row=row, state="error", found=found, remedy=remedy)


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1][:200]
