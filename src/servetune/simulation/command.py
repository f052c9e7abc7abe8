"""SGLang's own command line and environment, read back into an assignment for the model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from servetune.core.space import Value
from servetune.simulation.scenario import Scenario

#: Spellings of one flag, from the flag tables of SGLang 0.5.2 to 0.5.12.
ALIASES = {
    "model": "model-path",
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "ep": "ep-size",
    "expert-parallel-size": "ep-size",
}
#: Flags that say where to listen and what to serve; the model knows nothing of them.
SERVING_FLAGS = ("model-path", "host", "port", "api-key", "served-model-name", "tp-size")
TEXT_FLAGS = ("model-path", "host", "api-key", "served-model-name")


class CommandError(Exception):
    """The engine's argument parser refuses the command; the message is its own, without usage."""


class Command(NamedTuple):
    """A launch command, read. `assignment` holds every flag and the environment variables that the scenario names."""

    model_path: str
    served_model_name: str
    host: str
    port: int
    api_key: str | None
    tp_size: int
    assignment: Mapping[str, Value]


def read_command(argv: Sequence[str], environ: Mapping[str, str], scenario: Scenario) -> Command:
    """Read `python3 -m sglang.launch_server --…` or `sglang serve --…`. Raises CommandError as argparse would."""
    flags = dict(_flags(_arguments(argv), scenario))
    model_path = flags.get("model-path")
    if model_path is None:
        raise CommandError("the following arguments are required: --model-path/--model")
    return Command(
        model_path=str(model_path),
        served_model_name=str(flags.get("served-model-name", model_path)),
        host=str(flags.get("host", "127.0.0.1")),
        port=_integer("port", flags.get("port", 30000)),
        api_key=str(flags["api-key"]) if "api-key" in flags else None,
        tp_size=_integer("tp-size", flags.get("tp-size", 1)),
        assignment={**flags, **_environment(environ, scenario)},
    )


def _arguments(argv: Sequence[str]) -> Sequence[str]:
    """What follows the program: everything from the first word that starts with two dashes."""
    first = next((index for index, word in enumerate(argv) if word.startswith("--")), len(argv))
    program = " ".join(argv[:first])
    if "sglang.launch_server" not in program and not program.endswith("sglang serve"):
        raise CommandError(
            f"the simulated node serves SGLang only, and this is not its command: {program or '(empty)'}"
        )
    return argv[first:]


def _flags(words: Sequence[str], scenario: Scenario) -> Iterator[tuple[str, Value]]:
    """Flag by flag. A flag without a value is a switch; several values of one flag stay one text."""
    index = 0
    while index < len(words):
        word = words[index]
        if not word.startswith("--"):
            raise CommandError(f"unrecognized arguments: {word}")
        name, equals, text = word[2:].partition("=")
        index += 1
        values = [text] if equals else []
        while not equals and index < len(words) and not words[index].startswith("--"):
            values.append(words[index])
            index += 1
        flag = ALIASES.get(name, name)
        yield flag, _value(flag, values, scenario)


def _value(flag: str, values: Sequence[str], scenario: Scenario) -> Value:
    """A value in the type that the scenario gives the flag, or else in the one that it looks like."""
    known = scenario.flags.get(flag)
    if isinstance(known, bool):
        if values:
            raise CommandError(f"unrecognized arguments: {' '.join(values)}")
        return True
    if not values:
        if known is not None or flag in SERVING_FLAGS:
            raise CommandError(f"argument --{flag}: expected one argument")
        return True
    text = " ".join(values)
    if isinstance(known, int | float):
        return _number(flag, text, type(known).__name__)
    return text if isinstance(known, str) or flag in TEXT_FLAGS else plain(text)


def _integer(flag: str, text: Value) -> int:
    try:
        return int(text)
    except ValueError:
        raise CommandError(f"argument --{flag}: invalid int value: {text!r}") from None


def _number(flag: str, text: str, kind: str) -> int | float:
    value = plain(text)
    if isinstance(value, str):
        raise CommandError(f"argument --{flag}: invalid {kind} value: {text!r}")
    return value


def plain(text: str) -> Value:
    """A number when the text is one, else the text."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?(\d+\.\d*|\.\d+|\d+(\.\d*)?[eE][-+]?\d+)", text):
        return float(text)
    return text


def _environment(environ: Mapping[str, str], scenario: Scenario) -> dict[str, Value]:
    """Of the environment only what the scenario names as `env.NAME`."""
    found: dict[str, Value] = {}
    for key in _named_variables(scenario):
        text = environ.get(key.removeprefix("env."))
        if text is not None:
            found[key] = _typed(text, scenario.flags.get(key))
    return found


def _named_variables(scenario: Scenario) -> set[str]:
    conditions = (
        *(entry.when for entry in scenario.memory_gib.extra),
        *(entry.when for entry in scenario.effects),
        *(entry.when for entry in scenario.failures),
        *(entry.when for entry in scenario.wrong_output),
        *(entry.when for entry in scenario.no_effect),
    )
    named = {flag for condition in conditions for flag in condition.any_of} | set(scenario.flags)
    return {name for name in named if name.startswith("env.")}


def _typed(text: str, known: Value | None) -> Value:
    if isinstance(known, bool):
        return text.lower() in ("1", "true", "yes", "on")
    return text if isinstance(known, str) else plain(text)
