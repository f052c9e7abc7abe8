"""A process that takes SGLang's command line and behaves as SGLang would on a scenario's node. Numbers are invented.

python -m servetune.simulation.server --scenario NAME_OR_PATH [--time-scale X] [--seed TEXT] -- <SGLang's command>
python -m servetune.simulation.server --scenario NAME_OR_PATH --facts
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from servetune.core.errors import SpecError
from servetune.simulation.launch import Launch, exit_code, plan
from servetune.simulation.model import Fault
from servetune.simulation.scenario import facts, load_scenario
from servetune.simulation.service import Service
from servetune.simulation.story import Line, banner, death, render, start_story


def main(arguments: Sequence[str]) -> int:
    """Run one server; returns its exit status. A failing child of SGLang's is a SIGKILL to this process."""
    own, command = _split(arguments)
    options = _options(own)
    try:
        scenario = load_scenario(options.scenario)
    except SpecError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    if options.facts:
        print(facts(scenario).model_dump_json())
        return 0
    launch = plan(scenario, command, os.environ, options.seed)
    path = Path(options.scenario)
    file = str(path.resolve()) if path.is_file() else options.scenario
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Process(launch, file, options.time_scale).run())


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _options(own: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="servetune.simulation.server", description="A simulated SGLang server.")
    parser.add_argument("--scenario", required=True, help="name of a shipped scenario, or a file")
    parser.add_argument("--time-scale", type=_above_zero, default=1.0, help="node seconds in a second")
    parser.add_argument("--seed", default="0", help="any text; tells launches of the same command apart")
    parser.add_argument("--facts", action="store_true", help="print what the node is, as JSON, and exit")
    return parser.parse_args(own)


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return value


class Process:
    """One simulated server from launch to its end."""

    def __init__(self, launch: Launch, scenario_file: str, time_scale: float) -> None:
        self._launch, self._file, self._time_scale = launch, scenario_file, time_scale
        self._started = time.monotonic()
        self._stopping = asyncio.Event()
        self._signal = ""

    async def run(self) -> int:
        """Start, serve, stop. Returns the exit status, unless it kills itself."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, number)
        _write(banner(self._launch.scenario, self._time_scale) + "\n")
        service = Service(self._launch, self._file, self._time_scale, self._log, self._die, loop)
        server: asyncio.Server | None = None
        for line in start_story(self._launch):
            if not await self._wait_until(line.at_s):
                return 0
            if server is None and line.text.startswith("INFO:     Uvicorn running"):
                server = await self._bind(service)
                if server is None:
                    return 1
            self._tell(line)
        if self._launch.startup.fault:
            return self._end(self._launch.startup.fault)
        service.ready = True
        gc.collect()
        gc.freeze()
        await self._stopping.wait()
        self._log(f"{self._signal} received. signum=None frame=None. Draining requests and shutting down...", rank=-1)
        _write("INFO:     Shutting down\n")
        if server is not None:
            server.close()
        return 0

    async def _wait_until(self, at_s: float) -> bool:
        """Sleep until that second of node time; False when asked to stop before."""
        left = at_s / self._time_scale - (time.monotonic() - self._started)
        if left > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), left)
        if self._stopping.is_set():
            _write(f"{self._signal} received while starting.\n")
            return False
        return True

    async def _bind(self, service: Service) -> asyncio.Server | None:
        """SGLang binds its port only once everything is loaded; a busy one shows up this late."""
        command = self._launch.command
        try:
            loop = asyncio.get_running_loop()
            return await loop.create_server(service.connection, command.host, command.port, backlog=2048)
        except OSError as error:
            address = f"('{command.host}', {command.port})"
            reason = os.strerror(error.errno).lower() if error.errno else str(error)
            _write(f"ERROR:    [Errno {error.errno}] error while attempting to bind on address {address}: {reason}\n")
            return None

    def _stop(self, number: signal.Signals) -> None:
        self._signal = signal.Signals(number).name
        self._stopping.set()

    def _die(self, fault: Fault) -> None:
        """Under load."""
        for line in death(self._launch, fault, 0.0):
            self._tell(line)
        self._end(fault)

    def _end(self, fault: Fault) -> int:
        """As SGLang ends: the parser and the parent's checks exit, a failed child makes the parent kill itself."""
        code = exit_code(fault)
        if code < 0:
            os.kill(os.getpid(), -code)
        return code

    def _log(self, text: str, rank: int = 0) -> None:
        self._tell(Line(0.0, rank, text))

    def _tell(self, line: Line) -> None:
        _write(render(line, lambda at_s: time.strftime("%Y-%m-%d %H:%M:%S")))


def _write(text: str) -> None:
    """All of SGLang's log goes to standard error. A reader that has gone is no reason to die."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
