"""A program of ours on a node: sent to the engine's Python as text (nothing is written there), talked with in JSON."""

from __future__ import annotations

import importlib.resources
import json
import time
from collections.abc import Mapping
from typing import Any

from servetune.core.errors import ProgramEndedError
from servetune.core.preflight import Helper

#: Makes modules of the first line of its input, under their own names, and runs the last one's `main`, which reads the
#: other lines as `heard`: each of them puts off the end that SERVETUNE_HEARD_WITHIN_S sets to silence.
_BOOTSTRAP = (
    "import json, os, signal, sys, types\n"
    "def heard(within_s=float(os.environ.pop('SERVETUNE_HEARD_WITHIN_S', 0))):\n"
    "    while True:\n"
    "        signal.setitimer(signal.ITIMER_REAL, within_s)\n"
    "        line = sys.stdin.buffer.readline()\n"
    "        if not line:\n"
    "            return\n"
    "        if line.strip():\n"
    "            yield line\n"
    "heard = heard()\n"
    "for name, text in json.loads(next(heard)).items():\n"
    "    module = sys.modules[name] = types.ModuleType(name)\n"
    "    module.__path__ = []\n"
    "    owner, _, last = name.rpartition('.')\n"
    "    exec(compile(text, name, 'exec'), module.__dict__)\n"
    "    owner and setattr(sys.modules[owner], last, module)\n"
    "sys.modules[name].main(heard)\n"
)


def argv_of(python: str) -> tuple[str, ...]:
    """The command that waits for a program."""
    return (python, "-u", "-c", _BOOTSTRAP)


def text_of(module: str) -> str:
    """The text of a module beside this one."""
    return importlib.resources.files("servetune.engines.sglang").joinpath(f"{module}.py").read_text("utf-8")


class SentProgram:
    """One that answers with one object a line. `who`: what an error calls it."""

    def __init__(self, talk: Helper, texts: Mapping[str, str], who: str) -> None:
        """`texts`: module name → text, packages before what is in them; the last one is run."""
        self._talk, self._who = talk, who
        self._lines: list[str] = []
        self.say(texts)

    def say(self, told: object) -> None:
        """Send one line. Raises ProgramEndedError, ConnectionLostError."""
        self._talk.send(json.dumps(told))

    def heard(self, timeout_s: float) -> dict[str, Any]:
        """The next answer. Raises ProgramEndedError; when none comes in `timeout_s`, the program is let go, too."""
        line = self._line(timeout_s)
        try:
            told = json.loads(line)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise ProgramEndedError(f"{self._who} answered {line[:200]!r}, which is not theirs")
        return told

    def _line(self, timeout_s: float) -> str:
        until_s = time.monotonic() + timeout_s
        while not self._lines:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                self._talk.close()
                raise ProgramEndedError(f"{self._who} did not answer within {timeout_s:g} s")
            self._lines += self._talk.receive(left_s)
        return self._lines.pop(0)

    def close(self) -> None:
        """End it; idempotent."""
        self._talk.close()
