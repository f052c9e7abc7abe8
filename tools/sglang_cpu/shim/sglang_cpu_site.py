"""Loaded at the start of each Python of this environment (`sglang_cpu_site.pth`): what SGLang needs to run here.

- PyPI's torchvision is built against a CUDA torch, and beside a CPU torch its operators do not load; importing it then
  fails, because it describes operators that do not exist. Declaring their schemas is enough: nothing here calls them.
- SGLang imports each of its 200 model modules at start, three processes long. Only the tiny model's is needed:
  the names beside this file are the default of `SGLANG_DISABLED_MODEL_ARCHS`.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
DISABLED_MODELS = Path(__file__).with_name("disabled_models.txt")


class TorchvisionSchemas:
    """Finds nothing; declares the schemas the moment `torchvision` is first looked for, which is after torch."""

    library: object = None  # keeps the declarations alive

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Called by the import system for each module that is not loaded yet."""
        if name == "torchvision":
            sys.meta_path.remove(self)  # type: ignore[arg-type]
            self._declare()
        return None

    @classmethod
    def _declare(cls) -> None:
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in SCHEMAS:
            library.define(schema)
        cls.library = library


def install() -> None:
    """Prepare this process; imports nothing large."""
    sys.meta_path.insert(0, TorchvisionSchemas())  # type: ignore[arg-type]
    if DISABLED_MODELS.exists():
        os.environ.setdefault("SGLANG_DISABLED_MODEL_ARCHS", ",".join(DISABLED_MODELS.read_text().split()))


install()
