"""The installation under test: results of different drivers or engine versions are never ranked together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from servetune.core.errors import NodeUnusableError
from servetune.core.node import NodeFacts
from servetune.core.study import StudySpec
from servetune.core.trial import TrialRecord

#: What makes results incomparable, in words.
COMPARED = {"driver_version": "the GPU driver", "engine_version": "the engine"}


def measured_facts(records: Iterable[TrialRecord]) -> NodeFacts | None:
    """Facts of the first launch of a study that measured something."""
    return next((run.facts for record in records for run in record.runs if run.measurements), None)


def check_installation(spec: StudySpec, before: NodeFacts | None, now: Mapping[str, Any]) -> None:
    """Raises NodeUnusableError when driver or engine are others than when the study measured first."""
    if before is None or before.simulated:
        return
    for name, words in COMPARED.items():
        was, is_now = getattr(before, name), now.get(name)
        if was is not None and is_now is not None and was != is_now:
            raise NodeUnusableError(
                f"{words} changed from {was} to {is_now} since study {spec.study!r} measured first, so further results "
                f"would not be comparable. Install {was} again and resume, or start a new study that begins with this "
                f"one's best: `servetune start {spec.source_file or 'FILE'} --new-name NAME --seed-from {spec.study}`"
            )
