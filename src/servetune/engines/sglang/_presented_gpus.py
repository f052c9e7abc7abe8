"""Present NVIDIA GPUs to SGLang's argument checks: a machine's own, asked once, or those of a machine that is not here.

Only the questions that parsing and resolution ask are answered: how many, which compute capability, how much memory,
which packages are importable. Nothing can be computed. Install it before sglang is imported, in a process of its own.
Runs with the engine's Python: the standard library and torch, nothing of servetune.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.abc
import importlib.machinery
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Packages that a GPU installation of SGLang brings along and that only look importable here.
GPU_PACKAGES = (
    "sgl_kernel",
    "flashinfer",
    "deep_gemm",
    "deep_ep",
    "flash_attn",
    "flash_mla",
    "cutlass",
    "tilelang",
    "quack",
    "nvshmem",
    "humming",
    "torch_memory_saver",
    "decord",
)
#: Name and number of multiprocessors of a usual GPU of each compute capability.
MODELS = {
    (7, 5): ("Tesla T4", 40),
    (8, 0): ("NVIDIA A100-SXM4-80GB", 108),
    (8, 6): ("NVIDIA A10", 72),
    (8, 9): ("NVIDIA L40S", 142),
    (9, 0): ("NVIDIA H100 80GB HBM3", 132),
    (10, 0): ("NVIDIA B200", 148),
    (10, 3): ("NVIDIA B300 SXM6 AC", 148),
    (12, 0): ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 188),
    (12, 1): ("NVIDIA GB10", 48),
}


@dataclass(frozen=True)
class PresentedGpus:
    """What is presented. `memory_mib`: as `nvidia-smi` would say it.

    `cuda`: of torch; None leaves what torch says. `packages` that are to look importable although they are not here.
    """

    count: int
    capability: tuple[int, int]
    memory_mib: int
    cuda: str | None = None
    packages: Sequence[str] = GPU_PACKAGES
    model: str | None = None
    driver: str = "580.95.05"

    @property
    def name(self) -> str:
        """Product name."""
        return self.model or MODELS.get(self.capability, ("NVIDIA GPU", 100))[0]

    def install(self) -> None:
        """Change this process: torch's answers, `nvidia-smi` on PATH, importable packages."""
        if self.packages:
            sys.meta_path.insert(0, _Finder(frozenset(self.packages)))
        self._present_to_torch()
        self._put_nvidia_smi_on_path()

    def _present_to_torch(self) -> None:
        torch = importlib.import_module("torch")
        if self.cuda is not None:
            torch.version.cuda = self.cuda
        total_bytes = self.memory_mib << 20
        answers: dict[str, Any] = {
            "is_available": True,
            "is_initialized": True,  # else releases that know NVML ask it first
            "device_count": self.count,
            "current_device": 0,
            "get_device_capability": self.capability,
            "get_device_name": self.name,
            "get_device_properties": self._properties(),
            "mem_get_info": (int(total_bytes * 0.99), total_bytes),
            "memory_allocated": 0,
            "get_arch_list": [f"sm_{self.capability[0]}{self.capability[1]}"],
            "can_device_access_peer": True,
        }
        nothing = ("set_device", "synchronize", "empty_cache", "init", "_lazy_init", "reset_peak_memory_stats")
        for name, answer in {**answers, **dict.fromkeys(nothing)}.items():
            setattr(torch.cuda, name, _always(answer))
        if self.packages:
            _tolerate_missing_operators(torch.library)

    def _properties(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            name=self.name,
            major=self.capability[0],
            minor=self.capability[1],
            total_memory=self.memory_mib << 20,
            multi_processor_count=MODELS.get(self.capability, ("", 100))[1],
            is_integrated=False,
            is_multi_gpu_board=False,
            warp_size=32,
            max_threads_per_multi_processor=2048,
            regs_per_multiprocessor=65536,
            shared_memory_per_block_optin=227 << 10,
            L2_cache_size=50 << 20,
            gcnArchName="",
            uuid="GPU-00000000-0000-0000-0000-000000000000",
        )

    def _put_nvidia_smi_on_path(self) -> None:
        folder, owner = Path(tempfile.mkdtemp(prefix="presented-gpu-")), os.getpid()

        def remove() -> None:
            if os.getpid() == owner:
                shutil.rmtree(folder, ignore_errors=True)

        atexit.register(remove)
        capability = ".".join(map(str, self.capability))
        cases = {
            "compute_cap": capability,
            "memory.total": self.memory_mib,
            "driver_version": self.driver,
            "name": self.name,
        }
        lines = [f'*{query}*) answer="{answer}";;' for query, answer in cases.items()]
        numbers = " ".join(map(str, range(self.count)))
        program = ["#!/bin/sh", 'case "$*" in', *lines, "*) exit 1;;", "esac", f"for gpu in {numbers}; do"]
        path = folder / "nvidia-smi"
        path.write_text("\n".join([*program, '  echo "$answer"', "done", ""]))
        path.chmod(0o755)
        os.environ["PATH"] = f"{folder}:{os.environ.get('PATH', '')}"


def _always(answer: Any) -> Any:
    def same(*_args: object, **_kwargs: object) -> Any:
        return answer

    return same


def _tolerate_missing_operators(library: Any) -> None:
    """SGLang describes operators of C++ libraries that are not here (`register_fake`): let it, without effect."""
    real = library.register_fake

    def register_fake(operator: Any, function: Any = None, /, **options: Any) -> Any:
        def register(described: Any) -> Any:
            try:
                return real(operator, described, **options)
            except RuntimeError:
                return described

        return register if function is None else register(function)

    library.register_fake = register_fake


class Placeholder:
    """Stands for anything in a package that only looks importable: called, subscripted, subclassed, or a decorator."""

    def __init__(self, name: str) -> None:
        self.__dict__["_placeholder_name"] = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As a decorator it gives back what it decorates."""
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return self

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self._placeholder_name}.{name}")

    def __getitem__(self, _key: object) -> Placeholder:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__

    def __mro_entries__(self, _bases: object) -> tuple[type, ...]:
        return (object,)

    def __repr__(self) -> str:
        return f"<placeholder {self._placeholder_name}>"


class _PlaceholderModule(types.ModuleType):
    __version__ = "99.0"
    __path__ = []  # noqa: RUF012 - what marks a module as a package

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return Placeholder(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: frozenset[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name.partition(".")[0] in self._packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _PlaceholderModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass
