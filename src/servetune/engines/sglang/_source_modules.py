"""Python modules read as text: what a name in them stands for, without importing anything.

Standard library only: the file also runs with the Python of a node (`installation.py` sends it there).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Unreadable(Exception):
    """An expression whose value cannot be known without running it."""


class Module:
    """One parsed module: its assignments, imports, functions and classes by name."""

    def __init__(self, sources: Sources, body: list[ast.stmt]) -> None:
        self.sources = sources
        self.assigned: dict[str, ast.expr] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        for statement in _flat(body):
            self.note(statement)

    def note(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.ClassDef):
            self.classes[statement.name] = statement
        elif isinstance(statement, ast.FunctionDef):
            self.functions[statement.name] = statement
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            for alias in statement.names:
                self.imported[alias.asname or alias.name] = (statement.module, alias.name)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            self.assigned[statement.targets[0].id] = statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            self.assigned[statement.target.id] = statement.value

    def value(self, node: ast.expr, local: Mapping[str, ast.expr] = {}) -> Any:
        """The value of a constant expression. Raises Unreadable."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return [value for item in node.elts for value in self.items(item, local)]
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0:
            return self.value(node.value, local)[0]
        if isinstance(node, ast.Dict):
            return [self.value(key, local) for key in node.keys if key is not None]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand, local)
        if isinstance(node, ast.BinOp):
            return self.binary(node, local)
        if isinstance(node, ast.Call):
            return self.call(node, local)
        if isinstance(node, ast.Name):
            return self.named(node.id, local)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self.member(node.value.id, node.attr)
        raise Unreadable(ast.dump(node)[:80])

    def items(self, node: ast.expr, local: Mapping[str, ast.expr]) -> list[Any]:
        """Elements that one element of a list display gives: several when it is starred."""
        return list(self.value(node.value, local)) if isinstance(node, ast.Starred) else [self.value(node, local)]

    def binary(self, node: ast.BinOp, local: Mapping[str, ast.expr]) -> Any:
        left, right = self.value(node.left, local), self.value(node.right, local)
        if isinstance(node.op, ast.Add | ast.BitOr) and type(left) is type(right):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, int | float) and isinstance(right, int | float):
            return left * right
        raise Unreadable("operator")

    def call(self, node: ast.Call, local: Mapping[str, ast.expr]) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id in ("list", "tuple", "set", "sorted", "frozenset"):
            return self.value(node.args[0], local) if node.args else []
        if isinstance(node.func, ast.Name) and node.func.id in self.functions and not node.args:
            return self.returned(self.functions[node.func.id])
        if isinstance(node.func, ast.Name) and node.func.id == "get_args":
            return self.value(node.args[0], local)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "keys":
            return self.value(node.func.value, local)
        raise Unreadable("call")

    def returned(self, function: ast.FunctionDef) -> Any:
        """What a function without arguments returns at its end; it may import the list that it hands out."""
        *before, last = function.body
        for statement in (inner for inner in before if isinstance(inner, ast.ImportFrom)):
            self.note(statement)
        if isinstance(last, ast.Return) and last.value is not None:
            return self.value(last.value)
        raise Unreadable(function.name)

    def named(self, name: str, local: Mapping[str, ast.expr]) -> Any:
        if name in local:
            return self.value(local[name], {key: value for key, value in local.items() if key != name})
        if name in self.assigned:
            node = self.assigned[name]
            inner = node.slice if isinstance(node, ast.Subscript) and last_word(node.value) == "Literal" else node
            return self.value(inner)
        if name in self.imported:
            module, original = self.imported[name]
            return self.sources.module(module).named(original, {})
        raise Unreadable(name)

    def member(self, owner: str, attribute: str) -> Any:
        if owner in self.imported:
            module, original = self.imported[owner]
            return self.sources.module(module).member(original, attribute)
        inside = dict(_assigned_in(self.classes[owner])) if owner in self.classes else {}
        node = inside.pop(attribute, None)
        if node is None:
            raise Unreadable(f"{owner}.{attribute}")
        return self.value(node, inside)


class Sources:
    """Modules below a directory, parsed once each when first needed."""

    def __init__(self, site_dir: Path) -> None:
        self.site_dir = site_dir
        self.known: dict[str, Module] = {}

    def module(self, name: str) -> Module:
        if name not in self.known:
            base = self.site_dir.joinpath(*name.split("."))
            path = next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)
            if path is None and name == "sglang.srt.server_args":
                raise FileNotFoundError(f"{base}.py: there is no SGLang in {self.site_dir}")
            body = ast.parse(path.read_text(encoding="utf-8")).body if path else []
            self.known[name] = Module(self, body)
        return self.known[name]


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _flat(statement.body)


def _assigned_in(owner: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for statement in owner.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            yield statement.target.id, statement.value


def last_word(node: ast.expr) -> str:  # the last word of a dotted name
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
