"""What is wrong with an answer by itself: none, empty, cut, no numbers, one token or a short cycle for ever. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from servetune.core.answers import LATE, Answer

DEFECT_SHARE = 0.25  # more of the answers than the baseline's own that have a defect
#: Without a baseline to compare with: a model may well repeat itself, but not in most of its answers.
ABSOLUTE_SHARE = 0.5
REPEATED_SHARE = 0.6  # of an answer that one token or a cycle of up to four fills
NOT_NUMBERS = "log-probabilities that are no numbers"
REPEATED = "one token or a short cycle repeated"


def _cut(answer: Answer) -> bool:
    if answer.given is not None:
        return 0 < answer.given < answer.asked
    return bool(answer.logprobs) and 0 < len(answer.tokens) < answer.asked


def _repeated(answer: Answer) -> bool:
    """Whether one token, or a cycle of up to four, fills most of the answer."""
    tokens = answer.tokens
    if len(tokens) < 8:
        return False
    return any(
        sum(a == b for a, b in zip(tokens, tokens[cycle:], strict=False)) >= REPEATED_SHARE * (len(tokens) - cycle)
        for cycle in (1, 2, 3, 4)
    )


DEFECTS: Mapping[str, Callable[[Answer], bool]] = {
    "no text (the request failed)": lambda answer: answer.error not in (None, LATE),
    "no token": lambda answer: answer.error is None and not answer.tokens,
    "fewer tokens than asked": _cut,
    NOT_NUMBERS: lambda answer: any(math.isnan(value) for value in answer.logprobs),
    REPEATED: _repeated,
}


def shares(answers: Sequence[Answer]) -> dict[str, float]:
    """Defect → share of the answers that have it."""
    return {defect: sum(map(has, answers)) / len(answers) for defect, has in DEFECTS.items()} if answers else {}


def defects(
    name: str, own: Sequence[Sequence[Answer]], theirs: Sequence[Answer], random_weights: bool
) -> tuple[str, ...]:
    """A sentence per defect that more of `theirs` have than of the baseline's `own`; random weights may repeat.

    Without `own`: that more than half of them have; a log-probability that is no number is always one too many.
    """
    found = []
    usual = [shares(answers) for answers in own]
    for defect, share in shares(theirs).items():
        if random_weights and defect == REPEATED:
            continue
        bound = max((one[defect] for one in usual), default=ABSOLUTE_SHARE - DEFECT_SHARE) + DEFECT_SHARE
        if defect == NOT_NUMBERS:
            bound = max((one[defect] for one in usual), default=0.0)
        if share > bound:
            told = f"; of the baseline's {max(one[defect] for one in usual):.0%}" if usual else ""
            found.append(f"{name}, {share:.0%} of the answers have {defect}{told}")
    return tuple(found)
