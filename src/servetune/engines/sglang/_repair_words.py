"""Repairs that a message's own words propose: what it says to set or to lower, and a number as the parser takes it."""

from __future__ import annotations

import re

from servetune.core.space import Value
from servetune.engines.sglang._log_args import flag_name
from servetune.engines.sglang._repair_advice import left_out, raised
from servetune.engines.sglang._repair_numbers import Draft
from servetune.engines.sglang._repair_without import left_out_of_reference

_FLAG_ADVICE = re.compile(
    r"(?i)\b(?<!cannot )(?<!not )(?<!n't )(?:use|set|add|try|specify|pass)(?: the)?(?: option| flag| argument)? "
    r"[`'\"]*--([a-z][a-z0-9-]+)(?:[ =](?:to )?"
    r"(?!(?:or|and|to|with|for|if|instead|when|during|so|as|in|on|at|is|are|which|together|an?|the|enable|use|specify)\b)"
    r"(-?\w+(?:[.-]\w+)*)|[`'\"]* to ['\"]([\w.]+)['\"])?"
)
#: A variable to be set, unless it only makes the next failure tell more.
_ENV_ADVICE = re.compile(
    r"(?i:set|export|use|try|specify) `?(?!\w*(?:DEBUG|VERBOSE|LOG|TRACE|BLOCKING|DSA))"
    r"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)`?\s*(?:>=|==?|\bto )\s*(?!(?:at|an?|the|more|less)\b)([\w.]+)"
)
_LESS_ADVICE = re.compile(r"(?i:lower|reduce|decrease|smaller(?: value for)?)(?: the)? [`'\"]*--([a-z][a-z0-9-]+)")
#: What a message says must be given: leaving it out is no repair.
_WANTED = re.compile(
    r"(?:--)?\b([a-z][a-z0-9]*(?:[-_][a-z0-9]+){1,6})\b[`'\"]? (?:"
    r"(?:cannot|can't|must not|should not) be [`'\"]?(?:[Nn]one|empty|unset|null)"
    r"|(?:must|should|has to|needs to) be (?:set|specified|provided|given|enabled)"
    r"|is (?:required|not set|not specified))"
)
_NOT_A_NUMBER = re.compile(r"invalid (?P<type>\w+) value: '(?P<value>[^']*)'")
_WRITTEN = re.compile(r"\s*([+-]?[\d_,]*\.?\d+(?:[eE][+-]?\d{1,2})?)\s*((?:[kKmMgG]i?)?)[bB]?(%?)\s*")
_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_PROPOSED = "the message proposes it"
#: "only supports topk=1", "requires page_size == 1"
_ONLY = re.compile(
    r"(?:\bonly (?:supports?|works? (?:with|for|when|if)|with|when|if|for|allowed (?:with|for))"
    r"|\brequires?|\bneeds?) ([a-z]\w*) ?(?:==?|is) ?([a-z0-9]\w*)\b"
)
#: "only ['fa3', 'triton'] attention backends are supported"
_ALLOWED = re.compile(
    r"(?:[Oo]nly|one of|supported:?) \[([^\]\n]{3,200})\] ((?:attention|moe[ _-]runner|sampling|grammar) backend)"
)
#: "decode_attention_backend to be one of ['fa3', 'triton']"
_ONE_OF = re.compile(r"\b([a-z_]*[a-z]_backend)\b[^\[\n]{0,30}\b(?:one of|in|among) \[([^\]\n]{3,200})\]")
#: Of what a message allows: first what is built for most GPUs.
PREFERRED = ("triton", "flashinfer", "fa3")
#: The choices that messages list.
BACKENDS = (
    "attention-backend",
    "prefill-attention-backend",
    "decode-attention-backend",
    "moe-runner-backend",
    "sampling-backend",
    "grammar-backend",
)
#: "reference with --cuda-graph-max-bs 64: 16.3 ms"
_WITH = re.compile(
    r"(?i)\b(?:reference|baseline|expected|compared|previous|same)\b[^\d\n]{0,40}?"
    r"\bwith --([a-z][a-z0-9-]+)[ =]([\w.]+)"
)
#: "too large tensor parallel size"
_TOO_LARGE = re.compile(r"(?i)\btoo (?:large|big|high|many) ([a-z]+(?:[ _-][a-z]+){0,4})")
#: "a_size must be divisible by b_size"
_DIVIDES = re.compile(
    r"\b([a-z]\w*_size)\b[^.\n]{0,16} (?:must|should|has to) be (?:evenly )?(?:divisible by|a multiple of) (?:the )?"
    r"([a-z]\w*_size|number of nodes|nnodes)\b"
)


#: "does not support tensor parallelism > 1"
_NOT_ABOVE_ONE = re.compile(
    r"(?i)(?:not support\w*|unsupported|not (?:yet )?implemented\w*)[^.\n]{0,30}?\b"
    r"(tensor|data|expert|pipeline)[ _-]parallel(?:ism)?(?: size)? ?> ?1\b"
)
#: No size of a group of ranks is larger.
MOST_RANKS = 65536
_PARALLEL = {"tensor": "tp-size", "data": "dp-size", "expert": "ep-size", "pipeline": "pp-size"}


def typed(text: str | None) -> Value | None:
    """A number where the text is one."""
    if text is None:
        return None
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 16 else text


def wanted(text: str) -> set[str]:
    """Flags that a message says must be given."""
    return {flag_name(name) for name in _WANTED.findall(text)}


def advised(draft: Draft) -> None:
    """What the message itself proposes, when it is not about the memory fraction below an unrelated error."""
    for name, value, quoted in _FLAG_ADVICE.findall(draft.text):
        if name.startswith("mem-fraction") or name == "disable-cuda-graph":
            continue
        draft.add(flag_name(name), typed(quoted or value) or True, _PROPOSED)
    for name, value in _ENV_ADVICE.findall(draft.text):
        draft.add(f"env.{name}", value.rstrip("."), _PROPOSED)
    raised(draft)
    left_out(draft)
    for name in _LESS_ADVICE.findall(draft.text):
        now = draft.current(flag_name(name))
        if now is not None and now >= 2:
            draft.add(flag_name(name), int(now) // 2, "the message proposes less")
    _relations(draft)
    _allowed(draft)


def _relations(draft: Draft) -> None:
    """What a sentence asks of a flag that it names: one value, less, or a divisor of another size."""
    for name, value in _ONLY.findall(draft.text):
        flag = _flag_of(name, draft)
        if flag and str(draft.flags.value(flag)) != value:
            draft.add(flag, typed(value), f"the message takes no other {name}")
    for kind in _NOT_ABOVE_ONE.findall(draft.text):
        if (draft.current(_PARALLEL[kind.lower()]) or 1) > 1:
            draft.add(_PARALLEL[kind.lower()], 1, "the message takes no more")
    for words in _TOO_LARGE.findall(draft.text):
        flag = _flag_of(words.lower().replace(" ", "_"), draft)
        now = draft.current(flag) if flag else None
        if flag and now is not None and now >= 2:
            draft.add(flag, int(now) // 2, "the message calls it too large")
    for whole, part in _DIVIDES.findall(draft.text):
        flag = "nnodes" if "nodes" in part else flag_name(part)
        size, now = draft.current(flag_name(whole)), draft.current(flag)
        if size and now and now <= MOST_RANKS and size % now:
            fitting = max(one for one in range(1, int(now)) if size % one == 0)
            draft.add(flag, fitting, f"{size:g} divides by it")


def named_without(draft: Draft) -> None:
    """A switch or a choice that a line compares with: "baseline without --enable-dp-attention".

    The comparison may stand on a later line about the same.
    """
    text = "\n".join([draft.text, *_about_the_same(draft)])
    for flag in left_out_of_reference(text, draft.run, draft.flags):
        draft.add(flag, None, "without it the result was better")
    for name, value in _WITH.findall(text):
        flag = flag_name(name)
        if str(draft.flags.value(flag)) != value:
            draft.add(flag, typed(value.rstrip(".")), f"with {value} the result was better")


def _about_the_same(draft: Draft) -> list[str]:
    """Further lines that say that answers are wrong or that the server is slow."""
    slugs = ("wrong_output", "perf_regression")
    return [event.text for event in draft.run.events if event.entry.owner.slug in slugs]


def _allowed(draft: Draft) -> None:
    """A value of a list that a message allows, for the kind of backend that it speaks of."""
    found = [*_ALLOWED.findall(draft.text), *((two, one) for one, two in _ONE_OF.findall(draft.text))]
    for listed, words in found:
        flag = _flag_of(words.lower().replace(" ", "_"), draft) or flag_name(words.lower().replace(" ", "_"))
        choices = re.findall(r"[\w.-]+", listed)
        now = draft.flags.value(flag)
        better = [one for one in PREFERRED if one in choices and one != now] or [one for one in choices if one != now]
        if better and flag in BACKENDS:
            draft.add(flag, better[0], "the message allows it")


def _flag_of(name: str, draft: Draft) -> str | None:
    """The flag that a field is of (`topk` is the only one that ends so: `speculative-eagle-topk`)."""
    flag = flag_name(name)
    known = dict.fromkeys([*draft.flags.asked, *draft.flags.effective])
    if flag in known:
        return flag
    ending = [one for one in known if one.endswith(f"-{flag}")]
    return ending[0] if len(ending) == 1 else None


def mend_value(draft: Draft) -> None:
    """A number as the parser takes it (`8192.0`, `8k`, `90%`), else without the flag."""
    flags = re.findall(r"--([A-Za-z][\w-]*)", draft.groups.get("flags") or "")
    if not flags:
        return
    match = _NOT_A_NUMBER.search(draft.groups.get("detail") or "")
    number = _number_in(match["value"], match["type"]) if match else None
    if match and number is not None:
        draft.add(flag_name(flags[0]), number, f"{match['value']!r} is no {match['type']}; written so it is one")
    else:
        draft.add(flag_name(flags[0]), None, f"this version does not take --{flags[0]} as it was given")


def _number_in(text: str, kind: str) -> int | float | None:
    """The number that a text means, as `int` or `float`; None where it means none."""
    match = _WRITTEN.fullmatch(text[:40])
    if match is None:
        return None
    value = float(match[1].replace(",", "").replace("_", "")) * _SUFFIXES[match[2].lower()]
    value /= 100 if match[3] else 1
    if kind == "float":
        return value
    return int(value) if kind == "int" and value == int(value) else None
