"""Load generator: a fixed number of requests in flight, over HTTP streaming, in this process."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import uvloop
from pydantic import Field

from servetune.benchmarks._api import RequestForm, parse_target
from servetune.benchmarks._limits import allow_connections
from servetune.benchmarks._load import ClosedLoop, Load
from servetune.benchmarks._metrics import TimeMap
from servetune.benchmarks._pace import Pace
from servetune.benchmarks._prompts import PromptSource, vocabulary_below, vocabulary_size
from servetune.benchmarks._records import Records
from servetune.benchmarks._server import ask_first, flush_cache
from servetune.benchmarks._verdict import Circumstances, measurement
from servetune.core.benchmark import GoOn, Level, Measurement, Progress
from servetune.core.clock import Clock
from servetune.core.space import Frozen

PROGRESS_EVERY_S = 0.2
LOOK_EVERY_S = 0.02
FLUSH_PATIENCE_S = 20.0


class Settings(Frozen):
    """`vocabulary_size`: where the server's model folder cannot be read here and its ids end below 30,000.

    `stall_s`: node seconds without a token in the middle of an answer after which it counts as failed.
    """

    vocabulary_size: int | None = Field(default=None, ge=16)
    stall_s: float = Field(default=120.0, gt=0)


def create(settings: Settings) -> LoadGenerator:
    """A load generator with these settings."""
    return LoadGenerator(settings)


class LoadGenerator:
    """Implements `core.benchmark.LoadGenerator`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Measurement | None:
        """Hold the level and measure it; see the protocol. `go_on` is called in the caller's thread."""
        begin = (time.monotonic(), clock.now_s())
        job = _Job(self._settings, base_url, level, clock, headers)
        thread = threading.Thread(target=job.run, name="servetune-load", daemon=True)
        with _undisturbed():
            thread.start()
            aborted = not _wait(thread, job, go_on)
        if job.error is not None:
            raise job.error
        if aborted:
            return None
        end = (time.monotonic(), clock.now_s())
        scale = (end[1] - begin[1]) / (end[0] - begin[0])
        return measurement(level, job.load, job.circumstances, TimeMap(begin[0], begin[1], scale))


class _Job:
    """What the thread does, and what it leaves behind."""

    def __init__(
        self, settings: Settings, base_url: str, level: Level, clock: Clock, headers: Mapping[str, str]
    ) -> None:
        self._settings = settings
        self._target = parse_target(base_url, headers)
        self._level = level
        self._clock = clock
        self.begin_s = clock.now_s()
        self.load = Load(Pace(level, self.begin_s, self.begin_s + level.limit_s), Records())
        self.circumstances = Circumstances()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Thread target. An exception here is a fault of ours and is raised again in the caller's thread."""
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except BaseException as error:
            self.error = error

    async def _main(self) -> None:
        level, notes = self._level, self.circumstances.notes
        notes += allow_connections(level.concurrency)
        info = await ask_first(self._target, "/server_info", "/get_server_info")
        model = await self._model()
        flushed = await flush_cache(self._target, FLUSH_PATIENCE_S)
        if flushed is not None:
            notes.append(flushed)
        size = self._settings.vocabulary_size or vocabulary_size(str(info.get("model_path", "")))
        prompts = PromptSource(vocabulary_below(size), level.workload.seed, level.concurrency)
        form = RequestForm(level.workload.api, self._target, model)
        now_s = self._clock.now_s()
        self.load.pace = Pace(level, now_s, self.begin_s + level.limit_s)
        lengths = (level.workload.input_tokens, level.workload.output_tokens)
        loop = ClosedLoop(self.load, form, prompts, level.concurrency, lengths, self._clock, self._settings.stall_s)
        await loop.run()

    async def _model(self) -> str:
        if self._level.workload.api != "openai":
            return "default"
        listed = (await ask_first(self._target, "/v1/models")).get("data")
        first = listed[0] if isinstance(listed, list) and listed else {}
        return str(first.get("id", "default")) if isinstance(first, dict) else "default"


def _wait(thread: threading.Thread, job: _Job, go_on: GoOn) -> bool:
    """Report until the thread ends; False when `go_on` said so. Any exception of `go_on` ends the load first."""
    told = 0.0
    try:
        while thread.is_alive():
            thread.join(LOOK_EVERY_S)
            now = time.monotonic()
            if now - told >= PROGRESS_EVERY_S:
                told = now
                if not go_on(_progress(job)):
                    return False
    finally:
        job.load.abort = True
        thread.join()
    return True


def _progress(job: _Job) -> Progress:
    load = job.load
    pace, records = load.pace, load.records
    completed = pace.completed_in_window(records.completed)
    return Progress(
        concurrency=job._level.concurrency,
        stage="measure" if pace.stage != "warmup" else "warmup",
        completed=completed,
        expected=pace.expected_requests(completed),
        failed=records.failed,
        output_tokens_per_s=pace.rate(pace.measure_from_s),
        elapsed_s=job._clock.now_s() - job.begin_s,
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No collection of old objects and short turns between threads while times are taken."""
    turn_s = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(turn_s)
