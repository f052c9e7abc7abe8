"""Sums that a repair shows add up as they are read."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from servetune.engines.sglang._repair_memory import _lower_reason
from servetune.engines.sglang._repair_numbers import Numbers

sizes = st.floats(min_value=0, max_value=200)


@given(tried=sizes, free=sizes)
@example(tried=0.4399, free=0.3249)
def test_what_is_missing_is_the_difference_of_what_is_shown(tried, free):
    said = _lower_reason(Numbers(tried=tried, free=free), 0.9)
    wanted, left, missing = map(float, re.findall(r"[\d.]+(?= GiB| free)", said))
    assert round(max(0.0, wanted - left), 2) == missing
