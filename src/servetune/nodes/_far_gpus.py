"""The node's GPUs as the tuner minds them: whose processes are on them, and how they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from servetune.core.errors import NodeBusyError
from servetune.nodes import _nvidia
from servetune.nodes._gpus import Ask, gpus
from servetune.nodes._nvidia import GpuProcess

_LOOK_S = 1.0

Pids = Callable[[], set[int]]


def gpu_processes(ask: Ask, visible: str | None) -> list[GpuProcess]:
    """Processes on the GPUs that `visible` leaves; empty without `nvidia-smi`."""
    answer = ask(["nvidia-smi", *_nvidia.PROCESS_QUERY])
    if answer is None or answer.code != 0 or not (found := _nvidia.processes(answer.text)):
        return []
    ours = {gpu.uuid for gpu in gpus(ask, visible)}
    return [process for process in found if process.uuid in ours]


def await_free_gpus(ask: Ask, visible: str | None, wait_s: float) -> None:
    """Return once no process is on the GPUs. Raises NodeBusyError naming those that stay for `wait_s`.

    Nothing of ours runs when this is asked, so whoever is there is somebody else.
    """
    deadline_s = time.monotonic() + wait_s
    while there := gpu_processes(ask, visible):
        if time.monotonic() >= deadline_s:
            raise NodeBusyError(
                f"somebody else uses the GPUs: {'; '.join(map(str, there))}. They were left alone; wait for them or "
                "end them, or choose other GPUs (node.gpus), then resume"
            )
        time.sleep(_LOOK_S)


class Intruders:
    """Tells foreign processes on the GPUs of one server from its own. `own`, `known`: pids of the launch, of the node.

    In a container the driver may show pids of the host, which mean nothing here: those that are there at the first
    look, when the server has just become ready and its GPUs were free before it, are taken for the server's.
    """

    def __init__(self, ask: Ask, visible: str | None, own: Pids, known: Pids) -> None:
        self._ask, self._visible, self._own, self._known = ask, visible, own, known
        self._ours: set[int] | None = None

    def look(self) -> tuple[str, ...]:
        """Foreign processes now, each in words."""
        there = gpu_processes(self._ask, self._visible)
        if not there and self._ours is not None:
            return ()
        own, known = (self._own(), self._known()) if there else (set[int](), set[int]())
        if self._ours is None:
            self._ours = {process.pid for process in there if process.pid not in known}
        return tuple(str(process) for process in there if process.pid not in own | self._ours)


def conditions(ask: Ask) -> Mapping[str, Any]:
    """Clocks, temperatures and ECC errors of each GPU, and the driver; empty without `nvidia-smi`."""
    answer = ask(["nvidia-smi", *_nvidia.CONDITION_QUERY])
    return {} if answer is None or answer.code != 0 else _nvidia.conditions(answer.text)
