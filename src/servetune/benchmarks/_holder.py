"""Holding a load on the server: as many requests in flight as asked for, or requests at given times. One event loop.

Runs in a thread or process of its own (`_worker`); the coordinator sees it through `latest` and ends it through `stop`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from array import array
from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import islice

from servetune.benchmarks._api import RequestForm
from servetune.benchmarks._connection import Connection
from servetune.benchmarks._lengths import Arrivals, Lengths
from servetune.benchmarks._prompts import PromptSource, Vocabulary
from servetune.benchmarks._records import Outcome, Records

#: Handshakes at a time: a burst of 1,024 overflows the listen queue of common servers, and then takes a second or more.
CONNECTING_AT_ONCE = 64
CONNECT_TIMEOUT_S = 10.0
MOST_WAITING = 100_000  # requests of an open loop that have come and not been sent; what comes later is late
LONGEST_PAUSE_S = 2.0  # before a place is filled again after failures


@dataclass(frozen=True)
class Plan:
    """The share of a level that one worker holds. It handles requests number `first`, `first + stride`, …"""

    form: RequestForm
    vocabulary: Vocabulary
    seed: int
    level: int
    window: int
    lengths: Lengths
    concurrency: int  # closed loop: held; open loop: at most
    total_concurrency: int  # of all workers
    first: int = 0
    stride: int = 1
    arrivals: Arrivals | None = None  # None: closed loop
    in_step: bool = False  # closed loop: the first wave's answers are whole
    node_s_per_wall_s: float = 1.0
    stall_s: float = 120.0  # wall seconds


@dataclass(frozen=True)
class Sample:
    """What the coordinator sees, at wall time `wall_s`. `tokens` made: events spread over the time they stand for."""

    wall_s: float
    tokens: float = 0.0
    completed: int = 0
    failed: int = 0
    in_flight: int = 0
    connections: int = 0
    answering: int = 0  # requests in flight that have given a token
    first_wave_left: int = 0
    given_up: str | None = None


@dataclass
class EffortSeries:
    """Cumulative cost of the loop's thread at wall times, and how late its timer came."""

    wall_s: array[float] = field(default_factory=lambda: array("d"))
    cpu_s: array[float] = field(default_factory=lambda: array("d"))
    waiting_s: array[float] = field(default_factory=lambda: array("d"))  # runnable, but without a core
    lag_s: array[float] = field(default_factory=lambda: array("d"))
    queued: array[int] = field(default_factory=lambda: array("I"))  # open loop: arrived, not sent

    def add(self, wall_s: float, lag_s: float, queued: int) -> None:
        """A reading by the thread itself."""
        cpu_s, waiting_s = thread_cost()
        self.wall_s.append(wall_s)
        self.cpu_s.append(cpu_s)
        self.waiting_s.append(waiting_s)
        self.lag_s.append(lag_s)
        self.queued.append(queued)


def thread_cost() -> tuple[float, float]:
    """CPU seconds of this thread, and seconds in which it was runnable without a core (0 where Linux does not tell)."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            waited_ns = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        waited_ns = 0
    return time.thread_time(), waited_ns / 1e9


class Holder:
    """Runs inside a running event loop. `stop` may be set from another thread."""

    def __init__(self, plan: Plan) -> None:
        self.records = Records()
        self.effort = EffortSeries()
        self.latest = Sample(time.monotonic(), first_wave_left=plan.concurrency)
        self.stop = False
        self._plan = plan
        self._prompts = PromptSource(plan.vocabulary, plan.seed, plan.level, plan.window)
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._waiting: deque[float] = deque()  # open loop: arrived at, not yet sent
        self._gate = asyncio.Semaphore(CONNECTING_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._tls = ssl.create_default_context() if plan.form.target.tls else None
        self._tick_s = 0.02 if plan.concurrency <= 256 else 0.1  # each looks at every connection
        self._stalled_at = 0.0
        self._failed_in_a_row = 0
        self._ended_in_first_wave = 0
        self._tokens_summed = 0
        self._events_summed = 0
        self._in_flight = 0
        self._fault: BaseException | None = None  # ours, not the server's

    async def run(self) -> None:
        """Hold the load until `stop` is set or nothing works; then close every connection at once."""
        try:
            arrivals = self._plan.arrivals
            self._spawn(self._start_together() if arrivals is None else self._let_arrive(arrivals))
            await self._watch()
        finally:
            await self._close()

    # what connections call

    def request_ended(self, connection: Connection) -> None:
        """Recorded already. Fill the place: at once, or after a pause when it failed."""
        self._in_flight -= 1
        if connection.request < self._plan.concurrency:
            self._ended_in_first_wave += 1
        failed = self.records.request_outcome[connection.request] == Outcome.FAILED
        self._failed_in_a_row = self._failed_in_a_row + 1 if failed else 0
        if self.stop:
            return
        # not from within the callback: the connection may be closing
        self._loop.call_soon(self._release, connection)
        if self._plan.arrivals is None:
            self._loop.call_later(self._pause_s() if failed else 0.0, self._next)

    def request_lost(self, connection: Connection) -> None:
        """Send it again, on a new connection."""
        if not self.stop:
            self._spawn(self._connect_and_send_again(connection))

    def connection_ended(self, connection: Connection) -> None:
        """It cannot be used any more."""
        self._connections.discard(connection)

    # starting requests

    async def _start_together(self) -> None:
        opened = await asyncio.gather(*(self._connect() for _ in range(self._plan.concurrency)))
        for connection in opened:
            if isinstance(connection, Connection):
                self._send(connection, time.monotonic())
            else:
                self._refused(connection, time.monotonic())

    async def _let_arrive(self, arrivals: Arrivals) -> None:
        begin = time.monotonic()
        for time_s in _mine(arrivals.times_s(), self._plan):
            due = begin + time_s / self._plan.node_s_per_wall_s
            # also when it is due: requests that come faster than they can be sent must not keep the loop from reading
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            while len(self._waiting) >= MOST_WAITING:
                await asyncio.sleep(self._tick_s)
            self._waiting.append(due)
            self._next()

    def _next(self) -> None:
        """Send one more request if there is a place for it."""
        if self.stop or self._in_flight >= self._plan.concurrency:
            return
        if self._plan.arrivals is not None and not self._waiting:
            return
        due = self._waiting.popleft() if self._waiting else time.monotonic()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                self._send(connection, due)
                return
        self._in_flight += 1  # the place is taken while connecting
        self._spawn(self._connect_and_send(due))

    async def _connect_and_send(self, due: float) -> None:
        connection = await self._connect()
        self._in_flight -= 1
        if isinstance(connection, Connection):
            self._send(connection, due)
        else:
            self._refused(connection, due)

    async def _connect_and_send_again(self, lost: Connection) -> None:
        connection = await self._connect()
        if isinstance(connection, Connection):
            if not self.stop:
                connection.send_again(lost)
            return
        self._in_flight -= 1
        self._note_refusal(lost.request, connection)

    def _send(self, connection: Connection, due: float) -> None:
        if self.stop:
            return
        index = len(self.records.request_sent)
        number = self._plan.first + index * self._plan.stride
        input_tokens, output_tokens = self._plan.lengths.of(number)
        asked = self._first_length(number, output_tokens) if index < self._plan.concurrency else output_tokens
        self._in_flight += 1
        message = self._plan.form.request(self._prompts.ids_json(number, input_tokens), asked)
        connection.send(message, asked, due, input_tokens)

    def _first_length(self, number: int, output_tokens: int) -> int:
        """Answers of a closed loop's first wave end one after the other, so that later waves do not move in step."""
        if self._plan.arrivals is not None or self._plan.in_step:
            return output_tokens
        return max(1, -(-output_tokens * (number + 1) // self._plan.total_concurrency))

    def _refused(self, reason: str, due: float) -> None:
        self._note_refusal(self.records.open_request(due, 1), reason)

    def _note_refusal(self, index: int, reason: str) -> None:
        self.records.fail_request(index, time.monotonic(), reason)
        if index < self._plan.concurrency:
            self._ended_in_first_wave += 1
        self._failed_in_a_row += 1
        self._loop.call_later(self._pause_s(), self._next)

    def _release(self, connection: Connection) -> None:
        """A connection is idle again; in an open loop a waiting request takes it."""
        if connection.usable:
            self._idle.append(connection)
        if self._plan.arrivals is not None:
            self._next()

    def _pause_s(self) -> float:
        return min(LONGEST_PAUSE_S, 0.1 * (1 + self._failed_in_a_row / self._plan.concurrency))

    async def _connect(self) -> Connection | str:
        target = self._plan.form.target
        async with self._gate:
            if self.stop:
                return "stopped"
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, connection = await self._loop.create_connection(
                        lambda: Connection(self, self.records), target.host, target.port, ssl=self._tls
                    )
            except TimeoutError:
                return f"no connection within {CONNECT_TIMEOUT_S:g} s"
            except OSError as error:
                return f"no connection: {error.strerror or type(error).__name__}"
        self._connections.add(connection)
        return connection

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._work_ended)

    def _work_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = error

    # watching

    async def _watch(self) -> None:
        due = time.monotonic() + self._tick_s
        while not self.stop:
            await asyncio.sleep(self._tick_s)
            if self._fault is not None:
                raise self._fault
            now = time.monotonic()
            self.effort.add(now, now - due, len(self._waiting))
            due = now + self._tick_s
            self._end_stalled(now)
            self.latest = self._sample(now)

    def _sample(self, now: float) -> Sample:
        new = self.records.event_tokens[self._events_summed :]
        self._events_summed += len(new)
        self._tokens_summed += sum(new)
        under_way = sum([connection.under_way(now) for connection in self._connections])
        records = self.records
        hopeless = not len(records.event_time) and records.failed >= 3 * self._plan.concurrency + 5
        return Sample(
            wall_s=now,
            tokens=self._tokens_summed + under_way,
            completed=records.completed,
            failed=records.failed,
            in_flight=self._in_flight,
            connections=len(self._connections),
            answering=sum([connection.busy and connection.started for connection in self._connections]),
            first_wave_left=self._first_wave_left(),
            given_up=f"ended early: {records.failed} requests failed and none gave a token" if hopeless else None,
        )

    def _first_wave_left(self) -> int:
        if self._plan.arrivals is not None:
            return 0 if self.records.completed else 1
        return self._plan.concurrency - self._ended_in_first_wave

    def _end_stalled(self, now: float) -> None:
        if now - self._stalled_at < min(1.0, self._plan.stall_s / 4):
            return
        self._stalled_at = now
        silent_since = now - self._plan.stall_s
        stalled = [c for c in self._connections if c.busy and c.started and c.last_event < silent_since]
        for connection in stalled:
            connection.fail("stalled in the middle of an answer")

    async def _close(self) -> None:
        self.stop = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._connections):
            connection.abandon()
        await asyncio.sleep(0)  # lets the loop close them


def _mine(times_s: Iterator[float], plan: Plan) -> Iterator[float]:
    return islice(times_s, plan.first, None, plan.stride)
