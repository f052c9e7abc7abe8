"""Asks SGLang's own parser and checks about launch arguments, many times in one warm process, without weights.

Runs with the engine's Python, on the node: the standard library, torch and sglang, nothing of servetune. It is sent
there as text, with `_presented_gpus`. Lines of JSON on standard input and output; the first line of each, then pairs:

    in    {"gpus": {"count": 8, "capability": "12.0", "memory_mib": 97887, …} or null, "path": [folder, …]}
    out   {"ready": true, "version": "0.5.9", "seconds": 8.1} or {"ready": false, "error": "…"}
    in    {"argv": ["--tp-size", "8", …], "env": {"NAME": "value"}}
    out   {"ok": false, "decided": true, "stage": "resolve", "error": "ValueError", "message": "…", "where": "…", …}

`stage` of a refusal: `parse` (argparse), `resolve` (defaults and overrides), `check` (`check_server_args`), `crash`
(the process died). `message` is the exact text, `where` the innermost frame; `decided` is false where something else
than the engine's checks went wrong (a file, a network, a package): then nothing is said about the arguments.
`resolved` is what SGLang makes of them. Each question is answered in a fork of the warm process, so that none sees what
another left behind.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import json
import logging
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

MESSAGE_CHARACTERS = 2000
WARNINGS_KEPT = 40
ANSWER_S = 120.0
#: Modules of these packages that a question imported are imported in the warm process before the next one.
WARM_PACKAGES = ("sglang", "transformers", "torch", "flashinfer", "sgl_kernel")
#: What the engine's checks raise. Anything else is trouble of the machine, not a judgement on arguments.
JUDGEMENTS = (AssertionError, ValueError, NotImplementedError, RuntimeError, TypeError, LookupError, ArithmeticError)


def prepare(options: Mapping[str, Any]) -> None:
    """Present the GPUs and import SGLang, once. Raises whatever its import raises."""
    for folder in reversed(options.get("path") or ()):
        sys.path.insert(0, folder)
    gpus = options.get("gpus")
    if gpus is not None:
        major, _, minor = str(gpus["capability"]).partition(".")
        presented = importlib.import_module("_presented_gpus")
        presented.PresentedGpus(
            count=gpus["count"],
            capability=(int(major), int(minor or 0)),
            memory_mib=gpus["memory_mib"],
            cuda=gpus.get("cuda"),
            packages=presented.GPU_PACKAGES if gpus.get("packages") is None else tuple(gpus["packages"]),
            model=gpus.get("model"),
        ).install()
    _tolerate_registered_configs()
    _remember_struct_fields()
    importlib.import_module("sglang.srt.server_args")
    with contextlib.suppress(ImportError):  # from 0.5.19 on resolution is a module of its own
        importlib.import_module("sglang.srt.arg_groups.pipeline")
    os.environ |= {"COLUMNS": "120", "LINES": "40"}  # else argparse asks for the terminal's size at each of 500 flags
    sys.argv = ["launch_server.py"]  # argparse names the program in its messages
    gc.freeze()  # a fork that collects garbage would copy every page


def _tolerate_registered_configs() -> None:
    """An older release registers model configs that the installed transformers has taken over meanwhile."""
    known = importlib.import_module("transformers").AutoConfig
    real = known.register

    def register(model_type: str, config: Any, exist_ok: bool = False) -> None:
        real(model_type, config, exist_ok=True)

    known.register = staticmethod(register)


def _remember_struct_fields() -> None:
    """From 0.5.20 on arguments are a struct of 500 annotated fields, worked out eight times for each verdict."""
    with contextlib.suppress(ImportError):
        structs: Any = importlib.import_module("msgspec.structs")
        of_type = functools.lru_cache(maxsize=256)(structs.fields)
        structs.fields = lambda struct: of_type(struct if isinstance(struct, type) else type(struct))


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage()[:MESSAGE_CHARACTERS])


class _Question:
    """One list of arguments on its way through the engine's checks; `stage` is where it is."""

    def __init__(self, argv: Sequence[str], keys: Sequence[str] | None) -> None:
        self._argv, self._keys = list(argv), keys
        self._warnings, self._errors = _Warnings(), io.StringIO()
        self.stage = "resolve"  # an exception while arguments are constructed; argparse itself ends with SystemExit
        self.resolved: Mapping[str, Any] = {}

    def ask(self) -> None:
        """Goes through to the end, or raises what the engine raises."""
        logging.getLogger().handlers[:] = [self._warnings]
        with contextlib.redirect_stderr(self._errors), contextlib.redirect_stdout(io.StringIO()):
            server_args = importlib.import_module("sglang.srt.server_args").prepare_server_args(self._argv)
            if hasattr(server_args, "resolve_once"):  # up to 0.5.18 construction resolves
                server_args.resolve_once()
            self.stage = "check"
            server_args.check_server_args()
            as_dict = getattr(server_args, "resolved_dict", lambda: vars(server_args))
            self.resolved = dict(as_dict())
        self.stage = "done"

    def answer(self, error: BaseException | None) -> dict[str, Any]:
        """The verdict, given how `ask` ended."""
        resolved = self.resolved
        if self._keys is not None and resolved:
            resolved = {key: resolved.get(key) for key in self._keys}
        return {
            "ok": error is None,
            **self._refusal(error),
            "warnings": self._warnings.texts[:WARNINGS_KEPT],
            "resolved": resolved,
        }

    def _refusal(self, error: BaseException | None) -> dict[str, Any]:
        if error is None:
            return {"decided": True, "stage": None, "error": None, "message": None, "where": None}
        kind = type(error).__name__
        if isinstance(error, SystemExit):
            text = self._errors.getvalue().strip()
            message = text.splitlines()[-1] if text else ""
            return {"decided": bool(text), "stage": "parse", "error": kind, "message": message, "where": None}
        frame = traceback.extract_tb(error.__traceback__)[-1]
        file = frame.filename.rpartition("/sglang/")
        return {
            "decided": isinstance(error, JUDGEMENTS) and bool(file[1]),
            "stage": self.stage,
            "error": kind,
            "message": str(error)[:MESSAGE_CHARACTERS],
            "where": f"{file[2]}:{frame.lineno} {frame.name}",
        }


def in_fork(argv: Sequence[str], env: Mapping[str, str], keys: Sequence[str] | None = None) -> dict[str, Any]:
    """The verdict, from a child process; imports afterwards what the child had to import."""
    begin_s = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer_and_end(argv, env, keys, writing)
    os.close(writing)
    text = _read_all(reading, child)
    _, status = os.waitpid(child, 0)
    if not text:
        died = f"the process died: {os.waitstatus_to_exitcode(status)}"
        return {"ok": False, "decided": False, "stage": "crash", "error": None, "message": died, "where": None}
    verdict: dict[str, Any] = json.loads(text)
    verdict["ms"] = round(1000 * (time.monotonic() - begin_s), 1)
    _warm(verdict.pop("imported"))
    if verdict["ok"]:
        _read_model(argv)
    return verdict


def _answer_and_end(argv: Sequence[str], env: Mapping[str, str], keys: Sequence[str] | None, writing: int) -> None:
    """In the child: whatever the engine raises is its answer, and nothing of the parent's work is carried on."""
    question = _Question(argv, keys)
    known = set(sys.modules)
    try:
        gc.disable()
        os.environ.update(env)
        question.ask()
    finally:
        verdict = question.answer(sys.exc_info()[1])
        verdict["imported"] = sorted(set(sys.modules) - known)
        with os.fdopen(writing, "w", encoding="utf-8") as answer:
            json.dump(verdict, answer, default=repr)
        os._exit(0)


def _read_all(reading: int, child: int) -> str:
    """What the child writes until it ends; it is killed when it does not answer in time."""
    chunks: list[bytes] = []
    until_s = time.monotonic() + ANSWER_S
    with os.fdopen(reading, "rb") as answer:
        while True:
            ready, _, _ = select.select([answer], [], [], max(0.0, until_s - time.monotonic()))
            chunk = os.read(answer.fileno(), 1 << 16) if ready else None
            if chunk is None:
                os.kill(child, signal.SIGKILL)
                return ""
            if not chunk:
                return b"".join(chunks).decode("utf-8", "replace")
            chunks.append(chunk)


_read: set[str] = set()


def _read_model(argv: Sequence[str]) -> None:
    """Lets the engine read a model's config once in the warm process, where it keeps it: it takes most of a verdict.

    Only what has gone well in a fork is done here.
    """
    words = ["--trust-remote-code"] if "--trust-remote-code" in argv else []
    for flag in ("--model-path", "--model", "--revision"):
        words += [flag, argv[argv.index(flag) + 1]] if flag in argv[:-1] else []
    key = json.dumps(words)
    if key in _read or not words:
        return
    _read.add(key)
    environ, handlers = dict(os.environ), logging.getLogger().handlers[:]
    with contextlib.suppress(Exception, SystemExit):  # whatever is wrong will be said in the fork
        _Question(words, None).ask()
    logging.getLogger().handlers[:] = handlers
    os.environ.clear()
    os.environ.update(environ)
    gc.freeze()


def _warm(modules: Sequence[str]) -> None:
    fresh = [name for name in modules if name.partition(".")[0] in WARM_PACKAGES]
    for name in fresh:
        with contextlib.suppress(Exception):  # optional for SGLang, so for us
            importlib.import_module(name)
    if fresh:
        gc.freeze()


def version() -> str:
    """Of the SGLang that answers."""
    return str(importlib.import_module("sglang.version").__version__)


def _ready(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    begin_s, error = time.monotonic(), "its import ended the process"
    ready = False
    try:
        prepare(options)
        ready = True
    finally:
        raised = sys.exc_info()[1]
        if not ready:
            yield {"ready": False, "error": error if raised is None else f"{type(raised).__name__}: {raised}"[:500]}
    yield {"ready": True, "version": version(), "seconds": round(time.monotonic() - begin_s, 1)}


def main(heard: Iterator[bytes]) -> None:
    """Answer every line heard. What the engine prints goes to standard error, never between the answers."""
    answers: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for told in _ready(json.loads(next(heard))):
        print(json.dumps(told), file=answers, flush=True)
    for line in heard:
        asked = json.loads(line)
        print(json.dumps(in_fork(asked["argv"], asked.get("env") or {})), file=answers, flush=True)
