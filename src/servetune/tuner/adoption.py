"""Taking up a server that an earlier sitting left running, where it is still the right one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from servetune.core.benchmark import Measurement
from servetune.core.node import Adopting, LaunchSpec, Node, ServerProcess
from servetune.core.trial import RunPurpose, RunRecord
from servetune.storage import Store


@dataclass(frozen=True)
class TakenUp:
    """A running server, how long it has run (node seconds), and the levels that were measured of it before."""

    process: ServerProcess
    launch: LaunchSpec
    age_s: float
    measurements: tuple[Measurement, ...]
    phase_s: Mapping[str, float]


def unfinished(store: Store, study: str) -> bool:
    """Whether an earlier sitting was killed while a server may have run."""
    return any(run.finished_at is None for record in store.trials(study) for run in record.runs)


def take_up(
    node: Node,
    run: RunRecord | None,
    purpose: RunPurpose,
    log_dir: str,
    study: str,
    launch: Callable[[int], LaunchSpec],
) -> TakenUp | None:
    """The server of an interrupted run; None unless `launch` (a port to the spec of today) still gives the same."""
    if run is None or run.finished_at is not None or run.purpose is not purpose or not isinstance(node, Adopting):
        return None
    if launch(run.launch.port) != run.launch:
        return None
    found = node.adopt(run.launch, study, run.trial, log_dir)
    if found is None:
        return None
    process, running = found
    return TakenUp(process, run.launch, running.age_s, tuple(run.measurements), run.phase_s)
