"""Where a holder runs: a thread of this process, so that the caller may draw and read logs while it measures; or, where
cores are plenty and streams many, several processes.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Protocol

import uvloop

from servetune.benchmarks._files import allow_connections
from servetune.benchmarks._holder import EffortSeries, Holder, Plan, Sample
from servetune.benchmarks._records import Records
from servetune.core.errors import ServetuneError


@dataclass(frozen=True)
class Harvest:
    """What a worker wrote down."""

    records: Records
    effort: EffortSeries


class Worker(Protocol):
    """Holds its share of a load from `start` to `stop`."""

    def start(self, plan: Plan) -> None:
        """Begin; returns at once."""
        ...

    def sample(self) -> Sample | None:
        """The latest reading; None before the first."""
        ...

    def stop(self) -> Harvest:
        """Close every connection at once and hand over the records. Raises what went wrong in the worker itself."""
        ...


class ThreadWorker:
    """Implements Worker. One use: a holder's whole life."""

    def __init__(self) -> None:
        self._holder: Holder | None = None
        self._thread: Future[None] | None = None
        self._stop = False

    def start(self, plan: Plan) -> None:
        """Begin; returns at once."""
        executor = ThreadPoolExecutor(1, thread_name_prefix="servetune-load")
        self._thread = executor.submit(self._run, plan)
        executor.shutdown(wait=False)

    def sample(self) -> Sample | None:
        """The latest reading; None before the first. Raises what went wrong in the thread."""
        if self._thread is not None and self._thread.done():
            self._thread.result()
        return self._holder.latest if self._holder is not None else None

    def stop(self) -> Harvest:
        """See the protocol."""
        self._stop = True
        if self._holder is not None:
            self._holder.stop = True
        if self._thread is not None:
            self._thread.result()
        holder = self._holder
        return Harvest(holder.records, holder.effort) if holder is not None else Harvest(Records(), EffortSeries())

    def _run(self, plan: Plan) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main(plan))

    async def _main(self, plan: Plan) -> None:
        self._holder = Holder(plan)
        self._holder.stop = self._stop  # it may have been asked for before there was a holder
        await self._holder.run()


class ProcessWorker:
    """Implements Worker with a process of its own. It ends when this process does, however that ends."""

    def __init__(self) -> None:
        self._pipe: Connection | None = None
        self._process: SpawnProcess | None = None
        self._latest: Sample | None = None
        self._harvest: Harvest | None = None

    def start(self, plan: Plan) -> None:
        """Begin; returns at once."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=hold, args=(theirs, plan), daemon=True)
        self._process.start()
        theirs.close()

    def sample(self) -> Sample | None:
        """The latest reading; None before the first. Raises ServetuneError when the process has ended by itself."""
        while self._pipe is not None and self._harvest is None and self._pipe.poll():
            self._receive()
        return self._latest

    def stop(self) -> Harvest:
        """See the protocol. Raises ServetuneError when the process has ended by itself."""
        if self._pipe is None or self._process is None:
            return Harvest(Records(), EffortSeries())
        try:
            self._pipe.send("stop")
            while self._harvest is None:
                self._receive()
        except BrokenPipeError as error:
            raise self._lost() from error
        finally:
            self._pipe.close()
            self._process.join(5)
            self._process.kill()
        return self._harvest

    def _receive(self) -> None:
        assert self._pipe is not None
        try:
            message = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise self._lost() from error
        if isinstance(message, Harvest):
            self._harvest = message
        else:
            self._latest = message

    def _lost(self) -> ServetuneError:
        code = None if self._process is None else self._process.exitcode
        return ServetuneError(f"a process of the load generator ended by itself (exit code {code}); its error is above")


def hold(pipe: Connection, plan: Plan) -> None:
    """Body of a load process: hold until told to stop or until the other end of the pipe is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    allow_connections(plan.concurrency)
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        holder = runner.run(_hold(pipe, plan))
    with suppress(BrokenPipeError):
        pipe.send(Harvest(holder.records, holder.effort))


async def _hold(pipe: Connection, plan: Plan) -> Holder:
    holder = Holder(plan)
    holding = asyncio.create_task(holder.run())
    try:
        while not holding.done() and not pipe.poll():
            pipe.send(holder.latest)
            await asyncio.wait([holding], timeout=0.05)
    except BrokenPipeError:
        pass  # the parent is gone
    holder.stop = True
    await holding
    return holder


def workers_for(concurrency: int, processes: int | None) -> list[Worker]:
    """The workers that share a level: a thread, or processes where they have cores to themselves and enough to do."""
    wanted = processes or process_count(concurrency, len(os.sched_getaffinity(0)))
    wanted = min(wanted, concurrency)
    return [ThreadWorker()] if wanted == 1 else [ProcessWorker() for _ in range(wanted)]


def process_count(concurrency: int, cores: int) -> int:
    """One process for each 256 streams, on at most an eighth of the cores: the server needs the others."""
    return max(1, min(8, cores // 8, concurrency // 256))
