"""What a study is after: rates, latencies, both against each other, and the front of the two."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servetune.core.benchmark import Measurement, Percentiles
from servetune.core.objective import Objective, latency_s, pareto


def measured(concurrency: int, rate: float, ttft_s: float | None = None, **details: float) -> Measurement:
    ttft = None if ttft_s is None else Percentiles(mean=ttft_s, p50=ttft_s, p90=ttft_s, p95=ttft_s, p99=2 * ttft_s)
    return Measurement(
        concurrency=concurrency,
        output_tokens_per_s=rate,
        low=rate,
        high=rate,
        duration_s=1,
        requests_completed=1,
        requests_failed=0,
        output_tokens=1,
        ttft_s=ttft,
        details=details,
    )


def test_goodput_is_what_the_load_generator_says_and_nothing_where_it_says_nothing():
    objective = Objective(maximize="goodput_output_tokens_per_s")
    levels = [measured(1, 100, goodput_output_tokens_per_s=80.0), measured(10, 400)]
    assert objective.contributions(levels) == {1: 80.0, 10: 0.0}
    assert objective.value(objective.contributions(levels)) == 0.0
    assert objective.unit == "tokens/s within limits"
    assert Objective(maximize="goodput_requests_per_s").unit == "requests/s within limits"


def test_two_objectives_are_a_quotient_and_a_pair():
    objective = Objective(minimize="ttft_p99_s")
    levels = [measured(1, 100, 0.1), measured(16, 400, 0.4)]
    assert objective.contributions(levels) == {1: 500.0, 16: 500.0}
    assert objective.both(levels) == (pytest.approx(200.0), pytest.approx(0.4))
    assert objective.value(objective.contributions(levels)) == pytest.approx(200.0 / 0.4)
    assert objective.of(measured(1, 100)) == 0.0
    assert objective.both([measured(1, 100)])[1] == math.inf
    at_one = Objective(minimize="ttft_p50_s", level=16)
    assert at_one.both(levels) == (400.0, 0.4)


def test_latencies_by_name():
    assert latency_s(measured(1, 1, 0.25), "ttft_p99_s") == 0.5
    assert latency_s(measured(1, 1), "itl_p50_s") is None


POINTS = st.dictionaries(
    st.integers(0, 30), st.tuples(st.sampled_from([1.0, 2, 3, 4]), st.sampled_from([1.0, 2, 3, 4]))
)


@given(POINTS)
def test_the_front_is_what_nothing_beats(points):
    def beats(a, b):
        return a[0] >= b[0] and a[1] <= b[1] and a != b

    front = pareto(points)
    on = {points[key] for key in front}
    assert on == {point for point in points.values() if not any(beats(other, point) for other in points.values())}
    assert len(on) == len(front)
    assert [points[key] for key in front] == sorted(on, reverse=True)
