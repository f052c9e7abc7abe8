"""The strategies by name, each with its own best settings, as studies in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from servetune.cli._virtual_study import simulate
from servetune.core.study import Confirmation, NamedChoice, Retries

#: Peers launch no confirmation, no mended configuration: all their hours go into the search.
ALONE = {"level_sd": 0.0, "confirm": Confirmation(top=0), "retries": Retries(repairs=0)}


def study(strategy: str, path: Path, seed: int, hours: float) -> dict:
    """One study of `strategy`."""
    keys = {"seed": seed, "node_hours": hours}
    if strategy == "adaptive":
        return simulate(str(path), {**keys, "sampler": NamedChoice(name="adaptive")})
    if strategy in ("random", "tpe-pruned"):
        name = strategy.removesuffix("-pruned")
        return simulate(str(path), {**keys, **ALONE, "sampler": NamedChoice(name=name)})
    import peers

    maker: Callable = peers.MAKERS[strategy]
    return simulate(str(path), {**keys, **ALONE, "sampler": NamedChoice(name="random")}, maker)
