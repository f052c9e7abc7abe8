"""Shapes of lines: what they leave out can never matter, and floods are read as if every line had been."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.engines.sglang import _log_answers, _log_changes, _log_notices, _log_phases
from servetune.engines.sglang._failure_table import compiled, entries
from servetune.engines.sglang._log_floods import Floods, Kind
from servetune.engines.sglang._log_words import digits_are_alike, shape_of, topics_of, words_of
from servetune.engines.sglang.logs import SglangLogReader

PATTERNS = [
    *(compiled(entry.signature.text) for entry in entries("line") if not entry.signature.frame),
    *(notice.text for notice in _log_notices.NOTICES),
    _log_changes.CHANGED,
    _log_answers.HINTS,
    _log_notices.DEATH,
    _log_notices.STOP,
    _log_notices.WORRYING,
    _log_phases.CAPTURING,
    _log_phases.VERSION,
]
START = (
    b"[2026-02-21 10:00:01] server_args=ServerArgs(model_path='/m', tp_size=8)\n"
    b"[2026-02-21 10:00:03 TP0] Load weight begin. avail mem=94.0 GB\n"
)
FLOODS = {
    "503": b'[2026-02-21 10:10:%02d] INFO:     10.0.0.%d:4%03d - "POST /generate HTTP/1.1" 503 Service Unavailable\n',
    "NCCL": b"node1:1%02d:2%d [%d] transport/net_ib.cc:1234 NCCL WARN NET/IB : Got completion with status=12\n",
    "watchdog": b"[rank3]:[E221 10:03:%02d.%d ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation"
    b" timeout: WorkNCCL(SeqNum=%d)\n",
    "retraction": b"[2026-02-21 10:10:%02d TP%d] KV cache pool is full. Retract requests. #retracted_reqs: %d\n",
    "capture": b"Capturing batches (bs=%d avail_mem=1%d.%d GB)\n",
    "death": b"[2026-02-21 10:10:%02d TP%d] Received sigquit from a child process. Child %d failed.\n",
}


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.pattern[:40])
def test_what_a_pattern_matches_has_one_of_its_words(pattern: re.Pattern[str]) -> None:
    @settings(max_examples=5, deadline=None, database=None)
    @given(st.from_regex(pattern))
    def holds(text: str) -> None:
        words = words_of(pattern)
        assert words is not None
        assert any(word in shape_of(text) for word in words), words

    holds()


def test_numbers_that_decide_are_told_from_those_that_do_not() -> None:
    assert digits_are_alike(re.compile(r"exit code -?\d{1,3}(?P<a>[0-9]+)"))
    assert not digits_are_alike(re.compile(r"Errno 98"))
    assert not digits_are_alike(re.compile(r"still waiting \([3-9]\d\d s\)"))
    assert not topics_of(shape_of("[Errno 98] address already in use")).steady


@pytest.mark.parametrize("kind", FLOODS)
@pytest.mark.parametrize("ready", [False, True])
def test_a_flood_says_what_each_of_its_lines_says(kind: str, ready: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [FLOODS[kind] % (n % 60, n % 8, n) for n in range(400)]
    lines.insert(200, b"[2026-02-21 10:30:00] an idle line\n\n")
    lines.insert(250, b"[2026-02-21 10:31:00] The server is fired up and ready to roll!\n" if ready else b"\n")
    raw = START + b"".join(lines)
    skipped = _read(raw)
    monkeypatch.setattr(Floods, "_kind_of", lambda self, shape, raw, known: Kind.READ)
    assert _read(raw) == skipped


def test_the_traceback_of_another_rank_is_recalled_with_its_own_lines_and_rank() -> None:
    trace = (
        b'  File "/x/site-packages/sglang/srt/managers/scheduler.py", line 1, in run_scheduler_process\n'
        b"    scheduler.event_loop_overlap()\n"
        b"torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n\n"
    )
    heads = [
        b"[2026-02-21 10:05:%02d TP%d] Scheduler hit an exception: Traceback (most recent call last):\n"
        % (9 - n, 7 - n)
        for n in range(3)
    ]
    reader = SglangLogReader({})
    reader.feed(START + b"".join(head + trace for head in heads))
    report = reader.report(reader.diagnose(None))
    assert (report["class"], report["first_rank"], report["evidence"][0]["line"]) == ("device_fault", "TP5", 16)


def _read(raw: bytes) -> object:
    reader = SglangLogReader({})
    for start in range(0, len(raw), 7777):
        reader.feed(raw[start : start + 7777])
    return reader.facts(), reader.diagnose(None), reader.report(reader.diagnose(None)), reader.decided, reader.last_line
