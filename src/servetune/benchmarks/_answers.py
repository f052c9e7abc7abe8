"""One launch's answers to the gate's prompts: idle first, then under a closed loop of the level's concurrency."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeVar

from servetune.benchmarks._api import RequestForm, Target
from servetune.benchmarks._asking import ANSWER_TOKENS, ASKED_AT_ONCE, PROMPT_TOKENS, PROMPTS, Asking, finished
from servetune.benchmarks._files import allow_connections
from servetune.benchmarks._holder import Plan
from servetune.benchmarks._level import Demand
from servetune.benchmarks._prompts import PromptSource, vocabulary_below, vocabulary_size
from servetune.benchmarks._server import ControlClient, read_facts
from servetune.benchmarks._worker import ThreadWorker
from servetune.core.answers import Answer, AnswerSet
from servetune.core.benchmark import GoOn, Level, Progress
from servetune.core.clock import Clock

LOAD_SETTLES_S = 20.0  # node time after the load's first token, or a whole wave if that is sooner
PROGRESS_EVERY_S = 0.2
#: Prompts of the gate are of no level.
LEVEL_OF_PROMPTS = 0


UNANSWERED = Answer(asked=ANSWER_TOKENS, error="no answer within the limit")

Result = TypeVar("Result")


class Told:
    """Calls `go_on` about five times a second of wall time, and remembers a no."""

    def __init__(self, level: Level, clock: Clock, go_on: GoOn) -> None:
        self._level, self._clock, self._go_on = level, clock, go_on
        self._begin_s = clock.now_s()
        self._at = 0.0
        self.completed = 0
        self.over = False

    def go_on(self) -> bool:
        """False once told to end."""
        now = time.monotonic()
        if not self.over and now - self._at >= PROGRESS_EVERY_S:
            self._at = now
            self.over = not self._go_on(self._progress())
        return not self.over

    @property
    def out_of_time(self) -> bool:
        """Whether the level's limit has passed."""
        return self._clock.now_s() - self._begin_s > self._level.limit_s

    def _progress(self) -> Progress:
        return Progress(
            concurrency=self._level.concurrency,
            stage="measure",
            completed=self.completed,
            expected=2 * PROMPTS,
            failed=0,
            output_tokens_per_s=0.0,
            elapsed_s=self._clock.now_s() - self._begin_s,
        )


def collect(target: Target, level: Level, demand: Demand, clock: Clock, go_on: GoOn) -> AnswerSet | None:
    """Ask idle and under load. None when `go_on` returned False. What is not there by `level.limit_s` is an error."""
    allow_connections(level.concurrency)
    told = Told(level, clock, go_on)
    control = ControlClient(target)
    facts = read_facts(control)
    control.close()
    vocabulary = vocabulary_below(demand.vocabulary_size or vocabulary_size(facts.model_path))
    source = PromptSource(vocabulary, level.workload.seed, LEVEL_OF_PROMPTS)
    prompts = [source.ids(number, PROMPT_TOKENS) for number in range(PROMPTS)]
    asking = Asking(target, level.workload.api, facts.model)
    worker = ThreadWorker()
    try:
        idle = _wait(asking.begin(prompts), told, UNANSWERED)
        worker.start(
            Plan(
                form=RequestForm(level.workload.api, target, facts.model),
                vocabulary=vocabulary,
                seed=level.workload.seed,
                level=level.concurrency,
                window=level.window + 1,  # other prompts than those of the measurement
                lengths=demand.lengths,
                concurrency=max(1, level.concurrency - ASKED_AT_ONCE),
                total_concurrency=max(1, level.concurrency - ASKED_AT_ONCE),
            )
        )
        _settle(worker, told, clock)
        loaded = _wait(asking.begin(prompts), told, UNANSWERED)
        # wrong answers under load are the more likely ones
        solved = _wait(asking.begin_tasks(demand.tasks), told, False)
    finally:
        worker.stop()
        asking.close()
    return None if told.over else AnswerSet(idle=idle, loaded=loaded, concurrency=level.concurrency, solved=solved)


def _wait(futures: Sequence[Future[Result]], told: Told, late: Result) -> tuple[Result, ...]:
    while told.go_on() and not told.out_of_time and not finished(futures):
        told.completed = sum(future.done() for future in futures)
    for future in futures:
        future.cancel()
    return tuple(future.result() if future.done() and not future.cancelled() else late for future in futures)


def _settle(worker: ThreadWorker, told: Told, clock: Clock) -> None:
    """Until every slot has answered once, or for a while after the first token."""
    first_s: float | None = None
    while told.go_on() and not told.out_of_time:
        sample = worker.sample()
        if sample is not None and (sample.given_up is not None or sample.first_wave_left <= 0):
            return
        if first_s is None and sample is not None and sample.tokens > 0:
            first_s = clock.now_s()
        if first_s is not None and clock.now_s() - first_s > LOAD_SETTLES_S:
            return
        time.sleep(0.02)
