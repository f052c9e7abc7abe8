"""Study files and search-space files: YAML → StudySpec and SearchSpace.

Every error is one SpecError that names file, line, column, key path, the value got and the values allowed; when a
file has several problems, up to five are listed. Nothing is written or started while reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from servetune.core.space import Choice, SearchSpace
from servetune.core.study import StudySpec
from servetune.settings._document import node_of, overlaid, read_document
from servetune.settings._facts import check_version, load_commands, load_model_config, load_node_facts, read_commands
from servetune.settings._places import placed
from servetune.settings._problems import Problems
from servetune.settings._space import Reading
from servetune.settings._spaces import read_space
from servetune.settings._study import plain_overrides, study_of
from servetune.settings._values import is_secret_name

__all__ = [
    "check_version",
    "is_secret_name",
    "load_commands",
    "load_model_config",
    "load_node_facts",
    "load_space",
    "load_study",
    "placed",
    "read_commands",
]

_NOTHING: Mapping[str, object] = {}


def load_study(path: Path, overrides: Mapping[str, object] = _NOTHING) -> StudySpec:
    """The study in the YAML file `path`, with its search space loaded, narrowed and fixed.

    `overrides` are laid over the file before it is checked: nested mappings, or dotted keys such as
    `{"budget.trials": 5}`; messages about them name the command line as their place. Relative paths in the file and
    named spaces are looked up from its folder. Raises SpecError.
    """
    root = read_document(path)
    if overrides:
        root = overlaid(root, node_of(plain_overrides(overrides), "command line"))
    return study_of(root, path.resolve())


def load_space(
    name_or_mapping: str | Mapping[str, object], base_dir: Path, fixed: Mapping[str, Choice] = {}
) -> SearchSpace:
    """A search space by name, path or mapping, as under `search_space:` in a study file in the folder `base_dir`.

    `fixed`: flags that the study fixes; parameters that need one of them are left out without it. Raises SpecError.
    """
    problems = Problems("the search space")
    node = node_of(name_or_mapping, "search_space")
    space = read_space(node, base_dir, Reading(fixed, problems))
    problems.raise_if_any()
    return space
