"""Of each blamed flag: whether it was given, what was passed, and what the engine made of it."""

from __future__ import annotations

import re
from typing import Any

from servetune.core.failure import Failure
from servetune.engines.sglang._log_args import flag_name, spelled
from servetune.engines.sglang._log_flags import LaunchFlags
from servetune.engines.sglang._repair_words import typed

#: What the parser says of words that it does not take: they were given.
_UNRECOGNISED = re.compile(r"unrecognized arguments?: (?P<words>.+)")
_ARGUMENT = re.compile(r"\bargument (?P<names>-[^\s:]+): (?:invalid (?:choice|\w+ value): (?P<value>'[^']*'|\S+))?")
_WORD = re.compile(r"--?([A-Za-z][\w-]*)(?:[ =]((?!--)\S+))?")


def blamed_flags(failure: Failure, flags: LaunchFlags) -> list[dict[str, Any]]:
    """`{flag, given, passed, used}` of each, as typed.

    `given`: whether it was given; None where the log does not show what was. `passed`: its value, True for a switch
    alone. `used`: the value in the engine's own arguments. Both are None where the log does not show them.
    """
    refused = _refused(failure)
    told = any(not name.startswith("env.") for name in flags.asked)
    found = []
    for name in failure.blamed:
        asked = {**flags.asked, **refused}
        given = name in asked
        shown = told and not name.startswith("env.")
        found.append(
            {
                "flag": spelled(name),
                "given": given if given or shown else None,
                "passed": asked.get(name),
                "used": flags.effective.get(name),
            }
        )
    return found


def _refused(failure: Failure) -> dict[str, Any]:
    """What the deciding lines show of a command that the parser refused."""
    found: dict[str, Any] = {}
    for evidence in failure.evidence if failure.slug == "cli_parse" else ():
        match = _UNRECOGNISED.search(evidence.text)
        for name, value in _WORD.findall(match["words"]) if match else ():
            found[name] = found[flag_name(name)] = typed(value) if value else True
        match = _ARGUMENT.search(evidence.text)
        for name, _ in _WORD.findall(match["names"].replace("/", " ")) if match else ():
            found[name] = found[flag_name(name)] = (
                typed(match["value"].strip("'")) if match and match["value"] else None
            )
    return found
