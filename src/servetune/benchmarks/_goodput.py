"""Goodput: the part of the work that kept the limits of a single request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from servetune.benchmarks._metrics import PerRequest
from servetune.core.space import Frozen


class GoodputLimits(Frozen):
    """Upper bounds for one request, in node seconds; None: not limited."""

    ttft_s: float | None = Field(default=None, gt=0)
    tpot_s: float | None = Field(default=None, gt=0)
    e2e_s: float | None = Field(default=None, gt=0)


def goodput(requests: PerRequest, limits: GoodputLimits, duration_s: float) -> dict[str, float]:
    """`goodput_share` of the completed requests, `goodput_requests_per_s` and `goodput_output_tokens_per_s`."""
    kept: NDArray[np.bool_] = np.ones(len(requests.e2e_s), dtype=bool)
    for values, bound in (
        (requests.ttft_s, limits.ttft_s),
        (requests.tpot_s, limits.tpot_s),
        (requests.e2e_s, limits.e2e_s),
    ):
        if bound is not None:
            kept &= ~(values > bound)  # a request of one token has no TPOT and keeps any limit of it
    return {
        "goodput_share": float(np.mean(kept)) if len(kept) else 0.0,
        "goodput_requests_per_s": float(np.sum(kept)) / duration_s,
        "goodput_output_tokens_per_s": float(np.sum(requests.tokens[kept])) / duration_s,
    }
