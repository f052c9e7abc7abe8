"""One launch's answers to the gate's prompts: idle first, then under a closed loop of the level's concurrency.

What it costs in node time: six rounds of 32 tokens idle, the ramp of a load of short prompts, and one round of 32
tokens under load; reckoned with the figures of a large model at 1,024 requests about a minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeVar

from servetune.benchmarks._api import RequestForm, Target
from servetune.benchmarks._asking import ANSWER_TOKENS, PROMPT_TOKENS, PROMPTS, Asking, finished
from servetune.benchmarks._files import allow_connections
from servetune.benchmarks._holder import Plan
from servetune.benchmarks._lengths import FixedLengths
from servetune.benchmarks._level import FLUSH_PATIENCE_S, Demand
from servetune.benchmarks._prompts import PromptSource, Vocabulary, vocabulary_below, vocabulary_size
from servetune.benchmarks._server import ControlClient, ServerFacts, flush_cache, read_facts
from servetune.benchmarks._worker import ThreadWorker
from servetune.core.answers import LATE, Answer, AnswerSet
from servetune.core.benchmark import GoOn, Level, Progress
from servetune.core.clock import Clock

IDLE_AT_ONCE = 4
OF_THE_LOAD = 4
LOAD_SETTLES_S = 20.0  # node time after the load's first token
SETTLED_SHARE = 0.9  # of the load's requests are being answered
#: The load fills the batch, which prompts of this length do as well as long ones, and sooner.
LOAD_INPUT_TOKENS = 128
PROGRESS_EVERY_S = 0.2
#: Prompts of the gate are of no level.
LEVEL_OF_PROMPTS = 0


UNANSWERED = Answer(asked=ANSWER_TOKENS, error=LATE)

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
    """Ask idle and under load. None when `go_on` returned False. What is not there by `level.limit_s` is `LATE`."""
    allow_connections(level.concurrency)
    told = Told(level, clock, go_on)
    facts = _prepare(target)
    vocabulary = vocabulary_below(demand.vocabulary_size or vocabulary_size(facts.model_path))
    source = PromptSource(vocabulary, level.workload.seed, LEVEL_OF_PROMPTS)
    prompts = [source.ids(number, PROMPT_TOKENS) for number in range(PROMPTS)]
    idle = _asked(Asking(target, level.workload.api, facts.model, IDLE_AT_ONCE), prompts, told)
    _prepare(target)  # or the answers under load would begin in the cache
    at_once = max(1, min(PROMPTS, level.concurrency // OF_THE_LOAD))  # few, so that the load hardly falls as they end
    worker = ThreadWorker()
    asking = Asking(target, level.workload.api, facts.model, at_once)
    try:
        if level.concurrency > at_once:
            worker.start(_load(target, level, facts, vocabulary, level.concurrency - at_once))
            _settle(worker, told, clock, level.concurrency - at_once)
        loaded = _wait(asking.begin(prompts), told, UNANSWERED)
        # wrong answers under load are the more likely ones
        solved = _wait(asking.begin_tasks(demand.tasks), told, None)
    finally:
        worker.stop()
        asking.close()
    return None if told.over else AnswerSet(idle=idle, loaded=loaded, concurrency=level.concurrency, solved=solved)


def _prepare(target: Target) -> ServerFacts:
    """What the server says of itself, and its cache emptied; one that has no such call is asked all the same."""
    control = ControlClient(target)
    try:
        facts = read_facts(control)
        flush_cache(control, FLUSH_PATIENCE_S, threading.Event())
    finally:
        control.close()
    return facts


def _load(target: Target, level: Level, facts: ServerFacts, vocabulary: Vocabulary, concurrency: int) -> Plan:
    workload = level.workload
    input_tokens = min(workload.input_tokens, LOAD_INPUT_TOKENS)
    return Plan(
        form=RequestForm(workload.api, target, facts.model),
        vocabulary=vocabulary,
        seed=workload.seed,
        level=level.concurrency,
        window=level.window + 1,  # other prompts than those of the measurement
        lengths=FixedLengths(input_tokens, max(workload.output_tokens, 2 * ANSWER_TOKENS)),
        concurrency=concurrency,
        total_concurrency=concurrency,
    )


def _asked(asking: Asking, prompts: Sequence[Sequence[int]], told: Told) -> tuple[Answer, ...]:
    try:
        return _wait(asking.begin(prompts), told, UNANSWERED)
    finally:
        asking.close()


def _wait(futures: Sequence[Future[Result]], told: Told, late: Result) -> tuple[Result, ...]:
    before = told.completed
    while told.go_on() and not told.out_of_time and not finished(futures):
        told.completed = before + sum(future.done() for future in futures)
    for future in futures:
        future.cancel()
    return tuple(future.result() if future.done() and not future.cancelled() else late for future in futures)


def _settle(worker: ThreadWorker, told: Told, clock: Clock, concurrency: int) -> None:
    """Until nearly all of the load is being answered, or for a while after its first token."""
    first_s: float | None = None
    while told.go_on() and not told.out_of_time:
        sample = worker.sample()
        if sample is not None and (sample.given_up is not None or sample.answering >= SETTLED_SHARE * concurrency):
            return
        if first_s is None and sample is not None and sample.tokens > 0:
            first_s = clock.now_s()
        if first_s is not None and clock.now_s() - first_s > LOAD_SETTLES_S:
            return
        time.sleep(0.02)
