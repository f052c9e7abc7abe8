# ruff: noqa: E501 - log lines are as long as they are

"""What a screen says: of flags, of verdicts, of cut logs and of servers that start again and again."""

from __future__ import annotations

import io
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from servetune.cli._diagnosis_verdict import verdict_sentence
from servetune.cli.diagnose import command, diagnose_text
from servetune.core.wording import shortened

CASES = Path(__file__).parents[2] / "recordings" / "cases"
USAGE = "usage: launch_server.py [-h] --model-path MODEL_PATH [--tp-size N] [--reasoning-parser {kimi_k2,glm45}]\n"
REFUSED = USAGE + "launch_server.py: error: unrecognized arguments: "


def diagnosed(text: str | bytes) -> dict[str, Any]:
    return diagnose_text(io.BytesIO(text.encode() if isinstance(text, str) else text))


def screen(text: str | bytes, **env: str) -> str:
    shown = CliRunner().invoke(command, ["-"], input=text, env={"COLUMNS": None, **env})
    assert shown.exit_code == 0
    return shown.stdout


def case(name: str) -> str:
    return (CASES / f"{name}.log").read_text()


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        ("--enable-ep-moe", [("--enable-ep-moe", True)]),
        ("--reasoning_parser kimi_k2", [("--reasoning_parser", "kimi_k2")]),
        ("--enable-ep-moe --cuda-graph-sizes=64", [("--enable-ep-moe", True), ("--cuda-graph-sizes", 64)]),
    ],
)
def test_what_the_parser_refuses_was_passed(words: str, passed: list[tuple[str, Any]]) -> None:
    blamed = diagnosed(REFUSED + words + "\n")["blamed_flags"]
    assert [(item["flag"], item["passed"]) for item in blamed] == passed
    assert all(item["given"] for item in blamed)
    assert "not passed" not in screen(REFUSED + words + "\n")


def test_a_value_that_the_parser_refuses_was_passed() -> None:
    error = "launch_server.py: error: argument --attention-backend: invalid choice: 'flash4' (choose from 'fa3', 'triton')\n"
    (item,) = diagnosed(USAGE + error)["blamed_flags"]
    assert (item["given"], item["passed"]) == (True, "flash4")


def test_a_usage_text_is_no_command() -> None:
    (item,) = diagnosed(USAGE + "launch_server.py: error: unrecognized arguments: --foo\n")["blamed_flags"]
    assert item["used"] is None


def test_the_new_name_comes_before_leaving_the_old_one_out() -> None:
    repairs = diagnosed(REFUSED + "--reasoning_parser kimi_k2\n")["repair"]
    assert [(one["flag"], one["value"]) for one in repairs] == [
        ("--reasoning-parser", "kimi_k2"),
        ("--reasoning_parser", None),
    ]


VERDICTS, AGAIN = ("infeasible", "retry", "stop", "none"), (True, False, None)


@pytest.mark.parametrize(
    ("verdict", "again", "confidence", "repair"),
    list(itertools.product(VERDICTS, AGAIN, (0.2, 0.9), ([], [{"flag": "--tp-size"}]))),
)
def test_a_verdict_claims_no_more_than_is_known(
    verdict: str, again: bool | None, confidence: float, repair: list[Any]
) -> None:
    for slug in ("overload", "perf_regression", "unknown"):
        said = verdict_sentence(
            {"class": slug, "verdict": verdict, "deterministic": again, "confidence": confidence, "repair": repair}
        )
        if again is not True or verdict == "none":
            assert "cannot work" not in said
        if verdict == "none":
            assert ("below" in said) == bool(repair)
        elif confidence < 0.7:
            assert re.search("probably|certain", said)
        if again is None and verdict != "none":
            assert "known" in said or "certain nor" in said


@pytest.mark.parametrize("path", sorted(CASES.glob("*.log")), ids=lambda path: path.stem)
def test_no_screen_contradicts_or_repeats_itself(path: Path) -> None:
    shown = screen(path.read_bytes())
    assert not ("nothing to change" in shown and "What to change" in shown)
    assert not ("cannot work" in shown and "not known" in shown)
    changes = shown.partition("What to change")[2].partition("\n\n")[0]
    for line in changes.splitlines()[1:]:
        what, _, why = line.partition("  ")
        assert why.strip() not in (what, what.replace("--", ""))
        assert not re.search(r"(?<![\w-])(?:enable|disable|trust)-[a-z]+-[a-z-]+", why), line
    assert all(line == line.rstrip() for line in shown.splitlines())


def test_a_warning_stands_once_on_a_screen() -> None:
    assert screen(case("perf_silent_nccl_fallback")).count("detected allocations") == 1


def test_what_is_cut_shows_it() -> None:
    assert shortened("some words that are too long", 15) == "some words…"
    assert shortened("as long as allowed", 18) == "as long as allowed"
    assert shortened("x" * 50, 10) == "x" * 9 + "…"
    notice = diagnosed(case("perf_silent_nccl_fallback"))["cause"]
    assert notice.endswith("…")
    line = "word " * 900
    raised = f'Scheduler hit an exception: Traceback (most recent call last):\n  File "x.py", line 1, in f\nVendorError: {line}\n\n'
    answer = diagnosed("[2026-03-04 11:00:00] server_args=ServerArgs(tp_size=1)\n[2026-03-04 11:00:01 TP0] " + raised)
    assert answer["evidence"][0]["text"].endswith("word…")
    assert len(answer["evidence"][0]["text"]) <= 2000


def cut_in_traceback(frames: int) -> str:
    lines = case("kv_new_guard_minimum").splitlines(keepends=True)
    head = next(number for number, line in enumerate(lines) if "Traceback" in line)
    return "".join(lines[: head + 1 + frames])


@pytest.mark.parametrize("frames", [0, 1, 2, 3])
def test_a_log_that_is_cut_within_an_exception_says_so(frames: int) -> None:
    answer = diagnosed(cut_in_traceback(frames))
    assert (answer["class"], answer["first_rank"]) == ("unknown", "TP1")
    assert "cut within an exception on rank TP1" in answer["cause"]
    assert "without an error" not in answer["cause"]


def test_a_server_that_was_ready_and_dies_in_a_cut_exception_is_not_healthy() -> None:
    healthy = case("none_autotuner_skips")
    cut = '[2026-02-21 11:00:00 TP2] Scheduler hit an exception: Traceback (most recent call last):\n  File "/x/scheduler.py", line 3, in run\n'
    assert "cut within an exception on rank TP2" in diagnosed(healthy + cut)["cause"]


@pytest.mark.parametrize("lives", [2, 3, 7, 40, 400])
@pytest.mark.parametrize("moving", [False, True], ids=["same times", "other times"])
def test_a_crash_loop_says_how_often_it_started(lives: int, moving: bool) -> None:
    one = case("kv_new_guard_minimum")
    loop = "".join(
        one.replace("10:0", f"1{number // 6 % 9}:{number % 6}") if moving else one for number in range(lives)
    )
    answer = diagnosed(loop)
    assert (answer["starts"], answer["start"]) == (lives, lives)
    length = one.count("\n")
    for line in (answer["evidence"][0]["line"], answer["timeline"][0]["line"]):
        assert (lives - 1) * length < line <= lives * length
    assert f"the log holds {lives} starts of the server; this is about the last of them" in screen(loop)


def test_deciding_lines_and_timeline_are_of_the_same_start() -> None:
    one = case("kv_new_guard_minimum")
    begun = next(line for line in one.splitlines(keepends=True) if "server_args=" in line)
    answer = diagnosed(one * 3 + begun)
    length = one.count("\n")
    assert (answer["starts"], answer["start"]) == (4, 3)
    for line in (answer["evidence"][0]["line"], answer["timeline"][0]["line"]):
        assert 2 * length < line <= 3 * length
    assert "number 3 of them" in screen(one * 3 + begun)


def test_one_start_is_not_mentioned() -> None:
    assert "starts of the server" not in screen(case("kv_new_guard_minimum"))


def test_what_was_survived_is_told() -> None:
    answer = diagnosed(case("none_autotuner_skips"))
    assert answer["survived"]
    assert all(set(item) == {"line", "text"} for item in answer["survived"])


def test_a_pipe_has_the_width_that_is_asked_for() -> None:
    shown = screen(case("kv_new_guard_minimum"), COLUMNS="70")
    assert max(map(len, shown.splitlines())) <= 70
    assert max(map(len, screen(case("kv_new_guard_minimum"), COLUMNS="wide").splitlines())) <= 160
