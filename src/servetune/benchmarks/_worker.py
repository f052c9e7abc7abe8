"""Where a holder runs: a thread of this process, so that the caller may draw and read logs while it measures."""

from __future__ import annotations

import asyncio
import threading
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
    """Implements Worker."""

    def __init__(self) -> None:
        self._holder: Holder | None = None
        self._thread: threading.Thread | None = None
        self._stop = False
        self._error: BaseException | None = None

    def start(self, plan: Plan) -> None:
        """Begin; returns at once."""
        self._thread = threading.Thread(target=self._run, args=(plan,), name="servetune-load", daemon=True)
        self._thread.start()

    def sample(self) -> Sample | None:
        """The latest reading; None before the first. Raises what went wrong in the thread."""
        if self._error is not None:
            raise self._error
        return self._holder.latest if self._holder is not None else None

    def stop(self) -> Harvest:
        """See the protocol."""
        self._stop = True
        if self._holder is not None:
            self._holder.stop = True
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        holder = self._holder
        return Harvest(holder.records, holder.effort) if holder is not None else Harvest(Records(), EffortSeries())

    def _run(self, plan: Plan) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main(plan))
        except BaseException as error:  # carried to the caller's thread, not swallowed
            self._error = error

    async def _main(self, plan: Plan) -> None:
        holder = Holder(plan)
        holder.stop = self._stop
        self._holder = holder
        holder.stop = holder.stop or self._stop
        await holder.run()
