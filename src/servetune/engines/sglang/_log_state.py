"""The whole numbers in the state of a reading, and the state with other numbers in their place.

Two states that differ in nothing but whole numbers (places in the log, counts) behave alike, since reading looks at
places only to see whether one follows another. That is what `_log_repeats` rests on.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any

from servetune.engines.sglang._failure_table import Entry
from servetune.engines.sglang._log_notices import Notice
from servetune.engines.sglang._log_run import Run

#: Shared, and the same in all states.
_SHARED = (Entry, Notice)


def numbers_of(run: Run) -> tuple[Run, list[int]]:
    """A copy of the state with zeros for its whole numbers, and these."""
    numbers: list[int] = []

    def taken(number: int) -> int:
        numbers.append(number)
        return 0

    return _Copy(taken).of(run), numbers


def with_numbers(run: Run, numbers: list[int]) -> Run:
    """A copy of the state with these whole numbers."""
    rest = iter(numbers)
    state: Run = _Copy(lambda number: next(rest)).of(run)
    return state


class _Copy:
    """Copies values with other whole numbers; an object that is held in two places stays one."""

    def __init__(self, change: Callable[[int], int]) -> None:
        self._change = change
        self._copied: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        kind = type(value)
        if kind is int:
            return self._change(value)
        if kind in (list, set):
            return kind(map(self.of, value))
        if kind is deque:
            return deque(map(self.of, value), maxlen=value.maxlen)
        if kind is dict:
            return {key: self.of(one) for key, one in value.items()}
        if isinstance(value, tuple):
            return kind(*map(self.of, value)) if hasattr(value, "_fields") else tuple(map(self.of, value))
        if dataclasses.is_dataclass(value) and not isinstance(value, _SHARED):
            return self._object(value)
        return value

    def _object(self, value: Any) -> Any:
        known = self._copied.get(id(value))
        if known is not None:
            return known
        other = self._copied[id(value)] = copy(value)
        for one in dataclasses.fields(value):
            object.__setattr__(other, one.name, self.of(getattr(value, one.name)))
        return other
