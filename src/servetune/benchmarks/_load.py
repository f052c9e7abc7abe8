"""Holding a concurrency: an event loop in a thread of its own, one connection per slot, the next request at once.

The thread keeps measuring while the caller draws its view or reads a log; `Load` is what both sides see. Everything
else is touched by the loop's thread only.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from servetune.benchmarks._api import RequestForm
from servetune.benchmarks._connection import Connection
from servetune.benchmarks._pace import Pace
from servetune.benchmarks._prompts import PromptSource
from servetune.benchmarks._records import Records
from servetune.core.clock import Clock

TICK_S = 0.02
CONNECTING_AT_ONCE = 64
LONGEST_PAUSE_S = 2.0  # before a slot tries again after failures in a row


@dataclass
class Effort:
    """What the load cost the client, in wall seconds, over the measured part."""

    cpu_s: float = 0.0
    waiting_s: float = 0.0  # runnable, but without a core
    wall_s: float = 0.0
    worst_lag_s: float = 0.0  # how late the loop's own timer came, at worst

    @property
    def busy_share(self) -> float:
        """Share of the time in which the loop had work: 1 is a saturated client."""
        return (self.cpu_s + self.waiting_s) / self.wall_s if self.wall_s > 0 else 0.0


def thread_effort() -> tuple[float, float]:
    """CPU seconds of this thread, and seconds in which it was runnable without a core (0 where Linux does not tell)."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            waited_ns = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        waited_ns = 0
    return time.thread_time(), waited_ns / 1e9


@dataclass
class Load:
    """A level while it runs. The loop's thread writes; the caller reads, and may set `abort`."""

    pace: Pace
    records: Records
    effort: Effort = field(default_factory=Effort)
    abort: bool = False
    given_up: str | None = None  # why the level was ended early
    wall_begin_s: float = 0.0  # of the measured part
    wall_end_s: float = 0.0
    connected: int = 0


class Slot:
    """Keeps one request in flight."""

    def __init__(self, holder: ClosedLoop, number: int) -> None:
        self._holder = holder
        self.number = number
        self.served = 0
        self._in_a_row = 0
        self._failed_before = 0
        self.connection: Connection | None = None

    def request_ended(self, connection: Connection) -> None:
        """Record-keeping is done; send the next one, after a pause when this one failed."""
        self.served += 1
        failed = self._holder.records.request_outcome[connection.request] != 1
        self._in_a_row = self._in_a_row + 1 if failed else 0
        if failed:
            pause_s = min(LONGEST_PAUSE_S, 0.05 * 2 ** min(self._in_a_row, 6))
            self._holder.later(pause_s, self.next_request)
        else:
            # after this callback, so that a closing connection is seen as such
            self._holder.later(0.0, self.next_request)

    def next_request(self) -> None:
        """Send on the open connection, or open one first."""
        if self._holder.over:
            return
        if self.connection is not None and self.connection.usable:
            self._holder.send(self, self.connection)
        else:
            self._holder.open(self)

    def connected(self, connection: Connection) -> None:
        """A new connection is open."""
        self.connection = connection


class ClosedLoop:
    """Runs in the loop's thread."""

    def __init__(
        self,
        load: Load,
        form: RequestForm,
        prompts: PromptSource,
        concurrency: int,
        lengths: tuple[int, int],
        clock: Clock,
        stall_s: float,
    ) -> None:
        self.load = load
        self.records = load.records
        self.over = False
        self._form = form
        self._prompts = prompts
        self._concurrency = concurrency
        self._input_tokens, self._output_tokens = lengths
        self._clock = clock
        self._stall_s = stall_s
        self._slots = [Slot(self, number) for number in range(concurrency)]
        self._gate = asyncio.Semaphore(CONNECTING_AT_ONCE)
        self._opening: set[asyncio.Task[None]] = set()
        self._sent = 0
        self._tokens = 0
        self._events_summed = 0
        self._first_wave_left = concurrency
        self._effort_begin = (0.0, 0.0)
        self._loop = asyncio.get_running_loop()
        self._wall_origin_s = time.monotonic()
        self._tls = ssl.create_default_context() if form.target.tls else None

    async def run(self) -> None:
        """Hold the load until the pace says that the level is over, or the caller aborts."""
        try:
            await self._open_all()
            for slot in self._slots:
                slot.next_request()
            await self._watch()
        finally:
            self._stop()

    # what slots use

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call after `delay_s` of wall time."""
        if delay_s:
            self._loop.call_later(delay_s, call)
        else:
            self._loop.call_soon(call)

    def send(self, slot: Slot, connection: Connection) -> None:
        """The next request of the level on this connection."""
        asked = self._output_tokens if slot.served else self._first_length(slot.number)
        number, self._sent = self._sent, self._sent + 1
        connection.send(self._form.request(self._prompts.ids_json(number, self._input_tokens), asked), asked)

    def open(self, slot: Slot) -> None:
        """Connect, then send."""
        task = self._loop.create_task(self._connect_and_send(slot))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    # the rest is ours

    def _first_length(self, number: int) -> int:
        """Answers of the first wave end one after the other, so that later waves do not move in step."""
        return max(1, math.ceil(self._output_tokens * (number + 1) / self._concurrency))

    async def _open_all(self) -> None:
        await asyncio.gather(*(self._connect(slot) for slot in self._slots))

    async def _connect_and_send(self, slot: Slot) -> None:
        if await self._connect(slot):
            slot.next_request()
        else:
            sent = time.monotonic()
            index = self.records.open_request(sent, self._output_tokens)
            self.records.fail_request(index, sent, "no connection to the server")
            slot.served += 1
            await asyncio.sleep(0.5)
            if not self.over:
                self.open(slot)

    async def _connect(self, slot: Slot) -> bool:
        target = self._form.target
        async with self._gate:
            if self.over:
                return False
            try:
                async with asyncio.timeout(10):
                    _, connection = await self._loop.create_connection(
                        lambda: Connection(slot, self.records), target.host, target.port, ssl=self._tls
                    )
            except (OSError, TimeoutError):
                return False
        slot.connected(connection)
        self.load.connected += 1
        return True

    async def _watch(self) -> None:
        pace, due = self.load.pace, time.monotonic() + TICK_S
        while not self.load.abort:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            lag_s, due = now - due, now + TICK_S
            before = pace.stage
            self._sum_tokens()
            stage = pace.update(self._clock.now_s(), self._tokens, self.records.completed, self._first_wave_over())
            if before == "warmup" and stage != "warmup":
                self._begin_measuring(now)
            elif stage != "warmup":
                self.load.effort.worst_lag_s = max(self.load.effort.worst_lag_s, lag_s)
            if stage == "over" or self._hopeless():
                break
            self._end_stalled()
        self._end_measuring()

    def _sum_tokens(self) -> None:
        new = self.records.event_tokens[self._events_summed :]
        self._events_summed += len(new)
        self._tokens += sum(new)

    def _first_wave_over(self) -> bool:
        return all(slot.served for slot in self._slots)

    def _hopeless(self) -> bool:
        """Every slot failed again and again, and nothing ever came: waiting longer shows nothing new."""
        records = self.records
        if records.completed == 0 and not len(records.event_time) and records.failed >= 3 * self._concurrency + 5:
            self.load.given_up = f"ended early: {records.failed} requests failed and none gave a token"
            return True
        return False

    def _end_stalled(self) -> None:
        limit = time.monotonic() - self._stall_s / self.load_scale()
        for slot in self._slots:
            connection = slot.connection
            if connection is not None and connection.busy and connection.started and connection.last_event < limit:
                connection.fail(f"stalled: no token for {self._stall_s:g} s in the middle of an answer")

    def load_scale(self) -> float:
        """Node seconds per wall second, as the clock has run so far."""
        wall_s = time.monotonic() - self._wall_origin_s
        node_s = self._clock.now_s() - self.load.pace.start_s
        return node_s / wall_s if wall_s > 0.1 and node_s > 0 else 1.0

    def _begin_measuring(self, now: float) -> None:
        self.load.wall_begin_s = now
        self._effort_begin = thread_effort()

    def _end_measuring(self) -> None:
        self.load.wall_end_s = time.monotonic()
        if self.load.wall_begin_s:
            cpu_s, waiting_s = thread_effort()
            effort = self.load.effort
            effort.cpu_s = cpu_s - self._effort_begin[0]
            effort.waiting_s = waiting_s - self._effort_begin[1]
            effort.wall_s = self.load.wall_end_s - self.load.wall_begin_s

    def _stop(self) -> None:
        self.over = True
        for task in self._opening:
            task.cancel()
        for slot in self._slots:
            if slot.connection is not None:
                slot.connection.abandon()
