"""Load generator without load: answers from the scenario's model, of a virtual server or of a simulated one.

For studies in virtual time, and for tests that need the same numbers whatever was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
from pydantic import Field

from servetune.core.benchmark import GoOn, Level, Measurement, Percentiles, Progress
from servetune.core.clock import Clock
from servetune.core.errors import NodeUnusableError
from servetune.core.space import Frozen
from servetune.simulation.launch import Launch, planned
from servetune.simulation.model import LevelOutcome
from servetune.simulation.rates import Latency, latency
from servetune.simulation.scenario import load_scenario
from servetune.simulation.virtual import SCHEME, VirtualLaunch, launch_at

LOOKS_PER_S = 20  # at `go_on`, while holding wall time
VIRTUAL_LOOKS = 4  # at `go_on`, in each level of virtual time
TIMEOUT_S = httpx.Timeout(connect=5.0, read=60.0, write=5.0, pool=5.0)


class Settings(Frozen):
    """Keys beside `name: scenario`. `hold_s`: wall seconds that each level of a real simulated server takes."""

    scenario: str | None = None  # of a simulated server, which otherwise names it itself
    seed: int = 0
    hold_s: float = Field(default=0.0, ge=0)


def create(settings: Settings) -> LoadGenerator:
    """A load generator with these settings."""
    return LoadGenerator(settings)


class LoadGenerator:
    """Implements `core.benchmark.LoadGenerator`. The same seed, command, attempt, level and window give the same."""

    windows = True  # part of a level can be measured

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Measurement | None:
        """Answer for one level. In virtual time the clock passes by what measuring it takes, `limit_s` at most.

        A shorter measurement is less precise, by the square root. A server that does not answer, or is not a
        simulated one, gives a measurement in which every request failed.
        """
        if base_url.startswith(SCHEME):
            server = launch_at(base_url)
            return _failed(level, "no such virtual server") if server is None else self._virtual(server, level, go_on)
        return self._real(base_url, level, clock, go_on, headers)

    def _virtual(self, server: VirtualLaunch, level: Level, go_on: GoOn) -> Measurement | None:
        if server.poll() is not None:
            return _failed(level, "the virtual server has ended")
        outcome = server.hold(level.concurrency)
        wanted_s = outcome.seconds if outcome.fault else outcome.seconds * level.effort
        length_s = min(wanted_s, level.limit_s)
        for passed_s in _pass(server, length_s):
            if not go_on(_progress(level, outcome, passed_s, length_s)):
                return None
        if server.poll() is not None:
            return _failed(level, "the virtual server died")
        return self._answer(server.launch, level, outcome, length_s)

    def _real(
        self, base_url: str, level: Level, clock: Clock, go_on: GoOn, headers: Mapping[str, str]
    ) -> Measurement | None:
        try:
            launch = self._launch_of(base_url, headers)
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL) as error:
            raise NodeUnusableError(
                f"{base_url!r} is no address of a server: {type(error).__name__}: {error}"
            ) from error
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            return _failed(
                level, f"{base_url}/server_info is not a simulated server's: {type(error).__name__}: {error}"
            )
        outcome = launch.level(level.concurrency)
        begin_s, begin = clock.now_s(), time.monotonic()
        while True:
            held = time.monotonic() - begin
            if not go_on(_progress(level, outcome, clock.now_s() - begin_s, outcome.seconds)):
                return None
            if held >= self._settings.hold_s:
                break
            time.sleep(min(1 / LOOKS_PER_S, self._settings.hold_s - held))
        if outcome.fault:
            _hit(base_url, level, headers)
            go_on(_progress(level, outcome, clock.now_s() - begin_s, outcome.seconds))
            return _failed(level, f"the scenario says: {outcome.fault.slug}")
        return self._answer(launch, level, outcome, min(outcome.seconds, level.limit_s))

    def _launch_of(self, base_url: str, headers: Mapping[str, str]) -> Launch:
        info = httpx.get(f"{base_url}/server_info", headers=dict(headers), timeout=TIMEOUT_S).raise_for_status().json()
        told = info["simulation"]
        scenario = load_scenario(self._settings.scenario or told["scenario"], Path.cwd())
        return planned(scenario, told["assignment"], told["seed"])

    def _lot(self, level: Level) -> object:
        """What tells the noise of one window from that of another."""
        return self._settings.seed if level.window == 0 else f"{self._settings.seed} window {level.window} "

    def _answer(self, launch: Launch, level: Level, outcome: LevelOutcome, length_s: float) -> Measurement:
        """Low and high are where the true value lies with 95 % certainty, outliers aside."""
        scenario, precision = launch.scenario, min(1.0, length_s / outcome.seconds)
        rate = max(0.0, outcome.tokens_per_s * launch.noise(level.concurrency, precision, self._lot(level)))
        spread = 1.96 * scenario.noise.cv / precision**0.5 * rate
        tokens = round(rate * length_s)
        times = latency(scenario, launch.configuration, level.concurrency, outcome.tokens_per_s)
        return Measurement(
            concurrency=level.concurrency,
            output_tokens_per_s=rate,
            low=max(0.0, rate - spread),
            high=rate + spread,
            duration_s=length_s,
            requests_completed=max(1, round(tokens / scenario.output_tokens)),
            requests_failed=0,
            output_tokens=tokens,
            **_percentiles(times),
            details={"model_output_tokens_per_s": outcome.tokens_per_s},
        )


def _pass(server: VirtualLaunch, length_s: float) -> Iterator[float]:
    """Pass the clock in a few steps; seconds passed, after each. A death within `length_s` ends it there."""
    begin_s = server.clock.now_s()
    for step in range(1, VIRTUAL_LOOKS + 1):
        until_s = begin_s + length_s * step / VIRTUAL_LOOKS
        server.clock.advance(until_s - server.clock.now_s())
        yield server.clock.now_s() - begin_s
        if server.poll() is not None:
            return


def _hit(base_url: str, level: Level, headers: Mapping[str, str]) -> None:
    """Make a real simulated server die as it would under this load; it answers nothing when it does."""
    try:
        url = f"{base_url}/simulation/reach/{level.concurrency}"
        httpx.post(url, headers=dict(headers), timeout=TIMEOUT_S)
    except httpx.HTTPError:
        return


def _progress(level: Level, outcome: LevelOutcome, passed_s: float, length_s: float) -> Progress:
    expected = max(1, 4 * level.concurrency)
    share = min(1.0, passed_s / length_s) if length_s > 0 else 1.0
    return Progress(
        concurrency=level.concurrency,
        stage="measure",
        completed=round(expected * share),
        expected=expected,
        failed=0,
        output_tokens_per_s=outcome.tokens_per_s,
        elapsed_s=passed_s,
    )


def _failed(level: Level, why: str) -> Measurement:
    return Measurement.empty(level.concurrency, [why], requests_failed=level.concurrency)


def _percentiles(times: Latency) -> dict[str, Percentiles]:
    """The model has no spread of latencies: every percentile is the mean."""
    named = {"ttft_s": times.ttft_s, "tpot_s": times.tpot_s, "itl_s": times.tpot_s, "e2e_s": times.e2e_s}
    return {name: Percentiles(mean=s, p50=s, p90=s, p95=s, p99=s) for name, s in named.items()}
