"""Crash loops and text that repeats: read in bulk, with the answers of reading each line."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from engines.sglang.composing import Log

from servetune.engines.sglang import _log_notices
from servetune.engines.sglang._failure_table import compiled, entries
from servetune.engines.sglang._log_blocks import BlockReader
from servetune.engines.sglang._log_life_ends import ends_for_certain
from servetune.engines.sglang._log_lives import NUMBERED, Lives
from servetune.engines.sglang._log_repeats import LEAST, period_at, settled
from servetune.engines.sglang._log_state import numbers_of, with_numbers
from servetune.engines.sglang._log_tracebacks import _FATAL_HEADER
from servetune.engines.sglang._log_words import digits_are_alike
from servetune.engines.sglang.logs import SglangLogReader

CASES = Path(__file__).parents[2] / "recordings" / "cases"
PATHS = sorted(CASES.glob("*.log"))
STAMP = re.compile(rb"(\d\d):(\d\d):(\d\d)(?=[ \]])")


def raw_of(path: Path) -> bytes:
    return path.read_bytes().rstrip(b"\n") + b"\n"


def later(raw: bytes, seconds: int) -> bytes:
    """The same log, some time later."""

    def moved(match: re.Match[bytes]) -> bytes:
        now = (int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3]) + seconds) % 86_400
        return b"%02d:%02d:%02d" % (now // 3600, now // 60 % 60, now % 60)

    return STAMP.sub(moved, raw)


def everything(reader: SglangLogReader) -> str:
    seen: list[Any] = [reader.facts(), reader.warnings(), reader.report(reader.diagnose(None)), reader.last_line]
    return json.dumps([*seen, reader.phase, reader.ready, reader.decided])


def at_once(raw: bytes) -> SglangLogReader:
    reader = SglangLogReader({})
    reader.feed(raw)
    return reader


def line_by_line(raw: bytes) -> SglangLogReader:
    """What is asked for after each line cannot be read in bulk."""
    reader = SglangLogReader({})
    for line in raw.splitlines(keepends=True):
        reader.feed(line)
        assert reader.phase
    return reader


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_log_that_repeats_gives_the_answer_of_reading_each_line(path: Path) -> None:
    raw = raw_of(path)
    for body in (raw * 75 + raw[: len(raw) // 3], b"".join(later(raw, 61 * turn) for turn in range(12)) + raw * 8):
        assert everything(at_once(body)) == everything(line_by_line(body))


@pytest.mark.parametrize("seed", range(6))
def test_logs_in_any_order_give_the_answer_of_reading_each_line(seed: int) -> None:
    source = random.Random(seed)
    pool = [raw_of(path) for path in source.sample(PATHS, 5)]
    body = b"".join(later(source.choice(pool), 7 * turn) for turn in range(60))
    body = body * 4 if seed % 2 else body
    assert everything(at_once(body)) == everything(line_by_line(body))


SHOWN = (
    b"$ python -m sglang.launch_server --model-path /m --tp 2 --port 31\n",
    b"export NCCL_DEBUG=INFO\n+ export WORLD_SIZE=12\n",
    b"Killed\n",
    b"[2026-02-21 10:00:01] Received signal 15\n",
    b"[2026-02-21 10:00:01] Received signal 17\n",
    b"[2026-02-21 10:00:01] server_args=ServerArgs(\n",
    b"[2026-02-21 10:00:01] crashed with exit code -9 [1m\n",
    b"pod-1: [2026-02-21 10:00:01] hello\n",
    b"[2026-02-21 10:00:01 TP0] Load weight begin. avail mem=79 GB\n",
)


def mixed_lives(source: random.Random) -> bytes:
    """Logs, parts of them and lines that decide or are left to the next life, each some time later than the last."""
    pool = [raw_of(path) for path in source.sample(PATHS, 3)] + source.sample(SHOWN, source.randint(0, 3))
    lines = pool[0].splitlines(keepends=True)
    at = source.randrange(len(lines))
    pool += source.sample([b"".join(lines[:at]), b"".join(lines[at:])], source.randint(0, 2))
    step = source.choice((0, 7, 61))
    return b"".join(later(source.choice(pool), step * turn) for turn in range(source.randint(60, 120)))


@pytest.mark.parametrize("seed", range(12))
def test_any_mix_of_lives_gives_the_answer_of_reading_each_line(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(5):
        body = mixed_lives(source)
        assert everything(at_once(body)) == everything(line_by_line(body))


FRAME = b'  File "/x/site-packages/sglang/srt/layers/module%d.py", line 7, in forward\n    return self.inner(x)\n'
HEADERS = (
    b"[2026-02-21 10:00:01 TP%d] Scheduler hit an exception: Traceback (most recent call last):\n",
    b"[2026-02-21 10:00:01 DP0 TP%d] Exception in ASGI application: Traceback (most recent call last):\n",
    b"[2026-02-21 10:00:01] Initialization failed of %d: Traceback (most recent call last):\n",
    b"[2026-02-%d1 10:00:01] Task exception was never retrieved: Traceback (most recent call last):\n",
    b"\x1b[3%dm[2026-02-21 10:00:01] Task failed: Traceback (most recent call last):\n",
    b"Traceback (most recent call last):\n",
)
BODIES = (
    FRAME % 1 + FRAME % 2 + b"torch.AcceleratorError: CUDA error: an illegal memory access\n\n",
    FRAME % 3 + b"RuntimeError: out of pages\nwhile serving\n\n",
    FRAME % 4 + b"KeyError: 7\n\nDuring handling of the above exception, another exception occurred:\n\n",
    b"ValueError: one\n[2026-02-21 10:00:01 TP1] Received sigquit from a child process.\n",
    FRAME % 5 + b"\x1b[31mValueError: two\x1b[0m\n$ python -m sglang.launch_server --model-path /m\n",
    b"\n",
)


def tracebacks(source: random.Random) -> bytes:
    """Many tracebacks, mostly of one kind, each some time later than the last."""
    begin = Log().arguments(tp_size=2).text().encode() if source.random() < 0.8 else b""
    kinds = [(source.choice(HEADERS), source.choice(BODIES)) for _ in range(source.randint(1, 3))]
    weights = [source.choice((1, 20, 400)) for _ in kinds]
    chosen = source.choices(kinds, weights, k=source.choice((150, 300, 500)))
    texts = ((header.replace(b"%d", b"%d" % (turn % 8)) + body, turn) for turn, (header, body) in enumerate(chosen))
    return begin + b"".join(later(*text) for text in texts)


@pytest.mark.parametrize("seed", range(12))
def test_many_tracebacks_give_the_answer_of_reading_each_line(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(4):
        body = tracebacks(source)
        assert everything(at_once(body)) == everything(line_by_line(body))


def test_the_time_of_a_skipped_traceback_counts_where_the_next_has_none() -> None:
    def unit(day: int, turn: int) -> bytes:
        return later(b"[2026-02-%02d 10:00:01] Exception in ASGI application: " % day, turn) + HEADERS[5] + BODIES[0]

    begin = Log().arguments(tp_size=2).text().encode()
    body = begin + b"".join(unit(21 if turn < 290 else 41, turn) for turn in range(396))
    assert everything(at_once(body)) == everything(line_by_line(body))
    stamps = {trace.stamp_s for trace in at_once(body)._closed().traces}
    assert stamps == {trace.stamp_s for trace in line_by_line(body)._closed().traces}


@pytest.mark.parametrize("header", HEADERS[:2], ids=("fatal", "survived"))
def test_tracebacks_that_change_nothing_are_not_read(header: bytes) -> None:
    reader = BlockReader()
    body = b"".join(later(header % (turn % 8) + BODIES[0], turn) for turn in range(600))
    reader.take(0, life("Received signal 9", 0) + body[: len(body) // 2])
    known = reader.run.tracebacks.taken
    reader.take(0, body)
    assert reader.run.tracebacks.taken - known < 110 * BODIES[0].count(b"\n")
    assert reader.number == life("Received signal 9", 0).count(b"\n") + 900 * (header + BODIES[0]).count(b"\n")


def test_what_was_counted_is_told_when_somebody_asks_between() -> None:
    raw = raw_of(CASES / "jit_nvcc_missing.log")
    body = raw * 800
    reader = SglangLogReader({})
    for start in range(0, len(body), 300_007):
        reader.feed(body[start : start + 300_007])
        shown = everything(reader)
        assert shown == everything(line_by_line(body[: start + 300_007])) or start < 600_000
    assert everything(reader) == everything(at_once(body))


def test_repetition_is_read_in_no_time() -> None:
    """50 MB of any log take less CPU time than half a megabyte that has to be read."""
    for name in ("env_driver_old", "bug_kv_leak_0533", "combo_mxfp4_zero_tokens"):
        raw = raw_of(CASES / f"{name}.log")
        assert at_once(raw).facts()["lines"]  # tables and patterns are loaded
        begin = time.process_time()
        line_by_line(raw * (500_000 // len(raw)))
        middle = time.process_time()
        at_once(raw * (50_000_000 // len(raw)))
        assert time.process_time() - middle < 10 * (middle - begin)


def life(end: str, seconds: int) -> bytes:
    log = Log().arguments(tp_size=1).start("ready", ("TP0",))
    log.add(end)
    return later(log.text().encode(), seconds)


def test_lives_that_differ_in_a_number_that_decides_are_told_apart() -> None:
    """Alike but for one digit: what the one leaves is not taken for what the other leaves."""
    first, *others = (
        Log().arguments(tp_size=1, port=port).start("load", ("TP0",)).add(f"Received signal {signal}").text().encode()
        for port, signal in ((30000, 15), (30001, 17), (30002, 17), (30003, 17))
    )
    body = first * 4 + b"".join(others)
    assert everything(at_once(body)) == everything(line_by_line(body))
    assert everything(at_once(body)) != everything(at_once(first * 7))


def test_every_pattern_that_ends_a_life_by_a_number_has_its_words() -> None:
    deciding = {
        entry.signature.name: compiled(entry.signature.text)
        for entry in entries("line")
        if entry.owner.slug == "cli_parse" or entry.signature.name == "port_busy"
    }
    deciding |= {"death": _log_notices.DEATH, "stop": _log_notices.STOP, "header": _FATAL_HEADER}
    assert {name for name, pattern in deciding.items() if not digits_are_alike(pattern)} == {"port_busy", "stop"}
    for text in (b"[Errno 98] in use", b"Received signal 15", b"crashed with exit code -2"):
        assert any(words in text for words in NUMBERED)


@pytest.mark.parametrize(
    "shown",
    [
        b"$ python -m sglang.launch_server --model-path /m --port %d\n",
        b"export WORLD_SIZE=%d\n",
        b"+ NCCL_NET=ib%d python -m sglang.launch_server --model-path /m --tp 2\n",
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_a_skipped_life_shows_is_left_to_the_next(shown: bytes, first: bool) -> None:
    """The command of a life that is not read, while the last ones show none; before and after it had started."""
    plain = Log().arguments(tp_size=1).start("load", ("TP0",)).add("Received signal 15").text().encode()
    lines = plain.splitlines(keepends=True)
    lines[1 if first else len(lines) : 0 if first else None] = [shown]
    telling = b"".join(lines)
    order = [plain, telling % 1, telling % 2, telling % 2, plain, telling % 1, *[plain] * 4, telling % 2, *[plain] * 8]
    body = b"".join(later(text, 7 * turn) for turn, text in enumerate(order * 3))
    assert everything(at_once(body)) == everything(line_by_line(body))
    facts = at_once(body)
    run = facts._closed()
    assert run.command.get("port") == 2 or "2" in run.env.get("WORLD_SIZE", "") + run.env.get("NCCL_NET", "")


KILLED = b"[0000-00-00 00:00:00] Received sigquit from a child process. It usually means the child failed.\n"


@pytest.mark.parametrize(
    ("lines", "certain"),
    [
        (KILLED, True),
        (b"Traceback (most recent call last):\n" + KILLED + b"Killed\n", True),
        (b"Killed\n", False),  # it may be a line of a message
        (b"[0000-00-00 00:00:00] Received signal 00\n", False),
        (b"[0000-00-00 00:00:00] crashed with exit code -00\n", False),
        (b"pod-0: " + KILLED, False),
        (KILLED + b"$ python -m sglang.launch_server --model-path /m\n", False),
        (KILLED + b"export WORLD_SIZE=0\n", False),
        (KILLED + b"\x1b[00mserver\x1b[0m_args=ServerArgs(tp_size=0)\n", False),
        (KILLED + b'{"log": "\\u0000"}\n', False),
        (KILLED + b"a text that ends [0m\n", False),
        (KILLED * 300, False),
    ],
)
def test_lives_that_end_for_certain(lines: bytes, certain: bool) -> None:
    assert ends_for_certain(lines) is certain


def test_lives_that_end_for_certain_are_not_read() -> None:
    """None is like another."""
    reader = BlockReader()
    lives = Lives(reader)
    death = KILLED.replace(b"0000-00-00", b"2026-02-21")
    texts = [life(f"Loaded module {chr(97 + n)}", 9 * n) + death for n in range(20)]
    begun: list[Any] = []
    take = reader.take
    reader.take = lambda offset, block: (begun.append(block), take(offset, block))[1]  # type: ignore[method-assign]
    lives.take(0, b"".join(texts))
    assert reader.number == b"".join(texts).count(b"\n")
    assert sum(map(len, begun)) < 3 * len(texts[0])


def test_only_the_last_lives_are_read() -> None:
    raw = life("Received signal 15", 0)
    reader = BlockReader()
    lives = Lives(reader)
    lives.take(0, raw * 5)
    begun = reader.run
    lives.take(5 * len(raw), b"".join(life("Received signal 15", 11 * turn) for turn in range(40)))
    assert reader.number == 45 * raw.count(b"\n")
    assert reader.run.previous is not None
    assert reader.run.previous is not begun


def test_the_state_is_the_same_with_its_own_numbers() -> None:
    reader = BlockReader()
    reader.take(0, raw_of(CASES / "comm_nccl_unhandled_system.log")[:-300] + b"\n")
    blank, numbers = numbers_of(reader.run)
    assert with_numbers(blank, numbers) == reader.run
    assert with_numbers(blank, [number + 1 for number in numbers]) != reader.run


def test_a_period_is_found_where_it_begins() -> None:
    lines = b"".join(b"line %d of the text\n" % n for n in range(30))
    assert period_at(lines * (LEAST + 1), 0) == len(lines)
    assert period_at(b"x\n" + lines * (LEAST + 1), 2) == len(lines)
    assert period_at(lines * LEAST, 0) == 0
    assert period_at(lines * 3 + b"another line\n" + lines * 3, 0) == 0
    decode = lines + b"[2026-02-21 10:03:53] Decode batch, #running-req: 3\n"
    assert period_at(decode * 9, 0) == 0


def test_a_state_that_goes_on_changing_is_not_extrapolated() -> None:
    """Places for what is remembered fill up: as long as they do, copies are read."""
    raw = raw_of(CASES / "jit_nvcc_missing.log")
    assert settled(raw * 8, 0, len(raw), 0, BlockReader()) == (7, None)


def test_arguments_within_a_life_do_not_make_it_begin_again() -> None:
    """A known life that prints its arguments twice is not skipped where an unknown one follows; then it is."""
    twice = Log().arguments(tp_size=1).text().encode() + life("Received signal 15", 0)
    other = Log().arguments(tp_size=2).start("load", ("TP0",)).add("Received signal 15").text().encode()
    body = b"".join(later(one, 7 * turn) for turn, one in enumerate([twice] * 4 + [other] + [twice, twice, other] * 3))
    assert everything(at_once(body)) == everything(line_by_line(body))
