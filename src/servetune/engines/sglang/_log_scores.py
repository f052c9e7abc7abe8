"""Scores of evaluations: what a run reached, the reference beside which it stands, the threshold that it had to pass.

They stand on lines of their own, in any order: a head with the reference, the score, a verdict. `read` finds them by
the structure of a line; `compared` says which scores are too low, and which are as good as their reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from servetune.engines.sglang._line_checks import HARD_ACCURACY, INACCURATE, is_hard

#: Lines that are remembered.
SCORES = 64
_BENCHMARK = re.compile(
    r"(?i)(?<![a-z])(gsm8?k|mmlu(?:[_-]?pro)?|humaneval\+?|gpqa|aime\d*|math-?500|arc[_-][ce]\w*|hellaswag|livecodebench"
    r"|ruler|ifeval|mbpp|truthfulqa|c?mmlu|ceval|bbh|winogrande|mgsm|needle|longbench)(?![a-z])"
)
_METRIC = r"(?:accuracy|score|exact[_ ]match|pass@1|acc)"
_UNIT = r"(?! ?(?:ms|s|sec\w*|min|h|hours?|tok\w*|t/s|x|[KMGT]i?B|req\w*|it/s)\b)"
_NUMBER = rf"(?P<value>\d{{1,3}}(?:\.\d+)?)(?! ?(?:of\b|/)){_UNIT}(?![\d.]*[\d/])"
#: "Accuracy: 0.605" at the start of a line, behind a tag or the name of the benchmark.
_OWN = re.compile(
    r"(?i)^(?:\[[^\]]{1,30}\] *)?(?:[\w+-]+(?: \d+-shot)?[,:]? ){0,3}?"
    rf"[\"']?\b{_METRIC}[\"']?\s*(?:[:=]|is|of)?\s*{_NUMBER}"
)
_REFERENCE = re.compile(
    r"(?i)\b(?:reference|baseline|expected|previous|known[ -]good|last good|published|unmodified|stock"
    r"|same (?:model|checkpoint|command))\b"
)
_THRESHOLD = re.compile(r"(?i)\b(?:threshold|minimum|required|at least)\b")
#: A score of a part of the benchmark, whose reference is another.
_PART = re.compile(r"(?i)\b(?:category|subject|subset|topic|level|domain|group|split|stem|humanities)\b")
#: A number behind one of these words: of the metric that is named, else a share.
_NAMED = re.compile(rf"(?i)\b{_METRIC}\s*(?:[:=]|is|of|>=?)?\s*{_NUMBER}")
_SHARE = re.compile(rf"(?<![\w.=-])(?P<value>0?\.\d+|1\.0+|\d{{1,3}}(?:\.\d+)?(?= ?%)){_UNIT}(?![\d.]*\d)")
#: What is measured otherwise than by right answers.
_OTHERWISE = re.compile(r"(?i)latency|throughput|seconds|\btok|\bms\b|\binvalid\b|duplicate|repetition|accept")
_INVALID = re.compile(r"(?i)\binvalid\W{0,3}\d[\d.]*\d")
_PASSED = re.compile(r"\bPASS(?:ED)?\b|(?i:\b(?:passed|ok|met|fulfilled)\b)")
_FAILED = re.compile(
    r"\bFAIL(?:ED)?\b|(?i:\bfailed\b|\bnot (?:met|reached|passed)\b|\bmissed\b|\bbelow (?:the )?threshold)"
)
_COUNTED = re.compile(r"(?i)\b\d+ (?:\w+ ){0,2}FAIL|FAIL\w* (?:requests?|questions?)|HTTP|connection|time[ds]?[ -]?out")
_EVALUATES = re.compile(rf"(?i)^\[\w{{0,20}}(?:eval|check|accura|score|quality|verif)\w{{0,20}}\]|\b{_METRIC}\b")
#: A line may be about scores only with one of these (see `_log_words`).
HINTS = re.compile(
    r"(?i)accuracy|score|exact.match|pass@1|reference|baseline|threshold|minimum|known.good|last good|published"
    r"|previous|\[eval|\[check|gsm8?k|mmlu|humaneval|acc: |acc="
)


@dataclass(frozen=True, slots=True)
class Score:
    """What one line says. `value`: the run's own, `reference` and `threshold`: of others, all from 0 to 1."""

    number: int
    text: str
    benchmark: str = ""
    value: float | None = None
    reference: float | None = None
    threshold: float | None = None
    failed: bool = False
    passed: bool = False


def read(number: int, text: str) -> Iterator[Score]:
    """The scores of a line, or the benchmark that begins with it."""
    for part in _by_benchmark(text):
        others = (words.search(part) for words in (_REFERENCE, _THRESHOLD))
        other = min((match.start() for match in others if match), default=len(part))
        own, named = _OWN.search(part), _BENCHMARK.search(part)
        value = _share(own["value"]) if own and own.start("value") < other and not _PART.search(part) else None
        reference, threshold = _behind(_REFERENCE, part), _behind(_THRESHOLD, part)
        says = value is not None or reference is not None or threshold is not None or _fails(part) or _passes(part)
        if says or (named and part.startswith("[")):
            benchmark = named[1].lower() if named else ""
            yield Score(number, text, benchmark, value, reference, threshold, _fails(part), _passes(part))


def _by_benchmark(text: str) -> list[str]:
    """The line; where it tells of several benchmarks, for each what is said of it, behind what is said of all."""
    starts = [match.start() for match in _BENCHMARK.finditer(text)]
    if len({name.lower() for name in _BENCHMARK.findall(text)}) < 2:
        return [text]
    return [text[: starts[0]] + text[start:end] for start, end in pairwise([*starts, len(text)])]


def _fails(text: str) -> bool:
    """Whether a line says that an evaluation was not passed; of requests or of speed it says nothing here."""
    if _COUNTED.search(text) or _OTHERWISE.search(text):
        return False
    return bool(_EVALUATES.search(text) and _FAILED.search(text))


def _passes(text: str) -> bool:
    """Whether a line says that an evaluation was passed."""
    judged = _THRESHOLD.search(text) or _NAMED.search(text) or _REFERENCE.search(text)
    return bool(judged and _PASSED.search(text) and not _FAILED.search(text) and not _OTHERWISE.search(text))


def _share(text: str) -> float | None:
    """From 0 to 1; percent above."""
    value = float(text)
    return value if value <= 1 else value / 100 if value <= 100 else None


def _behind(words: re.Pattern[str], text: str) -> float | None:
    """The score behind the first of some words, up to what is measured otherwise."""
    begun = words.search(text)
    if begun is None:
        return None
    rest = _INVALID.sub("", text[begun.end() : begun.end() + 160])
    for match in (_NAMED.search(rest), _SHARE.search(rest)):
        if match is not None and not _OTHERWISE.search(rest, 0, match.start()):
            return _share(match["value"])
    return None


def compared(scores: Sequence[Score]) -> tuple[list[tuple[Score, str]], set[int]]:
    """Scores that are too low, each with a reason, in the order of the file; and lines whose scores are good enough."""
    named = _under_their_benchmarks(scores)
    low, good = list[tuple[Score, str]](), set[int]()
    for score in named:
        if score.value is None:
            continue
        problem = _problem(score, score.value, named)
        if problem:
            low.append((score, problem))
        elif problem is not None or (is_hard(score.benchmark) and score.value >= HARD_ACCURACY):
            good.add(score.number)
    return low, good


def _problem(score: Score, value: float, scores: Sequence[Score]) -> str | None:
    """Why a score is too low; empty where it is good enough, None where it stands alone."""
    verdict = _nearest(score, [one for one in scores if one.failed or one.passed])
    if verdict is not None and verdict.passed:
        return ""
    reference = _nearest(score, [one for one in scores if one.reference is not None])
    if reference is not None and value < INACCURATE * (reference.reference or 0.0):
        return f"{value:g} against {reference.reference:g}"
    limit = _nearest(score, [one for one in scores if one.threshold is not None])
    if limit is not None and value < (limit.threshold or 0.0):
        return f"{value:g}, the threshold is {limit.threshold:g}"
    if verdict is not None and (limit is None or limit is not verdict):
        return f"{value:g}, which is said to fail"
    return "" if reference is not None or limit is not None else None


def _under_their_benchmarks(scores: Sequence[Score]) -> list[Score]:
    """The same with the benchmark that was named last, where a line names none."""
    named, current = [], ""
    for score in scores:
        current = score.benchmark or current
        named.append(replace(score, benchmark=current))
    return named


def _nearest(score: Score, others: Sequence[Score]) -> Score | None:
    """Of the same benchmark, the next line behind or before the score."""
    named = [one for one in others if one.benchmark == score.benchmark]
    fitting = named or [one for one in others if not (one.benchmark and score.benchmark)]
    return min(fitting, key=lambda one: (abs(one.number - score.number), one.number), default=None)
