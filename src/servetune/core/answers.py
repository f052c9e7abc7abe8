"""Answers to fixed prompts, kept to compare configurations: does this one still say what the baseline says?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pydantic import Field

from servetune.core.benchmark import GoOn, Level
from servetune.core.clock import Clock
from servetune.core.space import Frozen


class Answer(Frozen):
    """One greedy answer, token by token. `top`: at each position the likeliest tokens with their log-probabilities.

    `tokens` are ids or texts of tokens, or words where the API gives neither. `error`: why there is no answer.
    """

    tokens: tuple[str, ...] = ()
    asked: int
    logprobs: tuple[float, ...] = ()
    top: tuple[tuple[tuple[str, float], ...], ...] = ()
    finish_reason: str | None = None
    error: str | None = None


class AnswerSet(Frozen):
    """The answers of one launch to the same prompts, alone on the server and while it was under load."""

    idle: tuple[Answer, ...]
    loaded: tuple[Answer, ...]
    concurrency: int  # of the load
    solved: tuple[bool, ...] = ()  # of the user's own tasks, in their order


class Agreement(Frozen):
    """Whether a configuration's answers are as good as the baseline's. `findings`: evidence, with numbers.

    `wrong` False with findings: it differs, within what other kernels or number formats may do.
    """

    wrong: bool
    findings: tuple[str, ...] = ()
    figures: Mapping[str, float] = Field(default_factory=dict)


class AnswerChecker(Protocol):
    """A load generator that can also ask for answers and compare them."""

    def answers(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> AnswerSet | None:
        """Answers idle and under a load of `level.concurrency`. None when `go_on` returned False. Never raises for what
        the server does.
        """
        ...

    def agreement(self, reference: Sequence[AnswerSet], candidate: AnswerSet) -> Agreement:
        """Compare with the baseline. `reference`: its sets, of one launch or several; more of them calibrate better.

        Raises ValueError without a reference.
        """
        ...
