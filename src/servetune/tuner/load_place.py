"""Where the load is generated: beside the server wherever that is, else here, through a tunnel and with a warning."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servetune.core.answers import AnswerSet
from servetune.core.benchmark import GoOn, Level, LoadGenerator, Measurement, Progress
from servetune.core.clock import Clock
from servetune.core.errors import ConnectionLostError, ProgramEndedError, SpecError
from servetune.core.node import LoadHost, ServerProcess
from servetune.core.study import NamedChoice

#: A level is begun anew at most so often when the connection breaks in the middle of it.
AGAIN = 5
_LOOK_S = 0.25
_WORD_EVERY_S = 2.0
_STOP_S = 20.0

Say = Callable[[str], None]


class LoadPlace:
    """Gives each server the load generator to use for it. `say`: tells the person who watches, once per reason."""

    def __init__(self, choice: NamedChoice, generator: LoadGenerator, say: Say) -> None:
        self._choice, self._generator, self._say = choice, generator, say
        self._said: set[str] = set()

    @contextmanager
    def beside(self, process: ServerProcess) -> Iterator[tuple[str, LoadGenerator]]:
        """Base URL and load generator for a server."""
        reason = self._cannot(process)
        if reason is None and isinstance(process, LoadHost):
            yield process.loopback, FarGenerator(self._choice, self._generator, process)
            return
        with process.endpoint() as url:
            yield url, self._generator if reason is None else Tunnelled(self._generator, reason)

    def _cannot(self, process: ServerProcess) -> str | None:
        """Why the node cannot run the load generator; None when it can, or when the server is here."""
        if not isinstance(process, LoadHost):
            return None
        try:
            process.load_program()
            return None
        except ProgramEndedError as error:
            reason = (
                f"the load came through an SSH tunnel, which takes part in every number: the node's Python cannot run "
                f"the load generator ({error}); name one with numpy, pydantic, httpx and uvloop as node.python"
            )
        if reason not in self._said:
            self._said.add(reason)
            self._say(reason)
        return reason


class Tunnelled:
    """A load generator whose measurements say that they went through a tunnel."""

    def __init__(self, generator: LoadGenerator, reason: str) -> None:
        self._generator, self._reason = generator, reason
        self.windows = getattr(generator, "windows", False)

    def run(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Measurement | None:
        """As the generator itself."""
        done = self._generator.run(base_url, level, clock, go_on, headers)
        return None if done is None else done.model_copy(update={"warnings": (*done.warnings, self._reason)})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


class FarGenerator:
    """A load generator that runs on the node. Implements `LoadGenerator`, and of `AnswerChecker` the asking."""

    def __init__(self, choice: NamedChoice, near: LoadGenerator, host: LoadHost) -> None:
        self._choice, self._host = choice, host
        self.windows = getattr(near, "windows", False)

    def run(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Measurement | None:
        """One level; begun anew when the connection broke and `go_on` says that the server still stands."""
        done = self._asked("run", base_url, level, clock, go_on, headers)
        return None if done is None else Measurement.model_validate(done)

    def answers(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> AnswerSet | None:
        """Answers idle and under load; see `core.answers.AnswerChecker`."""
        done = self._asked("answers", base_url, level, clock, go_on, headers)
        return None if done is None else AnswerSet.model_validate(done)

    def _asked(
        self, method: str, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Any:
        request = json.dumps(
            {
                "name": self._choice.name,
                "settings": dict(self._choice.settings),
                "files": dict(_files(self._choice.settings)),
                "method": method,
                "base_url": base_url,
                "level": level.model_dump(mode="json"),
                "headers": dict(headers),
                "time_scale": getattr(clock, "time_scale", 1.0),
            }
        )
        latest = _nothing_yet(level)
        for attempt in range(AGAIN + 1):
            try:
                return self._served(request, latest, go_on)
            except (ConnectionLostError, ProgramEndedError):
                if attempt == AGAIN:
                    raise
                if not go_on(latest):  # looks at the server, which mends the connection
                    return None
        return None

    def _served(self, request: str, latest: Progress, go_on: GoOn) -> Any:
        program = self._host.load_program()
        program.send(request)
        spoke_s, stopped_s = time.monotonic(), None
        while True:
            for line in program.receive(_LOOK_S):
                document = json.loads(line)
                if "result" in document:
                    return document["result"]
                if "error" in document:
                    raise SpecError(document["error"])
                latest = Progress.model_validate(document["progress"])
            if stopped_s is not None:
                if time.monotonic() - stopped_s > _STOP_S:
                    raise ProgramEndedError(f"the load generator did not stop within {_STOP_S:g} s")
            elif not go_on(latest):
                program.send("stop")
                stopped_s = time.monotonic()
            elif time.monotonic() - spoke_s > _WORD_EVERY_S:
                program.send("go")
                spoke_s = time.monotonic()


def _files(settings: Any) -> Iterator[tuple[str, str]]:
    """Files of this machine that settings name, with their text."""
    if isinstance(settings, Mapping):
        for value in settings.values():
            yield from _files(value)
    elif (isinstance(settings, str) and "/" in settings) or (isinstance(settings, str) and "." in settings):
        path = Path(settings)
        if path.is_file():
            yield settings, path.read_text(encoding="utf-8")


def _nothing_yet(level: Level) -> Progress:
    return Progress(
        concurrency=level.concurrency,
        stage="warmup",
        completed=0,
        expected=0,
        failed=0,
        output_tokens_per_s=0.0,
        elapsed_s=0.0,
    )
