"""Logs that no server prints, or only one that was told to: they are read to the end, in time that grows with them."""

from __future__ import annotations

import time

import pytest

from servetune.engines.sglang._log_args import parse_command, parse_server_args
from servetune.engines.sglang._log_flags import LaunchFlags
from servetune.engines.sglang.logs import SglangLogReader


def slug(log: str) -> str:
    reader = SglangLogReader({})
    reader.feed(log.encode())
    failure = reader.diagnose(None)
    reader.report(failure)
    return failure.slug


@pytest.mark.parametrize("line", ['{"a":' * 1100, '{"log":' + "[" * 3000 + "]" * 3000 + "}", '{"log": "' + "\\" * 999])
def test_json_of_any_depth_is_a_line_like_others(line: str) -> None:
    assert slug(line + "\n") == "unknown"


REFUSED = "AssertionError: Flashinfer MoE A2A is only supported with dp_size == tp_size and --enable-dp-attention\n"
NO_MEMORY = (
    "[2026-02-21 10:00:01] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "/x/site-packages/sglang/srt/model_executor/cuda_graph_runner.py", line 1, in capture\n    x\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.00 GiB\n"
)


@pytest.mark.parametrize("value", ["1e999", "-1e999", "nan", "inf", "1e308", "9" * 400, "9" * 4000, "9" * 5000])
@pytest.mark.parametrize("end", [REFUSED, NO_MEMORY])
def test_numbers_without_bounds_are_no_numbers(value: str, end: str) -> None:
    flags = ("tp", "dp", "mem-fraction-static", "chunked-prefill-size", "max-running-requests", "cuda-graph-max-bs")
    command = "python -m sglang.launch_server --model-path /m " + " ".join(f"--{flag} {value}" for flag in flags)
    fields = ", ".join(f"{flag.replace('-', '_')}={value}" for flag in flags)
    start = f"[2026-02-21 10:00:00] server_args=ServerArgs(model_path='/m', {fields})\n"
    assert slug(f"{command} --moe-a2a-backend flashinfer\n{end}") != "none"
    assert slug(f"{command} --moe-a2a-backend flashinfer\n{start}{end}") != "none"
    assert slug(start + end) != "none"


def test_an_infinite_number_stays_the_text_that_it_is() -> None:
    assert parse_server_args("server_args=ServerArgs(a=1e999, b=1e3)") == {"a": "1e999", "b": 1000.0}
    shown = parse_command("sglang serve --tp 1e999 --seed nan --dp 2")
    assert shown is not None
    assert shown[0] == {"tp-size": "1e999", "seed": "nan", "dp-size": 2}
    flags = LaunchFlags({"a": float("inf"), "b": 10**400, "c": 3, "d": True, "e": float("nan")})
    assert [flags.number(flag) for flag in "abcde"] == [None, None, 3.0, None, None]


def test_a_size_that_nobody_has_is_not_factorised() -> None:
    command = "python -m sglang.launch_server --tp-size 1000000007 --nnodes 1000000000\n"
    assert slug(command + "AssertionError: tp_size must be divisible by number of nodes\n") != "none"


SERVES = (
    "[2026-11-30 10:00:00] server_args=ServerArgs(model_path='/m', tp_size=1)\n"
    "[2026-11-30 10:00:25] The server is fired up and ready to roll!\n"
)


@pytest.mark.parametrize(
    "line",
    [
        "[bench] baseline 1 " + "0" * 3850,
        "[bench] 1 tok/s with x " + "0" * 3800 + " vs 1",
        "[bench] 1" + "0" * 3800 + "x faster",
        "[bench] 1." + "0" * 3800 + " vs 2 " + "1.1." * 20,
        "[eval] accuracy 0.1 1 " + "accuracy 0.1 " * 290,
        "[probe] 1 " + "[probe] " * 480,
        "[probe] 1 of 2 " * 255,
        "[bench] 1 ms " * 300,
    ],
)
def test_a_line_of_measures_takes_milliseconds(line: str) -> None:
    reader = SglangLogReader({})
    reader.feed(SERVES.encode())
    assert reader.ready
    before = time.process_time()
    reader.feed("".join(f"{line}{at * 'x'}\n" for at in range(5)).encode())
    reader.diagnose(None)
    assert time.process_time() - before < 1


CRASHED = SERVES + (
    "[2026-11-30 10:10:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    '  File "/x/site-packages/sglang/srt/managers/scheduler.py", line 9, in run_scheduler_process\n    x()\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n\n"
    "[2026-11-30 10:10:01] Received sigquit from a child process. It usually means the child failed.\n"
)
#: What is put before and behind each line.
TERMINAL_DRESS = (
    ("\x1b]0;a title: Killed\x07", ""),
    ("\x1b]8;;http://host/error\x1b\\", "\x1b]8;;\x1b\\"),
    ("\x9d0;title\x9c", ""),
    ("\x1b[38:2::10:20:30m", "\x1b[0m"),
    ("\x1b[>4;1m\x1b[?25l", "\x1b[K"),
    ("\x9b31m", "\x9b0m"),
    ("x\b", ""),
    ("|\b/\b-\b \b", "\b"),
    ("\x1bPq#0\x1b\\", ""),
)


@pytest.mark.parametrize(("before", "behind"), TERMINAL_DRESS)
def test_what_a_terminal_takes_for_itself_is_taken_off(before: str, behind: str) -> None:
    assert slug("".join(f"{before}{line}{behind}\n" for line in CRASHED.split("\n"))) == slug(CRASHED) != "unknown"


@pytest.mark.parametrize("colour", ["\x1b[31m", "\x9b1m", "\x1b[38:5:7m"])
def test_colours_within_words(colour: str) -> None:
    words = "OSError: [Errno 28] No space left on device\n"
    dressed = "".join(letter if letter.isspace() else f"{colour}{letter}\x1b[0m" for letter in CRASHED)
    assert slug(dressed) == slug(CRASHED)
    spaced = "".join(letter if letter.isspace() else f"{colour}{letter}\x1b[0m" for letter in words)
    assert slug(SERVES + spaced) == slug(SERVES + words) != "none"


def test_an_escape_without_an_end_hides_nothing() -> None:
    assert slug(SERVES + "\x1b]0;\nOSError: [Errno 28] No space left on device\n") == "host_env"
    assert slug(SERVES + "\x1b]" * 30_000 + "\n" + "\b" * 60_000 + "a\b" * 9_000 + "\n") == "none"


@pytest.mark.parametrize("opening", ["(head, ", "[launcher ", "<Actor "])
def test_a_line_of_100_000_characters_that_might_begin_with_a_launchers_prefix_is_read_at_once(opening):
    """Work that grows with the square of the line would take minutes."""
    line = (opening + "x" * 100_000 + "\n").encode()
    before = time.process_time()
    reader = SglangLogReader({})
    reader.feed(line * 3)
    reader.diagnose(None)
    assert time.process_time() - before < 5
