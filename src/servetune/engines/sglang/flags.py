"""Assignment → command line, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from servetune.core.engine import Violation
from servetune.core.node import EnvRef, LaunchSpec, Text
from servetune.core.space import Assignment, Value
from servetune.engines.sglang.capabilities import Capabilities, FlagSpec, releases_with, violation_of

MODULE = "sglang.launch_server"
_NUMBER = re.compile(r"-\d+$|-\d*\.\d+$")  # argparse takes these for values, anything else with a dash for a flag
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def launch_spec(
    assignment: Assignment,
    secrets: Mapping[str, EnvRef],
    env: Mapping[str, Text],
    python: str,
    model: str,
    port: int,
    capabilities: Capabilities | None,
) -> LaunchSpec:
    """The command of a server: the fixed words first, then flags by name; `env.NAME` entries go to the environment.

    Same input, same words. Switches that are false do not stand on the command line; secrets stay references.
    """
    argv: list[Text] = [python, "-m", MODULE, "--model-path", model, "--host", "127.0.0.1", "--port", str(port)]
    variables: dict[str, Text] = dict(env)
    for name in sorted({*assignment, *secrets}):
        hidden = name in secrets
        if name.startswith("env."):
            variables[name[4:]] = secrets[name] if hidden else variable_text(assignment[name])
        elif hidden:
            argv += [f"--{name}", secrets[name]]
        else:
            argv += flag_words(name, assignment[name], capabilities.spellings.get(name) if capabilities else None)
    return LaunchSpec(argv=tuple(argv), env=dict(sorted(variables.items())), port=port)


def flag_words(name: str, value: Value, flag: FlagSpec | None) -> list[str]:
    """One flag as words of a command line; none for a switch that is false. `flag` None: judged by the value alone."""
    if isinstance(value, bool):
        if value:
            return [f"--{name}"]
        return [f"--no-{name}"] if flag is not None and flag.kind == "on_off" else []
    if flag is not None and flag.nargs in ("+", "*"):
        return [f"--{name}", *str(value).split()]
    text = value_text(value, flag)
    if text.startswith("-") and not _NUMBER.match(text):
        return [f"--{name}={text}"]
    return [f"--{name}", text]


def value_text(value: Value, flag: FlagSpec | None = None) -> str:
    """A value as one word; a whole float of an integer flag without its fraction."""
    if isinstance(value, float) and value.is_integer() and flag is not None and flag.kind in ("int", "human_int"):
        return str(int(value))
    return str(value)


def variable_text(value: Value) -> str:
    """A value of an environment variable; booleans as `1` and `0`."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def parse_argv(argv: Sequence[str], capabilities: Capabilities) -> tuple[dict[str, Value], list[Violation]]:
    """A command as an assignment, read as SGLang's argparse reads it, and what cannot be read.

    Leading `NAME=value` words and `python -m sglang.launch_server` or `sglang serve` are understood. Aliases and unique
    abbreviations become the flag's own name; an unknown flag keeps its spelling (`capabilities.violations` names it), a
    value of a wrong type stays text, a later flag replaces an earlier one.
    """
    found: dict[str, Value] = {}
    problems: list[Violation] = []
    words = list(_without_program(argv, found))
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            text = f"{word} prints SGLang's flags and ends: no server starts"
            problems.append(violation_of("no-launch", "help", text, capabilities))
            continue
        if not _is_flag(word):
            text = f"{word!r} belongs to no flag: a switch takes no value, and SGLang takes no positional words"
            problems.append(violation_of("stray-word", word, text, capabilities))
            continue
        spelled, joined, given = word[2:].partition("=")
        name, flag, on = _resolve(spelled, capabilities, problems)
        values = [given] if joined else _take(words, flag)
        if not any(name in problem.flags for problem in problems):
            found[name] = _value(values, flag, on, bool(joined))
    return found, problems


def _without_program(argv: Sequence[str], found: dict[str, Value]) -> Iterator[str]:
    words = list(argv)
    while words and (match := _VARIABLE.fullmatch(words[0])):
        found[f"env.{match.group(1)}"] = match.group(2)
        words.pop(0)
    for program in (["-m", MODULE], ["serve"]):
        if words[1 : 1 + len(program)] == program:
            words = words[1 + len(program) :]
    yield from words


def _is_flag(word: str) -> bool:
    return word.startswith("--") and len(word) > 2


def _resolve(spelled: str, capabilities: Capabilities, problems: list[Violation]) -> tuple[str, FlagSpec | None, bool]:
    """Own name of a flag as written, its description, and False for the `--no-` twin."""
    flags = capabilities.find(spelled)
    if len(flags) == 1:
        return flags[0].name, flags[0], True
    twin = capabilities.spellings.get(spelled.removeprefix("no-"))
    if spelled.startswith("no-") and twin is not None and twin.kind == "on_off":
        return twin.name, twin, False
    if flags and not releases_with(spelled):  # another release's flag is named as unknown, with its translation
        names = sorted({f"--{flag.name}" for flag in flags})
        text = f"--{spelled} is ambiguous for SGLang {capabilities.version}: it could be {', '.join(names)}"
        problems.append(violation_of("ambiguous-flag", spelled, text, capabilities, names))
    return spelled, None, True


def _take(words: list[str], flag: FlagSpec | None) -> list[str]:
    """The values that follow a flag; an unknown flag takes one when the next word is none itself."""
    if flag is not None and flag.kind in ("switch", "on_off", "ignored", "removed"):
        return []
    many = flag is not None and flag.nargs in ("+", "*")
    taken: list[str] = []
    while words and (many or not taken) and (not words[0].startswith("-") or _NUMBER.match(words[0])):
        taken.append(words.pop(0))
    return taken


def _value(values: Sequence[str], flag: FlagSpec | None, on: bool, joined: bool) -> Value:
    if not values:
        return on
    text = " ".join(values)
    if flag is None or (joined and not flag.valued):
        return text
    return typed(text, flag)


def typed(text: str, flag: FlagSpec) -> Value:
    """A word with the flag's type; text when it has another one."""
    if flag.nargs in ("+", "*"):
        return text
    try:
        if flag.kind in ("int", "human_int"):
            return int(text)
        return float(text) if flag.kind == "float" else text
    except ValueError:
        return text
