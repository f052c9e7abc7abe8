"""Continuous batching as processor sharing: every running request decodes at the same pace. Pure; node seconds.

`paid` is the number of tokens that each running request has been served since the start, the same for all of them.
A request that joins at `paid = p` and wants n tokens is done at `p + n`, whoever else comes or goes; only the seconds
in which `paid` grows depend on the others. So one heap ordered by `paid` holds all that will happen.

A compressed clock would charge a client for the wall time between two requests many times over. So the place of a
finished request is kept for a moment: the request that takes it counts as having come as much later as the client
really took.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from servetune.simulation.rates import PREFILL_S, PREFILL_SHARE

Rate = Callable[[int, int], float]
"""(requests present, most of them since the load last rose) → output tokens per second of the whole server."""


class Answer:
    """A request being answered. `sent` tokens of `wanted` are out."""

    __slots__ = ("arrived_s", "ended", "first_paid", "pace", "prompt_tokens", "running", "sent", "waiting", "wanted")

    def __init__(self, prompt_tokens: int, wanted: int) -> None:
        self.prompt_tokens, self.wanted = prompt_tokens, wanted
        self.sent = 0
        self.waiting = self.running = self.ended = False
        self.arrived_s = 0.0
        self.first_paid = 0.0
        self.pace = 1.0

    def due_paid(self, tokens: int) -> float:
        """When `tokens` tokens are out. The prompt's share is taken out of the decode, so that the rate holds."""
        return self.first_paid + (tokens - 1) * self.pace

    def begin(self, paid: float, prefill_paid: float) -> None:
        """It runs from `paid` on, and its first token comes `prefill_paid` later."""
        self.waiting, self.running = False, True
        if self.wanted == 1:
            self.first_paid, self.pace = paid + 1.0, 1.0
            return
        self.first_paid = paid + prefill_paid
        self.pace = (self.wanted - prefill_paid) / (self.wanted - 1)


class Emission(NamedTuple):
    """Tokens that leave: `tokens` more of `answer`, at `at_s`."""

    answer: Answer
    tokens: int
    at_s: float
    last: bool


class Vacancy(NamedTuple):
    """Place of a request that finished when places had been served `freed_paid`; its client was told at `told_s`."""

    freed_paid: float
    told_s: float


class Batch:
    """Requests that run and that wait.

    `capacity`: how many run at once. `events_per_s`: how many emissions at most. `time_scale`: node seconds in a wall
    second. `patience_s`: for how long a place is kept.
    """

    def __init__(
        self, rate: Rate, capacity: int, events_per_s: float, time_scale: float = 1.0, patience_s: float = 0.0
    ) -> None:
        self.now_s = 0.0
        self.paid = 0.0
        self.tokens = 0  # that have left, of all requests ever
        self.told_s = 0.0  # node time at which clients see what is emitted now
        self._rate, self._capacity, self._events_per_s = rate, max(1, capacity), events_per_s
        self._time_scale, self._patience_s = time_scale, patience_s
        self._vacant: deque[Vacancy] = deque()
        self._vacant_paid = 0.0  # tokens that each vacant place would have been served, were it taken
        self._running = 0
        self._held_tokens = 0
        self._waiting: deque[Answer] = deque()
        self._dropped_waiting = 0
        self._due: list[tuple[float, int, Answer]] = []
        self._order = 0
        self._peak = 0
        self._speed = 0.0  # of `paid`, per second
        self._tokens_per_s = 0.0

    @property
    def running(self) -> int:
        """Requests that decode."""
        return self._running

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return len(self._waiting) - self._dropped_waiting

    @property
    def present(self) -> int:
        """Requests that run or wait."""
        return self._running + self.waiting

    @property
    def places(self) -> int:
        """Requests that are present, and places that are kept: the load that the clients hold."""
        return self.present + len(self._vacant)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second at this moment."""
        return self._tokens_per_s if self._running else 0.0

    @property
    def prompt_tokens_running(self) -> int:
        """Prompt tokens of the requests that run."""
        return self._held_tokens

    def arrive(self, answer: Answer) -> None:
        """A request comes now; one that takes a place that was kept has come a little earlier."""
        credit_paid = self._credit_paid()
        answer.arrived_s = self.now_s - (credit_paid / self._speed if credit_paid else 0.0)
        if self._running < self._capacity:
            self._running += 1
            self._changed()
            self._start(answer, credit_paid)
        else:
            answer.waiting = True
            self._waiting.append(answer)
            self._changed()

    def _credit_paid(self) -> float:
        """Tokens that a request would have been served by now, had its client needed its wall time only."""
        if not self._vacant:
            return 0.0
        place = self._vacant.popleft()
        took_s = max(0.0, self.now_s - place.told_s) / self._time_scale
        return max(0.0, self._vacant_paid - place.freed_paid - took_s * self._speed)

    def forget_places(self) -> None:
        """No place is kept any longer: another load begins."""
        self._vacant.clear()
        self._changed()

    def drop(self, answer: Answer) -> None:
        """The client went away, or the request is aborted."""
        if answer.ended:
            return
        answer.ended = True
        if answer.running:
            self._leave(answer)
        elif answer.waiting:
            self._dropped_waiting += 1
            self._changed()

    def next_s(self) -> float | None:
        """When the next emission is due, if nothing else happens."""
        while self._due and self._due[0][2].ended:
            heapq.heappop(self._due)
        if not self._due:
            return None
        return self.now_s + max(0.0, self._due[0][0] - self.paid) / self._speed

    def advance(self, until_s: float) -> Iterator[Emission]:
        """Pass to `until_s`; what leaves until then, in order. The time has come when the iterator is exhausted."""
        while True:
            lapse_s = self._vacant[0].told_s + self._patience_s if self._vacant else math.inf
            at_s = self.next_s()
            if at_s is not None and at_s <= min(until_s, lapse_s):
                due_paid, _, answer = heapq.heappop(self._due)
                self._pass_to(at_s)
                self.paid = max(self.paid, due_paid)  # not short of it by a rounding error
                yield self._emit(answer, self.paid + (until_s - self.now_s) * self._speed)
            elif lapse_s <= until_s:
                self._pass_to(lapse_s)
                self._vacant.popleft()
                self._changed()
            else:
                break
        self._pass_to(until_s)

    def _pass_to(self, at_s: float) -> None:
        if at_s > self.now_s:
            served = (at_s - self.now_s) * self._speed
            self.now_s = at_s
            if self._running:
                self.paid += served
            if self._vacant:
                self._vacant_paid += served * min(1.0, (self._capacity - self._running) / len(self._vacant))

    def _emit(self, answer: Answer, paid_soon: float) -> Emission:
        """What is due by now; several tokens when the clock has gone further. The last token always comes in time."""
        due = int((max(self.paid, paid_soon) - answer.first_paid) / answer.pace + 1e-9) + 1
        if self.paid >= answer.due_paid(answer.wanted) - 1e-6:
            due = answer.wanted
        else:
            due = max(answer.sent + 1, min(due, answer.wanted - 1))
        tokens, answer.sent = due - answer.sent, due
        self.tokens += tokens
        last = answer.sent >= answer.wanted
        if last:
            answer.ended = True
            if self._patience_s > 0:
                self._vacant.append(Vacancy(self._vacant_paid, max(self.now_s, self.told_s)))
            self._leave(answer)
        else:
            self._push(answer)
        return Emission(answer, tokens, self.now_s, last)

    def _start(self, answer: Answer, credit_paid: float) -> None:
        prefill_paid = min(PREFILL_SHARE * answer.wanted, PREFILL_S * self._speed)
        answer.begin(self.paid - credit_paid, prefill_paid)
        self._held_tokens += answer.prompt_tokens
        self._push(answer)

    def _push(self, answer: Answer) -> None:
        following = 1 if not answer.sent else min(answer.wanted, answer.sent + self._stride(answer.wanted))
        self._order += 1
        heapq.heappush(self._due, (answer.due_paid(following), self._order, answer))

    def _stride(self, wanted: int) -> int:
        """Tokens in one emission, such that no more than `events_per_s` leave; the first token always goes alone."""
        allowed = int(self._events_per_s * wanted / self._tokens_per_s)  # emissions for each request
        return math.ceil((wanted - 1) / (allowed - 1)) if allowed > 1 else wanted

    def _leave(self, answer: Answer) -> None:
        self._running -= 1
        self._held_tokens -= answer.prompt_tokens
        joined = self._next_waiting()
        if joined is not None:
            self._running += 1
        self._changed()
        if joined is not None:
            self._start(joined, 0.0)

    def _next_waiting(self) -> Answer | None:
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.ended:
                return answer
            self._dropped_waiting -= 1
        return None

    def _changed(self) -> None:
        """The pace depends on how many are present. The peak is forgotten once half of them have gone."""
        places = self.places
        self._peak = places if 2 * places < self._peak else max(self._peak, places)
        if places:
            self._tokens_per_s = self._rate(places, self._peak)
            self._speed = self._tokens_per_s / min(places, self._capacity)
