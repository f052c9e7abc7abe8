"""GPUs of a node, asked through `nvidia-smi`; how a command is run there is an argument."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from servetune.core.errors import NodeBusyError, NodeUnusableError, SpecError
from servetune.nodes import _nvidia

_MEMORY_BACK_S = 60.0  # the driver frees a killed process's memory late: >30 s has been seen with SGLang
_TOLERANCE_BYTES = 1 << 30  # contexts of monitoring tools come and go
_LOOK_S = 1.0


@dataclass(frozen=True)
class Command:
    """A command that was run to its end. `text`: standard output and error together."""

    code: int
    text: str


Ask = Callable[[Sequence[str]], Command | None]
"""Runs a command on the node; None when the program does not exist there."""


def gpus(ask: Ask, visible: str | None) -> tuple[_nvidia.Gpu, ...]:
    """The GPUs that `visible` (CUDA_VISIBLE_DEVICES) leaves; empty without `nvidia-smi` or without a GPU.

    Raises NodeUnusableError when `nvidia-smi` fails, SpecError when `visible` leaves none of those that exist.
    """
    answer = ask(["nvidia-smi", *_nvidia.GPU_QUERY])
    if answer is None or _nvidia.NO_GPU.search(answer.text):
        return ()
    if answer.code != 0:
        raise NodeUnusableError(
            f"nvidia-smi failed with exit status {answer.code}: {answer.text.strip()[:300]}; "
            "mend the driver (see dmesg), then start again"
        )
    found = _nvidia.gpus(answer.text)
    chosen = _nvidia.chosen(found, visible)
    if found and not chosen:
        known = ", ".join(str(gpu.index) for gpu in found)
        raise SpecError(f"no GPU is left by {visible!r} (node.gpus or CUDA_VISIBLE_DEVICES); the node has {known}")
    return chosen


def gpu_facts(ask: Ask, visible: str | None) -> Mapping[str, Any]:
    """The GPU fields of NodeFacts; empty when there is no GPU. Raises as `gpus`."""
    found = gpus(ask, visible)
    if not found:
        return {}
    topology = ask(["nvidia-smi", *_nvidia.TOPOLOGY_QUERY])
    banner = ask(["nvidia-smi"])
    return {
        "gpu_names": tuple(gpu.name for gpu in found),
        "gpu_memory_bytes": min((gpu.memory_bytes for gpu in found if gpu.memory_bytes is not None), default=None),
        "compute_capability": found[0].compute_capability,
        "driver_version": found[0].driver_version,
        "cuda_version": _nvidia.cuda_version(banner.text) if banner else None,
        "interconnect": _nvidia.interconnect(topology.text, [gpu.index for gpu in found]) if topology else None,
    }


class MemoryGuard:
    """Remembers how much GPU memory was in use before a launch, and sees that no more is in use after it."""

    def __init__(self, ask: Ask, visible: str | None, wait_s: float = _MEMORY_BACK_S) -> None:
        self._ask = ask
        self._visible = visible
        self._wait_s = wait_s
        self._before = {gpu.uuid: gpu.used_bytes or 0 for gpu in gpus(ask, visible)}

    def check(self) -> None:
        """Return once the memory is back (within 1 GiB per GPU).

        After 60 s raises NodeBusyError, naming the processes that hold it, or NodeUnusableError when none is listed.
        """
        deadline_s = time.monotonic() + self._wait_s
        while held := self._held():
            if time.monotonic() > deadline_s:
                self._refuse(held)
            time.sleep(_LOOK_S)

    def _held(self) -> Mapping[str, int]:
        if not self._before:
            return {}
        more = {
            gpu.uuid: (gpu.used_bytes or 0) - self._before.get(gpu.uuid, 0) for gpu in gpus(self._ask, self._visible)
        }
        return {uuid: extra for uuid, extra in more.items() if extra > _TOLERANCE_BYTES}

    def _refuse(self, held: Mapping[str, int]) -> None:
        answer = self._ask(["nvidia-smi", *_nvidia.PROCESS_QUERY])
        holders = [] if answer is None else [line for line in answer.text.splitlines() if line[:4] == "GPU-"]
        sizes = ", ".join(f"{uuid} {extra / 2**30:.1f} GiB" for uuid, extra in held.items())
        message = (
            f"GPU memory is still in use {self._wait_s:g} s after the server was stopped: {sizes} more than before"
        )
        if holders:
            raise NodeBusyError(
                f"{message}, held by {'; '.join(holders)}; wait for these processes or end them, then resume"
            )
        raise NodeUnusableError(
            f"{message}, and no process is listed as its holder; look at dmesg, reset the GPU, then resume"
        )
