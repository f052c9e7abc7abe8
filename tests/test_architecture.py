"""The direction of imports, the fences around libraries, and the sizes that keep a module readable."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "servetune"
MODULES = sorted(SRC.rglob("*.py"))

#: Top-level part → the other parts it may import.
ALLOWED = {
    "core": set(),
    "plugins": {"core"},
    "simulation": {"core"},
    "search": {"core"},
    "engines": {"core"},
    "nodes": {"core"},
    "benchmarks": {"core"},
    "exports": {"core"},
    "storage": {"core"},
    "settings": {"core", "plugins"},
    "console": {"core"},
    "tuner": {"core", "plugins", "storage", "search"},
    "report": {"core", "tuner", "search"},
}
#: The simulated and the virtual node, and the load generator that answers from the model, are made of the simulation.
OF_THE_SIMULATION = {"nodes/simulated.py", "nodes/_rehearsal.py", "nodes/virtual.py", "benchmarks/scenario.py"}
#: Folders of choices: one choice never imports another.
CHOICES = ("engines", "nodes", "benchmarks", "exports", "search/samplers", "search/pruners")
#: nodes/simulated.py starts its server as the local node does.
BUILT_ON = {("nodes/simulated.py", "local")}

#: Library → where it may be imported.
FENCES = {
    "optuna": ("search/", "storage/", "tuner/loop.py"),
    "paramiko": ("nodes/ssh.py", "nodes/_ssh"),
    "httpx": ("benchmarks/", "tuner/trial_runner.py", "tuner/probe.py"),
    "aiohttp": ("benchmarks/", "simulation/"),
    "sqlalchemy": ("storage/",),
    "alembic": ("storage/",),
    "rich": ("console.py", "cli/"),
    "click": ("cli/",),
    "subprocess": ("nodes/local.py", "benchmarks/sglang_bench.py"),  # the latter is a program of SGLang's
    "pickle": (),
}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part(module: str) -> str:
    words = module.split(".")
    return words[1] if len(words) > 1 else ""


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_downwards(path: Path) -> None:
    own = name_of(path).split("/")[0].removesuffix(".py")
    if own in ("cli", "__main__", "__init__"):
        return
    known = set(ALLOWED) | {"cli"}
    used = {part(module) for module in imports(path) if module.startswith("servetune.")} & known
    allowed = ALLOWED[own] | {own} | ({"simulation"} if name_of(path) in OF_THE_SIMULATION else set())
    assert used <= allowed, f"{name_of(path)} imports {sorted(used - allowed)}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_choices_never_import_one_another(path: Path) -> None:
    for folder in CHOICES:
        if not name_of(path).startswith(f"{folder}/"):
            continue
        own = name_of(path).removeprefix(f"{folder}/").split("/")[0].removesuffix(".py")
        prefix = f"servetune.{folder.replace('/', '.')}."
        others = {m.removeprefix(prefix).split(".")[0] for m in imports(path) if m.startswith(prefix)}
        others = {other for other in others if not other.startswith("_") and other != own}
        others -= {other for module, other in BUILT_ON if module == name_of(path)}
        if own.startswith("_") or own == "__init__":
            others -= {other for other in others if other == own}
        assert not others, f"{name_of(path)} imports {sorted(others)}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_libraries_stay_behind_their_fences(path: Path) -> None:
    for module in imports(path):
        places = FENCES.get(module.split(".")[0])
        if places is not None:
            assert name_of(path).startswith(places), f"{name_of(path)} imports {module}; only {places} may"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_and_functions_stay_readable(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400, f"{name_of(path)} is longer than 400 lines"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 60, f"{name_of(path)}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_handler_catches_everything(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ExceptHandler):
            caught = getattr(node.type, "id", None)
            broad = node.type is None or caught in ("Exception", "BaseException")
            tidies_up = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            assert not broad or tidies_up, f"{name_of(path)}:{node.lineno} catches everything and goes on"
