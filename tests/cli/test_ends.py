"""The sentence that ends a study in which nothing worked."""

import pytest

from servetune.cli._sitting import _none_worked
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.trial import RunPurpose, RunRecord, TrialRecord, TrialState


def trial(number: int, launched: bool) -> TrialRecord:
    run = RunRecord(
        trial=number,
        attempt=0,
        purpose=RunPurpose.SEARCH,
        launch=LaunchSpec(argv=("x",), port=1),
        facts=NodeFacts(node="local"),
        started_at="t",
    )
    state = TrialState.PRUNED if launched else TrialState.WAITING
    return TrialRecord(number=number, state=state, point={}, assignment={}, runs=(run,) if launched else ())


@pytest.mark.parametrize(
    ("launched", "said"),
    [
        (0, "no configuration was launched"),
        (1, "the one configuration that was launched did not work"),
        (2, "none of the 2 configurations that were launched worked"),
    ],
)
def test_only_what_was_launched_is_counted(launched, said):
    assert _none_worked([trial(number, number < launched) for number in range(3)]) == said
