"""SGLang's launch flags read out of its source, without importing it (nor torch).

Standard library only: with `_source_modules` the file also runs with the Python of a node (`installation.py` sends
them there).

Two shapes of source are understood: `ServerArgs.add_cli_args` with `parser.add_argument` calls (up to 0.5.13, and for
deprecated spellings later), and fields annotated `A[type, Arg(...)]` in `server_args.py` (0.5.14) or in
`arg_groups/fields/*.py` (0.5.20 on), for which `arg_groups/arg_utils.add_cli_args_from_dataclass` is followed.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from servetune.engines.sglang._source_modules import Module, Sources, Unreadable, last_word

#: Of one flag, as JSON: name, kind, and where present aliases, choices, default, nargs, deprecated, instead.
Flag = dict[str, Any]

_TYPES = {"int": "int", "float": "float", "str": "str", "bool": "switch"}
_JSON_PARSERS = ("loads", "json_list_type", "parse_cuda_graph_config_arg")
_ENVIRONMENT = re.compile(r"\b(?:SGLANG|SGL)_[A-Z0-9_]*[A-Z0-9]\b")
_VERSION = re.compile(r"""^\s*(?:__version__\s*=\s*)?(?:version\s*=\s*)*["'](\d[^"']*)["']""", re.MULTILINE)


def read_flags(site_dir: Path) -> dict[str, Flag]:
    """Flag name → description for the SGLang in `site_dir`. Raises FileNotFoundError or SyntaxError."""
    tree = Sources(site_dir)
    server_args = tree.module("sglang.srt.server_args")
    owner = server_args.classes["ServerArgs"]
    fields = dict(_annotated(owner, server_args))
    for name in _field_modules(site_dir):
        module = tree.module(name)
        for definition in module.classes.values():
            fields.update(_annotated(definition, module))
    found = [_from_field(field, node, module) for field, (node, module) in fields.items()]
    found += _from_calls(owner, server_args, fields)
    return {flag["name"]: flag for flag in found if flag is not None}


def read_environment(site_dir: Path) -> list[str]:
    """Every name of an environment variable of SGLang's own that its server code mentions, sorted."""
    paths = (site_dir / "sglang" / "srt").rglob("*.py")
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in paths)
    return sorted({name for text in texts for name in _ENVIRONMENT.findall(text)})


def read_version(site_dir: Path) -> str:
    """The installed version, from its version file or its metadata; empty when there is neither."""
    for name in ("_version.py", "version.py"):
        path = site_dir / "sglang" / name
        if path.is_file() and (match := _VERSION.search(path.read_text(encoding="utf-8"))):
            return match.group(1)
    metadata = sorted(site_dir.glob("sglang-*.dist-info"))
    return metadata[0].name.removesuffix(".dist-info").removeprefix("sglang-") if metadata else ""


def content_hash(site_dir: Path) -> str:
    """Hex digest of the files that declare flags: the key of a cache beside the version."""
    srt = site_dir / "sglang" / "srt"
    paths = [srt / "server_args.py", *sorted((srt / "arg_groups").rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def _field_modules(site_dir: Path) -> list[str]:
    folder = site_dir / "sglang" / "srt" / "arg_groups" / "fields"
    return [f"sglang.srt.arg_groups.fields.{path.stem}" for path in sorted(folder.glob("*.py"))]


def _annotated(owner: ast.ClassDef, module: Module) -> Iterator[tuple[str, tuple[ast.AnnAssign, Module]]]:
    for statement in owner.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, (statement, module)


def _from_field(field: str, node: ast.AnnAssign, module: Module) -> Flag | None:
    """A field `name: A[type, "help"]` or `A[type, Arg(...)]`; None when it is no flag."""
    annotation = node.annotation
    if not (isinstance(annotation, ast.Subscript) and last_word(annotation.value) in ("A", "Annotated")):
        return None
    if not isinstance(annotation.slice, ast.Tuple):
        return None
    kind, *notes = annotation.slice.elts
    call = next((n for n in notes if isinstance(n, ast.Call) and last_word(n.func) == "Arg"), None)
    if call is None and not any(_is_text(n) for n in notes):
        return None
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg} if call else {}
    if _known(module, given.get("no_cli")):
        return None
    name = str(_known(module, given.get("cli_name")) or field.replace("_", "-")).lstrip("-")
    aliases = [str(alias).lstrip("-") for alias in _known(module, given.get("aliases")) or []]
    flag = _named_flag([name, *aliases], {field.replace("_", "-")})
    flag.update(_kind_of_field(kind, given, module))
    _put_default(flag, node.value, module)
    return flag


def _kind_of_field(node: ast.expr, given: Mapping[str, ast.expr], module: Module) -> Flag:
    inner = _without_optional(node)
    if "action" in given:
        kwargs = given.get("action_kwargs")
        extra = dict(zip(_known(module, kwargs) or [], getattr(kwargs, "values", []), strict=False))
        return _described({**extra, **given}, module, {})
    found: Flag = {}
    if isinstance(inner, ast.Subscript) and last_word(inner.value) == "Literal":
        _put_choices(found, inner.slice, module, {})
        inner = ast.Name(id=type(found.get("choices", [""])[0]).__name__)
    elif isinstance(inner, ast.Name) and inner.id in {*module.assigned, *module.imported}:
        literal = _known(module, inner)  # `Mode = Literal[...]`
        if isinstance(literal, list) and literal:
            found["choices"] = literal
            inner = ast.Name(id=type(literal[0]).__name__)
    if isinstance(inner, ast.Subscript) and last_word(inner.value) in ("list", "List") and "type_parser" not in given:
        found["nargs"] = _known(module, given.get("nargs")) or "+"
        inner = inner.slice
    elif "nargs" in given:
        found["nargs"] = _known(module, given["nargs"])
    found["kind"] = (
        _parser_kind(given["type_parser"]) if "type_parser" in given else _TYPES.get(last_word(inner), "str")
    )
    if "choices" in given:
        _put_choices(found, given["choices"], module, {})
    return found


def _without_optional(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Subscript) and last_word(node.value) == "Optional":
        return node.slice
    if isinstance(node, ast.Subscript) and last_word(node.value) == "Union" and isinstance(node.slice, ast.Tuple):
        rest = [item for item in node.slice.elts if not _is_none(item)]
        return rest[0] if len(rest) == 1 else node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and _is_none(node.right):
        return node.left
    return node.right if isinstance(node, ast.BinOp) and _is_none(node.left) else node


def _from_calls(
    owner: ast.ClassDef, module: Module, fields: Mapping[str, tuple[ast.AnnAssign, Module]]
) -> Iterator[Flag]:
    """Flags of the `add_argument` calls in `ServerArgs.add_cli_args`."""
    names = {field.replace("_", "-") for field in fields}
    for function in owner.body:
        if not (isinstance(function, ast.FunctionDef) and function.name == "add_cli_args"):
            continue
        local = {
            statement.targets[0].id: statement.value
            for statement in ast.walk(function)
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        }
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and last_word(call.func) == "add_argument":
                options = [module.value(argument) for argument in call.args]
                given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
                flag = _named_flag([str(option).lstrip("-") for option in options], names)
                flag.update(_described(given, module, local))
                _put_default(flag, _field_default(given.get("default"), fields), module)
                yield flag


def _described(given: Mapping[str, ast.expr], module: Module, local: Mapping[str, ast.expr]) -> Flag:
    """Kind, choices, arity and deprecation from the arguments of an `add_argument` call."""
    found: Flag = {"kind": "str"}
    action = given.get("action")
    word = last_word(action) if isinstance(action, ast.Attribute | ast.Name) else _known(module, action)
    if "type" in given:
        found["kind"] = _parser_kind(given["type"])
    if "choices" in given:
        _put_choices(found, given["choices"], module, local)
    if nargs := _known(module, given.get("nargs")):
        found["nargs"] = nargs
    if word in ("store_true", "DeprecatedStoreTrueAction"):
        found["kind"] = "switch"
    elif word == "DeprecatedStoreConstAction":
        found["kind"] = "str" if "choices" in given else "switch"
    elif word == "BooleanOptionalAction":
        found["kind"] = "on_off"
    elif word == "DeprecatedAction":
        found["kind"] = "removed" if "error_message" in given else "ignored"
    if isinstance(word, str) and word.startswith("Deprecated"):
        found["deprecated"] = True
        instead = _known(module, given.get("new_flag")) or _known(module, given.get("error_message"))
        if instead:
            found["instead"] = instead
    return found


def _named_flag(options: list[str], fields: set[str]) -> Flag:
    """Canonical name: the option that is spelled like its field, else the first."""
    name = next((option for option in options if option in fields), options[0])
    aliases = [option for option in options if option != name]
    return {"name": name, **({"aliases": aliases} if aliases else {})}


def _parser_kind(node: ast.expr) -> str:
    word = last_word(node)
    if word in _JSON_PARSERS:
        return "json"
    return "human_int" if word == "human_readable_int" else _TYPES.get(word, "str")


def _put_choices(flag: Flag, node: ast.expr, module: Module, local: Mapping[str, ast.expr]) -> None:
    try:
        flag["choices"] = _as_list(module.value(node, local))
    except Unreadable:
        flag.pop("choices", None)  # known only at run time: any value is let through


def _put_default(flag: Flag, node: ast.expr | None, module: Module) -> None:
    default = _known(module, node)
    if flag.get("kind") in ("ignored", "removed") or (flag.get("kind") == "switch" and default is False):
        return
    if isinstance(default, bool | int | float | str):
        flag["default"] = default


def _field_default(node: ast.expr | None, fields: Mapping[str, tuple[ast.AnnAssign, Module]]) -> ast.expr | None:
    """`ServerArgs.x` and `_declared_default("x")` mean the default of the field x."""
    field = ""
    if isinstance(node, ast.Attribute) and last_word(node.value) == "ServerArgs":
        field = node.attr
    elif isinstance(node, ast.Call) and last_word(node.func) == "_declared_default" and node.args:
        field = str(getattr(node.args[0], "value", ""))
    return fields[field][0].value if field in fields else node


def _known(module: Module, node: ast.expr | None) -> Any:
    """The value, or None when it is absent or cannot be known."""
    try:
        return None if node is None else module.value(node)
    except Unreadable:
        return None


def _as_list(value: Any) -> list[Any]:
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, bool | int | float | str) for item in items):
        raise Unreadable("choices")
    return items


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.expr) -> bool:
    """A help text: a string, an f-string, or strings put together."""
    if isinstance(node, ast.BinOp):
        return _is_text(node.left)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
