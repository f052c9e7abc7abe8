"""What a message tells to raise, and what to leave out: flags, and variables of the environment by their own names."""

from __future__ import annotations

import re

from servetune.engines.sglang._log_args import flag_name
from servetune.engines.sglang._repair_numbers import Draft

#: A variable that does more than making a library tell more.
_ENV = r"[`'\"$]*(?!\w*(?:DEBUG|VERBOSE|LOG_|TRACE))([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\b"
_RAISE = r"(?i:rais(?:e|ing)|increas(?:e|ing)|enlarg(?:e|ing)|bump(?:ing)?)"
#: "raise NAME", "Consider increasing the NAME environment variable", "by setting NAME to a bigger value"
_ENV_MORE = re.compile(
    rf"{_RAISE}(?i: the| value (?:of|for)| env\w*| variable)* {_ENV}"
    rf"|{_ENV}[`'\"]?(?: env\w* variable)?[^.;\n]{{0,20}}? (?i:to an? (?:bigger|larger|higher|greater) value"
    r"|to cover\b|must be (?:>=|at least|larger|greater))"
)
#: "raise the env var": the variable that the sentence names.
_ENV_IT = re.compile(rf"{_RAISE} (?i:the|that|this) (?i:env\w*(?: ?var\w*)?|variable)\b")
_ENV_NAME = re.compile(rf"(?<![\w/.]){_ENV}")
#: "increase --a or --b"
_FLAG_MORE = re.compile(rf"{_RAISE}(?: the)? [`'\"]*--([a-z][a-z0-9-]+)(?:[`'\"]* or [`'\"]*--([a-z][a-z0-9-]+))?")
_LEAVE = (
    r"(?i:\b(?:drop|remov(?:e|ing)|omit|unset|leave out|disable|turn off|(?:re-?)?(?:run|launch|start) without"
    r"|(?:do not|don't) (?:pass|set|use|specify)))"
)
#: "Remove --a or --b", "re-run without --a", "Drop the flag": the flag that the sentence began with.
_FLAG_OUT = re.compile(
    rf"{_LEAVE} (?:(?:the|this|that) (?:flag|option|argument)\b|(?:the )?[`'\"]*--([a-z][a-z0-9-]+)"
    r"(?:[`'\"]*(?:,? or |, )[`'\"]*--([a-z][a-z0-9-]+))?)"
)
#: "disable NAME", "set NAME off"
_ENV_OUT = re.compile(rf"(?:{_LEAVE} (?:the )?{_ENV}|(?i:set) {_ENV} off\b)")
_FIRST_FLAG = re.compile(r"--([a-z][a-z0-9-]+)")
#: "capacity 256", "exceeds 256", "NAME=256", "default 4096": what a variable is now.
_LIMIT = re.compile(
    r"(?:(?i:limit|capacity|maximum|max|cap|budget|exceeds?|only|of|default)|[A-Z]_[A-Z_]+)\W{1,3}(\d{1,9})\b"
)
_PROPOSED = "the message proposes it"


def raised(draft: Draft) -> None:
    """Variables and numbers that the message says to raise: to twice what they are."""
    for name in variables_to_raise(draft.text):
        now = str(draft.flags.asked.get(f"env.{name}"))
        limit = _LIMIT.search(draft.text)
        value = int(now) if now.isdecimal() and len(now) < 16 else int(limit[1]) if limit else 0
        if value:
            draft.add(f"env.{name}", str(2 * value), "the message proposes more")
    for names in _FLAG_MORE.findall(draft.text):
        for name in filter(None, names):
            now_ = draft.current(flag_name(name))
            if now_ and not name.startswith("mem-fraction"):
                more = 2 * now_
                draft.add(flag_name(name), int(more) if more == int(more) else more, "the message proposes more")


def variables_to_raise(text: str) -> list[str]:
    """The variables that a message says to raise."""
    found = [one or two for one, two in _ENV_MORE.findall(text)]
    if not found and _ENV_IT.search(text):
        found = _ENV_NAME.findall(text)[:1]
    return found


def left_out(draft: Draft) -> None:
    """Flags and variables that the message says to leave out."""
    for match in _FLAG_OUT.finditer(draft.text):
        begun = _FIRST_FLAG.search(draft.text)
        names = [match[1], match[2]] if match[1] else [begun[1] if begun else None]
        for name in filter(None, names):
            if (draft.flags.on(flag_name(name)) or not draft.flags.known) and name != "mem-fraction-static":
                draft.add(flag_name(name), None, _PROPOSED)
    for names in _ENV_OUT.findall(draft.text):
        name = f"env.{names[0] or names[1]}"
        if name in draft.flags.asked:
            draft.add(name, None, _PROPOSED)
