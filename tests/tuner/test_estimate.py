"""What complete trials are taken to be worth."""

import math

import pytest

from servetune.core.benchmark import Measurement
from servetune.core.engine import EngineChoice
from servetune.core.node import LaunchSpec, NodeFacts
from servetune.core.space import CategoricalDomain, FloatDomain, Parameter, SearchSpace
from servetune.core.study import StudySpec
from servetune.core.trial import RunPurpose, RunRecord, TrialRecord, TrialState
from servetune.tuner.confirm import leaders
from servetune.tuner.estimate import estimated

LEVELS = (1, 10, 256)
DTYPES = CategoricalDomain(choices=("auto", "fp8_e4m3"))
AXES = {"mem-fraction-static": FloatDomain(low=0.7, high=0.9, step=0.01), "kv-cache-dtype": DTYPES}
SPEC = StudySpec(
    study="s",
    engine=EngineChoice(model="m"),
    space=SearchSpace(name="x", parameters=tuple(Parameter(name=name, domain=d) for name, d in AXES.items())),
    workload={"concurrency": LEVELS, "input_tokens": 800, "output_tokens": 200},
)


def record(number: int, rates: tuple[float, ...], kv_tokens: int, relative_sd: float = 0.01, **point) -> TrialRecord:
    point = {name.replace("_", "-"): value for name, value in point.items()}
    measured = tuple(
        Measurement(
            concurrency=level,
            output_tokens_per_s=rate,
            low=rate * (1 - 1.96 * relative_sd),
            high=rate * (1 + 1.96 * relative_sd),
            duration_s=10,
            requests_completed=100,
            requests_failed=0,
            output_tokens=1000,
        )
        for level, rate in zip(LEVELS, rates, strict=True)
    )
    memory = {"before_load_gib": 94.0, "after_load_gib": 40.0}
    run = RunRecord(
        trial=number,
        attempt=0,
        purpose=RunPurpose.SEARCH,
        launch=LaunchSpec(argv=("x",), port=1),
        facts=NodeFacts(node="local"),
        started_at="t",
        finished_at="t",
        measurements=measured,
        log_facts={"memory_gib": memory, "kv_tokens": kv_tokens},
    )
    value = math.exp(sum(math.log(rate) for rate in rates) / len(rates))
    state = TrialState.COMPLETE
    return TrialRecord(
        number=number, state=state, point=point, assignment=point, value=value, baseline=number == 0, runs=(run,)
    )


@pytest.mark.parametrize(
    ("rates", "kv_tokens", "leading"),
    [((60, 500, 6_000), 400_000, [1]), ((60, 300, 100), 1_500, [])],
    ids=["a pool of twenty times as many tokens excuses its speed", "one of a tenth excuses its slowness"],
)
def test_a_model_that_misjudges_a_launch_stays_near_what_was_seen(rates, kv_tokens, leading):
    """Its log told of a pool by which the model explains it, and which it expects of no such point."""
    base = record(0, (60, 500, 600), 20_000, mem_fraction_static=0.8, kv_cache_dtype="auto")
    odd = record(1, rates, kv_tokens, mem_fraction_static=0.8, kv_cache_dtype="fp8_e4m3")
    same = record(2, (60, 500, 595), 20_500, mem_fraction_static=0.81, kv_cache_dtype="auto")
    doubt = math.exp(3 * math.hypot(0.01 / math.sqrt(3), 0.03)) * (1 + 1e-9)
    assert odd.value / doubt <= estimated([base, odd, same], SPEC)[1] <= odd.value * doubt
    assert [t.number for t in leaders([base, odd, same], SPEC, 2) if t.number == 1] == leading


def test_a_lucky_value_is_pulled_back_within_its_own_uncertainty():
    base = record(0, (60, 500, 600), 20_000, mem_fraction_static=0.8, kv_cache_dtype="auto")
    lucky = record(1, (66, 550, 660), 20_000, 0.1, mem_fraction_static=0.8, kv_cache_dtype="fp8_e4m3")
    values = estimated([base, lucky], SPEC)
    assert values[0] == pytest.approx(base.value)
    assert base.value < values[1] < lucky.value
