"""Where a search space comes from: a name, a path, an inline mapping, or a mapping that adjusts a named one."""

from __future__ import annotations

from pathlib import Path

import servetune
from servetune.core.errors import SpecError
from servetune.core.space import SearchSpace
from servetune.settings._adjust import ADJUSTMENT_KEYS, adjusted
from servetune.settings._document import Node, read_document
from servetune.settings._problems import did_you_mean, one_of
from servetune.settings._sections import keys_of
from servetune.settings._space import SPACE_KEYS, Reading, space_of

FOLDER = "search_spaces"


def read_space(node: Node, base_dir: Path, reading: Reading, name: str = "inline", depth: int = 0) -> SearchSpace:
    """The space that a `search_space:` value describes. Problems go to `reading`; broken files raise SpecError."""
    if isinstance(node.scalar, str):
        return _from_file(node, node.scalar, base_dir, reading, depth)
    if node.kind != "mapping":
        allowed = "the name or path of a space file, or a mapping with parameters, or one with base"
        reading.problems.add(node.place, node.path or "search_space", f"got {node.shown()}; allowed: {allowed}")
        return SearchSpace(name=name)
    if "base" not in node.entries:
        return space_of(_short_form(node), name, reading)
    entries = keys_of(node, ["base"], ADJUSTMENT_KEYS, reading.problems)
    if entries["base"].kind != "scalar":
        text = f"got {entries['base'].shown()}; allowed: the name or path of a space file"
        reading.problems.add(entries["base"].place, entries["base"].path, text)
        return SearchSpace(name=name)
    base = read_space(entries["base"], base_dir, reading, name, depth)
    return adjusted(base, node, reading)


def folders(base_dir: Path) -> list[Path]:
    """Where a named space is looked up, in this order."""
    package = Path(servetune.__file__).parent
    shipped = [package / "_shipped" / FOLDER, package.parents[1] / FOLDER]
    return [base_dir, base_dir.parent / FOLDER, Path(FOLDER), *shipped]


def _short_form(node: Node) -> Node:
    """A mapping name → domain stands for `{parameters: …}` with these."""
    if not node.entries or any(key in SPACE_KEYS for key in node.entries):
        return node
    return Node({"parameters": node}, node.place, node.path, key_place=node.key_place)


def _from_file(node: Node, name: str, base_dir: Path, reading: Reading, depth: int) -> SearchSpace:
    path = find_space(name, base_dir)
    if path is None:
        known = sorted({file.stem for folder in folders(base_dir)[1:] for file in folder.glob("*.yaml")})
        text = f"there is no search space {name!r}; allowed: {one_of(known)}, or a path{did_you_mean(name, known)}"
        reading.problems.add(node.place, node.path, text)
        return SearchSpace(name=name)
    if depth >= 8:
        raise SpecError(f"{node.place}: {node.path}: spaces build on one another in a circle at {name!r}")
    root = read_document(path)
    if "study" in root.entries or "engine" in root.entries:
        reading.problems.add(node.place, node.path, f"{path} is a study file; name a search space file")
        return SearchSpace(name=path.stem)
    return read_space(root, path.parent, reading, path.stem, depth + 1)


def find_space(name: str, base_dir: Path) -> Path | None:
    """The file of a named space; None when there is none."""
    if "/" in name or name.endswith((".yaml", ".yml")):
        places = [base_dir / Path(name).expanduser(), Path(name).expanduser()]
    else:
        places = [folder / f"{name}.yaml" for folder in folders(base_dir)]
    return next((path for path in places if path.is_file()), None)
