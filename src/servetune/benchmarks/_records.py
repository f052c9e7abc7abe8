"""What the load generator writes down while it runs: compact arrays, 16 bytes per event and 37 per request.

Times are seconds of the monotonic wall clock; they become node time once, when the level is over.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from enum import IntEnum


class Outcome(IntEnum):
    """How a request ended."""

    IN_FLIGHT = 0  # also: ended by us when the window was over
    COMPLETED = 1
    FAILED = 2


class Records:
    """One row per request in the `request_*` arrays; one row per event that brought tokens, in order of arrival."""

    def __init__(self) -> None:
        self.event_time = array("d")
        self.event_request = array("I")
        self.event_tokens = array("I")
        self.request_sent = array("d")
        self.request_ended = array("d")  # of its last token, or of the failure
        self.request_asked = array("I")  # output tokens asked for
        self.request_tokens = array("I")  # output tokens according to the server
        self.request_outcome = array("B")
        self.request_counted = array("B")  # 1: each event was counted as one token, for want of a count in the stream
        self.failures: Counter[str] = Counter()
        self.prompts_counted = 0  # completed requests whose prompt tokens the server counted
        self.prompt_tokens = 0  # of those, as the server counted them
        self.cached_tokens = 0  # of those, out of its prefix cache
        self.input_tokens = 0  # of those, as they were sent
        self.completed = 0
        self.failed = 0

    def hide_in_failures(self, hide: Callable[[str], str]) -> None:
        """Take secrets out of the reasons, which quote the server."""
        hidden: Counter[str] = Counter()
        for reason, count in self.failures.items():
            hidden[hide(reason)] += count
        self.failures = hidden

    def open_request(self, sent: float, asked: int) -> int:
        """A new row; returns its index."""
        self.request_sent.append(sent)
        self.request_ended.append(0.0)
        self.request_asked.append(asked)
        self.request_tokens.append(0)
        self.request_outcome.append(Outcome.IN_FLIGHT)
        self.request_counted.append(0)
        return len(self.request_sent) - 1

    def complete_request(self, index: int, ended: float, tokens: int) -> None:
        """The request gave all that was asked."""
        self.request_ended[index] = ended
        self.request_tokens[index] = tokens
        self.request_outcome[index] = Outcome.COMPLETED
        self.completed += 1

    def fail_request(self, index: int, ended: float, reason: str) -> None:
        """The request failed; nothing that it brought counts."""
        self.request_ended[index] = ended
        self.request_outcome[index] = Outcome.FAILED
        self.failures[reason] += 1
        self.failed += 1
