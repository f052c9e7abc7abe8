"""A user's own tasks: prompts with expected answers. Does a configuration solve as many as the baseline?"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from servetune.core.errors import SpecError

#: Significance of the test, and the power for which the smallest drop that it notices is stated.
ALPHA = 0.01
POWER = 0.80
_Z_POWER = 0.842  # its normal quantile


@dataclass(frozen=True)
class Task:
    """Solved when the answer contains `expected`, whatever the case and the spaces."""

    prompt: str
    expected: str

    def solved_by(self, answer: str) -> bool:
        """Whether this text is an answer."""
        return _plain(self.expected) in _plain(answer)


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def read_tasks(path: str) -> tuple[Task, ...]:
    """Read JSONL of `{"prompt": …, "expected": …}`. Raises SpecError naming file and line."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"the task file {path} cannot be read: {error}") from error
    tasks = tuple(_task(path, number, line) for number, line in enumerate(lines, 1) if line.strip())
    if not tasks:
        raise SpecError(f"the task file {path} holds no task")
    return tasks


def _task(path: str, number: int, line: str) -> Task:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise SpecError(f"{path}, line {number} is not JSON: {error}") from error
    texts = [row.get(key) if isinstance(row, dict) else None for key in ("prompt", "expected")]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise SpecError(f"{path}, line {number}: needs 'prompt' and 'expected', both texts that are not empty")
    return Task(str(texts[0]), str(texts[1]))


@dataclass(frozen=True)
class TaskVerdict:
    """`worse`: the candidate solves significantly fewer. `text` says both shares, and what drop would be noticed."""

    worse: bool
    text: str
    detectable_drop: float


def compare_tasks(baseline: Sequence[bool], candidate: Sequence[bool]) -> TaskVerdict:
    """McNemar's exact test, one-sided: only tasks that one of the two solves tell anything.

    Raises ValueError when they are not the same tasks.
    """
    if len(baseline) != len(candidate) or not baseline:
        raise ValueError(f"tasks of the baseline: {len(baseline)}, of the candidate: {len(candidate)}")
    lost = sum(a and not b for a, b in zip(baseline, candidate, strict=True))
    won = sum(b and not a for a, b in zip(baseline, candidate, strict=True))
    chance = sum(math.comb(lost + won, k) for k in range(lost, lost + won + 1)) / 2 ** (lost + won)
    drop = detectable_drop(len(baseline))
    text = f"{sum(candidate)} of {len(candidate)} tasks solved where the baseline solves {sum(baseline)}; {power(drop)}"
    return TaskVerdict(lost > won and chance <= ALPHA, text, drop)


def power(drop: float) -> str:
    """What is noticed, as a sentence."""
    if drop >= 1.0:
        return "they are too few to notice any drop"
    return f"a drop by {drop:.0%} of all tasks would be noticed with a probability of {POWER:.0%}"


def detectable_drop(count: int) -> float:
    """The smallest drop of the solved share that the test notices with the stated power, if no task is newly solved.

    With n tasks and a drop d, n·d tasks are lost: their number has a standard deviation of √(n·d·(1-d)), and the test
    needs about 2^-lost ≤ ALPHA, that is seven of them.
    """
    needed = math.ceil(-math.log2(ALPHA))
    for step in range(1, 101):
        drop = step / 100
        if count * drop - _Z_POWER * math.sqrt(count * drop * (1 - drop)) >= needed:
            return drop
    return 1.0
