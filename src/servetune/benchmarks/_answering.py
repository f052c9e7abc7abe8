"""What every load generator with this package's settings does for the correctness gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from servetune.benchmarks._agreement import compare
from servetune.benchmarks._answers import collect
from servetune.benchmarks._api import parse_target
from servetune.benchmarks._settings import LoadSettings
from servetune.core.answers import Agreement, AnswerSet
from servetune.core.benchmark import GoOn, Level
from servetune.core.clock import Clock

OwnSettings = TypeVar("OwnSettings", bound=LoadSettings)


class Answering(Generic[OwnSettings]):
    """Implements `core.answers.AnswerChecker`."""

    def __init__(self, settings: OwnSettings) -> None:
        self._settings = settings

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a person should know before a study: the power of the user's own tasks."""
        return self._settings.remarks()

    @property
    def checks_answers(self) -> bool:
        """Whether the correctness gate is wanted."""
        return self._settings.check_answers

    def answers(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> AnswerSet | None:
        """Answers to the gate's prompts, idle and under `level.concurrency` requests; see the protocol."""
        target = parse_target(base_url, headers)
        return collect(target, level, self._settings.demand(level.workload), clock, go_on)

    def agreement(self, reference: Sequence[AnswerSet], candidate: AnswerSet, random_weights: bool) -> Agreement:
        """Compare with the baseline; see the protocol."""
        return compare(reference, candidate, random_weights)
