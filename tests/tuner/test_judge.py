"""What makes a measurement infeasible."""

from servetune.core.benchmark import Measurement, Percentiles
from servetune.core.objective import Objective
from servetune.tuner.judge import beyond_limits, gave_nothing


def measured(**changes) -> Measurement:
    ttft = Percentiles(mean=1, p50=1, p90=2, p95=2.5, p99=3)
    numbers = {"output_tokens_per_s": 1, "low": 1, "high": 1, "duration_s": 1}
    counts = {"requests_completed": 1, "requests_failed": 0, "output_tokens": 1}
    return Measurement(concurrency=8, **{**numbers, **counts, "ttft_s": ttft, **changes})


def test_a_limit_that_is_exceeded():
    assert beyond_limits(Objective(limits={"ttft_p99_s": 3.0}), measured()) == ()
    found = beyond_limits(Objective(limits={"ttft_p99_s": 2.0, "ttft_p50_s": 2.0}), measured())
    assert found == ("ttft_p99_s is 3 s at concurrency 8, limit 2 s",)


def test_a_load_search_that_found_no_load_is_beyond_its_limits_and_no_hang():
    none = measured(requests_completed=0, details={"concurrency_found": 0.0}, warnings=("no load keeps the limits: …",))
    assert beyond_limits(Objective(), none) == ("no load keeps the limits: …",)
    assert beyond_limits(Objective(), measured(details={"concurrency_found": 4.0}, warnings=("x",))) == ()


def test_tokens_without_a_whole_answer_are_no_hang():
    assert gave_nothing(measured(requests_completed=0, output_tokens=0, output_tokens_per_s=0, low=0, high=0))
    assert not gave_nothing(measured(requests_completed=0, output_tokens=300))
    assert not gave_nothing(measured())
