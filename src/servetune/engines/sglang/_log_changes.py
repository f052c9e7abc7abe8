"""Sentences in which the engine says that it does otherwise than asked: the object of the change, and what it became.

"Setting attention backend to triton", "The chunked prefill size is adjusted to 8192 to …", "flashinfer_cutlass does not
support …, falling back to triton". Only the object of the verb counts, never what stands behind "because" or "for":
that names the reason. Whether anybody asked for the object is not known here (`_log_flags.replaced`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_LEVEL = re.compile(r"^(?:(?:WARNING|INFO|WARN)[ :]+)?(?:\[?[\w.]+\.py:\d+\]?:? *)?")
_END = (
    r"(?=\s*(?:$|[.,;:()]\s|[.,;:(]$|\b(?:because|since|as|for|when|due|if|in|on|with|while|by|and|under|so|until)\b))"
)
_OBJECT = r"(?:the |specified |requested )?(?P<object>(?:--)?[\w'`=/+-]+(?: [\w'`=/+-]+){0,5}?)"
_TARGET = r"[`'\"(]?(?P<target>[\w.+-]*\w)"
#: Off: the object is not used.
_OFF = re.compile(
    r"\b(?i:disabl(?:e|es|ing)|ignor(?:e|es|ing)|skip(?:s|ping)?|turn(?:s|ing)? off|dropping|forc(?:e|ing) off) "
    rf"{_OBJECT}{_END}"
)
#: Another value in its place.
_SET = re.compile(
    rf"\b(?i:set(?:s|ting)?|overrid(?:e|es|ing)|switch(?:es|ing)?|chang(?:e|es|ing)|adjust(?:s|ing)?|reset(?:s|ting)?"
    rf"|forc(?:e|es|ing)|reduc(?:e|es|ing)|cap(?:s|ping)?|limit(?:s|ing)?|clamp(?:s|ing)?"
    r"|lower(?:s|ing)?|rais(?:e|es|ing)) "
    rf"{_OBJECT}(?: from \S+)?(?: back)?(?: to(?: be)? | ?= ?){_TARGET}"
)
_BE = (
    r"(?:is|are|was|were|has been|have been|will be|gets|must be) "
    r"(?:automatically |currently |now |therefore |silently )?"
)
_WAS_OFF = re.compile(
    rf"(?:^|[.;,] |\band ){_OBJECT} (?:{_BE})?(?:disabled|ignored|unavailable|(?:turned|switched) off|dropped"
    r"|not (?:available|supported|in effect)|does not (?:apply|support)|has no effect|without effect)\b"
)
_WAS_SET = re.compile(
    rf"(?:^|[.;,] |\band ){_OBJECT} {_BE}(?:overridden|overwritten|set|reset|changed|adjusted|reduced|capped|limited"
    rf"|forced|clamped|lowered|raised|replaced|switched)(?: from [^,;]{{1,60}}?)?(?: back)? (?:to|with|by|at)"
    rf"(?: be the same as the [\w ]+\[| be)? ?{_TARGET}"
)
_FALLS_BACK = re.compile(rf"(?:^|[.;,] |\band ){_OBJECT} (?:falls|fell|reverts|drops) back to {_TARGET}")
#: A value in quotes, of what the sentence speaks of: "supports only … backends. Overriding 'triton'."
_VALUE = re.compile(
    r"\b(?i:overrid(?:e|es|ing)|replac(?:e|es|ing)|ignor(?:e|es|ing)|reject(?:s|ing)?|discard(?:s|ing)?)"
    r" (?:the )?(?:given |specified |requested )?(?:value )?(['\"`])(?P<value>[\w.-]{3,40})\1"
    rf"(?: (?:with|by) {_TARGET}[`'\"]?)?(?=\s*(?:$|[.,;:!(]|\b(?:because|since|as|for|here)\b))"
)
_NOUN = re.compile(r"(?i)\b(moe|attention|backend|runner|kernel|dispatcher|dtype|mode)s?\b")
_INSTEAD = re.compile(
    r"(?i)\b(?:fall(?:s|ing)?[ -]?back to|fallback to|switch(?:es|ing)? to|will use|using|use) "
    rf"(?:the |default )?{_TARGET}"
)
#: A line may be such a sentence only with one of these (see `_log_words`).
CHANGED = re.compile(
    r"(?i)disabl|ignor|skipping|turned off|turning off|switched off|not (?:available|supported)|not support|unavailable"
    r"|no effect|setting |overrid|overwritten|switching|changed|changing|adjust|is reset|resetting|forcing"
    r"|is forced|reduc|capped|capping|limited to|limiting|clamp|falling back|fallback|falls back|is set to|are set to"
)
#: Advice, a default, and a state that somebody may want: nothing was changed.
_ADVICE = re.compile(
    r"(?i)\b(?:you (?:may|might|can|could|should)|consider|please|recommend|suggest|by default|not specified|try)\b"
    r"|deprecated"
)
_FALSE = frozenset(("false", "none", "0", "off", "disabled"))


class Change(NamedTuple):
    """What was changed, in the engine's words; what it became, or what is used instead; whether it is off."""

    words: str
    target: str
    off: bool


def changes_of(text: str) -> Iterator[Change]:
    """Each change that a line tells."""
    text = _LEVEL.sub("", text[:1000], count=1)
    if _ADVICE.search(text):
        return
    for match in (*_SET.finditer(text), *_WAS_SET.finditer(text), *_FALLS_BACK.finditer(text)):
        yield Change(match["object"], match["target"], match["target"].lower() in _FALSE)
    for match in _VALUE.finditer(text):
        nouns = dict.fromkeys(noun.lower() for noun in _NOUN.findall(text[: match.start()]))
        yield Change(" ".join([match["value"], *nouns]), match["target"] or "", True)
    instead = _INSTEAD.search(text)
    for pattern in (_OFF, _WAS_OFF):
        for match in pattern.finditer(text):
            later = instead is not None and instead.start() > match.start()
            yield Change(match["object"], instead["target"] if instead is not None and later else "", True)
