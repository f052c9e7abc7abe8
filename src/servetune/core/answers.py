"""Answers to fixed prompts, kept to compare configurations: does this one still say what the baseline says?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from pydantic import Field

from servetune.core.benchmark import GoOn, Level
from servetune.core.clock import Clock
from servetune.core.space import Frozen

#: `Answer.error` of a question that was asked too late to be answered: nothing is concluded from it.
LATE = "no answer within the limit"


class Answer(Frozen):
    """One greedy answer, token by token. `top`: at each position the likeliest tokens with their log-probabilities.

    `tokens` are ids or texts of tokens, or words where the API gives neither. `given`: how many tokens the server says
    it gave, None where it does not say. `error`: why there is no answer.
    """

    tokens: tuple[str, ...] = ()
    asked: int
    given: int | None = None
    logprobs: tuple[float, ...] = ()
    top: tuple[tuple[tuple[str, float], ...], ...] = ()
    finish_reason: str | None = None
    error: str | None = None


class AnswerSet(Frozen):
    """The answers of one launch to the same prompts, alone on the server and while it was under load."""

    idle: tuple[Answer, ...]
    loaded: tuple[Answer, ...]
    concurrency: int  # of the load
    solved: tuple[bool | None, ...] = ()  # of the user's own tasks, in their order; None: asked too late

    def without_alternatives(self) -> AnswerSet:
        """The same without `top`, which only a reference needs and which is most of its size."""
        return self.model_copy(
            update={
                name: tuple(answer.model_copy(update={"top": ()}) for answer in getattr(self, name))
                for name in ("idle", "loaded")
            }
        )


class Agreement(Frozen):
    """Whether a configuration's answers are as good as the baseline's. `findings`: evidence, with numbers.

    `wrong` False with findings: it differs, within what other kernels or number formats may do. `examples`: answers
    that part from the baseline's, as text. `undecided`: too few answers came to say anything.
    """

    wrong: bool
    findings: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    figures: Mapping[str, float] = Field(default_factory=dict)
    undecided: bool = False


class AnswerRecord(Frozen):
    """What one launch answered and what came of the comparison; `sets`: one, or more where it calibrates."""

    trial: int
    attempt: int
    sets: tuple[AnswerSet, ...]
    agreement: Agreement


@runtime_checkable
class AnswerChecker(Protocol):
    """A load generator that can also ask for answers and compare them."""

    @property
    def checks_answers(self) -> bool:
        """False: it was told not to."""
        ...

    def answers(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> AnswerSet | None:
        """Answers idle and under a load of `level.concurrency`. None when `go_on` returned False. Never raises for what
        the server does.
        """
        ...

    def agreement(self, reference: Sequence[AnswerSet], candidate: AnswerSet, random_weights: bool) -> Agreement:
        """Compare with the baseline. `reference`: its sets, of one launch or several; more of them calibrate better.

        Without a reference only defects are judged. `random_weights`: other flags mean another model, so answers under
        load are compared with the launch's own idle ones, and what counts is how much more they part than the
        baseline's do.
        """
        ...
