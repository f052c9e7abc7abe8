"""The exact-rate server as a process of its own, and its stamps as arrays."""

import itertools
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_LABELS = itertools.count()
PROGRAM = Path(__file__).parent / "exact_rate_server.py"


@dataclass(frozen=True)
class Stamps:
    """By the server's own clock (monotonic): `time` of each event, its request and tokens; `received` per request."""

    time: np.ndarray
    request: np.ndarray
    tokens: np.ndarray
    received: np.ndarray

    def tokens_per_s(self, begin: float, end: float) -> float:
        inside = (self.time > begin) & (self.time <= end)
        return float(np.sum(self.tokens[inside])) / (end - begin)

    def ttft(self, begin: float, end: float) -> np.ndarray:
        """Of requests whose first event was sent in the window."""
        _, first = np.unique(self.request, return_index=True)
        at = self.time[first]
        inside = (at > begin) & (at <= end)
        return (at - self.received[self.request[first]])[inside]

    def itl(self, begin: float, end: float) -> np.ndarray:
        order = np.argsort(self.request, kind="stable")
        time, request, tokens = self.time[order], self.request[order], self.tokens[order]
        same = request[1:] == request[:-1]
        inside = (time[1:] > begin) & (time[1:] <= end)
        gaps = np.diff(time)[same & inside]
        return gaps / tokens[1:][same & inside]


@dataclass(frozen=True)
class Running:
    url: str
    process: subprocess.Popen

    def behaving(self, *options: object) -> "Running":
        """The same process with other options, and with counts and stamps of their own."""
        words = ",".join(str(option) for option in (*options, "--label", next(_LABELS)))
        return Running(f"{self.url}/with/{words}", self.process)

    def stamps(self) -> Stamps:
        with urllib.request.urlopen(f"{self.url}/stamps", timeout=30) as answer:
            head, _, rest = answer.read().partition(b"\n")
        counts = json.loads(head)
        parts, at = [], 0
        for kind, size in (("d", "events"), ("I", "events"), ("I", "events"), ("d", "requests")):
            length = counts[size] * (8 if kind == "d" else 4)
            parts.append(np.frombuffer(rest[at : at + length], dtype=np.float64 if kind == "d" else np.uint32))
            at += length
        return Stamps(*parts)

    def counts(self) -> dict:
        with urllib.request.urlopen(f"{self.url}/counts", timeout=30) as answer:
            return json.loads(answer.read())


@contextmanager
def exact_rate_server(*options: object) -> Iterator[Running]:
    """Started with these command-line options; gone at the end."""
    command = [sys.executable, str(PROGRAM), *(str(option) for option in options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            word, port = process.stdout.readline().split()
            assert word == "port"
            yield Running(f"http://127.0.0.1:{port}", process)
        finally:
            process.terminate()
            process.wait(10)
            process.stdout.close()
