"""Settings that the load generators share."""

from __future__ import annotations

from pydantic import Field

from servetune.benchmarks._goodput import GoodputLimits
from servetune.benchmarks._lengths import Arrivals, LengthSpec, lengths_of
from servetune.benchmarks._level import Demand
from servetune.benchmarks._tasks import detectable_drop, power, read_tasks
from servetune.core.benchmark import Workload
from servetune.core.space import Frozen


class LoadSettings(Frozen):
    """Keys of `load_generator:` beside its name.

    `lengths`: other than the workload's fixed ones. `goodput`: limits of one request; how many kept them is told beside
    the throughput. `vocabulary_size`: where the server's model folder cannot be read here and its ids end below 30,000.
    `stall_s`: node seconds without a token in the middle of an answer after which it counts as failed. `processes`: of
    the client; None: one, or more where cores are plenty and the concurrency is high. `in_step`: a closed loop's first
    wave asks for whole answers, as other tools' do; answers of one length then stay in step for good. `tasks`: JSONL
    file of {prompt, expected} for the correctness gate. `check_answers` False: configurations are measured without
    that gate.
    """

    lengths: LengthSpec = LengthSpec()
    goodput: GoodputLimits | None = None
    vocabulary_size: int | None = Field(default=None, ge=16)
    stall_s: float = Field(default=120.0, gt=0)
    processes: int | None = Field(default=None, ge=1, le=64)
    in_step: bool = False
    tasks: str | None = None
    check_answers: bool = True

    def remarks(self) -> tuple[str, ...]:
        """What a person should know of these settings before they are used."""
        if self.tasks is None:
            return ()
        count = len(read_tasks(self.tasks))
        return (f"{count} tasks of {self.tasks} are asked under load: {power(detectable_drop(count))}",)

    def demand(self, workload: Workload, arrivals: Arrivals | None = None) -> Demand:
        """What these settings ask of a level of `workload`. Raises SpecError for a trace that cannot be used."""
        return Demand(
            lengths=lengths_of(self.lengths, workload.input_tokens, workload.output_tokens, workload.seed),
            arrivals=arrivals,
            goodput=self.goodput,
            vocabulary_size=self.vocabulary_size,
            stall_s=self.stall_s,
            processes=self.processes,
            in_step=self.in_step,
            tasks=read_tasks(self.tasks) if self.tasks is not None else (),
        )
