"""The `load_generator:` of a study: its files lie beside the study file, and it must be possible to make it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servetune import plugins
from servetune.core.errors import SpecError
from servetune.core.study import NamedChoice
from servetune.settings._document import Node
from servetune.settings._problems import Problems

#: Keys whose values are files, at any depth of the settings.
FILES = ("trace", "tasks")


def placed(choice: NamedChoice, base_dir: Path) -> NamedChoice:
    """The choice with relative files as absolute paths, by the study file's folder."""
    return choice.model_copy(update={"settings": _placed(choice.settings, base_dir)})


def _placed(settings: Mapping[str, Any], base_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found[key] = _placed(value, base_dir)
        elif key in FILES and isinstance(value, str):
            found[key] = str((base_dir / Path(value).expanduser()).resolve())
        else:
            found[key] = value
    return found


def check_possible(choice: NamedChoice, node: Node, problems: Problems) -> None:
    """Make it once: a trace or task file that cannot be used is known before anything is stored."""
    if problems.found:
        return  # its settings may be what is wrong
    module = plugins.load("benchmarks", choice.name)
    try:
        module.create(module.Settings.model_validate(dict(choice.settings)))
    except SpecError as error:
        problems.add(node.place, node.path, str(error))
