"""Answers requests at the scenario's pace: node time passes `time_scale` times as fast as the wall clock.

The client's own time between two requests is not compressed: a request that follows a finished one counts as having
come its real wall time after it, so that a closed loop measures the same rate at every time scale.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
from collections import deque
from collections.abc import Callable
from functools import lru_cache

from servetune.simulation import answers, control
from servetune.simulation._http import Connection, Request
from servetune.simulation.answers import Asked, BadRequestError
from servetune.simulation.batching import Answer, Batch
from servetune.simulation.configuration import largest_graph, memory
from servetune.simulation.launch import Launch
from servetune.simulation.model import FAULT_AFTER_S, Fault, nonsense_from
from servetune.simulation.passage import Passage, nonsense, plausible
from servetune.simulation.rates import running, throughput
from servetune.simulation.story import kv_tokens

#: Events that leave in a second of wall time, at most.
EVENTS_PER_S = 5000.0
TICK_S = 0.002  # wall seconds between two looks at what is due, at least
#: A request that follows a finished one within this many wall seconds takes its place in node time. Long enough for a
#: client that has to wait for a core.
PROMPT_CLIENT_S = 0.5
LOG_EVERY_STEPS = 40  # decode steps between two lines of the log
LOG_EVERY_S = 0.2  # and wall seconds, at least

Log = Callable[[str], None]
Die = Callable[[Fault], None]


class Served(Answer):
    """An answer on its way to a client."""

    __slots__ = ("asked", "connection", "mad", "openai", "rid")

    def __init__(self, connection: Connection, asked: Asked, rid: bytes, openai: bool) -> None:
        super().__init__(asked.prompt_tokens, asked.wanted)
        self.connection, self.asked, self.rid, self.openai = connection, asked, rid, openai
        self.mad = False


class Service:
    """All requests of one simulated server. Lives in one event loop."""

    def __init__(
        self, launch: Launch, scenario_file: str, time_scale: float, log: Log, die: Die, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.ready = False
        self._launch, self._scenario_file, self._time_scale = launch, scenario_file, time_scale
        self._log, self._die, self._loop = log, die, loop
        self._origin_s = loop.time()
        self._plausible, self._nonsense = plausible(), nonsense()
        self._nonsense_from = nonsense_from(launch.scenario, launch.configuration) or math.inf
        self._model = json.dumps(launch.command.served_model_name).encode()
        self._capacity_tokens = kv_tokens(launch.scenario, memory(launch.scenario, launch.configuration))
        self._fault_at = lru_cache(maxsize=None)(lambda present: launch.level(present).fault)
        self._noise = lru_cache(maxsize=4096)(launch.noise)
        rate = lru_cache(maxsize=65536)(self._rate)
        patience_s = PROMPT_CLIENT_S * time_scale
        self._batch = Batch(rate, self._slots(), EVENTS_PER_S / time_scale, time_scale, patience_s)
        self._arriving: deque[tuple[float, Served]] = deque()  # with their wall time
        self._open: set[Served] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        self._ticked = -math.inf
        self._doom: tuple[float, float, Fault] | None = None  # node time, paid tokens, and why
        self._numbers = 0
        self._prompt_tokens = 0
        self._told = (-math.inf, 0.0, 0.0, 0)  # wall time, paid, node time and tokens at the last line of the log

    # the model

    def _rate(self, present: int, peak: int) -> float:
        """The noise of a level is that of its full concurrency, also while it fills."""
        rate = throughput(self._launch.scenario, self._launch.configuration, present)
        return max(1e-6, rate * self._noise(peak))

    def _slots(self) -> int:
        return max(1, math.floor(running(self._launch.scenario, self._launch.configuration, 2**31)))

    def _passage(self, served: Served) -> Passage:
        """What this answer says: nonsense once it has shared the server with too many others."""
        served.mad = served.mad or len(self._open) + (served not in self._open) >= self._nonsense_from
        return self._nonsense if served.mad else self._plausible

    # requests

    def connection(self) -> Connection:
        """A protocol object for one connection."""
        return Connection(self._serve)

    def _serve(self, connection: Connection, request: Request) -> None:
        path = request.path
        if path in ("/health", "/health_generate", "/ready"):
            connection.answer(200 if self.ready else 503, b"", "text/plain")
        elif path == "/metrics":
            connection.answer(200, control.metrics(self._launch, self._load()), "text/plain; version=0.0.4")
        elif not self._allowed(request):
            connection.answer(401, b'{"error":"Unauthorized"}')
        elif path in ("/generate", "/v1/completions"):
            self._generate(connection, request, path == "/v1/completions")
        else:
            self._control(connection, path, request.body)

    def _allowed(self, request: Request) -> bool:
        key = self._launch.command.api_key
        given = request.headers.get(b"authorization", b"")
        return key is None or hmac.compare_digest(given, f"Bearer {key}".encode())

    def _control(self, connection: Connection, path: str, body: bytes) -> None:
        if path in ("/server_info", "/get_server_info"):
            info = control.server_info(self._launch, self._scenario_file, self._time_scale, self._load())
            connection.answer(200, info)
        elif path in ("/model_info", "/get_model_info"):
            connection.answer(200, control.model_info(self._launch))
        elif path == "/v1/models":
            connection.answer(200, control.models(self._launch))
        elif path == "/flush_cache":
            self._flush(connection)
        elif path == "/abort_request":
            self._abort(connection, body)
        elif path.startswith("/simulation/reach/"):
            self._reach(connection, path.rpartition("/")[2])
        else:
            connection.answer(404, b'{"detail":"Not Found"}')

    def _generate(self, connection: Connection, request: Request, openai: bool) -> None:
        read = answers.read_completions if openai else answers.read_generate
        try:
            asked = read(request.body, self._plausible)
        except BadRequestError as error:
            told = {"error": {"message": str(error)}}
            connection.answer(400, json.dumps(told).encode())
            return
        self._numbers += 1
        self._prompt_tokens += asked.prompt_tokens
        rid = b"%b%032x" % (b"cmpl-" if openai else b"", self._numbers)
        served = Served(connection, asked, rid, openai)
        connection.lost = lambda: self._drop(served)
        self._open.add(served)
        self._passage(served)
        if asked.stream:
            connection.begin_stream()
        self._arriving.append((self._loop.time(), served))
        self._schedule()

    def _drop(self, served: Served) -> None:
        self._open.discard(served)
        self._batch.drop(served)

    def _flush(self, connection: Connection) -> None:
        """SGLang refuses while requests run or wait."""
        if self._open:
            text = f"Flush cache failed: {self._batch.running} running and {self._batch.waiting} waiting requests.\n"
            connection.answer(400, text.encode(), "text/plain")
        else:
            self._batch.forget_places()
            self._log("Cache flushed successfully!")
            connection.answer(200, b"Cache flushed.\nPlease check backend logs for more details.\n", "text/plain")

    def _abort(self, connection: Connection, body: bytes) -> None:
        try:
            asked = json.loads(body or b"{}")
        except ValueError:
            asked = {}
        everything, rid = bool(asked.get("abort_all")), str(asked.get("rid", "")).encode()
        for served in [one for one in self._open if everything or one.rid == rid]:
            self._drop(served)
            self._send(served, served.sent)
        connection.answer(200, b"", "text/plain")

    def _reach(self, connection: Connection, level: str) -> None:
        """For load generators that send no load: die as that many requests would make it."""
        connection.answer(200, b"{}")
        fault = self._fault_at(int(level)) if level.isdigit() and int(level) > 0 else None
        if fault is not None:
            self._loop.call_later(0.01, self._die, fault)

    # time

    def _node_s(self, wall_s: float) -> float:
        return (wall_s - self._origin_s) * self._time_scale

    def _schedule(self) -> None:
        """See to it that the next tick comes in time."""
        wall_s = self._loop.time()
        due_s = wall_s if self._arriving else self._next_wall_s()
        if due_s is None:
            return
        due_s = max(due_s, self._ticked + TICK_S, wall_s)
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(due_s, self._tick), due_s

    def _next_wall_s(self) -> float | None:
        next_s = self._batch.next_s()
        if self._doom is not None:
            next_s = min(self._doom[0], self._doom_paid_s(), math.inf if next_s is None else next_s)
        return None if next_s is None else self._origin_s + next_s / self._time_scale

    def _tick(self) -> None:
        self._timer = None
        wall_s = self._ticked = self._loop.time()
        self._batch.told_s = self._node_s(wall_s)
        while self._arriving:
            arrived, served = self._arriving.popleft()
            self._pass_to(self._node_s(arrived))
            if served in self._open:
                self._batch.arrive(served)
                self._look_for_doom()
        self._pass_to(self._batch.told_s)
        self._tell(wall_s)
        if self._doom is not None and (self._batch.now_s >= self._doom[0] or self._batch.paid >= self._doom[1]):
            self._die(self._doom[2])
            return
        self._schedule()

    def _pass_to(self, node_s: float) -> None:
        for emission in self._batch.advance(node_s):
            served = emission.answer
            assert isinstance(served, Served)
            if emission.last:
                self._open.discard(served)
            if emission.last or served.asked.stream:
                self._send(served, served.sent - emission.tokens)

    def _send(self, served: Served, before: int) -> None:
        asked, connection, passage = served.asked, served.connection, self._passage(served)
        e2e_s = max(0.0, self._batch.now_s - served.arrived_s)
        if asked.stream:
            if served.openai:
                data = answers.completions_event(asked, served, passage, served.rid, before, self._model)
            else:
                data = answers.generate_event(asked, served, passage, served.rid, e2e_s)
            connection.stream(data, served.ended)
        elif served.openai:
            whole = answers.completions_whole(asked, served, passage, served.rid, self._model)
            connection.answer(200, whole)
        else:
            connection.answer(200, answers.generate_whole(asked, served, passage, served.rid, e2e_s))

    # death under load

    def _look_for_doom(self) -> None:
        """A load that the configuration does not survive kills after 20 s or half an answer, whichever is sooner."""
        fault = self._fault_at(self._batch.places) if self._doom is None else None
        if fault is not None:
            half = self._launch.scenario.output_tokens / 2
            self._doom = (self._batch.now_s + FAULT_AFTER_S, self._batch.paid + half, fault)

    def _doom_paid_s(self) -> float:
        assert self._doom is not None
        speed = self._batch.tokens_per_s / max(1, self._batch.running)
        return self._batch.now_s + max(0.0, self._doom[1] - self._batch.paid) / speed if speed else math.inf

    # what it says of itself

    def _load(self) -> control.Load:
        batch = self._batch
        return control.Load(
            running=batch.running,
            waiting=batch.waiting,
            held_tokens=self._held_tokens(),
            tokens_per_s=batch.tokens_per_s,
            requests=self._numbers,
            prompt_tokens=self._prompt_tokens,
            output_tokens=batch.tokens,
        )

    def _held_tokens(self) -> int:
        """Prompts of the running requests, and half an answer each."""
        held = self._batch.prompt_tokens_running + self._batch.running * self._launch.scenario.output_tokens // 2
        return min(held, self._capacity_tokens)

    def _tell(self, wall_s: float) -> None:
        """SGLang's line about every forty decode steps, but not more than five a second."""
        batch, (told, paid, node_s, tokens) = self._batch, self._told
        if not batch.running or batch.paid - paid < LOG_EVERY_STEPS or wall_s - told < LOG_EVERY_S:
            return
        rate = (batch.tokens - tokens) / (batch.now_s - node_s) if told > -math.inf else batch.tokens_per_s
        self._told = (wall_s, batch.paid, batch.now_s, batch.tokens)
        held = self._held_tokens()
        usage = held / self._capacity_tokens if self._capacity_tokens else 1.0
        graph = batch.running <= largest_graph(self._launch.configuration)
        self._log(
            f"Decode batch, #running-req: {batch.running}, #token: {held}, token usage: {usage:.2f}, "
            f"cuda graph: {graph}, gen throughput (token/s): {rate:.2f}, #queue-req: {batch.waiting},"
        )
