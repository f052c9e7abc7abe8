"""Which load to try next, to find the highest that keeps limits. Pure.

Bisection on a logarithmic scale, made for noise. A verdict that noise may have made is looked at once more before
anything ends on it, so that one slow moment at a low load does not hide everything above it, and one lucky moment does
not win. A load that cannot be measured (twice) bounds the search as one that breaks the limits does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

LOOKS = 2  # at one load, at most


class Verdict(Enum):
    """What a measurement at a load says."""

    KEPT = "kept"
    BROKEN = "broken"
    UNMEASURED = "could not be measured"


@dataclass
class _Load:
    verdict: Verdict  # of the latest look
    clear: bool
    looks: int

    @property
    def settled(self) -> bool:
        return self.looks >= LOOKS or (self.clear and self.verdict is not Verdict.UNMEASURED)


class Bisection:
    """Loads from 1 to `most`; the place is known when the next load that breaks is at most 1 + `tolerance` times it."""

    def __init__(self, most: int, tolerance: float) -> None:
        self._most, self._tolerance = most, tolerance
        self._loads: dict[int, _Load] = {}

    def tell(self, load: int, verdict: Verdict, clear: bool) -> None:
        """A look at a load. `clear`: further from the limit than noise explains."""
        before = self._loads.get(load)
        self._loads[load] = _Load(verdict, clear, 1 if before is None else before.looks + 1)

    @property
    def kept(self) -> int:
        """The highest load that keeps the limits; 0: none so far."""
        return max((load for load, seen in self._loads.items() if seen.verdict is Verdict.KEPT), default=0)

    @property
    def bound(self) -> int | None:
        """The lowest load above it that does not, or that could not be measured; None: `most` keeps them."""
        return min((load for load in self._loads if load > self.kept), default=None)

    @property
    def bound_unmeasured(self) -> bool:
        """Whether nothing is known of the loads above `kept`."""
        return self.bound is not None and self._loads[self.bound].verdict is Verdict.UNMEASURED

    @property
    def tried(self) -> tuple[int, ...]:
        """All loads looked at, in order of size."""
        return tuple(sorted(self._loads))

    def next(self) -> int:
        """The load to look at now; 0 when the place is known."""
        again = [load for load, seen in self._loads.items() if seen.verdict is Verdict.UNMEASURED and not seen.settled]
        if again:
            return again[0]
        kept, bound = self.kept, self.bound
        if bound is None:
            return self._most if not self._loads else self._unsettled(kept)
        if not kept:
            return self._when_none_kept()
        if bound <= kept * (1 + self._tolerance) or bound - kept <= 1:
            return self._unsettled(bound) or self._unsettled(kept)
        return min(max(round(math.sqrt(kept * bound)), kept + 1), bound - 1)

    def left(self) -> int:
        """About how many looks are still to come, the next one counted."""
        if not self._loads:
            return 3 + self._steps(1, self._most)
        return 2 + self._steps(max(1, self.kept), self.bound or self._most)

    def _when_none_kept(self) -> int:
        """The lowest load, twice where noise may have decided; then one between, for latencies that fall at first."""
        if 1 not in self._loads:
            return 1
        middle = round(math.sqrt(self._most))
        return self._unsettled(1) or (middle if middle not in self._loads else 0)

    def _unsettled(self, load: int) -> int:
        return 0 if self._loads[load].settled else load

    def _steps(self, kept: int, bound: int) -> int:
        cells = math.log(max(bound / kept, 1.0)) / math.log1p(self._tolerance)
        return max(0, math.ceil(math.log2(cells))) if cells > 1 else 0
