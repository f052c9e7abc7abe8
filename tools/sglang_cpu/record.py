"""Record logs of the real engine for tests: start it with each command, stop it, keep the trimmed log.

    python tools/sglang_cpu/record.py [NAME…]      default: every recording; 20 to 40 s each on two idle cores

Writes `NAME.log` into `tests/recordings/sglang-cpu/` and what the process did into `cases.json` there (time to ready or
to exit, exit status); what a case expects (failure class and phase) stands in that file already and is kept.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "recordings" / "sglang-cpu"
ENVIRONMENT = Path(os.environ.get("SERVETUNE_SGLANG_CPU_DIR", "~/.cache/servetune/sglang-cpu")).expanduser() / "current"
BASE = {
    "--model-path": str(ENVIRONMENT / "model"),
    "--load-format": "dummy",
    "--device": "cpu",
    "--attention-backend": "torch_native",
    "--max-total-tokens": "20000",
    "--sleep-on-idle": "",
    "--host": "127.0.0.1",
}
VARIABLES = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
READY = b"The server is fired up and ready to roll!"
LIMIT_S = 240.0
#: Of the 550 arguments that the server prints, those that say something about these launches are kept.
ARGUMENTS_KEPT = re.compile(
    r"model_path|tokenizer_path|load_format|device|dtype|quantization|context_length|mem_fraction|max_running|max_total"
    r"|max_prefill|chunked_prefill|schedule_(policy|cons)|page_size|tp_size|ep_size|dp_size|attention_backend$"
    r"|moe_(a2a|runner)_backend|disable_(radix|overlap|cuda)|enable_(mixed|torch_compile|hier|two|single)|speculative_algo"
    r"|sleep_on_idle|^(host|port|random_seed)$"
)
#: Repeated noise: one line of each is kept.
NOISE = re.compile(r"^ - leaked (function|type|instance)|UserWarning: |^  warnings\.warn\(|^ {20,}\[--")


def main(names: list[str]) -> None:
    """Record the named cases, or all."""
    path = FOLDER / "cases.json"
    cases = json.loads(path.read_text())
    for name in names or cases:
        case = cases[name]
        log, outcome = launch(case)
        (FOLDER / f"{name}.log").write_text(trimmed(log.decode(errors="replace")))
        case.update(outcome)
        print(name, outcome, flush=True)
        path.write_text(json.dumps(cases, indent=1) + "\n")


def launch(case: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Start, wait until ready or gone, do what the case asks for, stop: the log and what happened."""
    port = _free_port()
    flags = {**BASE, "--port": str(port), **case["flags"]}
    argv = [str(ENVIRONMENT / "venv/bin/python"), "-m", "sglang.launch_server"]
    for flag, value in flags.items():
        if value is not None:  # None leaves a flag of BASE out
            argv += [flag, *str(value).split()]
    log_path = FOLDER / ".recording"
    begin_s = time.monotonic()
    with log_path.open("wb") as log, socket.socket() as taken:
        if case.get("port_taken"):
            taken.bind(("127.0.0.1", port))
            taken.listen()
        server = subprocess.Popen(
            argv, stdout=log, stderr=log, env={**os.environ, **VARIABLES, **case.get("env", {})}, start_new_session=True
        )
        try:
            outcome = _watch(server, log_path, begin_s)
            if "ready_s" in outcome:
                outcome |= _use(server, port, case)
        finally:
            _end(server)
    text = log_path.read_bytes()
    log_path.unlink()
    return text, outcome


def _watch(server: subprocess.Popen[bytes], log_path: Path, begin_s: float) -> dict[str, Any]:
    while time.monotonic() - begin_s < LIMIT_S:
        elapsed_s = round(time.monotonic() - begin_s, 1)
        if server.poll() is not None:
            return {"exit_s": elapsed_s, "exit_code": server.returncode}
        if READY in log_path.read_bytes():
            return {"ready_s": elapsed_s}
        time.sleep(0.3)
    return {"limit_s": LIMIT_S}


def _use(server: subprocess.Popen[bytes], port: int, case: Mapping[str, Any]) -> dict[str, Any]:
    """A few requests; then `while_serving` strikes, or the server is asked to stop."""
    for _ in range(3):
        _generate(port)
    if case.get("while_serving") == "kill scheduler":
        os.kill(_child(server.pid, "sglang::schedul"), signal.SIGKILL)
        try:
            return {"exit_code": server.wait(60)}
        except subprocess.TimeoutExpired:
            return {"exit_code": None}
    begin_s = time.monotonic()
    os.killpg(server.pid, signal.SIGINT)
    code = server.wait(60)
    return {"stop_s": round(time.monotonic() - begin_s, 2), "exit_code": code}


def _generate(port: int) -> None:
    body = {"input_ids": list(range(100, 164)), "sampling_params": {"max_new_tokens": 64, "ignore_eos": True}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        urllib.request.urlopen(request, timeout=60).read()  # noqa: S310
    except (urllib.error.URLError, ConnectionError) as error:
        print("  request failed:", error)


def _child(parent: int, title: str) -> int:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = stat.read_text().partition("(")[2].rsplit(")", 1)
        except OSError:
            continue
        if int(rest.split()[1]) == parent and name == title[:15]:
            return int(stat.parent.name)
    raise LookupError(f"process {parent} has no child {title!r}")


def _end(server: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def trimmed(log: str) -> str:
    """Without paths of this machine, repeated noise, and most of the printed arguments and of argparse's usage."""
    log = log.replace(str(ENVIRONMENT), "/opt/sglang-cpu").replace(str(ENVIRONMENT.resolve()), "/opt/sglang-cpu")
    log = log.replace(sys.base_prefix + "/lib", "/usr/lib").replace(str(Path.home()), "/root")
    kept, seen = [], set()
    for line in log.splitlines():
        noise = NOISE.search(line)
        if noise and noise.group() in seen:
            continue
        if noise:
            seen.add(noise.group())
        kept.append(re.sub(r"server_args=\{.*\}", _fewer_arguments, line))
    return "\n".join(kept) + "\n"


def _fewer_arguments(match: re.Match[str]) -> str:
    arguments = ast.literal_eval(match.group().removeprefix("server_args="))
    return f"server_args={ {key: value for key, value in arguments.items() if ARGUMENTS_KEPT.search(key)}!r}"


if __name__ == "__main__":
    main(sys.argv[1:])
