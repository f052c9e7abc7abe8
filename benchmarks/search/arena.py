"""The strategies by name, each with its own best settings, as studies in virtual time."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from servetune.cli._virtual_study import simulate
from servetune.core.study import Confirmation, NamedChoice, Retries
from servetune.search.learning import Learned

#: Nothing is learned from crashes but by the sampler itself.
UNTAUGHT = {("tuner.knowledge", "learned"): lambda subject, launches: Learned()}
#: Peers launch no confirmation, no mended configuration: all their hours go into the search.
ALONE = {"level_sd": 0.0, "confirm": Confirmation(top=0), "retries": Retries(repairs=0)}

RACING = NamedChoice(name="racing")
#: What is changed, by the name behind "adaptive": keys of the study, and constants as (module, name) → value.
ABLATIONS: dict[str, dict] = {
    "": {},
    "-sd5": {"keys": {"level_sd": 0.05}, "constants": {("tuner.effort", "LEAST"): 0.1}},
    "-racing": {"keys": {"pruner": RACING}},
    "-full-levels": {"keys": {"level_sd": 0.0}},
    "-no-blame": {
        "constants": {("feasibility", "Feasibility.log_probability"): lambda self, codes: np.zeros(len(codes))}
    },
    "-no-memory": {"constants": {("_memory", "FRACTION"): ()}},
    "-no-learned-amplitudes": {"constants": {("_gp", "STEPS"): 0}},
    "-no-outliers": {"constants": {("_gp", "OUTLYING"): -1e9}},
    "-no-joint": {"constants": {("search.samplers.adaptive", "JOINT"): 1}},
    "-no-constraints": {"constants": UNTAUGHT},
    "-no-stop": {"keys": {"sampler": NamedChoice(name="adaptive", settings={"stop_gain": 0.0})}},
}


@contextmanager
def changed(constants: dict) -> Iterator[None]:
    """While inside, constants of `servetune.search` have other values."""
    before = []
    try:
        for (module, name), value in constants.items():
            holder = importlib.import_module(f"servetune.{module}" if "." in module else f"servetune.search.{module}")
            *path, last = name.split(".")
            for step in path:
                holder = getattr(holder, step)
            before.append((holder, last, getattr(holder, last)))
            setattr(holder, last, value)
        yield
    finally:
        for holder, name, value in before:
            setattr(holder, name, value)


def study(strategy: str, path: Path, seed: int, hours: float) -> dict:
    """One study of `strategy`."""
    keys = {"seed": seed, "node_hours": hours}
    if strategy.startswith("adaptive"):
        changes = ABLATIONS[strategy.removeprefix("adaptive")]
        with changed(changes.get("constants", {})):
            return simulate(str(path), {**keys, "sampler": NamedChoice(name="adaptive"), **changes.get("keys", {})})
    import peers

    name = {"tpe-pruned": "tpe"}.get(strategy, "random")
    with changed(UNTAUGHT):
        return simulate(str(path), {**keys, **ALONE, "sampler": NamedChoice(name=name)}, peers.MAKERS.get(strategy))
