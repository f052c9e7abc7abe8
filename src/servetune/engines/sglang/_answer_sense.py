"""Whether a text is an answer at all: measures of what broken kernels, caches and tokenizers make of one.

One token or phrase again and again, control tokens in the middle, marks of the tokenizer, letters of scripts that do
not belong together, nothing but signs. What a prompt asks for (a line of dashes, a word ten times, a translation) is
no fault. A wrong fact is not seen here.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise

#: Only so much of an answer is looked at, in characters.
_READ = 2000
#: A repetition counts from so many characters on, with so many copies, and covering this share of the answer.
_LEAST, _COPIES, _SHARE = 8, 5, 0.6
#: A shorter answer is simply tried; see `_may_repeat` (a unit has at most 60 letters).
_SHORT, _PIECE, _AGAIN, _UNIT = 80, 12, 10, 60
_LOOP = re.compile(r"(.{1,60}?)\1{4,}", re.S)
#: A word or phrase so often is no style.
_STUCK = re.compile(r"(?P<unit>(?=[^\n]{0,59}[^\W\d_]{2})[^\n]{3,60}?)(?P=unit){7,}")
#: One digit so often is no number that anybody asks for.
_LONG_NUMBER = 20
_DECORATION = re.compile(r"[\s\-=_*.~#|+:─━═•·]*")
_NUMBER = re.compile(r"[-+$€£]?\d[\d.,]*(?:[eE][-+]?\d+)?[%.]?")
_LISTED = re.compile(r"[\[({][\d.,\s\[\](){}]*")
#: Groups of digits: a dump, a table, an address.
_DUMPED, _HEX = re.compile(r"[0-9a-fA-Fx\s,.:;|-]+"), frozenset("0123456789abcdefABCDEF")
#: What makes repetition, many scripts or signs the right answer.
_ASKED = re.compile(
    r"(?i)\brepeat|\btimes\b|\bzero(?:e?s)?\b|\bones\b|\bdraw\b|\bpattern|\bprint|\bagain\b|\bfill|\bcount"
    r"|\blaugh|\bscream|\bascii\b|\bline\b|separator|divider|\brule|border|markdown|\btable|\brow of|\becho"
    r"|重复|повтор|wiederhol"
)
_LANGUAGES = re.compile(
    r"(?i)translat|language|\bscripts?\b|alphabet|letters?\b|charact|greet|unicode|emoji|\bword for\b"
    r"|english|russ|\bchin|japan|korea|arab|greek|hebrew|hindi|thai|ukrain|bulgar|serb|bilingual|polyglot|kanji|cyrillic"
    r"|переве|翻译|译"
)
_STRAY = re.compile(
    r"<unk>|<pad>|\[PAD\]|\[UNK\]|<s>|</s>|<0x[0-9A-F]{2}>|<mask>|\[MASK\]"
    r"|<[|｜](?:endoftext|im_start|im_end|fim_\w+|pad\w*|eot_id|end_of_text|begin\w*of\w*|end\w*of\w*|repo_name|file_sep"
    r"|reserved\w*|vision_\w+|image_pad|object_ref\w*|box_\w+|quad_\w+|extra_\d+)[|｜]>"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_MARKS = re.compile(r"[ĠĊ▁]")
_QUOTED = re.compile(r"\([^)]*\)|（[^）]*）|\[[^\]]*\]|«[^»]*»|“[^”]*”|\"[^\"]*\"|'[^']*'|`[^`]*`|[:：–—][^.\n]*")
_SCRIPTS = (
    "LATIN",
    "CYRILLIC",
    "GREEK",
    "CJK",
    "HANGUL",
    "ARABIC",
    "HEBREW",
    "THAI",
    "DEVANAGARI",
    "ARMENIAN",
    "GEORGIAN",
    "TAMIL",
    "BENGALI",
)
#: Another alphabet beside a Latin word, or Han between two of them ("Beijing 北京." is a name told twice).
_ALPHABETS = r"[\u0400-\u04ff\u0590-\u06ff\u0900-\u0e7f\uac00-\ud7af]+"
_BESIDE = re.compile(
    rf"(?<=[A-Za-z]) ?{_ALPHABETS}|{_ALPHABETS} ?(?=[A-Za-z])|[A-Za-z] ?[\u3040-\u30ff\u4e00-\u9fff]+ ?(?=[A-Za-z])"
)
#: Signs that do not follow one another in a sentence.
_SOUP = re.compile(r"[#;±|_{}<>]\S?[#?;±|_{}<>]")
#: Letters of another script right behind Latin ones, and before them.
_GLUED = re.compile(r"[A-Za-z]{2}[^\W\da-zA-Z\u00c0-\u024f]|[^\W\da-zA-Z\u00c0-\u024f_][A-Za-z]{2}")
#: Japanese writes three at once.
_SAME = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "KATAKANA-HIRAGANA": "CJK", "IDEOGRAPHIC": "CJK"}


def asks_for_it(prompt: str) -> bool:
    """Whether a prompt asks for repetition or signs."""
    return bool(_ASKED.search(prompt))


def nonsense(answer: str, prompt: str) -> str:
    """Why a text is no answer; empty where it may be one. `prompt`: empty where it is unknown."""
    text = answer[:_READ].strip()
    if not text:
        return ""
    for found, problem in (
        (_is_broken(text), "marks of the tokenizer or bytes that are no text"),
        (len(_STRAY.findall(text)) > 1, "control tokens in the answer"),
        (not asks_for_it(prompt) and _loops(text, prompt), "the same again and again"),
        (_mixes_scripts(text, prompt), "letters of scripts that do not belong together"),
        (not asks_for_it(prompt) and (_is_signs(text) or (prompt and is_ruled(text))), "nothing but signs"),
    ):
        if found:
            return problem
    return ""


def _is_broken(text: str) -> bool:
    return _CONTROL.search(text) is not None or text.count("\ufffd") >= 3 or len(_MARKS.findall(text)) > 1


def _loops(text: str, prompt: str) -> bool:
    """Whether most of it is one unit again and again. A number, a list of numbers and a ruled line may be so."""
    if _NUMBER.fullmatch(text) and (len(set(text) & set("0123456789")) > 1 or (prompt and len(text) < _LONG_NUMBER)):
        return False
    if _LISTED.fullmatch(text) or (prompt and _DUMPED.fullmatch(text) and len(set(text) & _HEX) > 1):
        return False
    if not _may_repeat(text):
        return False
    for match in _LOOP.finditer(text + " "):
        unit, whole = match[1], match[0]
        enough = len(whole) >= _LEAST and (len(unit.strip()) < 2 or len(whole) >= 2 * _LEAST)
        if _DECORATION.fullmatch(unit) or not enough or not _is_text(unit):
            continue
        if len(whole) >= _SHARE * len(text) or (len(whole) >= 10 * _LEAST and len(whole) >= 20 * len(unit.strip())):
            return True
    words = text.split()
    if _STUCK.search(text):
        return True
    commonest, times = Counter(words).most_common(1)[0]
    return len(words) >= 12 and times >= _SHARE * len(words) and not _DECORATION.fullmatch(commonest)


def _may_repeat(text: str) -> bool:
    """Whether there can be a unit that follows itself often enough to count; told in one pass.

    Of what repeats most pieces of `_PIECE` letters come again within the length of a unit: at the very least `_AGAIN`,
    in eight copies of three letters.
    """
    last = len(text) - _PIECE + 1
    if len(text) < _SHORT:
        return True
    if last - len({text[at : at + _PIECE] for at in range(last)}) < _AGAIN:
        return _has_commonest(text)
    seen: dict[str, int] = {}
    again = 0
    for at in range(last):
        piece = text[at : at + _PIECE]
        again += at - seen.get(piece, -_UNIT - 1) <= _UNIT
        seen[piece] = at
    return again >= _AGAIN or _has_commonest(text)


def _has_commonest(text: str) -> bool:
    """Whether one word is most of the words."""
    words = text.split()
    return len(words) >= 12 and Counter(words).most_common(1)[0][1] >= _SHARE * len(words)


def _is_text(unit: str) -> bool:
    """Whether a unit is letters, digits or signs; emoji may be repeated for joy."""
    return not all(unicodedata.category(letter) in ("So", "Sk", "Cf", "Mn", "Zs") for letter in unit)


@lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    if letter.isascii():
        return "LATIN" if letter.isalpha() else ""
    if unicodedata.category(letter)[0] != "L":
        return ""
    name = unicodedata.name(letter, "").split(" ", 1)[0]
    found = _SAME.get(name, name)
    return found if found in _SCRIPTS else ""


def _mixes_scripts(text: str, prompt: str) -> bool:
    """Whether letters of scripts stand together that no text has.

    Four in one text; three without a reason in the prompt; two of them inside one word; or, where the prompt knows
    Latin only, words of another script, not in brackets or quotes, at two places between Latin words or inside one, or
    at one place in a text of scattered signs. One foreign word is a name.
    """
    if text.isascii() or _LANGUAGES.search(prompt):
        return False
    counts = Counter(filter(None, map(_script, text)))
    counts.pop("GREEK", None) if counts["GREEK"] < 3 else None  # a formula's
    if len(counts) >= 4 or (len(counts) == 3 and (prompt or min(counts.values()) > 1)):
        return True
    if _breaks_words(text) or (len(counts) == 3 and _GLUED.search(text)):
        return True
    if not prompt or set(filter(None, map(_script, prompt))) != {"LATIN"}:
        return False
    bare = _QUOTED.sub(" ", text)
    found = Counter(filter(None, map(_script, bare)))
    found.pop("GREEK", None)
    others = sum(found.values()) - found["LATIN"]
    if not found["LATIN"] > others >= 2:
        return False
    islands = len(_BESIDE.findall(bare))
    return islands > 1 or (islands == 1 and bool(_GLUED.search(bare) or _SOUP.search(bare)))


def _breaks_words(text: str) -> bool:
    """Whether a word mixes alphabets (Latin inside Cyrillic …); names of products before Han do not count."""
    for word in re.findall(r"[^\W\d_]{3,}", text):
        scripts = [script for letter in word if (script := _script(letter)) and script not in ("CJK", "HANGUL", "THAI")]
        if len(set(scripts)) > 1 and sum(a != b for a, b in pairwise(scripts)) > 1:
            return True
    return False


def _is_signs(text: str) -> bool:
    """Whether a longer text has no word, number, formula or picture in it."""
    if len(text) < 8 or _DECORATION.fullmatch(text):
        return False
    if re.search(r"[^\W_]{2,}|\d", text):
        return False
    return sum(unicodedata.category(letter)[0] == "P" for letter in text) > len(text) / 2


def is_ruled(text: str) -> bool:
    """Whether it is a line of one sign: for a question that is no answer."""
    return len(text) >= 20 and len(set(text)) == 1 and bool(_DECORATION.fullmatch(text))


def same_tokens(ids: str) -> bool:
    """Whether numbers of tokens are eight or more and all the same."""
    tokens = re.findall(r"\d+", ids)
    return len(tokens) >= 8 and len(set(tokens)) == 1


def unlike(one: str, other: str) -> bool:
    """Whether two answers to the same prompt have little in common, more than rounding explains."""
    first, second = one.lower().split(), other.lower().split()
    if len(first) < 4 or len(second) < 4:
        return False
    return SequenceMatcher(None, first, second).ratio() < 0.4
