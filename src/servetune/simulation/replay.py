"""Recorded launches played back: a node whose servers start, serve and fail as, and when, they once did.

Time is virtual. What a launch took and gave comes from its row of the table, to the last digit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from servetune.core.benchmark import GoOn, Level, Measurement, Progress
from servetune.core.clock import Clock
from servetune.core.engine import ProbeResult
from servetune.core.node import Exit, LaunchSpec, NodeFacts, ServerProcess
from servetune.core.table import LaunchRow
from servetune.simulation.clock import VirtualClock
from servetune.simulation.launch import launch_seed
from servetune.simulation.table import Configuration, MeasuredTable, facts

SCHEME = "replay://"
READY, FAILED = "ready", "failed"


def launch_of(configuration: Configuration, seed: str) -> LaunchRow:
    """One of the recorded launches. The attempts of one study go through all of them, in an order that `seed` draws."""
    study_seed, _, attempt = seed.partition(":")
    order = list(configuration.launches)
    random.Random(study_seed).shuffle(order)  # noqa: S311 -- not a secret
    return order[int(attempt) % len(order)]


class ReplayNode:
    """A node whose servers are launches of a table. `LaunchSpec.argv` holds the configuration's place in the table."""

    name = "replay"

    def __init__(self, table: MeasuredTable, seed: int = 0) -> None:
        self._time = VirtualClock()
        self.clock: Clock = self._time
        self.table, self._seed = table, seed
        self._servers: dict[str, ReplayServer] = {}

    def identity(self) -> str:
        """One for each table."""
        return f"replay/{self.table.file}"

    def facts(self) -> NodeFacts:
        """Of the node on which the table was measured."""
        return facts(self.table)

    def environment(self) -> Mapping[str, str]:
        """What this node adds to a launch's environment: nothing."""
        return {}

    def free_port(self) -> int:
        """Nothing listens."""
        return 30000

    def start(self, spec: LaunchSpec, study: str, trial: int, log_dir: str) -> ReplayServer:
        """Start the replay of one launch."""
        configuration = self.table.configurations[int(str(spec.argv[-1]))]
        row = launch_of(configuration, launch_seed(self._seed, log_dir))
        server = ReplayServer(row, self._time, f"{SCHEME}{len(self._servers)}")
        self._servers[server.url] = server
        return server

    def server_at(self, url: str) -> ReplayServer:
        """The server of an address."""
        return self._servers[url]

    def reclaim(self, study: str) -> Sequence[str]:
        """Nothing is ever left behind."""
        return ()


class ReplayServer:
    """A `core.node.ServerProcess` that is a record. Its log is made of words for `replay_engine.ReplayReader`."""

    def __init__(self, row: LaunchRow, clock: VirtualClock, url: str) -> None:
        self.row, self.url, self._clock = row, url, clock
        self._started_s = clock.now_s()
        self._ready_s = row.phase_s.get("ready", row.node_s)
        self._dead = self._whole = self._stopped = False
        clock.schedule(self._started_s + self._ready_s)

    @property
    def never_ready(self) -> bool:
        """Whether the launch failed before anything was asked of it."""
        return self.row.failure is not None and "probe" not in self.row.phase_s

    def _started(self) -> bool:
        return self._clock.now_s() - self._started_s >= self._ready_s - 1e-6

    def poll(self) -> Exit | None:
        """None while it runs."""
        return Exit(code=None) if self._stopped or self._dead or (self.never_ready and self._started()) else None

    def read_log(self, offset_bytes: int) -> bytes:
        """The launch's place in its table, and how its start went as soon as that is known."""
        told = f"{self.row.study} {self.row.trial} {self.row.attempt}\n"
        if self._started():
            told += f"{FAILED if self.never_ready else READY}\n"
        return told.encode()[offset_bytes:]

    @contextmanager
    def endpoint(self) -> Iterator[str]:
        """An address that only `ReplayGenerator` understands."""
        yield self.url

    def probe(self) -> ProbeResult:
        """As it went."""
        self._clock.advance(self.row.phase_s.get("probe", 0.0))
        failure = self.row.failure
        if failure is not None and failure.slug == "wrong_output" and not self.row.levels:
            self._whole = True
            return ProbeResult(ok=False, message=failure.message)
        return ProbeResult(ok=True, message="")

    def hold(self, concurrency: int) -> Measurement | None:
        """What the level gave, after the time that it took; None when the launch came to its end in it."""
        self._clock.advance(self.row.phase_s.get(f"level:{concurrency}", 0.0))
        found = next((level for level in self.row.levels if level.concurrency == concurrency), None)
        last = concurrency == self.row.load.concurrency[-1]
        self._whole = last or found is None
        self._dead = self.row.failure is not None and self._whole
        return None if found is None or self._dead else found.measurement()

    def stop(self, grace_s: float) -> Exit:
        """End it. A launch that was replayed to its end has then taken what it once took."""
        if not self._stopped:
            passed_s = self._clock.now_s() - self._started_s
            whole_s = self.row.node_s - passed_s if self._whole or self.never_ready else 0.0
            self._clock.advance(max(self.row.phase_s.get("stop", 0.0), whole_s))
        self._stopped = True
        return Exit(code=0)


class ReplayGenerator:
    """A load generator that says what was measured."""

    def __init__(self, node: ReplayNode) -> None:
        self._node = node

    def run(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Measurement | None:
        """The recorded measurement, whole: a level cannot be measured for less time than it was."""
        server = self._node.server_at(base_url)
        found = server.hold(level.concurrency)
        going = go_on(_progress(level, found))
        return found if going else None


def _progress(level: Level, found: Measurement | None) -> Progress:
    return Progress(
        concurrency=level.concurrency,
        stage="measure",
        completed=0 if found is None else found.requests_completed,
        expected=level.concurrency if found is None else max(1, found.requests_completed),
        failed=0 if found is None else found.requests_failed,
        output_tokens_per_s=0.0 if found is None else found.output_tokens_per_s,
        elapsed_s=0.0 if found is None else found.duration_s,
    )


def probe(process: ServerProcess, headers: Mapping[str, str], random_weights: bool) -> ProbeResult:
    """The tuner's probe for servers of this node. Raises TypeError for a server of another node."""
    if not isinstance(process, ReplayServer):
        raise TypeError(f"{type(process).__name__} is not a replayed server")
    return process.probe()
