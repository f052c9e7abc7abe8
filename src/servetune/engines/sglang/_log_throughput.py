"""Decode and prefill lines: most of a long log. They are counted in bulk and read in a thinned sample."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from statistics import median
from typing import Any

#: Decode lines that are read closely; beyond, every second is dropped and the stride doubles (same for any chunking).
SAMPLE = 2048

_DECODE = re.compile(
    rb"#running-req: (?P<running>\d+).*?gen throughput \(token/s\): (?P<speed>\d+(?:\.\d+)?)"
    rb"(?:, #queue-req: (?P<queue>\d+))?"
)
_ACCEPT = re.compile(rb"accept len: (\d+(?:\.\d+)?)")


@dataclass(slots=True)
class Throughput:
    """Counts over all decode lines, and a thinned sample of their numbers."""

    decode_lines: int = 0
    eager_lines: int = 0
    prefill_lines: int = 0
    retractions: int = 0
    first_decode: tuple[int, bytes] | None = None
    last_decode: bytes = b""
    last_was_prefill: bool = False
    stride: int = 1
    sample: list[tuple[int, float, int, int, float | None]] = field(default_factory=list)

    def take(self, lines: list[tuple[int, bytes]]) -> None:
        """Decode lines as (line number, raw), in order."""
        if self.first_decode is None:
            self.first_decode = (lines[0][0], lines[0][1][:1000])
        for _, raw in lines:
            if b"graph: False" in raw:
                self.eager_lines += 1
            if self.decode_lines % self.stride == 0:
                self._read(raw)
            self.decode_lines += 1
        self.last_decode = lines[-1][1][:1000]

    def _read(self, raw: bytes) -> None:
        match = _DECODE.search(raw)
        if match is None:
            return
        accept = _ACCEPT.search(raw)
        self.sample.append(
            (
                self.decode_lines,
                float(match["speed"]),
                int(match["running"]),
                int(match["queue"] or 0),
                float(accept.group(1)) if accept else None,
            )
        )
        if len(self.sample) >= SAMPLE:
            self.stride *= 2
            self.sample = [entry for entry in self.sample if entry[0] % self.stride == 0]

    @property
    def accept_length(self) -> float | None:
        """Median number of tokens accepted per speculative step; None without speculation."""
        lengths = [entry[4] for entry in self.sample if entry[4] is not None]
        return median(lengths) if lengths else None

    def facts(self) -> dict[str, Any]:
        """`{decode_lines, prefill_lines, gen_tokens_per_s: {last, median, max}, eager_decode_share, …}`."""
        facts: dict[str, Any] = {
            "decode_lines": self.decode_lines,
            "prefill_lines": self.prefill_lines,
            "retractions": self.retractions,
        }
        if self.decode_lines:
            facts["eager_decode_share"] = round(self.eager_lines / self.decode_lines, 4)
        if self.sample:
            speeds = [entry[1] for entry in self.sample]
            last = _DECODE.search(self.last_decode)
            facts["gen_tokens_per_s"] = {
                "last": float(last["speed"]) if last else speeds[-1],
                "median": median(speeds),
                "max": max(speeds),
            }
            facts["running_requests_max"] = max(entry[2] for entry in self.sample)
            facts["queue_max"] = max(entry[3] for entry in self.sample)
        if self.accept_length is not None:
            facts["accept_length_median"] = self.accept_length
        return facts
