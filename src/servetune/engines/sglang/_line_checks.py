"""Conditions on the numbers of a line that a pattern cannot tell: one is worse than another, or fewer than all."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

Check = Literal[
    "",
    "slower",
    "less_accurate",
    "below_reference",
    "far_below",
    "beyond",
    "expected_missing",
    "not_all",
    "nothing_right",
    "several",
    "two_flags",
    "loops",
    "a_speed",
]


#: Below these shares of the number beside it, a throughput or an accuracy is too low; alone, below LOW_ACCURACY.
SLOW, INACCURATE, LOW_ACCURACY = 0.8, 0.96, 0.6
#: Digits are counted, and tried at the first only: a line may be nothing else.
_DIGITS = r"\d{1,9}(?:\.\d{1,18})?"
_SPEED = re.compile(rf"(?<!\d)({_DIGITS}) ?(?:tok|token|t/s)")
_RATE = re.compile(rf"(?<!\d)({_DIGITS}) ?(?:tok(?:en)?s?|t)(?:/| per )s")
_ACCEPTED = re.compile(rf"(?i)accept(?:ance|ed)?[ _-]len(?:gth)?\W{{0,3}}({_DIGITS})")
_ACCEPTING = re.compile(r"(?i)\baccept(?:ance|ed)?[ _-]len")
_QUOTED_SPEED = re.compile(
    r"(?i)\b(?:speed|throughput)\b\s?[=:]?\s?(?P<named>\d{1,9}(?:\.\d{1,9})?)(?![\w.]| ?(?:req|x\b|%|ms))"
    r"|(?<![\w.])(?P<rate>\d{1,9}(?:\.\d{1,9})?) ?(?:tok(?:en)?s?|t)(?:/| per )s"
)
#: Words before a speed that is another run's, or the one that is wanted.
_OF_OLD = re.compile(
    r"(?i)\b(?:baseline|reference|previous(?:ly)?|yesterday|last (?:week|night|month|build|release|nightly)|nightly"
    r"|(?:the )?day before|required|wanted|expected|should be|was)\b"
)
_OF_REFERENCE = re.compile(r"(?i)\b(?:reference|baseline)\b")
#: A share of looping answers that is none of the model's.
LOOPING = 0.05
_TIME = re.compile(r"(?i)\A(?>.*?\d ?ms\b).*(?:/| per )tok|\b(?:TPOT|ITL|inter-token|per token)\b|\bms/tok")
_VERSUS = re.compile(
    rf"(?i)(?<!\d)(?P<ours>{_DIGITS})[^\d]{{0,50}}"
    r"(?:\bvs\b|baseline|reference|without|previous|expected|\bwas\b|instead of)"
    rf"[^\d]{{0,90}}?(?<![\w.-])(?P<theirs>{_DIGITS})"
)
#: A flag and its value before the number that was measured with it.
_FLAG_BETWEEN = re.compile(r"--[a-z][a-z0-9-]*(?:[ =][\w.]+(?=[:),;]))?")
_EVALUATION = re.compile(r"(?i)eval|gsm8k|mmlu|humaneval|gpqa|arc|accuracy")
#: Of these good models solve few.
_HARD = re.compile(r"(?i)aime|gpqa|\bhle\b|livecode|swe-?bench|mmlu[_-]pro|hmmt|usamo")
HARD_ACCURACY = 0.02
_OF = re.compile(r"(?<![\d.])(\d{1,9}) ?(?:of|/|out of) ?(\d{1,9})(?![\d.])")
#: Numbers between 0 and 1 that are no accuracy.
_SAMPLING = re.compile(
    r"(?i)\b(?:temp(?:erature)?|top[_-]?[pk]|min[_-]?p|repetition|invalid|std(?:err|ev)?|±|\+/-)\s*[=: ]?\s*\d*\.?\d+"
)
#: The only number of a line is that of a reference.
_OF_ANOTHER = re.compile(
    r"(?i)^\D*\b(?:reference|baseline|expected|previous|known[ -]good|last good|published|threshold)\b"
)
_GAIN = re.compile(rf"(?i)speed-?up (?:of )?({_DIGITS}) ?x|(?<!\d)({_DIGITS}) ?x (?:speed-?up|faster)|\bfaster\b")
_FLAG = re.compile(r"--[a-z][\w-]+")
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d+)?) ?%")
_SHARE = re.compile(r"(?<![\d.])(0?\.\d+|1\.0+)(?![\d.])")


def _slower(match: re.Match[str], text: str) -> bool:
    """Whether the first throughput, accept length or time of a line is far worse than the one of the reference.

    A line that says "slower" is believed.
    """
    gain = _GAIN.search(text)
    if gain is not None:
        return float(gain[1] or gain[2] or 1) < SLOW
    speeds = [float(speed) for speed in _SPEED.findall(text)]
    lengths = [float(length) for length in _ACCEPTED.findall(text)]
    falls = any(len(found) > 1 and found[0] < SLOW * found[1] for found in (speeds, lengths))
    return "slower" in text or falls or _worse_than(text) or _below_quoted(text)


def _below_quoted(text: str) -> bool:
    """Whether the speed of this run is far below the nearest one that a line quotes of another run."""
    ours: float | None = None
    theirs: float | None = None
    end = 0
    for match in _QUOTED_SPEED.finditer(text):
        speed = float(match["named"] or match["rate"])
        quoted = bool(_OF_OLD.search(text, end, match.start()))
        end = match.end()
        if quoted:
            theirs = speed
            if ours is not None:
                break
        elif ours is None:
            ours = speed
    return ours is not None and theirs is not None and ours < SLOW * theirs


def _worse_than(text: str) -> bool:
    """Whether the last number before "vs", "baseline" and the like is far worse than the first behind it."""
    text = _FLAG_BETWEEN.sub("", text)
    told, rates = _VERSUS.search(text), _RATE.findall(text)
    if told is None:
        return False
    ours, theirs = float(told["ours"]), float(told["theirs"])
    if len(rates) == 1 and _RATE.search(text, 0, told.start("theirs")):
        return float(rates[0]) < SLOW * theirs
    if _ACCEPTING.search(text):
        return ours < SLOW * theirs
    return bool(_TIME.search(text)) and SLOW * ours > theirs


def _shares(text: str, pattern: re.Pattern[str] = _SHARE) -> list[float]:
    return [float(share) for share in pattern.findall(_SAMPLING.sub("", text))]


def is_hard(text: str) -> bool:
    """Whether it names a benchmark of which good models solve few."""
    return bool(_HARD.search(text))


def _alone(text: str) -> float:
    """What an accuracy must reach that stands alone."""
    return HARD_ACCURACY if is_hard(text) else LOW_ACCURACY


def _less_accurate(match: re.Match[str], text: str) -> bool:
    """Whether the first accuracy (0 to 1) of a line is below the last, or low where it stands alone."""
    shares = _shares(text)
    if len(shares) > 1:
        return shares[0] < INACCURATE * shares[-1]
    if _OF_ANOTHER.search(text):
        return False
    return bool(shares) and shares[0] < _alone(text)


def _below_reference(match: re.Match[str], text: str) -> bool:
    """Whether the first of two shares of a line (0 to 1, or percent) is far below the last."""
    found = next((shares for shares in (_shares(text), _shares(text, _PERCENT)) if len(shares) > 1), [])
    return len(found) > 1 and found[0] < INACCURATE * found[-1]


def _far_below(match: re.Match[str], text: str) -> bool:
    """Whether a score is far below its reference, both from 0 to 1 or both from 0 to 100."""
    value, reference = float(match["value"]), float(match["reference"])
    return value < INACCURATE * reference and (reference <= 1) == (value <= 1) and reference <= 100


def _beyond(match: re.Match[str], text: str) -> bool:
    """Whether a value is above the limit that the line names, or far above its reference."""
    limit = match.groupdict().get("limit")
    return float(match["value"]) > (float(limit) if limit else 1.5 * float(match["reference"]))


def _not_all(match: re.Match[str], text: str) -> bool:
    """Whether fewer than all answers are right; of an evaluation, fewer than its reference, or few."""
    right, asked = int(match["right"]), int(match["asked"])
    if not _EVALUATION.search(text):
        return right < asked
    pairs = [int(one) / int(whole) for one, whole in _OF.findall(text) if int(whole)]
    shares = next((found for found in (_shares(text, _PERCENT), pairs) if len(found) > 1), [])
    return shares[0] < INACCURATE * shares[-1] if shares else right < _alone(text) * asked


def _loops(match: re.Match[str], text: str) -> bool:
    """Whether many answers repeat themselves, far more than of the reference that the line names."""
    split = _OF_REFERENCE.split(text, maxsplit=1)
    ours, theirs = (_first_share(part) for part in (split[0], split[-1]))
    return len(split) > 1 and ours is not None and theirs is not None and ours > max(LOOPING, 3 * theirs)


def _first_share(text: str) -> float | None:
    """The first share of a text, from 0 to 1: "12 of 64", "31 %"."""
    counted, percent = _OF.search(text), _PERCENT.search(text)
    if counted and int(counted[2]):
        return int(counted[1]) / int(counted[2])
    return float(percent[1]) / 100 if percent else None


CHECKS: dict[str, Callable[[re.Match[str], str], bool]] = {
    "": lambda match, text: True,
    "slower": _slower,
    "less_accurate": _less_accurate,
    "expected_missing": lambda match, text: match["wanted_text"] not in match["answer"],
    "not_all": _not_all,
    "below_reference": _below_reference,
    "far_below": _far_below,
    "beyond": _beyond,
    "nothing_right": lambda match, text: float(match["value"]) < 0.05,
    "several": lambda match, text: int(match["unique"]) > 1,
    "loops": _loops,
    "a_speed": lambda match, text: float(match["wanted"]) > 1,
    "two_flags": lambda match, text: len(set(_FLAG.findall(text))) > 1,
}
