"""Servers without a GPU (`--device cpu`): what they run on."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Fill, Stage, rule
from servetune.engines.sglang.rules._state import State

SOURCE = "server_args.py:_handle_cpu_backends; 0.5.20+: arg_groups/platform_hook.py:handle_cpu_backends"


@rule("devices.cpu", Stage.GRAPHS, source=SOURCE)
def cpu(s: State) -> Effects:
    """A CPU samples in PyTorch and attends with AMX; without AMX the engine turns to torch_native."""
    if s.device != "cpu":
        return
    if s.attention_backend is None:
        yield Fill("attention_backend", "intel_amx")
    if s.sampling_backend not in (None, "pytorch"):
        yield Assign("sampling_backend", "pytorch", "--device cpu")
    yield Fill("sampling_backend", "pytorch")
