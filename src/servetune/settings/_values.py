"""Flags and their values as they stand in study and space files, and the rule about secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from servetune.core.node import EnvRef
from servetune.core.space import Choice, Value
from servetune.settings._document import Node
from servetune.settings._problems import Problems

_FLAG = re.compile(r"[a-z0-9][a-z0-9-]*")
_ENV = re.compile(r"env\.[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"(?i)(TOKEN|KEY|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIALS?)$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def is_secret_name(name: str) -> bool:
    """Whether a value under this flag, variable or key must not be written out (`api-key`; not `max-total-tokens`)."""
    return _SECRET.search(name) is not None


def how_to_hide(name: str) -> str:
    """What to write instead of a literal secret."""
    variable = name.removeprefix("env.").replace("-", "_").upper()
    place = "under engine.env" if name.startswith("env.") else "under fixed"
    return f"write {{from_env: {variable}}} {place} and set that variable in servetune's own environment"


def check_flag(name: str, node: Node, problems: Problems) -> bool:
    """Whether `name` is spelled as a flag or `env.NAME`; a problem at the key otherwise."""
    if _FLAG.fullmatch(name) or _ENV.fullmatch(name):
        return True
    meant = name.strip().lstrip("-").lower().replace("_", "-")
    hint = f"; did you mean {meant!r}?" if _FLAG.fullmatch(meant) else ""
    allowed = "a flag without its leading dashes, in small letters, such as tp-size, or env.NAME"
    problems.add(node.key_place or node.place, node.path, f"got {name!r}; allowed: {allowed}{hint}")
    return False


def choice(name: str, node: Node, problems: Problems) -> Choice:
    """A value that a parameter may take; null means that the flag is left out. Literal secrets are refused."""
    if node.kind != "scalar":
        if list(node.entries) == ["from_env"]:
            problems.add(node.place, node.path, f"a secret cannot be searched over; {how_to_hide(name)}")
        else:
            allowed = "a number, text, true, false or null"
            problems.add(node.place, node.path, f"got {node.shown()} for {name!r}; allowed: {allowed}")
        return None
    value = node.scalar
    if isinstance(value, str) and (not value.strip() or _CONTROL.search(value)):
        reason = "empty text" if not value.strip() else "text with control characters"
        problems.add(node.place, node.path, f"got {reason} for {name!r}; leave the flag out (null) or write a value")
    if is_secret_name(name) and value is not None and not isinstance(value, bool):
        problems.add(node.place, node.path, f"a literal secret under {name!r} is refused; {how_to_hide(name)}")
        return None
    return value


def flag_value(name: str, node: Node, problems: Problems) -> Value | None:
    """A value of a flag in `fixed:` or `baseline:`; a list is joined with spaces. None after a problem."""
    if node.kind == "list" and node.items and all(item.kind == "scalar" for item in node.items):
        words = [str(choice(name, item, problems)) for item in node.items]
        return " ".join(words)
    value = choice(name, node, problems)
    if node.kind == "scalar" and node.scalar is None:
        problems.add(node.place, node.path, f"got nothing for {name!r}; write a value, or leave the key out")
    return value


def assignment(node: Node, problems: Problems) -> dict[str, Value]:
    """The plain flags of a mapping flag → value. Secrets are not allowed here."""
    found = {}
    for name, entry in _mapping(node, "flags and their values", problems).items():
        if check_flag(name, entry, problems):
            value = flag_value(name, entry, problems)
            if value is not None:
                found[name] = value
    return found


def assignment_with_secrets(node: Node, problems: Problems) -> tuple[dict[str, Value], dict[str, EnvRef]]:
    """Plain flags, and flags whose value is `{from_env: NAME}`."""
    hidden = {name: entry for name, entry in node.entries.items() if "from_env" in entry.entries}
    references = {}
    for name, entry in hidden.items():
        reference = env_reference(entry, problems)
        if check_flag(name, entry, problems) and reference is not None:
            references[name] = reference
    content = {name: entry for name, entry in node.entries.items() if name not in hidden}
    rest = Node(content if node.kind == "mapping" else node.content, node.place, node.path, node.text, node.key_place)
    return assignment(rest, problems), references


def environment(node: Node, problems: Problems) -> dict[str, str | EnvRef]:
    """`engine.env`: variable → text as written, or a reference to a variable of servetune's own environment."""
    found: dict[str, str | EnvRef] = {}
    for name, entry in _mapping(node, "variables and their values", problems).items():
        if not _VARIABLE.fullmatch(name):
            allowed = "letters, digits and '_', not beginning with a digit"
            problems.add(entry.key_place, entry.path, f"{name!r} is no name of a variable; allowed: {allowed}")
        elif entry.kind == "mapping":
            reference = env_reference(entry, problems)
            if reference is not None:
                found[name] = reference
        elif entry.kind == "list" or entry.scalar is None:
            allowed = "text, a number or {from_env: NAME}"
            problems.add(entry.place, entry.path, f"got {entry.shown()}; allowed: {allowed}")
        elif is_secret_name(name):
            text = f"a literal secret under {name!r} is refused; {how_to_hide('env.' + name)}"
            problems.add(entry.place, entry.path, text)
        elif "\0" in entry.text:
            problems.add(entry.place, entry.path, "a NUL character cannot stand in an environment variable")
        else:
            found[name] = entry.text
    return found


def env_reference(node: Node, problems: Problems) -> EnvRef | None:
    """`{from_env: NAME}`; None after a problem."""
    inner = node.entries.get("from_env")
    name = inner.scalar if inner else None
    if len(node.entries) != 1 or not isinstance(name, str) or not _VARIABLE.fullmatch(name):
        got = inner.shown() if inner and len(node.entries) == 1 else node.shown()
        allowed = "{from_env: NAME} with the name of an environment variable"
        problems.add(node.place, node.path, f"got {got}; allowed: {allowed}")
        return None
    return EnvRef(from_env=name)


def _mapping(node: Node, what: str, problems: Problems) -> Mapping[str, Node]:
    if node.kind != "mapping" and node.content is not None:
        problems.add(node.place, node.path, f"got {node.shown()}; allowed: a mapping of {what}")
    return node.entries
