"""Stands in for `sgl_kernel`, whose wheels need CUDA, so that SGLang starts on a CPU.

Any name can be imported; using one raises. `torch.ops.sgl_kernel` stays empty, so SGLang finds no AMX kernels and takes
its torch-native paths. Modules below `sgl_kernel` do not exist here: options that need one fail as on a broken install.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

__version__ = "0.4.10"  # what SGLang 0.5.23 pins


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} is a GPU kernel; this environment has none (SGLang on a CPU)")

    absent.__name__ = name
    return absent
