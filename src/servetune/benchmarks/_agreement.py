"""The correctness gate: candidate's answers against the baseline's, calibrated on the baseline against itself. Pure.

Greedy answers of one and the same configuration differ: a batch of another size adds numbers in another order, and
where two tokens are nearly as likely the other one wins and the answers part for good. So what counts is how much
*more* a candidate parts from the baseline than the baseline parts from itself, idle and under load, tested by
permutation: if the candidate is as good, its answer to a prompt might as well have been one of the baseline's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servetune.benchmarks._tasks import compare_tasks
from servetune.core.answers import Agreement, Answer, AnswerSet

Floats = NDArray[np.float64]

#: Significance of one test. Four are made, and a difference must matter too: about one false alarm in 1,000 verdicts.
ALPHA = 0.001
PERMUTATIONS = 4000
#: A token is far from the baseline's choice when the baseline holds it for less likely by this much (e times).
FAR_NATS = 1.0
FAR_SHARE = 0.10  # more of the answers than the baseline's own that part by a far token
MATCH_DROP = 0.25  # of the part of an answer that agrees, where log-probabilities are not known
DEFECT_SHARE = 0.25  # more of the answers than the baseline's own that have a defect
REPEATED_SHARE = 0.6  # of an answer that one token or a cycle of up to four fills


def compare(reference: Sequence[AnswerSet], candidate: AnswerSet) -> Agreement:
    """Judge `candidate`. The first set's idle answers are what all others are compared with.

    Raises ValueError without a reference or with other prompts.
    """
    if not reference:
        raise ValueError("there is no reference to compare with: the baseline has to answer first")
    first = reference[0].idle
    loaded = [one.loaded for one in reference]
    idle = [one.idle for one in reference[1:]] or loaded  # answers under load differ more: calibrates with care
    if any(len(answers) != len(first) for answers in (*loaded, *idle, candidate.idle, candidate.loaded)):
        raise ValueError("the answers belong to different numbers of prompts")
    findings: list[_Finding] = []
    figures: dict[str, float] = {}
    for name, own, theirs in (("idle", idle, candidate.idle), ("under load", loaded, candidate.loaded)):
        findings += _findings(name, first, own, theirs)
        figures |= _figures(name.replace(" ", "_"), first, own, theirs)
    if reference[0].solved and candidate.solved:
        told = compare_tasks(reference[0].solved, candidate.solved)
        findings += [_Finding(told.text, wrong=True)] if told.worse else []
        figures |= {"tasks_solved": float(np.mean(candidate.solved))}
    wrong = any(finding.wrong for finding in findings)
    return Agreement(wrong=wrong, findings=tuple(finding.text for finding in findings), figures=figures)


@dataclass(frozen=True)
class _Finding:
    text: str
    wrong: bool


def _findings(
    name: str, first: Sequence[Answer], own: Sequence[Sequence[Answer]], theirs: Sequence[Answer]
) -> list[_Finding]:
    found = [*_defects(name, own, theirs)]
    match = _difference(first, own, theirs, matched_share)
    if match.significant:
        knows_better = any(answer.top for answer in first)
        text = f"{name}, {match.theirs:.0%} of an answer agrees with the baseline's, of its own answers {match.own:.0%}"
        found.append(_Finding(text, wrong=not knows_better and match.own - match.theirs >= MATCH_DROP))
    far = _difference(first, own, theirs, lambda a, b: -float(parts_far(a, b)))
    if far.significant and far.own - far.theirs >= FAR_SHARE:
        text = (
            f"{name}, {-far.theirs:.0%} of the answers part from the baseline's by a token that it holds for unlikely; "
            f"of its own answers {-far.own:.0%} do"
        )
        found.append(_Finding(text, wrong=True))
    return found


def _figures(
    name: str, first: Sequence[Answer], own: Sequence[Sequence[Answer]], theirs: Sequence[Answer]
) -> dict[str, float]:
    baseline = [matched_share(a, b) for answers in own for a, b in zip(first, answers, strict=True)]
    candidate = [matched_share(a, b) for a, b in zip(first, theirs, strict=True)]
    return {f"{name}_match": float(np.mean(candidate)), f"{name}_baseline_match": float(np.mean(baseline))}


@dataclass(frozen=True)
class _Difference:
    own: float  # mean of the baseline against itself
    theirs: float
    significant: bool  # the candidate's is lower


def _difference(
    first: Sequence[Answer],
    own: Sequence[Sequence[Answer]],
    theirs: Sequence[Answer],
    score: Callable[[Answer, Answer], float],
) -> _Difference:
    """Permutation test per prompt: which of the answers to it is the candidate's? Seeded: it can be repeated."""
    rows = [[score(a, b) for a, b in zip(first, answers, strict=True)] for answers in (theirs, *own)]
    values = np.array(rows)
    own_mean, mean = float(np.mean(values[1:])), float(np.mean(values[0]))
    if mean >= own_mean:
        return _Difference(own_mean, mean, False)
    others = len(values) - 1
    total = values.sum(axis=0)
    drawn = np.random.default_rng(0).integers(0, others + 1, (PERMUTATIONS, values.shape[1]))
    picked = values[drawn, np.arange(values.shape[1])]
    chance = np.mean(picked - (total - picked) / others, axis=1)
    actual = float(np.mean(values[0] - (total - values[0]) / others))
    share = (1 + int(np.sum(chance <= actual + 1e-12))) / (1 + PERMUTATIONS)
    return _Difference(own_mean, mean, share <= ALPHA)


def matched_share(reference: Answer, other: Answer) -> float:
    """Part of the longer answer up to the first token that differs; 0 for answers that did not come."""
    longest = max(len(reference.tokens), len(other.tokens))
    return first_difference(reference, other) / longest if longest else 0.0


def first_difference(reference: Answer, other: Answer) -> int:
    """Position of the first token that differs, or the length of the shorter answer."""
    pairs = zip(reference.tokens, other.tokens, strict=False)
    shorter = min(len(reference.tokens), len(other.tokens))
    return next((at for at, (a, b) in enumerate(pairs) if a != b), shorter)


def parts_far(reference: Answer, other: Answer) -> bool:
    """Whether the first differing token is one that the reference held for unlikely. False where that is not known."""
    at = first_difference(reference, other)
    if at >= min(len(reference.tokens), len(other.tokens)) or at >= len(reference.top):
        return False
    likely = dict(reference.top[at])
    if not likely:
        return False
    return max(likely.values()) - likely.get(other.tokens[at], -math.inf) > FAR_NATS


def _defects(name: str, own: Sequence[Sequence[Answer]], theirs: Sequence[Answer]) -> list[_Finding]:
    found = []
    for defect, has in DEFECTS.items():
        share = float(np.mean([has(answer) for answer in theirs]))
        usual = max(float(np.mean([has(answer) for answer in answers])) for answers in own)
        bound = 0.0 if defect == "log-probabilities that are no numbers" else DEFECT_SHARE
        if share > usual + bound:
            found.append(
                _Finding(f"{name}, {share:.0%} of the answers have {defect}; of the baseline's {usual:.0%}", True)
            )
    return found


def _not_numbers(answer: Answer) -> bool:
    return any(math.isnan(value) for value in answer.logprobs)


def _repeated(answer: Answer) -> bool:
    """Whether one token, or a cycle of up to four, fills most of the answer."""
    tokens = answer.tokens
    if len(tokens) < 8:
        return False
    return any(
        sum(a == b for a, b in zip(tokens, tokens[cycle:], strict=False)) >= REPEATED_SHARE * (len(tokens) - cycle)
        for cycle in (1, 2, 3, 4)
    )


DEFECTS: dict[str, Callable[[Answer], bool]] = {
    "no text (the request failed)": lambda answer: answer.error is not None,
    "no token": lambda answer: answer.error is None and not answer.tokens,
    "fewer tokens than asked": lambda answer: 0 < len(answer.tokens) < answer.asked and bool(answer.logprobs),
    "log-probabilities that are no numbers": _not_numbers,
    "one token or a short cycle repeated": _repeated,
}
