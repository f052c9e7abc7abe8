"""Ask SGLang's own parser and checks about launch arguments, on a machine without a GPU.

Reads one JSON list of arguments (as after `sglang.launch_server`) per line, answers one JSON verdict per line:

    {"ok": true, "stage": null, "error": null, "message": null, "where": null, "warnings": [...],
     "resolved": {"attention_backend": "flashinfer", ...}, "ms": 41}

`stage` of a refusal: `parse` (argparse), `resolve` (defaults and overrides), `check` (`check_server_args`), `crash`
(the process died). `message` is the exact text, `where` the innermost frame. `resolved`: what SGLang makes of them.
Each candidate runs in a fork of one warm process, so none sees what another left behind.

Run with the Python of the SGLang environment (`tools/sglang_cpu`); `--release` puts another release in front of the
installed one (`tools/sglang_oracle/install.sh`). `--model-path` among the arguments needs a folder with a config.json.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from presented_gpu import GPU_PACKAGES, PresentedGpus

MESSAGE_CHARACTERS = 2000
WARNINGS_KEPT = 40
#: Modules of these packages that a candidate imported are imported in the warm process before the next one.
WARM_PACKAGES = ("sglang", "transformers", "torch", "flashinfer", "sgl_kernel")


def options(argv: Sequence[str]) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--compute-capability", default="9.0", help="of each presented GPU, such as 12.0")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--memory-mib", type=int, default=81559, help="of each GPU, as nvidia-smi says it")
    parser.add_argument("--cuda", default="13.0")
    parser.add_argument("--release", metavar="DIRECTORY", help="a release to use instead of the installed one")
    parser.add_argument("--keys", help="comma-separated resolved arguments to answer; default all")
    parser.add_argument("--absent", default="", help="comma-separated packages that are not to look importable")
    parser.add_argument("--real-gpus", action="store_true", help="present nothing: ask about the GPUs of this machine")
    return parser.parse_args(argv)


def prepare(chosen: argparse.Namespace) -> None:
    """Present the GPUs and import SGLang, once."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    if chosen.release:
        release = Path(chosen.release).expanduser().resolve()
        if not (release / "sglang" / "srt").is_dir():
            sys.exit(f"--release {release}: no sglang/srt in there; tools/sglang_oracle/install.sh makes such folders")
        sys.path.insert(0, str(release))
    if not chosen.real_gpus:
        major, _, minor = chosen.compute_capability.partition(".")
        absent = chosen.absent.split(",")
        PresentedGpus(
            count=chosen.gpus,
            capability=(int(major), int(minor)),
            memory_mib=chosen.memory_mib,
            cuda=chosen.cuda,
            packages=tuple(package for package in GPU_PACKAGES if package not in absent),
        ).install()
    _tolerate_registered_configs()
    importlib.import_module("sglang.srt.server_args")
    with contextlib.suppress(ImportError):  # from 0.5.19 on resolution is a module of its own
        importlib.import_module("sglang.srt.arg_groups.pipeline")


def _tolerate_registered_configs() -> None:
    """An older release registers model configs that the installed transformers has taken over meanwhile."""
    from transformers import AutoConfig

    real = AutoConfig.register

    def register(model_type: str, config: Any, exist_ok: bool = False) -> None:
        real(model_type, config, exist_ok=True)

    AutoConfig.register = staticmethod(register)  # type: ignore[method-assign]


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage()[:MESSAGE_CHARACTERS])


def judge(argv: Sequence[str], keys: Sequence[str] | None) -> dict[str, Any]:
    """The verdict on one list of arguments. Changes the process (environment, caches): call it in a fork."""
    warnings, errors = _Warnings(), io.StringIO()
    logging.getLogger().handlers[:] = [warnings]
    verdict = dict.fromkeys(("stage", "error", "message", "where"))
    resolved: dict[str, Any] = {}
    stages = _stages(argv)
    stage = "resolve"  # an exception while arguments are constructed; argparse itself ends with SystemExit
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            for stage, server_args in stages:
                resolved = _resolved(server_args) if stage == "done" else {}
    except SystemExit:
        text = errors.getvalue().strip()
        verdict |= {"stage": "parse", "error": "SystemExit", "message": text.splitlines()[-1] if text else ""}
    except BaseException as error:  # whatever the engine raises is its answer
        frame = traceback.extract_tb(error.__traceback__)[-1]
        verdict |= {"stage": stage, "error": type(error).__name__, "message": str(error)[:MESSAGE_CHARACTERS]}
        file = frame.filename.rpartition("/sglang/")[2]
        verdict["where"] = f"{file}:{frame.lineno} {frame.name}"
    if keys is not None:
        resolved = {key: resolved.get(key) for key in keys} if resolved else {}
    return {
        "ok": verdict["stage"] is None,
        **verdict,
        "warnings": warnings.texts[:WARNINGS_KEPT],
        "resolved": resolved,
    }


def _stages(argv: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Goes one stage further each time; yields the name of the stage that comes next."""
    from sglang.srt.server_args import prepare_server_args

    server_args = prepare_server_args(list(argv))
    yield "resolve", server_args
    if hasattr(server_args, "resolve_once"):  # up to 0.5.18 construction resolves
        server_args.resolve_once()
    yield "check", server_args
    server_args.check_server_args()
    yield "done", server_args


def _resolved(server_args: Any) -> dict[str, Any]:
    if hasattr(server_args, "resolved_dict"):
        return dict(server_args.resolved_dict())
    return dict(vars(server_args))


def in_fork(argv: Sequence[str], keys: Sequence[str] | None) -> dict[str, Any]:
    """The verdict, from a child process; imports afterwards what the child had to import."""
    begin_s = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        known = set(sys.modules)
        verdict = judge(argv, keys)
        verdict["imported"] = sorted(set(sys.modules) - known)
        with os.fdopen(writing, "w") as answer:
            json.dump(verdict, answer, default=repr)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if not text:
        died = f"the process died: {os.waitstatus_to_exitcode(status)}"
        return {"ok": False, "stage": "crash", "error": None, "message": died, "where": None, "warnings": []}
    verdict = json.loads(text)
    verdict["ms"] = round(1000 * (time.monotonic() - begin_s))
    _warm(verdict.pop("imported"))
    return verdict


def _warm(modules: Sequence[str]) -> None:
    for name in modules:
        if name.partition(".")[0] in WARM_PACKAGES:
            with contextlib.suppress(Exception):  # optional for SGLang, so for us
                importlib.import_module(name)


def _version() -> str:
    return str(importlib.import_module("sglang.version").__version__)


def main() -> None:
    """Answer until the input ends; one line with version and start-up time goes to standard error first."""
    begin_s = time.monotonic()
    chosen = options(sys.argv[1:])
    prepare(chosen)
    sys.argv[0] = "launch_server.py"  # argparse names the program in its messages
    keys = chosen.keys.split(",") if chosen.keys else None
    ready = {"sglang": _version(), "ready_s": round(time.monotonic() - begin_s, 1)}
    print(json.dumps(ready), file=sys.stderr, flush=True)
    for line in sys.stdin:
        if line.strip():
            print(json.dumps(in_fork(json.loads(line), keys)), flush=True)


if __name__ == "__main__":
    main()
