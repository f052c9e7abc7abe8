"""One run: start the server, wait until it is ready, probe it, measure each level, stop it, say what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

from servetune.core.answers import AnswerChecker
from servetune.core.benchmark import Bar, Level, LoadGenerator, Measurement, Progress
from servetune.core.engine import Engine
from servetune.core.events import LevelDone, LevelProgress, Listener, Note, Step
from servetune.core.failure import Evidence, Failure, Phase, Verdict
from servetune.core.node import Guarded, LaunchSpec, LoadHost, Node, NodeFacts, Observed, ServerProcess, SharedNode
from servetune.core.space import Assignment, Value
from servetune.core.study import StudySpec
from servetune.tuner.adoption import TakenUp
from servetune.tuner.effects import SERVED, flags_to_watch, in_effect, sentences, served_arguments
from servetune.tuner.gate import Gate, random_weights
from servetune.tuner.installation import check_installation
from servetune.tuner.judge import beyond_limits, gave_nothing
from servetune.tuner.load_place import LoadPlace
from servetune.tuner.probe import Probe, server_info
from servetune.tuner.stopping import StopRequest
from servetune.tuner.watch import Watch
from servetune.tuner.windows import in_windows

OnLevel = Callable[[Measurement], bool]
"""Called with each finished level; False ends the run (the pruner's word)."""


#: Node seconds between two notes of the time that a starting server has used.
SAVE_EVERY_S = 60.0
#: A level is measured again so often when somebody else used the GPUs meanwhile, after waiting QUIET_S at most.
DISTURBED = 3
QUIET_S = 60.0


#: Node seconds for each of INT and TERM when the log has decided that the server is dying: it may hang in that.
DYING_S = 0.3


class Recorder(Protocol):
    """Keeps what happens while it happens; the study store behind it makes a kill at any moment safe."""

    def phase(self, name: str, duration_s: float) -> None:
        """One part of the run took `duration_s` node seconds."""
        ...

    def measurement(self, measurement: Measurement) -> None:
        """One level is measured."""
        ...

    def progress(self, node_s: float) -> None:
        """The unfinished run has used `node_s` so far: what the ledger keeps should the tuner be killed."""
        ...


@dataclass
class RunResult:
    """What a run gave. `failure` None: every level asked for was measured, unless `pruned`."""

    measurements: list[Measurement] = field(default_factory=list)
    failure: Failure | None = None
    pruned: bool = False
    node_s: float = 0.0
    log_facts: Mapping[str, Any] = field(default_factory=dict)
    log_warnings: tuple[str, ...] = ()
    served: Mapping[str, Value] = field(default_factory=dict)  # arguments as the server itself says them


@dataclass(frozen=True)
class Job:
    """What to run: a launch spec for a trial, where its log goes, and who hears of it."""

    trial: int
    launch: LaunchSpec
    assignment: Assignment
    log_dir: str
    recorder: Recorder
    on_level: OnLevel
    effort: Mapping[int, float] = field(default_factory=dict)  # by level; 1 where it is not named
    bars: Mapping[int, Bar] = field(default_factory=dict)  # by level
    gate: Gate | None = None
    taken_up: TakenUp | None = None  # a server that runs already


class TrialRunner:
    """Runs jobs of one study on one node."""

    def __init__(
        self,
        spec: StudySpec,
        node: Node,
        engine: Engine,
        generator: LoadGenerator,
        probe: Probe,
        listener: Listener,
        stop: StopRequest,
        headers: Mapping[str, str],
        simulated: bool = False,
        facts: NodeFacts | None = None,
    ) -> None:
        self._spec, self._node, self._engine, self.generator = spec, node, engine, generator
        self._place = LoadPlace(spec.load_generator, generator, lambda text: listener.on(Note(text=text, warning=True)))
        self._probe, self._listener, self._stop, self._headers = probe, listener, stop, headers
        self._simulated = simulated
        self._facts = facts  # of the installation that further results must come from

    def run(self, job: Job) -> RunResult:
        """Run the job to its end. The server is gone when this returns or raises.

        Raises Interrupted when the person asked to stop, NodeError when the node cannot go on.
        """
        result = RunResult()
        started_s = self._node.clock.now_s()
        before = self._conditions()
        check_installation(self._spec, self._facts, before)
        if job.taken_up is None:
            self._listener.on(Step(name="launching", trial=job.trial))
            process = self._node.start(job.launch, self._spec.study, job.trial, job.log_dir)
        else:
            process, started_s = job.taken_up.process, started_s - job.taken_up.age_s
            result.measurements += job.taken_up.measurements
        watch = self._watch(job, process, started_s)
        try:
            if isinstance(process, LoadHost):
                process.prepare_load()
            result.failure = self._serve(job, watch, result)
            after = self._conditions() if before else {}
        finally:
            self._end(job, watch, result)
        if before:
            result.log_facts = {**result.log_facts, "node": {"start": before, "end": after}}
        if result.failure is not None:
            watch.drain()
            result.failure = _with_default_phase(result.failure, watch)
        return result

    def _conditions(self) -> Mapping[str, Any]:
        """How the node does, where it tells."""
        return self._node.conditions() if isinstance(self._node, Observed) else {}

    def _watch(self, job: Job, process: ServerProcess, started_s: float) -> Watch:
        reader = self._engine.log_reader(job.assignment)
        return Watch(job.trial, process, reader, self._node.clock, self._listener, self._stop, started_s)

    def _end(self, job: Job, watch: Watch, result: RunResult) -> None:
        """Stop the server, whatever happened: also when the lease was lost, which the listener raises at each step."""
        before_s = self._node.clock.now_s()
        try:
            self._listener.on(Step(name="stopping", trial=job.trial))
        finally:
            self._stop_server(watch)
        now_s = self._node.clock.now_s()
        job.recorder.phase("stop", now_s - before_s)
        result.node_s = now_s - watch.started_s
        job.recorder.progress(result.node_s)
        facts = watch.reader.facts()
        result.served = {**result.served, **in_effect(facts, flags_to_watch(self._spec.space, job.assignment))}
        result.log_facts = {**facts, SERVED: result.served}
        result.log_warnings = sentences(job.assignment, result.served, tuple(watch.reader.warnings()))

    def _stop_server(self, watch: Watch) -> None:
        """An impatient second Ctrl-C gives it no grace."""
        grace_s = self._spec.timeouts.stop_s
        try:
            watch.process.stop(min(grace_s, DYING_S) if watch.reader.decided else grace_s)
        except KeyboardInterrupt:
            watch.process.stop(0.0)
            raise

    def _serve(self, job: Job, watch: Watch, result: RunResult) -> Failure | None:
        failure = self._until_ready(job, watch)
        job.recorder.phase("ready", watch.elapsed_s())
        if failure is None:
            failure = self._timed(job, "probe", watch, lambda: self._ask_probe(job, watch, result))
        measured = {measurement.concurrency for measurement in result.measurements}
        for concurrency in self._spec.workload.concurrency:
            if failure is not None or result.pruned:
                break
            if concurrency in measured:
                continue
            level = partial(self._level, job, watch, concurrency, result)
            failure = self._timed(job, f"level:{concurrency}", watch, level)
        if failure is None and not result.pruned:
            failure = self._gated(job, watch, result)
        return failure

    def _gated(self, job: Job, watch: Watch, result: RunResult) -> Failure | None:
        """The correctness gate, where the job has one and the run might win."""
        rounds = 0 if job.gate is None else job.gate.rounds(result.measurements)
        if job.gate is None or not rounds:
            return None
        return self._timed(job, "answers", watch, partial(self._answer, job.gate, watch, result, rounds))

    def _answer(self, gate: Gate, watch: Watch, result: RunResult, rounds: int) -> Failure | None:
        self._listener.on(Step(name="answering", trial=watch.trial))
        level, sets = gate.level(result.measurements), []
        with self._place.beside(watch.process) as (url, generator):
            checker = cast(AnswerChecker, generator)  # the gate's own, or the same beside the server
            for _ in range(rounds):
                go_on = partial(self._go_on, watch)
                answers = checker.answers(url, level, self._node.clock, go_on, self._headers)
                if not watch.look() or answers is None:
                    return self._diagnose_load(watch)
                sets.append(answers)
        return gate.judge(sets)

    def _timed(self, job: Job, name: str, watch: Watch, part: Callable[[], Failure | None]) -> Failure | None:
        before_s = watch.elapsed_s()
        failure = part()
        job.recorder.phase(name, watch.elapsed_s() - before_s)
        job.recorder.progress(watch.elapsed_s())
        return failure

    def _until_ready(self, job: Job, watch: Watch) -> Failure | None:
        """Watch process, log, decisive lines, stalls and the deadline at once until the engine says it is ready."""
        self._listener.on(Step(name="waiting", trial=watch.trial))
        timeouts, saved_s = self._spec.timeouts, 0.0
        while True:
            if not watch.look():
                return self._diagnose(watch)
            if watch.reader.ready:
                return None
            if watch.silent_s() > timeouts.stall_s:
                return self._diagnose(watch, "stall")
            if watch.elapsed_s() > timeouts.ready_s:
                return self._diagnose(watch, "deadline")
            if watch.elapsed_s() > saved_s + SAVE_EVERY_S:
                saved_s = watch.elapsed_s()
                job.recorder.progress(saved_s)
            self._node.clock.sleep(self._node.clock.poll_s)

    def _ask_probe(self, job: Job, watch: Watch, result: RunResult) -> Failure | None:
        self._listener.on(Step(name="probing", trial=job.trial))
        answer = self._probe(watch.process, self._headers, random_weights(job.assignment))
        if not watch.look():
            return self._diagnose(watch)
        if answer.ok:
            watched = flags_to_watch(self._spec.space, job.assignment)
            result.served = served_arguments(server_info(watch.process, self._headers), watched)
            return None
        return _failure("wrong_output", Verdict.INFEASIBLE, answer.message, deterministic=True)

    def _level(self, job: Job, watch: Watch, concurrency: int, result: RunResult) -> Failure | None:
        self._listener.on(Step(name=f"measuring:{concurrency}", trial=job.trial))
        level = Level(
            concurrency=concurrency,
            workload=self._spec.workload,
            limit_s=self._spec.timeouts.level_s,
            effort=job.effort.get(concurrency, 1.0),
            bar=job.bars.get(concurrency),
        )
        measurement, intruders = self._undisturbed(watch, partial(self._measured, watch, level))
        if not watch.look() or measurement is None:
            return self._diagnose_load(watch)
        if intruders:
            text = f"concurrency {concurrency} cannot be measured: others use the GPUs ({'; '.join(intruders)})"
            return _failure("invalid_measurement", Verdict.RETRY, text)
        result.measurements.append(measurement)
        job.recorder.measurement(measurement)
        self._listener.on(LevelDone(trial=job.trial, measurement=measurement))
        failure = self._judge(watch, measurement)
        if failure is None:
            last = concurrency == self._spec.workload.concurrency[-1]
            result.pruned = not job.on_level(measurement) and not last
        return failure

    def _undisturbed(
        self, watch: Watch, measure: Callable[[], Measurement | None]
    ) -> tuple[Measurement | None, Sequence[str]]:
        """A level while nobody else uses the GPUs; measured again when somebody did. The last one, and who did."""
        process = watch.process
        if not isinstance(process, Guarded):
            return measure(), ()
        intruders: Sequence[str] = process.intruders()
        for attempt in range(DISTURBED + 1):
            if attempt or intruders:
                text = (
                    f"others use the GPUs ({'; '.join(intruders)}): the level is measured when they are gone, or again"
                )
                self._listener.on(Note(text=text, warning=True))
                self._wait_for_quiet(watch, process)
            measurement = measure()
            intruders = () if measurement is None else process.intruders()
            if not intruders:
                break
        return measurement, intruders

    def _wait_for_quiet(self, watch: Watch, process: Guarded) -> None:
        until_s = watch.elapsed_s() + QUIET_S
        while watch.elapsed_s() < until_s and watch.look() and process.intruders():
            self._node.clock.sleep(max(1.0, self._node.clock.poll_s))

    def _measured(self, watch: Watch, level: Level) -> Measurement | None:
        """Hold the level, while no other study of the node measures."""
        with self._alone(watch) as allowed, self._place.beside(watch.process) as (url, generator):
            if not allowed:
                return None

            def hold(part: Level) -> Measurement | None:
                go_on = partial(self._go_on, watch)
                return generator.run(url, part, self._node.clock, go_on, self._headers)

            return in_windows(hold, level) if getattr(generator, "windows", False) else hold(level)

    def _alone(self, watch: Watch) -> AbstractContextManager[bool]:
        if not isinstance(self._node, SharedNode):
            return nullcontext(True)
        said: set[str] = set()

        def go_on(text: str) -> bool:
            if text not in said:
                said.add(text)
                self._listener.on(Note(text=text))
            return not self._stop.requested and watch.look()

        return self._node.measuring(self._spec.study, go_on)

    def _go_on(self, watch: Watch, progress: Progress) -> bool:
        self._listener.on(LevelProgress(trial=watch.trial, progress=progress))
        if self._stop.requested:
            return False
        return watch.look()

    def _judge(self, watch: Watch, measurement: Measurement) -> Failure | None:
        """A measurement that must not be used is a failure; so is one beyond a limit of the objective."""
        beyond = beyond_limits(self._spec.objective, measurement)
        if gave_nothing(measurement) and not beyond:
            return self._diagnose(watch, "hang" if measurement.requests_failed == 0 else "overload")
        if beyond:
            return _failure("limit_exceeded", Verdict.INFEASIBLE, "; ".join(beyond), deterministic=True)
        if not measurement.valid and not (self._simulated and measurement.output_tokens_per_s > 0):
            # a compressed clock magnifies the load generator's own delays; its numbers prove nothing anyway
            return _failure("invalid_measurement", Verdict.RETRY, "; ".join(measurement.warnings))
        return None

    def _diagnose_load(self, watch: Watch) -> Failure:
        """A death under load: give the process a moment to end, so that its log and exit code are whole."""
        until_s = watch.elapsed_s() + 2.0
        while watch.exit is None and not watch.reader.decided and watch.elapsed_s() < until_s:
            self._node.clock.sleep(self._node.clock.poll_s)
            watch.look()
        return self._diagnose(watch)

    def _diagnose(self, watch: Watch, hint: str | None = None) -> Failure:
        watch.drain()
        if getattr(watch.process, "rebooted", False):
            return _failure(
                "host_env", Verdict.RETRY, "the node was restarted while the server ran", phase=watch.reader.phase
            )
        return watch.reader.diagnose(watch.exit, hint)


def _failure(
    slug: str, verdict: Verdict, message: str, deterministic: bool | None = None, phase: Phase = Phase.SERVING
) -> Failure:
    evidence = (Evidence(line=0, text=message[:2000]),)
    return Failure(
        slug=slug,
        phase=phase,
        verdict=verdict,
        message=message,
        deterministic=deterministic,
        evidence=evidence,
        confidence=0.9,
    )


def _with_default_phase(failure: Failure, watch: Watch) -> Failure:
    """A diagnosis `none` of a server that did fail is reported as unknown, so that it is never taken for success."""
    if failure.slug != "none":
        return failure
    code = "still running" if watch.exit is None else f"exit code {watch.exit.code}"
    return failure.model_copy(
        update={
            "slug": "unknown",
            "verdict": Verdict.RETRY,
            "message": f"it ended without a reason in its log ({code})",
        }
    )
