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

from servetune.benchmarks._defects import defects
from servetune.benchmarks._tasks import compare_tasks
from servetune.core.answers import LATE, Agreement, Answer, AnswerSet

Floats = NDArray[np.float64]

#: Significance of one test. Six are made, and a difference must matter too: about one false alarm in 1,000 verdicts.
ALPHA = 0.001
PERMUTATIONS = 4000
#: A token is far from the baseline's choice when the baseline holds it for less likely by this much (e times).
FAR_NATS = 1.0
FAR_SHARE = 0.10  # more of the answers than the baseline's own that part by a far token
MATCH_DROP = 0.25  # of the part of an answer that agrees, where log-probabilities are not known
#: Mean difference of log-probabilities of the same tokens, beyond the baseline's own. FP8 caches and INT4 weights stay
#: below a tenth of it; it means that the probabilities are of another model.
NATS_APART = 0.5
SHOWN_TOKENS = 8
EXAMPLES = 3


@dataclass(frozen=True)
class _Side:
    """Answers and what each is compared with."""

    base: Sequence[Answer]
    answers: Sequence[Answer]

    def scores(self, score: Callable[[Answer, Answer], float]) -> list[float]:
        return [score(a, b) for a, b in zip(self.base, self.answers, strict=True)]

    def only(self, kept: Sequence[int]) -> _Side:
        return _Side([self.base[at] for at in kept], [self.answers[at] for at in kept])


@dataclass(frozen=True)
class _Part:
    """One comparison: the baseline against itself (`own`, once or more often), and the candidate (`theirs`)."""

    name: str
    own: Sequence[_Side]
    theirs: _Side

    def in_time(self) -> _Part:
        """Without the prompts that were asked too late in any of them."""
        sides = (*self.own, self.theirs)
        kept = [
            at
            for at in range(len(self.theirs.answers))
            if all(one.error != LATE for side in sides for one in (side.base[at], side.answers[at]))
        ]
        return _Part(self.name, [side.only(kept) for side in self.own], self.theirs.only(kept))


@dataclass(frozen=True)
class _Finding:
    text: str
    wrong: bool


def compare(reference: Sequence[AnswerSet], candidate: AnswerSet, random_weights: bool = False) -> Agreement:
    """Judge `candidate`. The first set's idle answers are what all others are compared with.

    `random_weights`: each launch's answers under load are compared with its own idle ones instead. Without a reference
    only defects are judged. Raises ValueError for other prompts.
    """
    parts = [part.in_time() for part in _parts(reference, candidate, random_weights)]
    undecided = any(2 * len(part.theirs.answers) < len(candidate.idle) for part in parts)
    findings: list[_Finding] = []
    figures: dict[str, float] = {}
    for part in parts:
        if not part.theirs.answers:
            continue
        told = defects(part.name, [side.answers for side in part.own], part.theirs.answers, random_weights)
        findings += [_Finding(text, wrong=True) for text in told]
        if part.own:
            findings += _differences(part)
            figures |= _figures(part)
    if reference:
        findings += _of_tasks(reference[0], candidate, figures)
    wrong = any(finding.wrong for finding in findings)
    return Agreement(
        wrong=wrong,
        findings=tuple(finding.text for finding in findings),
        examples=_examples(parts) if findings else (),
        figures=figures,
        undecided=undecided and not wrong,
    )


def _parts(reference: Sequence[AnswerSet], candidate: AnswerSet, random_weights: bool) -> list[_Part]:
    sets = [*reference, candidate]
    if len({len(answers) for one in sets for answers in (one.idle, one.loaded)}) > 1:
        raise ValueError("the answers belong to different numbers of prompts")
    if random_weights:
        own = [_Side(one.idle, one.loaded) for one in reference]
        idle = _Part("idle", [], _Side(candidate.idle, candidate.idle))
        return [idle, _Part("under load", own, _Side(candidate.idle, candidate.loaded))]
    base = reference[0].idle if reference else candidate.idle
    loaded = [_Side(base, one.loaded) for one in reference]
    # answers under load differ more: where there is nothing better they calibrate with care
    idle_own = [_Side(base, one.idle) for one in reference[1:]] or loaded
    return [
        _Part("idle", idle_own, _Side(base, candidate.idle)),
        _Part("under load", loaded, _Side(base, candidate.loaded)),
    ]


def _differences(part: _Part) -> list[_Finding]:
    found = []
    match = _difference(part, matched_share)
    if match.significant:
        knows_better = any(answer.top for answer in part.theirs.base)
        text = f"{part.name}, {match.theirs:.0%} of an answer agrees with the baseline's, of its own {match.own:.0%}"
        found.append(_Finding(text, wrong=not knows_better and match.own - match.theirs >= MATCH_DROP))
    far = _difference(part, lambda a, b: -float(parts_far(a, b)))
    if far.significant and far.own - far.theirs >= FAR_SHARE:
        text = (
            f"{part.name}, {-far.theirs:.0%} of the answers part from the baseline's by a token that it holds for "
            f"unlikely; of its own answers {abs(far.own):.0%} do"
        )
        found.append(_Finding(text, wrong=True))
    nats = _difference(part, lambda a, b: -nats_apart(a, b))
    if nats.significant and nats.own - nats.theirs >= NATS_APART:
        text = (
            f"{part.name}, the same tokens have log-probabilities {-nats.theirs:.2f} nats from the baseline's; its own "
            f"differ by {-nats.own:.2f}"
        )
        found.append(_Finding(text, wrong=True))
    return found


def _figures(part: _Part) -> dict[str, float]:
    name = part.name.replace(" ", "_")
    found = {
        f"{name}_match": float(np.mean(part.theirs.scores(matched_share))),
        f"{name}_baseline_match": float(np.mean([side.scores(matched_share) for side in part.own])),
    }
    if any(answer.logprobs for answer in part.theirs.answers):
        found[f"{name}_nats_apart"] = float(np.mean(part.theirs.scores(nats_apart)))
    return found


def _of_tasks(reference: AnswerSet, candidate: AnswerSet, figures: dict[str, float]) -> list[_Finding]:
    """Only tasks that both were asked in time tell anything; adds its figures."""
    if len(reference.solved) != len(candidate.solved):
        return []  # the task file has changed since
    pairs = zip(reference.solved, candidate.solved, strict=True)
    asked = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not asked:
        return []
    told = compare_tasks([a for a, _ in asked], [b for _, b in asked])
    figures |= {
        "tasks": float(len(asked)),
        "tasks_solved": float(sum(b for _, b in asked)),
        "tasks_detectable_drop": told.detectable_drop,
    }
    return [_Finding(told.text, wrong=True)] if told.worse else []


@dataclass(frozen=True)
class _Difference:
    own: float  # mean of the baseline against itself
    theirs: float
    significant: bool  # the candidate's is lower


def _difference(part: _Part, score: Callable[[Answer, Answer], float]) -> _Difference:
    """Permutation test per prompt: which of the answers to it is the candidate's? Seeded: it can be repeated."""
    values = np.array([side.scores(score) for side in (part.theirs, *part.own)])
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


def nats_apart(reference: Answer, other: Answer) -> float:
    """Mean difference of the log-probabilities of the tokens that agree; 0 where none are known."""
    at = min(first_difference(reference, other), len(reference.logprobs), len(other.logprobs))
    pairs = zip(reference.logprobs[:at], other.logprobs[:at], strict=True)
    apart = [abs(a - b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    return sum(apart) / len(apart) if apart else 0.0


def _examples(parts: Sequence[_Part]) -> tuple[str, ...]:
    """The answers that part first, of the part of the comparison where most is different."""
    told = []
    for part in parts:
        for prompt, (base, answer) in enumerate(zip(part.theirs.base, part.theirs.answers, strict=True)):
            at = first_difference(base, answer)
            if at < max(len(base.tokens), len(answer.tokens)) or answer.error:
                ours = answer.error or " ".join(answer.tokens[at : at + SHOWN_TOKENS]) or "nothing"
                theirs = base.error or " ".join(base.tokens[at : at + SHOWN_TOKENS]) or "nothing"
                text = f"prompt {prompt} {part.name}: from token {at} on {ours!r}, the baseline {theirs!r}"
                told.append((matched_share(base, answer), text))
    return tuple(text for _, text in sorted(told)[:EXAMPLES])
