"""One connection: the same records however an answer is cut, and a reason for everything that is wrong."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servetune.benchmarks._connection import Connection
from servetune.benchmarks._records import Outcome, Records

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Wire:
    """A transport that leads nowhere."""

    def __init__(self):
        self.open = True

    def write(self, data):
        pass

    def is_closing(self):
        return not self.open

    def abort(self):
        self.open = False

    close = abort


class Ended:
    def __init__(self):
        self.count = 0

    def request_ended(self, connection):
        self.count += 1

    def connection_ended(self, connection):
        pass


def connected(asked=4):
    records, owner = Records(), Ended()
    connection = Connection(owner, records)
    connection.connection_made(Wire())
    connection.send(b"", asked, time.monotonic())
    return connection, records, owner


def chunks(*events):
    return b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n"


def sglang_event(count, reason=None, text="x"):
    meta = {"id": "0", "finish_reason": reason, "prompt_tokens": 5, "completion_tokens": count, "cached_tokens": 0}
    body = {"text": text * count, "output_ids": list(range(count)), "meta_info": meta}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def sglang_answer(counts, text="x"):
    last = {"type": "length", "length": counts[-1]}
    events = [sglang_event(count, last if count == counts[-1] else None, text) for count in counts]
    return HEAD + chunks(*events, b"data: [DONE]\n\n")


def openai_event(text, reason=None, usage=None, choices=True):
    choice = {"index": 0, "text": text, "finish_reason": reason}
    count = None if usage is None else {"prompt_tokens": 5, "total_tokens": 5 + usage, "completion_tokens": usage}
    return (
        b"data: " + json.dumps({"id": "c", "choices": [choice] if choices else [], "usage": count}).encode() + b"\n\n"
    )


def feed(connection, raw, cuts=()):
    begin = 0
    for end in [*sorted({cut % (len(raw) + 1) for cut in cuts}), len(raw)]:
        if end > begin:
            connection.data_received(raw[begin:end])
        begin = end


def totals(records):
    return (
        list(records.request_outcome),
        list(records.request_tokens),
        list(records.event_request),
        list(records.event_tokens),
        dict(records.failures),
    )


cuts = st.lists(st.integers(0, 50_000), max_size=40)
rising = st.lists(st.integers(1, 5), min_size=1, max_size=8).map(
    lambda steps: [sum(steps[: i + 1]) for i in range(len(steps))]
)
# text that looks like the count itself
texts = st.sampled_from(["x", "ü漢🙂", '"completion_tokens":7,', "\n\n", "data: [DONE]", '\\"completion_tokens\\":99,'])


@given(rising, texts, cuts)
def test_cumulative_answer_at_any_split(counts, text, cuts):
    connection, records, owner = connected(asked=counts[-1])
    feed(connection, sglang_answer(counts, text), cuts)
    steps = [b - a for a, b in zip([0, *counts], counts, strict=False)]
    assert totals(records) == ([Outcome.COMPLETED], [counts[-1]], [0] * len(steps), steps, {})
    assert owner.count == 1
    assert connection.usable


@given(rising, texts)
def test_one_event_per_read_takes_the_short_way_with_the_same_result(counts, text):
    connection, records, _ = connected(asked=counts[-1])
    raw = sglang_answer(counts, text)
    connection.data_received(HEAD)
    for piece in split_chunks(raw[len(HEAD) :]):
        connection.data_received(piece)
    assert totals(records)[1] == [counts[-1]]
    assert sum(records.event_tokens) == counts[-1]
    assert records.completed == 1


def split_chunks(body):
    pieces = []
    while body:
        size, _, _rest = body.partition(b"\r\n")
        end = len(size) + 2 + int(size, 16) + 2
        pieces.append(body[:end])
        body = body[end:]
    return pieces


@given(cuts)
def test_several_answers_on_one_connection(cuts):
    connection, records, _ = connected(asked=3)
    feed(connection, sglang_answer([1, 2, 3]), cuts)
    connection.send(b"", 5, time.monotonic())
    feed(connection, sglang_answer([2, 5]), cuts)
    assert totals(records)[:2] == ([Outcome.COMPLETED] * 2, [3, 5])


@given(cuts)
def test_deltas_with_running_usage(cuts):
    connection, records, _ = connected(asked=3)
    events = [openai_event("a", None, 1), openai_event("b", None, 2), openai_event("c", "length", 3)]
    feed(connection, HEAD + chunks(*events, openai_event("", None, 3, False), b"data: [DONE]\n\n"), cuts)
    assert totals(records) == ([Outcome.COMPLETED], [3], [0, 0, 0], [1, 1, 1], {})


@given(cuts)
def test_deltas_with_usage_at_the_end_only(cuts):
    connection, records, _ = connected(asked=5)
    events = [openai_event("a"), openai_event(""), openai_event("bc", "length")]  # an empty one is no token
    feed(connection, HEAD + chunks(*events, openai_event("", None, 5, False), b"data: [DONE]\n\n"), cuts)
    assert totals(records) == ([Outcome.COMPLETED], [5], [0, 0], [1, 1], {})
    assert list(records.request_counted) == [1]


def cost_per_event_s(text_bytes):
    """CPU of reading one event with so much cumulative text, each in a read of its own; the least of several goes."""
    count, costs = 400, []
    pieces = [
        b"%x\r\n%b\r\n" % (len(event), event)
        for event in (sglang_event(n, text="x" * (text_bytes // n)) for n in range(1, count + 1))
    ]
    for _ in range(7):
        connection, records, _ = connected(asked=count)
        connection.data_received(HEAD)
        begun = time.process_time()
        for piece in pieces:
            connection.data_received(piece)
        costs.append((time.process_time() - begun) / count)
        assert len(records.event_time) == count
    return min(costs)


def test_the_work_per_event_does_not_grow_with_the_answer():
    assert cost_per_event_s(40_000) < 3 * cost_per_event_s(400)


def test_an_event_is_kept_in_16_bytes():
    records = Records()
    columns = (records.event_time, records.event_request, records.event_tokens)
    assert sum(column.itemsize for column in columns) == 16


def test_duplicate_events_are_counted_once():
    connection, records, _ = connected(asked=3)
    last = {"type": "length", "length": 3}
    events = [sglang_event(1), sglang_event(1), sglang_event(2), sglang_event(3, last), sglang_event(3, last)]
    feed(connection, HEAD + chunks(*events, b"data: [DONE]\n\n"))
    assert totals(records)[:4] == ([Outcome.COMPLETED], [3], [0, 0, 0], [1, 1, 1])


def test_answer_delimited_by_the_close():
    connection, records, _ = connected(asked=2)
    raw = sglang_event(1) + sglang_event(2, {"type": "length", "length": 2}) + b"data: [DONE]\n\n"
    feed(connection, b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + raw)
    assert records.completed == 0
    connection.connection_lost(None)
    assert records.completed == 1
    assert not connection.usable


ERROR = b'data: {"error": {"message": "out of memory"}}\n\n'
BROKEN = b'data: {"text": "a\n\n'
STOPPED = sglang_event(2, {"type": "stop", "matched": 2})


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (HEAD + chunks(STOPPED, b"data: [DONE]\n\n"), "2 of 4 tokens, finish reason stop"),
        (
            HEAD + chunks(sglang_event(9, {"type": "length"}), b"data: [DONE]\n\n"),
            "9 of 4 tokens, finish reason length",
        ),
        (HEAD + chunks(sglang_event(3), sglang_event(2)), "malformed answer: the token count went back"),
        (HEAD + chunks(b"data: [DONE]\n\n"), "an answer without a token"),
        (HEAD + chunks(BROKEN), "malformed answer: an event is not JSON"),
        (HEAD + chunks(ERROR), 'the server reports an error in the stream: {"error": {"message": "out of memory"}}'),
        (HEAD + chunks(sglang_event(4))[:-5], "connection closed before the end of the answer"),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy", "HTTP 503: busy"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\nno", "HTTP 400: no"),
        (
            b"220 mail.example ESMTP\r\n",
            "malformed answer: the answer begins with b'220 mail.example ESM', not with HTTP/1.",
        ),
        (b"", "connection closed before the end of the answer"),
    ],
)
def test_what_goes_wrong_is_a_failure_with_its_reason(raw, reason):
    connection, records, owner = connected()
    feed(connection, raw)
    connection.connection_lost(None)
    assert list(records.request_outcome) == [Outcome.FAILED]
    assert dict(records.failures) == {reason: 1}
    assert owner.count == 1
    assert records.completed == 0


@given(st.binary(max_size=300), cuts)
def test_garbage_never_raises_and_never_completes(garbage, cuts):
    connection, records, owner = connected()
    feed(connection, garbage, cuts)
    connection.connection_lost(ConnectionResetError())
    assert owner.count == 1
    assert records.failed == 1


def test_bytes_on_an_idle_connection_close_it():
    connection, records, _ = connected(asked=1)
    feed(connection, sglang_answer([1]))
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert not connection.usable
    assert records.failed == 0
