"""A load generator on the node itself, led by lines on standard input.

In: one JSON line a request `{name, settings, files, method, base_url, level, headers, time_scale}`; while it is served
`go` (whoever asked lives) or `stop`. Out: `{"ready": versions}` once, then lines of `{"progress": …}` and one
`{"result": …}` or `{"error": …}` a request. The end of the input ends it, and so does silence: a broken connection
must not leave a load behind, nor the machine of a tuner that died a program that waits for it for hours.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servetune.core.benchmark import Level, Progress
from servetune.core.clock import WallClock
from servetune.core.errors import ServetuneError

SILENCE_S = 60.0  # without a word from whoever asked
IDLE_S = 900.0  # between two requests; whoever has another one then starts it anew


class Ears:
    """Reads standard input in a thread of its own."""

    def __init__(self) -> None:
        self.requests: queue.Queue[str | None] = queue.Queue()
        self.stop = False
        self._heard_s = time.monotonic()
        threading.Thread(target=self._listen, name="ears", daemon=True).start()

    def request(self) -> str | None:
        """The next one; None at the end of the input, or when none comes for long."""
        try:
            return self.requests.get(timeout=float(os.environ.get("SERVETUNE_HEARD_WITHIN_S", IDLE_S)))
        except queue.Empty:
            return None

    @property
    def gone(self) -> bool:
        """Whether nobody waits for an answer any more."""
        return time.monotonic() - self._heard_s > SILENCE_S

    def _listen(self) -> None:
        for line in sys.stdin:
            self._heard_s = time.monotonic()
            word = line.strip()
            if word == "stop":
                self.stop = True
            elif word.startswith("{"):
                self.stop = False
                self.requests.put(word)
        self.stop = True
        self.requests.put(None)


def main() -> None:
    """Serve requests until the end of the input."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ears = Ears()
    say({"ready": {"python": platform.python_version(), "cpu_count": os.cpu_count()}})
    while (line := ears.request()) is not None:
        try:
            say({"result": serve(json.loads(line), ears)})
        except ServetuneError as error:
            say({"error": str(error)})
    os._exit(0)  # an orderly end would wait for who listens


def serve(request: Mapping[str, Any], ears: Ears) -> Any:
    """One level or one set of answers, as JSON; None when it was stopped."""

    def go_on(progress: Progress) -> bool:
        say({"progress": progress.model_dump(mode="json")})
        return not ears.stop and not ears.gone

    with tempfile.TemporaryDirectory(prefix="servetune-") as folder:
        module = importlib.import_module(f"servetune.benchmarks.{request['name']}")  # the tuner checked the name
        settings = module.Settings.model_validate(_placed(request["settings"], request["files"], Path(folder)))
        generator = module.create(settings)
        work = {"run": generator.run, "answers": getattr(generator, "answers", None)}[request["method"]]
        clock, level = WallClock(request["time_scale"]), Level.model_validate(request["level"])
        done = work(request["base_url"], level, clock, go_on, request["headers"])
    return None if done is None else done.model_dump(mode="json")


def _placed(settings: Any, files: Mapping[str, str], folder: Path) -> Any:
    """Settings whose values name files of the tuner's machine, with the files put here."""
    if isinstance(settings, Mapping):
        return {key: _placed(value, files, folder) for key, value in settings.items()}
    if isinstance(settings, str) and settings in files:
        path = folder / f"{list(files).index(settings)}{Path(settings).suffix}"
        path.write_text(files[settings], encoding="utf-8")
        return str(path)
    return settings


def say(document: Mapping[str, Any]) -> None:
    """One line; a reader that has gone is no reason to fail, the end of the input follows."""
    try:
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
