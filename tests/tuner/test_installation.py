from __future__ import annotations

import pytest

from servetune.core.engine import EngineChoice
from servetune.core.errors import NodeUnusableError
from servetune.core.node import NodeFacts
from servetune.core.space import SearchSpace
from servetune.core.study import StudySpec
from servetune.tuner.installation import check_installation

SPEC = StudySpec(study="mine", engine=EngineChoice(model="/m"), space=SearchSpace(name="inline"))
BEFORE = NodeFacts(node="ssh", driver_version="580.1", engine_version="0.5.9")


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"driver_version": "590.2", "engine_version": "0.5.9"}, "the GPU driver changed from 580.1 to 590.2"),
        ({"driver_version": "580.1", "engine_version": "0.5.10"}, "the engine changed from 0.5.9 to 0.5.10"),
    ],
)
def test_another_installation_is_refused_with_both_ways_out(now, said):
    with pytest.raises(NodeUnusableError, match=rf"{said}.*and resume.*--new-name NAME --seed-from mine"):
        check_installation(SPEC, BEFORE, now)


@pytest.mark.parametrize("now", [{}, {"driver_version": "580.1"}, {"engine_version": "0.5.9", "gpus": {}}])
def test_the_same_installation_and_what_is_not_known_go_on(now):
    check_installation(SPEC, BEFORE, now)
    check_installation(SPEC, None, {"driver_version": "1"})
    check_installation(SPEC, BEFORE.model_copy(update={"simulated": True}), {"driver_version": "1"})
