"""The server's own counters during a level, read now and then by a thread beside the load."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from servetune.benchmarks._api import Target
from servetune.benchmarks._server import ControlClient, numbers

EVERY_S = 2.0

#: Our name → names of the same thing in Prometheus exports of SGLang and vLLM (0.5.x and 0.1x).
METRICS: Mapping[str, tuple[str, ...]] = {
    "running": ("sglang:num_running_reqs", "vllm:num_requests_running"),
    "queued": ("sglang:num_queue_reqs", "vllm:num_requests_waiting"),
    "generated": ("sglang:generation_tokens_total", "vllm:generation_tokens_total"),
    "retracted": ("sglang:num_retracted_requests_total", "vllm:num_preemptions_total"),
    "graph": ("sglang:is_cuda_graph",),
}
#: The same out of SGLang's load endpoint (`/v1/loads`, before 0.5.19 `/get_load`).
LOADS: Mapping[str, tuple[str, ...]] = {
    "running": ("num_running_reqs",),
    "queued": ("num_waiting_reqs", "num_queue_reqs"),
}
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(\{[^}]*\})?\s+(\S+)", re.MULTILINE)
#: SGLang 0.5.2x counts forward passes by mode: `decode_none` ran without a graph.
_PASSES = "sglang:cuda_graph_passes_total"
_MODE = re.compile(r'mode="(decode\w*)"')


@dataclass(frozen=True)
class Reading:
    """Values at wall time `wall_s`, summed over data-parallel ranks; a name that the server does not tell is absent."""

    wall_s: float
    values: Mapping[str, float]


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text → our names. Series of one name are added up; forward passes: `decodes`, `eager_decodes`."""
    sums: dict[str, float] = {}
    found: dict[str, float] = {}
    for name, labels, value in _LINE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        sums[name] = sums.get(name, 0.0) + number
        if name == _PASSES and (mode := _MODE.search(labels)):
            found["decodes"] = found.get("decodes", 0.0) + number
            found["eager_decodes"] = found.get("eager_decodes", 0.0) + number * (mode[1] == "decode_none")
    for ours, theirs in METRICS.items():
        present = [sums[name] for name in theirs if name in sums]
        if present:
            found[ours] = present[0]
    return found


def parse_loads(document: object) -> dict[str, float]:
    """A load endpoint's JSON → our names."""
    if isinstance(document, dict) and isinstance(document.get("loads"), list):
        document = document["loads"]  # its aggregate would count everything twice
    found = {}
    for ours, theirs in LOADS.items():
        values = numbers(document, theirs)
        if values:
            found[ours] = sum(values)
    return found


class Observer:
    """Reads every two seconds from `start` to `stop`, and at once when `look` is called."""

    def __init__(self, target: Target) -> None:
        self.readings: list[Reading] = []
        self._target = target
        self._wake = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="servetune-observer", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def look(self) -> None:
        """Read soon."""
        self._wake.set()

    def stop(self, patience_s: float) -> None:
        """One last reading. A server that does not answer is not waited for longer than `patience_s`."""
        self._over = True
        self._wake.set()
        self._thread.join(patience_s)

    def _run(self) -> None:
        client = ControlClient(self._target)
        source = _source(client)
        while source is not None:
            over = self._over
            before = time.monotonic()
            values = source(client)
            if values:
                self.readings.append(Reading((before + time.monotonic()) / 2, values))
            if over:
                break
            self._wake.wait(EVERY_S)
            self._wake.clear()
        client.close()


def _from_metrics(client: ControlClient) -> dict[str, float]:
    reply = client.ask("GET", "/metrics")
    return parse_metrics(reply.body.decode("utf-8", "replace")) if reply.status == 200 else {}


def _from_loads(client: ControlClient) -> dict[str, float]:
    return parse_loads(client.first_json("/v1/loads", "/get_load"))


def _source(client: ControlClient) -> Callable[[ControlClient], dict[str, float]] | None:
    """The richest source that this server has."""
    for source in (_from_metrics, _from_loads):
        if source(client):
            return source
    return None
