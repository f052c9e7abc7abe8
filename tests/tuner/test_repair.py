"""What is tried after a failure whose diagnosis computes repairs."""

from servetune.core.failure import Failure, Phase, Repair, Verdict
from servetune.core.space import SearchSpace
from servetune.tuner.repair import repaired

SPACE = SearchSpace.model_validate(
    {
        "name": "s",
        "parameters": [
            {"name": "mem-fraction-static", "domain": {"kind": "float", "low": 0.5, "high": 0.9}},
            {"name": "max-running-requests", "domain": {"kind": "int", "low": 8, "high": 1024}},
        ],
    }
)
FAILURE = Failure(
    slug="kv_budget",
    phase=Phase.KV_ALLOC,
    verdict=Verdict.INFEASIBLE,
    message="no room",
    repairs=(
        Repair(flag="mem-fraction-static", value=0.773, reason="the minimum"),
        Repair(flag="mem-fraction-static", value=0.881, reason="with room"),
        Repair(flag="max-running-requests", value=64, reason="fewer"),
        Repair(flag="max-running-requests", value=4, reason="outside the space"),
    ),
)


def test_of_several_values_of_a_flag_the_first_is_tried():
    before = {"mem-fraction-static": 0.7, "max-running-requests": 128}
    assert repaired(before, FAILURE, SPACE, depth=1, most=3) == [
        {"mem-fraction-static": 0.773, "max-running-requests": 128},
        {"mem-fraction-static": 0.7, "max-running-requests": 64},
    ]
