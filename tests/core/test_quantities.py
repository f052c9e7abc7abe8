"""Numbers as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servetune.core.quantities import counted, latency, significant


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [
        (1, "trial", "1 trial"),
        (0, "trial", "0 trials"),
        (2, "fresh launch", "2 fresh launches"),
        (1200, "proposal", "1,200 proposals"),
    ],
)
def test_a_count_agrees_with_its_noun(count, noun, said):
    assert counted(count, noun) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0123, "12.3 ms"), (1.59, "1.59 s"), (0.9996, "1 s"), (0.9994, "999 ms"), (1590.0, "1,590 s"), (0.0, "0 ms")],
)
def test_a_latency_has_the_unit_that_fits(seconds, said):
    assert latency(seconds) == said


@given(st.floats(min_value=0, max_value=1e9))
def test_no_number_has_an_exponent(value):
    assert "e" not in significant(value)
