"""One level from beginning to end: prepare the server, hold the load, decide when it is over, judge."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TypeVar

from servetune.benchmarks._api import RequestForm, Target
from servetune.benchmarks._files import allow_connections
from servetune.benchmarks._goodput import GoodputLimits
from servetune.benchmarks._holder import Plan, Sample
from servetune.benchmarks._lengths import Arrivals, Lengths
from servetune.benchmarks._observer import Observer, Reading
from servetune.benchmarks._pace import Pace
from servetune.benchmarks._prompts import vocabulary_below, vocabulary_size
from servetune.benchmarks._server import ControlClient, ServerFacts, flush_cache, read_facts
from servetune.benchmarks._tasks import Task
from servetune.benchmarks._worker import Harvest, Worker
from servetune.core.benchmark import GoOn, Level, Progress
from servetune.core.clock import Clock
from servetune.core.errors import ServetuneError

Result = TypeVar("Result")

PROGRESS_EVERY_S = 0.2
LOOK_EVERY_S = 0.02
#: The measured part lasts at least so many of the clock's polls: 1.2 s, or 0.3 wall seconds under a compressed clock.
WINDOW_LOOKS = 6
FLUSH_PATIENCE_S = 20.0
LAST_READING_S = 1.0


@dataclass(frozen=True)
class Demand:
    """What a load generator asks of a level beyond the level itself."""

    lengths: Lengths
    arrivals: Arrivals | None = None
    vocabulary_size: int | None = None
    stall_s: float = 120.0
    goodput: GoodputLimits | None = None
    processes: int | None = None
    in_step: bool = False
    tasks: tuple[Task, ...] = ()


@dataclass
class Outcome:
    """Everything that is known of a level that was not aborted. Wall times; `wall_origin_s` is node time `begin_s`."""

    level: Level
    demand: Demand
    harvests: list[Harvest]
    pace: Pace
    measured: tuple[float, float] | None  # wall seconds
    over_wall_s: float
    wall_origin_s: float
    node_origin_s: float
    node_s_per_wall_s: float
    notes: list[str] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    server_info: Mapping[str, object] = field(default_factory=dict)
    given_up: str | None = None


class LevelRun:
    """Runs one level in the caller's thread; the load itself is in `workers`."""

    def __init__(
        self, target: Target, level: Level, demand: Demand, clock: Clock, go_on: GoOn, workers: list[Worker]
    ) -> None:
        self._target = target
        self._level = level
        self._demand = demand
        self._clock = clock
        self._go_on = go_on
        self._workers = workers
        self._told = 0.0
        self._wall_origin_s = time.monotonic()
        self._begin_s = clock.now_s()
        self._pace = self._new_pace()
        self._sample = Sample(self._wall_origin_s)
        self._notes: list[str] = []
        self._ended = threading.Event()

    def run(self) -> Outcome | None:
        """None when `go_on` returned False."""
        self._notes += allow_connections(self._level.concurrency)
        facts = self._while_telling(self._prepare)
        if facts is None:
            return None
        self._pace = self._new_pace()
        observer = Observer(self._target)
        harvests: list[Harvest] = []
        measured: tuple[float, float] | None = None
        try:
            for index, worker in enumerate(self._workers):
                worker.start(self._plan(facts, index))
            observer.start()
            measured = self._hold(observer)
            if measured is not None:
                observer.stop(LAST_READING_S)
        finally:
            harvests = _stopped(self._workers)
        return None if measured is None else self._outcome(facts, harvests, measured, observer.readings)

    def _new_pace(self) -> Pace:
        held = self._level.concurrency if self._demand.arrivals is None else None
        deadline_s = self._begin_s + self._level.limit_s
        shortest_window_s = WINDOW_LOOKS * self._clock.poll_s
        mean_tokens = self._demand.lengths.mean_output_tokens
        return Pace(self._level, mean_tokens, held, self._clock.now_s(), deadline_s, shortest_window_s)

    def _prepare(self) -> ServerFacts:
        client = ControlClient(self._target)
        try:
            facts = read_facts(client)
            note = flush_cache(client, FLUSH_PATIENCE_S, self._ended)
        finally:
            client.close()
        if note is not None:
            self._notes.append(note)
        return facts

    def _plan(self, facts: ServerFacts, index: int) -> Plan:
        workers, level = len(self._workers), self._level
        size = self._demand.vocabulary_size or vocabulary_size(facts.model_path)
        return Plan(
            form=RequestForm(level.workload.api, self._target, facts.model),
            vocabulary=vocabulary_below(size),
            seed=level.workload.seed,
            level=level.concurrency,
            window=level.window,
            lengths=self._demand.lengths,
            concurrency=(level.concurrency - index + workers - 1) // workers,
            total_concurrency=level.concurrency,
            first=index,
            stride=workers,
            arrivals=self._demand.arrivals,
            in_step=self._demand.in_step,
            node_s_per_wall_s=self._scale(),
            stall_s=self._demand.stall_s / self._scale(),
        )

    def _scale(self) -> float:
        """Node seconds per wall second so far."""
        wall_s = time.monotonic() - self._wall_origin_s
        return max(1e-9, (self._clock.now_s() - self._begin_s) / wall_s) if wall_s > 0 else 1.0

    def _hold(self, observer: Observer) -> tuple[float, float] | None:
        """Wall times of the measured part (equal when there was none); None when told to end."""
        begun: float | None = None
        while self._tell():
            time.sleep(LOOK_EVERY_S)
            self._sample = _total([worker.sample() for worker in self._workers], self._sample)
            now_s = self._begin_s + (self._sample.wall_s - self._wall_origin_s) * self._scale()
            if self._clock.now_s() >= self._begin_s + self._level.limit_s:
                now_s = self._begin_s + self._level.limit_s
            stage = self._pace.update(now_s, self._sample)
            if stage == "measure" and begun is None:
                begun = self._sample.wall_s
                observer.look()
            if stage == "over":
                return (begun or self._sample.wall_s, self._sample.wall_s)
        return None

    def _tell(self) -> bool:
        now = time.monotonic()
        if now - self._told < PROGRESS_EVERY_S:
            return True
        self._told = now
        return self._go_on(self._progress())

    def _progress(self) -> Progress:
        pace, sample = self._pace, self._sample
        return Progress(
            concurrency=self._level.concurrency,
            stage="warmup" if pace.stage == "warmup" else "measure",
            completed=pace.completed_in_window(sample.completed),
            expected=pace.expected_requests(sample.completed),
            failed=sample.failed,
            output_tokens_per_s=pace.rate(pace.measure_from_s),
            elapsed_s=self._clock.now_s() - self._begin_s,
        )

    def _while_telling(self, work: Callable[[], Result]) -> Result | None:
        """`work` in a thread of its own, so that the caller is told meanwhile; None when told to end."""
        executor = ThreadPoolExecutor(1, thread_name_prefix="servetune-prepare")
        result = executor.submit(work)
        executor.shutdown(wait=False)
        while not wait([result], timeout=LOOK_EVERY_S).done:
            if not self._tell():
                self._ended.set()
                return None
        return result.result()

    def _outcome(
        self, facts: ServerFacts, harvests: list[Harvest], measured: tuple[float, float], readings: list[Reading]
    ) -> Outcome:
        for harvest in harvests:
            harvest.records.hide_in_failures(self._target.hide)
        return Outcome(
            level=self._level,
            demand=self._demand,
            harvests=harvests,
            pace=self._pace,
            measured=measured if measured[1] > measured[0] else None,
            over_wall_s=measured[1],
            wall_origin_s=self._wall_origin_s,
            node_origin_s=self._begin_s,
            node_s_per_wall_s=self._scale(),
            notes=[self._target.hide(note) for note in self._notes],
            readings=list(readings),
            server_info=facts.info,
            given_up=self._sample.given_up,
        )


def _stopped(workers: list[Worker]) -> list[Harvest]:
    """Stop all of them, also when one of them fails; then raise the first failure."""
    harvests: list[Harvest] = []
    errors: list[ServetuneError] = []
    for worker in workers:
        try:
            harvests.append(worker.stop())
        except ServetuneError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return harvests


def _total(samples: list[Sample | None], before: Sample) -> Sample:
    """All workers together, at the time of the earliest reading; `before` until every worker has one."""
    known = [sample for sample in samples if sample is not None]
    if len(known) < len(samples):
        return before
    reasons = [sample.given_up for sample in known]
    return Sample(
        wall_s=min(sample.wall_s for sample in known),
        tokens=sum(sample.tokens for sample in known),
        completed=sum(sample.completed for sample in known),
        failed=sum(sample.failed for sample in known),
        in_flight=sum(sample.in_flight for sample in known),
        connections=sum(sample.connections for sample in known),
        answering=sum(sample.answering for sample in known),
        first_wave_left=sum(sample.first_wave_left for sample in known),
        given_up=reasons[0] if all(reasons) else None,
    )
