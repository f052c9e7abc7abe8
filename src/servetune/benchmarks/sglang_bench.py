"""Load generator: SGLang's own bench_serving, run beside the server; a second opinion on what the others here say.

It needs an interpreter with SGLang. Its report covers ramp and tail; from the details of each request (time to the
first token, gaps after it) the part is taken in which every place was filled, as the other generators measure it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from servetune.benchmarks._api import parse_target
from servetune.benchmarks._level import FLUSH_PATIENCE_S
from servetune.benchmarks._reported import read_report, steady
from servetune.benchmarks._server import ControlClient, flush_cache, read_facts
from servetune.core.benchmark import GoOn, Level, Measurement, Progress
from servetune.core.clock import Clock
from servetune.core.space import Frozen

WAVES = 6  # requests per place, unless the workload says how many
LOOK_EVERY_S = 0.2
ENDS_WITHIN_S = 5.0
#: Since 0.5.20; `sglang.bench_serving` before and, with a warning, still.
MODULE = "sglang.bench_serving"
REPORT = "report.jsonl"


class Settings(Frozen):
    """`python`: an interpreter with SGLang, usually the engine's. `tokenizer`: where the server's model folder cannot
    be read here. `env`: for that process, such as `{SGLANG_USE_CPU_ENGINE: "1"}`. `arguments`: more of its own.
    `range_ratio`: lengths are uniform from this share of the workload's on; at 1 all requests are alike, and since they
    begin together they stay in step, which is a load of its own.
    """

    python: str
    tokenizer: str | None = None
    env: Mapping[str, str] = Field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    range_ratio: float = Field(default=1.0, gt=0, le=1)


def create(settings: Settings) -> LoadGenerator:
    """A load generator with these settings."""
    return LoadGenerator(settings)


class LoadGenerator:
    """Implements `core.benchmark.LoadGenerator`. Closed loop of fixed lengths; what ends it is a number of requests."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Measurement | None:
        """Keep `level.concurrency` requests in flight until all are answered; see the protocol.

        A level that takes longer than its limit, or a program that fails, is a measurement that is not valid.
        """
        target = parse_target(base_url, headers)
        control = ControlClient(target)
        facts = read_facts(control)
        note = flush_cache(control, FLUSH_PATIENCE_S, threading.Event())
        control.close()
        url = f"{'https' if target.tls else 'http'}://{target.authority}{target.prefix}"
        with tempfile.TemporaryDirectory(prefix="servetune-bench-") as folder:
            command = self._command(url, level, self._settings.tokenizer or facts.model_path, headers, Path(folder))
            begin_s, begin = clock.now_s(), time.monotonic()
            told = _Watched(command, {**_key(headers), **self._settings.env}, folder).until_over(level, clock, go_on)
            if told is None:
                return None
            scale = max(1e-9, (clock.now_s() - begin_s) / max(1e-9, time.monotonic() - begin))
            reported = read_report(Path(folder) / REPORT)
        notes = () if note is None else (note,)
        if reported is None:
            return Measurement.empty(level.concurrency, (*notes, told))
        least = max(1, int(level.workload.output_tokens * self._settings.range_ratio))
        return steady(reported, level, scale, notes, least)

    def _command(
        self, url: str, level: Level, tokenizer: str, headers: Mapping[str, str], folder: Path
    ) -> Sequence[str]:
        workload = level.workload
        asked = workload.requests_per_level
        requests = asked + level.concurrency if isinstance(asked, int) else WAVES * level.concurrency
        options = {
            "backend": "sglang" if workload.api == "sglang" else "sglang-oai",
            "base-url": url,
            "model": tokenizer,
            "dataset-name": "random-ids",
            "random-input-len": workload.input_tokens,
            "random-output-len": workload.output_tokens,
            "random-range-ratio": self._settings.range_ratio,
            "num-prompts": max(requests, 2 * level.concurrency + 2),
            "max-concurrency": level.concurrency,
            "seed": workload.seed + 1009 * level.window + level.concurrency,
            "output-file": folder / REPORT,
        }
        words = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        switches = ["--tokenize-prompt", "--output-details", "--disable-tqdm"]
        given = [
            text
            for name, value in headers.items()
            if name.lower() != "authorization"  # see `_key`: other users may read a command line
            for text in ("--header", f"{name}={value}")
        ]
        return [self._settings.python, "-m", MODULE, *words, *switches, *given, *self._settings.arguments]


def _key(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The variables by which bench_serving takes an `Authorization` header: the first non-empty one counts."""
    found = [value for name, value in headers.items() if name.lower() == "authorization"]
    return {"OPENAI_API_KEY": "", "API_KEY": found[0]} if found else {}


class _Watched:
    """The program while it runs, in a process group of its own; gone when `until_over` returns or raises."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: str) -> None:
        self._command, self._env, self._folder = command, env, folder

    def until_over(self, level: Level, clock: Clock, go_on: GoOn) -> str | None:
        """What its output ends with; None when `go_on` said so."""
        log = Path(self._folder) / "log"
        begin_s = clock.now_s()
        environ = {**os.environ, "TOKENIZERS_PARALLELISM": "false", **self._env}
        with log.open("wb") as out:
            try:
                process = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ, start_new_session=True
                )
            except OSError as error:
                return f"{self._command[0]} cannot be started: {error.strerror}"
            try:
                while process.poll() is None:
                    elapsed_s = clock.now_s() - begin_s
                    if not go_on(_progress(level, elapsed_s)):
                        return None
                    if elapsed_s > level.limit_s:
                        return f"bench_serving was not done within {level.limit_s:g} s"
                    _wait(process)
            finally:
                _end(process)
        last = " ".join(log.read_text("utf-8", "replace").split())[-300:]
        return f"bench_serving ended with exit code {process.returncode}: {last}"


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(LOOK_EVERY_S)
    except subprocess.TimeoutExpired:
        return


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _progress(level: Level, elapsed_s: float) -> Progress:
    """The program says nothing while it runs."""
    return Progress(
        concurrency=level.concurrency,
        stage="measure",
        completed=0,
        expected=WAVES * level.concurrency,
        failed=0,
        output_tokens_per_s=0.0,
        elapsed_s=elapsed_s,
    )
