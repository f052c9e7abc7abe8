"""Sizes below 1: the engine's parser takes them; some it divides by at once, with others it dies later."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

_SIZES = (
    "tp_size", "pp_size", "ep_size", "dp_size", "attn_dp_size", "attn_cp_size", "moe_dp_size", "dcp_size", "dwdp_size",
    "nnodes", "max_running_requests", "max_total_tokens", "max_prefill_tokens", "context_length",
)  # fmt: skip


def below_one(s: State) -> list[str]:
    """Fields that hold a size below 1."""
    values = s.__dict__
    return [name for name in _SIZES if isinstance(values[name], int | float) and values[name] < 1]


@rule(
    "sizes.divided_by",
    Stage.SIZES,
    final=True,
    source="server_args.py:_handle_data_parallelism, check_server_args; 0.5.20+: parallel_hook.py, validation_hook.py",
)
def divided_by(s: State) -> Effects:
    """Nodes and attention groups are divided by while arguments are checked."""
    groups = ["attn_dp_size"] if s.version >= (0, 5, 22) else []
    groups += ["dp_size"] if s.enable_dp_attention else []
    for name in below_one(s):
        # a negative divisor gives a remainder as well: only zero ends the checks, but for the groups of 0.5.22
        if name in groups or (name == "nnodes" and s.nnodes == 0):
            yield Refuse(f"--{name.replace('_', '-')} is {getattr(s, name)}: SGLang divides by it", (name,), ("1",))


@rule(
    "sizes.at_least_one",
    Stage.SIZES,
    layer="runtime",
    final=True,
    source="the checks of 0.5.9, 0.5.13 and 0.5.23 accept it; managers/scheduler.py, distributed/parallel_state.py",
)
def at_least_one(s: State) -> Effects:
    """No server runs on less than one rank, request or token."""
    for name in below_one(s):
        yield Refuse(f"--{name.replace('_', '-')} is {getattr(s, name)}; it is at least 1", (name,), ("1",))
