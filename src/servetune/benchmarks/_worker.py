"""Where a holder runs: a thread of this process, so that the caller may draw and read logs while it measures."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import uvloop

from servetune.benchmarks._holder import EffortSeries, Holder, Plan, Sample
from servetune.benchmarks._records import Records


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


def workers_for(concurrency: int, processes: int | None) -> list[Worker]:
    """The workers that share a level."""
    del concurrency, processes
    return [ThreadWorker()]
