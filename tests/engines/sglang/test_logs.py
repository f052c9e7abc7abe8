"""Reading logs: any chunking, any dress, the numbers of every format from 0.4.6 to 0.5.23."""

# ruff: noqa: E501 - log lines are as long as they are

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines.sglang.adversarial import CASES
from engines.sglang.composing import DRESSES, Log
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servetune.core.failure import Phase
from servetune.engines.sglang._log_args import differences, parse_command, parse_server_args
from servetune.engines.sglang._log_floods import Floods, Kind
from servetune.engines.sglang._log_lines import HEAD_BYTES, TAIL_BYTES, LineCleaner, LineSplitter
from servetune.engines.sglang._log_run import Run
from servetune.engines.sglang._log_telling import is_dull
from servetune.engines.sglang.logs import SglangLogReader

ROOT = Path(__file__).parents[3]
RECORDINGS = ROOT / "tests" / "recordings"
PATHS = sorted(path for folder in ("cases", "cpu", "h200") for path in (RECORDINGS / folder).glob("*.log"))


def read(raw: bytes, assignment: dict[str, Any] | None = None) -> SglangLogReader:
    reader = SglangLogReader(assignment or {})
    reader.feed(raw)
    return reader


def everything(reader: SglangLogReader) -> tuple[Any, ...]:
    """All that can be seen of a reader."""
    return (
        reader.facts(),
        reader.warnings(),
        reader.report(reader.diagnose(None)),
        reader.phase,
        reader.ready,
        reader.decided,
        reader.last_line,
    )


def chunked(raw: bytes, sizes: list[int]) -> Iterator[bytes]:
    at, turn = 0, 0
    while at < len(raw):
        size = sizes[turn % len(sizes)]
        yield raw[at : at + size]
        at, turn = at + size, turn + 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    path=st.sampled_from([path for path in PATHS if path.stat().st_size < 60_000]),
    sizes=st.lists(st.integers(1, 9000), min_size=1, max_size=6),
)
def test_any_chunking_gives_the_same_answer(path: Path, sizes: list[int]) -> None:
    raw = path.read_bytes()
    pieces = SglangLogReader({})
    for chunk in chunked(raw, [size + 20 for size in sizes]):
        pieces.feed(chunk)
        assert pieces.phase  # whoever asks has it read
    assert everything(pieces) == everything(read(raw))


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.sampled_from([b"short", b"", b"x" * 1000, b"y" * (HEAD_BYTES + TAIL_BYTES + 9), b"z" * 300_000])),
    sizes=st.lists(st.integers(1, 200_000), min_size=1, max_size=4),
)
def test_huge_lines_are_shortened_alike_in_any_chunking(lines: list[bytes], sizes: list[int]) -> None:
    raw = b"\n".join(lines)
    blocks = []
    splitter = LineSplitter()
    for chunk in chunked(raw, sizes):
        blocks += splitter.feed(chunk)
    held = sum(len(line) for line in splitter.rest.split(b"\n"))
    assert held <= HEAD_BYTES + TAIL_BYTES
    got = [line for _, block in blocks for line in block.split(b"\n")[:-1]] + [splitter.rest]
    limit = HEAD_BYTES + TAIL_BYTES
    shown = [line if len(line) <= limit else line[:HEAD_BYTES] + line[-TAIL_BYTES:] for line in got]
    assert shown == [line if len(line) <= limit else line[:HEAD_BYTES] + line[-TAIL_BYTES:] for line in lines or [b""]]


@settings(max_examples=80, deadline=None)
@given(raw=st.binary(max_size=3000))
def test_any_bytes_are_read(raw: bytes) -> None:
    reader = read(raw)
    json.dumps(everything(reader)[0])
    assert reader.diagnose(None).slug in ("unknown", "none")


def fuzzed(count: int, seed: int) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import log_reading
    finally:
        sys.path.pop(0)
    source = random.Random(seed)
    logs = log_reading.broken(source, [path.read_bytes() for path in PATHS])
    for _ in range(count):
        log_reading.check(next(logs), source)


def test_broken_logs_are_read_without_an_exception() -> None:
    """The full 10,000 are `python benchmarks/log_reading.py fuzz`."""
    fuzzed(60, seed=20)


def test_memory_stays_bounded() -> None:
    """Everything that can repeat is capped: tracebacks, events, notices, explaining lines, one endless line."""
    reader = SglangLogReader({})
    log = Log().arguments(tp_size=8).start("ready", ("TP0",))
    for rank in range(3):
        log.raises(f"TP{rank}", ("managers/scheduler.py:event_loop_normal> x()",) * 50, "RuntimeError: " + "x" * 5000)
        log.add("NCCL WARN something " + "y" * 500, f"TP{rank}")
        log.add("Setup Custom allreduce failed with this", f"TP{rank}")
        log.add('127.0.0.1 - "POST /generate HTTP/1.1" 503 Service Unavailable', "")
        log.add("KV cache pool is full. Retract requests. #retracted_reqs: 12", f"TP{rank}")
    raw = log.text().encode()
    sizes = []
    for _ in range(24):
        reader.feed(raw)
        reader.feed(b"no newline " * 20_000)
        assert reader.ready  # what waits is read
        sizes.append(deep_size(reader))
    assert sizes[-1] < 3_000_000
    assert sizes[-1] - sizes[16] < 200_000


def deep_size(thing: Any) -> int:
    seen: set[int] = set()

    def size(value: Any) -> int:
        if id(value) in seen or isinstance(value, type):
            return 0
        seen.add(id(value))
        total = sys.getsizeof(value)
        if isinstance(value, dict):
            return total + sum(size(k) + size(v) for k, v in value.items())
        if isinstance(value, list | tuple | set | frozenset) or type(value).__name__ == "deque":
            return total + sum(size(item) for item in value)
        total += sum(size(getattr(value, name, None)) for name in getattr(type(value), "__slots__", ()))
        return total + size(getattr(value, "__dict__", None)) if hasattr(value, "__dict__") else total

    return size(thing)


def test_dull_lines_may_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipping lines without a telling word changes nothing that can be seen."""
    raws = [path.read_bytes() for path in PATHS] + [case.build(Log()).text().encode() for case in CASES]
    with_skipping = [everything(read(raw)) for raw in raws]
    monkeypatch.setattr(Floods, "_kind_of", lambda self, shape, raw, known: Kind.READ)
    assert [everything(read(raw)) for raw in raws] == with_skipping


REDUCED = (
    "[2026-11-30 04:52:59] server_args={'max_running_requests': 100000, 'dp_size': %d, 'enable_dp_attention': %s}\n"
    "[2026-11-30 04:53:20] max_running_requests was reduced from the requested %d to 10000 (per dp worker) due to the available KV cache capacity.\n"
    "[2026-11-30 04:53:21] max_total_num_tokens=20000, chunked_prefill_size=-1, max_prefill_tokens=16384, max_running_requests=10000, context_len=4096, available_cpu_mem=18.23 GB\n"
)


def test_a_number_that_was_reduced_is_changed_and_the_one_in_effect_is_told() -> None:
    reader = read((REDUCED % (1, False, 100000)).encode(), {"max-running-requests": 100000})
    assert [text.split(" was reduced")[0] for text in reader.warnings()] == [
        "line 2: max-running-requests is changed: max_running_requests"
    ]
    assert reader.facts()["in_effect"] == {"max-total-tokens": 20000, "max-running-requests": 10000}
    left_out = read((REDUCED % (1, False, 100000)).encode(), {"max-total-tokens": 20000})
    assert left_out.facts()["in_effect"]["max-running-requests"] == 10000


@pytest.mark.parametrize(("ranks", "attention", "told"), [(8, True, 80000), (8, False, 10000)])
def test_running_requests_are_those_of_all_ranks_of_the_attention(ranks: int, attention: bool, told: int) -> None:
    reader = read((REDUCED % (ranks, attention, 12500)).encode(), {"max-running-requests": 100000})
    assert reader.facts()["in_effect"]["max-running-requests"] == told


def test_every_pattern_needs_a_telling_word() -> None:
    samples = [
        "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        "TorchSymmMemCommunicator: Device capability 12 not supported, communicator is not available.",
        "max_running_requests was reduced from the requested 64 to 32",
        "max_running_requests is capped to 32 by the mamba state cache",
        "Overlap scheduler is disabled because of using eagle",
        "KV cache pool is full. Retract requests. #retracted_reqs: 12",
        "FlashInfer autotune completed.",
        "NVRM: Xid (PCI:0000:9a:00): 13",
        "[bench] 3.2x slower than the baseline",
    ]
    assert [text for text in samples if is_dull(text.encode())] == []


# --- dress


@pytest.mark.parametrize("dress", DRESSES, ids=lambda dress: dress.__name__)
def test_facts_are_the_same_in_every_dress(dress: Any) -> None:
    text = Log().arguments(tp_size=2, mem_fraction_static=0.8).start("ready", ("TP0", "TP1")).serve(20, "TP0").text()
    plain, dressed = read(text.encode()).facts(), read(dress(text)).facts()
    keys = ("phase", "ready", "memory_gib", "kv_tokens", "pool", "server_args", "throughput")
    assert {key: dressed[key] for key in keys} == {key: plain[key] for key in keys}


def test_progress_bars_do_not_hide_the_line_behind_them() -> None:
    raw = b"\rCapturing batches (bs=8):  10%|#   | 1/8\rCapturing batches (bs=4):  50%|#   | 4/8[2026-03-04 11:00:00 TP3] Memory pool end. avail mem=5.20 GB\n"
    lines = list(LineCleaner().clean(7, raw))
    assert [(line.number, line.rank) for line in lines] == [(7, None), (7, "TP3")]
    assert read(raw).facts()["memory_gib"]["pool_end_gib"] == 5.2


@pytest.mark.parametrize(
    ("raw", "rank", "text"),
    [
        (b"[2026-03-04 11:00:00 DP1 TP3 EP3 PP0] hello", "DP1 TP3 EP3 PP0", "hello"),
        (b"[2026-03-04 11:00:00] hello", None, "hello"),
        (b"[11:00:00 TP5] hello", "TP5", "hello"),
        (b"[12-16 14:27:08] hello", None, "hello"),
        (b"[TP1] hello", "TP1", "hello"),
        (b"[rank7]:[E304 11:20:07.519 ProcessGroupNCCL.cpp:685] [Rank 7] hello", "rank7", "[Rank 7] hello"),
        (
            b"node-a:36746:37111 [6] misc/x.cc:160 NCCL WARN hello",
            "rank6",
            "node-a:36746:37111 [6] misc/x.cc:160 NCCL WARN hello",
        ),
        (b"  |  [2026-03-04 11:00:00 TP2] hello", "TP2", "hello"),
        (b"sglang-0 server [2026-03-04 11:00:00 TP2] hello", "TP2", "hello"),
    ],
)
def test_ranks(raw: bytes, rank: str | None, text: str) -> None:
    line = list(LineCleaner().clean(1, raw))[-1]
    assert (line.rank, line.text) == (rank, text)


def test_a_learned_prefix_is_taken_off_the_lines_of_a_traceback() -> None:
    cleaner = LineCleaner()
    list(
        cleaner.clean(
            1,
            b"sglang-0 server [2026-03-04 11:00:00 TP2] Scheduler hit an exception: Traceback (most recent call last):",
        )
    )
    line = next(iter(cleaner.clean(2, b'sglang-0 server   File "/x/y.py", line 3, in f')))
    assert line.text == '  File "/x/y.py", line 3, in f'


def test_last_line_is_clean_and_complete() -> None:
    reader = read(
        b"sglang-1  | \x1b[32m[2026-03-04 11:00:00 TP0] Load weight begin. avail mem=78.00 GB\x1b[0m\r\n\n[2026-03-04 11:00:01 TP0] unfin"
    )
    assert reader.last_line == "Load weight begin. avail mem=78.00 GB"


# --- facts


def test_a_live_reader_follows_the_start() -> None:
    text = Log().arguments(tp_size=2).start("ready", ("TP0", "TP1"), "0.5.20").text().encode()
    reader, seen = SglangLogReader({}), []
    for line in text.splitlines(keepends=True):
        reader.feed(line)
        if not seen or seen[-1] != reader.phase:
            seen.append(reader.phase)
    assert seen == [Phase.LOAD, Phase.KV_ALLOC, Phase.GRAPH_CAPTURE, Phase.WARMUP, Phase.SERVING]
    assert reader.ready
    assert not reader.decided


@pytest.mark.parametrize("version", ["0.4.6", "0.5.2", "0.5.9", "0.5.12", "0.5.14", "0.5.20", "0.5.23"])
def test_memory_numbers_of_every_format(version: str) -> None:
    log = Log().arguments(new=version >= "0.5.19", tp_size=2, mem_fraction_static=0.8)
    facts = read(log.start("ready", ("TP0", "TP1"), version, begin=78.5, after=40.2, pool=12.1).text().encode()).facts()
    memory = facts["memory_gib"]
    assert (memory["before_load_gib"], memory["after_load_gib"], memory["pool_end_gib"]) == (78.5, 40.2, 12.1)
    assert (memory["capture_begin_gib"], memory["capture_end_gib"]) == (12.1, 11.0)
    assert list(facts["graph_gib"].values()) == [1.1]
    assert facts["kv_tokens"] == 181000
    assert facts["max_running_requests"] == 2048
    assert facts["server_args"]["mem-fraction-static"] == 0.8


def test_the_smallest_rank_counts() -> None:
    log = Log().arguments(tp_size=2)
    for rank, avail in (("TP0", 78.5), ("TP1", 71.0), ("TP2", 78.4)):
        log.add(f"Load weight begin. avail mem={avail:.2f} GB", rank)
    assert read(log.text().encode()).facts()["memory_gib"]["before_load_gib"] == 71.0


def test_the_draft_model_has_numbers_of_its_own() -> None:
    facts = read((RECORDINGS / "cases" / "kv_spec_draft_accounting.log").read_bytes()).facts()
    assert facts["memory_gib"]["after_load_gib"] == 61.0
    assert facts["memory_gib"]["after_draft_load_gib"] == 21.9


def test_timeline_has_seconds_and_memory() -> None:
    timeline = read((RECORDINGS / "h200" / "run2_m0.9_g256.log").read_bytes()).facts()["timeline"]
    steps = {entry["phase"]: entry for entry in timeline}
    assert [entry["phase"] for entry in timeline[:2]] == ["validate", "load"]
    assert steps["load"]["available_gib"] == 139.09
    assert steps["serving"]["seconds"] > 40
    assert sum(entry["seconds"] or 0 for entry in timeline) > 60


def test_recorded_load() -> None:
    facts = read((RECORDINGS / "h200" / "run1_m0.5_g8.log").read_bytes()).facts()
    assert facts["throughput"]["decode_lines"] == 39
    assert 0.3 < facts["throughput"]["eager_decode_share"] < 1
    assert facts["throughput"]["gen_tokens_per_s"]["max"] > 20_000
    assert facts["captured_sizes"]["target decode"] == [1, 2, 4, 8]
    assert any(
        "without a CUDA graph" in warning
        for warning in read((RECORDINGS / "h200" / "run1_m0.5_g8.log").read_bytes()).warnings()
    )


def test_throughput_of_a_long_log_is_a_sample_of_all_of_it() -> None:
    line = "[2026-03-04 11:00:00 TP0] Decode batch, #running-req: {n}, #token: 1, token usage: 0.01, cuda graph: True, gen throughput (token/s): {n}.00, #queue-req: 3\n"
    raw = "".join(line.format(n=n) for n in range(1, 20_001)).encode()
    facts = read(raw).facts()["throughput"]
    assert facts["decode_lines"] == 20_000
    assert facts["gen_tokens_per_s"]["last"] == 20_000
    assert facts["gen_tokens_per_s"]["median"] == pytest.approx(10_000, rel=0.05)
    assert facts["queue_max"] == 3


def test_effective_arguments_of_a_real_server() -> None:
    old = read((RECORDINGS / "h200" / "run1_fail_ep2_tp1.log").read_bytes()).facts()
    assert old["server_args"]["ep-size"] == 2
    assert old["command"]["ep-size"] == 2
    new = read((RECORDINGS / "cpu" / "page64.log").read_bytes()).facts()
    assert new["server_args"]["page-size"] == 64
    assert len(new["server_args"]) > 250


def test_what_the_engine_changed() -> None:
    log = Log().add(
        "$ python3 -m sglang.launch_server --model-path /models/moe --tp 8 --chunked-prefill-size 8192 --dp-size 2"
    )
    log.arguments(tp_size=8, chunked_prefill_size=4096, dp_size=2)
    assert read(log.text().encode()).facts()["changed"] == {"chunked-prefill-size": [8192, 4096]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "server_args=ServerArgs(a_b='x, y', c=[1, 2], d=None, e=-1.5e-3, f=True)",
            {"a-b": "x, y", "c": "[1, 2]", "d": None, "e": -0.0015, "f": True},
        ),
        (
            "server_args={'tp_size': 8, 'x': {'y': (1, 2)}, 'z': 'it\\'s'}",
            {"tp-size": 8, "x": "{'y': (1, 2)}", "z": "it's"},
        ),
        ("server_args=ServerArgs(a=1, b=<Mode.X: 'x, y'>, c=2", {"a": 1, "b": "<Mode.X: 'x, y'>"}),
        ("server_args=ServerArgs(a=__import__('os').system('x'))", {"a": "__import__('os').system('x')"}),
        ("no arguments", {}),
    ],
)
def test_server_args(text: str, expected: dict[str, Any]) -> None:
    assert parse_server_args(text) == expected


@pytest.mark.parametrize(
    ("text", "flags", "env"),
    [
        (
            "$ python3 -m sglang.launch_server --tp 8 --enable-mixed-chunk --x=1.5",
            {"tp-size": 8, "enable-mixed-chunk": True, "x": 1.5},
            {},
        ),
        (
            "+ NCCL_ALGO=Tree CUDA_VISIBLE_DEVICES=0,1 sglang serve --model-path '/m x'",
            {"model-path": "/m x"},
            {"NCCL_ALGO": "Tree", "CUDA_VISIBLE_DEVICES": "0,1"},
        ),
        ("python -m sglang.launch_server --a 'unbalanced", {"a": "'unbalanced"}, {}),
    ],
)
def test_commands(text: str, flags: dict[str, Any], env: dict[str, str]) -> None:
    assert parse_command(text) == (flags, env)


def test_a_line_without_a_command_has_none() -> None:
    assert parse_command("launch_server.py: error: unrecognized arguments: --x") is None


def test_differences_compare_values_and_not_spellings() -> None:
    assert differences({"a": 1, "b": "8", "c": True}, {"a": 2, "b": 8, "c": True}) == {"a": (1, 2)}


def test_reading_goes_on_after_a_look() -> None:
    text = Log().arguments(tp_size=1).start("ready").text().encode()
    reader = SglangLogReader({})
    for at in range(0, len(text), 37):
        reader.feed(text[at : at + 37])
        reader.facts(), reader.diagnose(None)
    assert everything(reader) == everything(read(text))


def test_state_starts_small() -> None:
    assert deep_size(Run()) < 20_000


def test_looking_does_not_change_what_is_read_later() -> None:
    """A look between a skipped line with a stamp and one without."""
    head = b"[2026-03-04 11:00:00] server_args=ServerArgs(tp_size=1)\n[2026-03-04 11:00:05] plain words\n"
    tail = b"words without a stamp\n[2026-03-04 11:00:09] Memory pool end. avail mem=1.0 GB\n"
    looked = read(head)
    looked.facts()
    looked.feed(tail)
    assert everything(looked) == everything(read(head + tail))


@pytest.mark.parametrize(
    "unit",
    [
        "w",
        " ",
        "[",
        "[probe ",
        "-> ",
        "1",
        "1.",
        "#",
        "--a",
        "a_",
        "=",
        "'",
        '"',
        "(",
        "{",
        "|",
        "E",
        "not ",
        "\\",
        ".",
        "/",
        "a-b ",
    ],
)
def test_no_pattern_is_quadratic(unit: str) -> None:
    """A long run of anything is read in time that grows with its length: as a line, as a message, as arguments."""
    run = unit * (40_000 // len(unit))
    log = Log().arguments(tp_size=1).start("ready")
    for head in (
        "",
        "[bench] ",
        "Capture cuda graph begin. ",
        "error: argument --x: ",
        "python -m sglang.launch_server --x ",
        "failed nvshmem a2a ",
    ):
        log.add(head + run, "").add(head + run)
    log.add(f"server_args=ServerArgs(a={run}", "")
    log.raises(
        "", (f"managers/{run[:3000]}.py:f> {run[:3000]}",) * 8, "\n".join([f"RuntimeError: {run[:3000]}"] * 24)
    ).dies(serving=True)
    before = time.process_time()
    reader = read(log.text().encode())
    reader.report(reader.diagnose(None))
    assert time.process_time() - before < 3.0
