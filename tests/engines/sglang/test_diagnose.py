# ruff: noqa: E501 - log lines are as long as they are

"""`servetune diagnose`: one screen for people, one object for scripts, a file or a pipe."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from servetune.cli.diagnose import diagnose_text

RECORDINGS = Path(__file__).parents[2] / "recordings"
FRACTION = RECORDINGS / "cases" / "kv_new_guard_minimum.log"
KEYS = [
    "class",
    "phase",
    "verdict",
    "deterministic",
    "first_rank",
    "evidence",
    "blamed",
    "repair",
    "advice",
    "timeline",
    "not_in_effect",
    "confidence",
    "cause",
    "survived",
    "blamed_flags",
    "starts",
    "start",
]


def servetune(*words: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "servetune", "diagnose", *words]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, env={"PATH": "", **env}, check=False)


def test_json_has_the_promised_shape() -> None:
    answer = json.loads(servetune(str(FRACTION), "--json").stdout)
    assert list(answer) == KEYS
    assert (answer["class"], answer["phase"], answer["verdict"]) == ("kv_budget", "kv_alloc", "infeasible")
    assert answer["deterministic"] is True
    assert answer["first_rank"] == "TP1"
    assert answer["evidence"][0]["line"] == 16
    assert set(answer["evidence"][0]) == {"line", "text"}
    assert answer["blamed"] == ["--mem-fraction-static"]
    assert answer["repair"][0] == {
        "flag": "--mem-fraction-static",
        "value": 0.773,
        "reason": "at least 0.763 (1 - 33.2/138.9): 33.2 of 138.9 GB were left after the weights; "
        "0.773 gives a pool of about 1.5 GB, 1% of the memory",
    }
    assert [step["phase"] for step in answer["timeline"]] == ["load", "kv_alloc"]
    assert 0 < answer["confidence"] <= 1


@pytest.mark.parametrize("words", [(), ("-",)])
def test_a_pipe_is_read(words: tuple[str, ...]) -> None:
    done = servetune(*words, "--json", stdin=FRACTION.read_bytes())
    assert json.loads(done.stdout)["class"] == "kv_budget"


def test_the_screen_names_what_a_person_needs() -> None:
    done = servetune(str(FRACTION))
    shown = done.stdout.decode()
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout
    for words in (
        "kv_budget in phase kv_alloc, first on TP1",
        "the same command would fail again",
        "16  ValueError: Loaded weights leave no GPU memory",
        "--mem-fraction-static",
        "the engine used 0.7",
        "--mem-fraction-static 0.773",
        "33.2 of 138.9 GB were left after the weights",
        "kv_alloc",
    ):
        assert words in shown
    assert len(shown.splitlines()) <= 40


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("cases/*.log")), ids=lambda path: path.stem)
def test_every_screen_fits(path: Path) -> None:
    with path.open("rb") as stream:
        answer = diagnose_text(stream)
    assert list(answer) == KEYS
    assert len(answer["evidence"]) <= 8
    json.dumps(answer)


def test_a_healthy_log_is_class_none() -> None:
    done = servetune(str(RECORDINGS / "cases" / "none_autotuner_skips.log"))
    assert done.stdout.decode().startswith("no failure (class none)")
    assert b"survived" in done.stdout


def test_options_not_in_effect_are_listed() -> None:
    answer = json.loads(servetune(str(RECORDINGS / "cases" / "perf_silent_nccl_fallback.log"), "--json").stdout)
    assert answer["not_in_effect"][0]["flag"] == "--disable-custom-all-reduce"
    assert answer["not_in_effect"][0]["line"] == 3


def test_what_was_asked_to_be_off_is_in_effect_when_the_log_says_that_it_is_off() -> None:
    log = b"[2026-11-29 21:52:36] Disable prefill CUDA graph because cuda_graph_config resolved prefill.backend='disabled'\n"
    asked = diagnose_text(io.BytesIO(log), {"cuda-graph-backend-prefill": "disabled"})
    assert asked["not_in_effect"] == []
    refused = diagnose_text(io.BytesIO(log), {"cuda-graph-backend-prefill": "breakable"})
    assert [item["flag"] for item in refused["not_in_effect"]] == ["--cuda-graph-backend-prefill"]


def test_without_a_command_the_arguments_say_what_was_asked_to_be_off() -> None:
    """The log of a launch shows `server_args=` only; its flag of a choice holds what was given."""
    with (RECORDINGS / "h200" / "study" / "logs" / "h200-moe" / "trial-7.log").open("rb") as stream:
        log = stream.read()
    assert b"Disable prefill CUDA graph because" in log
    assert diagnose_text(io.BytesIO(log))["not_in_effect"] == []
    told = diagnose_text(io.BytesIO(log), {"cuda-graph-backend-prefill": "breakable"})
    assert [item["flag"] for item in told["not_in_effect"]] == ["--cuda-graph-backend-prefill"]


def test_a_switch_that_was_asked_to_be_off_is_off_as_asked() -> None:
    log = b"[2026-11-29 21:52:36] Mixed chunk is disabled because of the attention backend.\n"
    assert diagnose_text(io.BytesIO(log), {"enable-mixed-chunk": False})["not_in_effect"] == []
    refused = diagnose_text(io.BytesIO(log), {"enable-mixed-chunk": True})
    assert [item["flag"] for item in refused["not_in_effect"]] == ["--enable-mixed-chunk"]


def test_secrets_are_masked_and_tokens_of_a_batch_are_not() -> None:
    log = b'Traceback (most recent call last):\n  File "/x/server_args.py", line 1, in __post_init__\n    raise\nValueError: '
    said = b"the token budget of --hf-token hf_abc with Authorization: Bearer eyJ.x and api_key='a b' is too small\n"
    text = diagnose_text(io.BytesIO(log + said))["evidence"][0]["text"]
    assert "token budget" in text
    assert not any(secret in text for secret in ("hf_abc", "eyJ", "a b"))


def test_a_missing_file_is_bad_input() -> None:
    done = servetune("no-such.log")
    assert done.returncode == 2
    assert b"no-such.log" in done.stderr
    assert done.stdout == b""


def test_an_empty_log_of_a_trial_is_unknown() -> None:
    answer = diagnose_text(io.BytesIO(b""))
    assert (answer["class"], answer["evidence"]) == ("unknown", [])


def test_colours_only_on_a_terminal_that_wants_them() -> None:
    assert b"\x1b" not in servetune(str(FRACTION), NO_COLOR="1", FORCE_COLOR="").stdout


def test_markup_in_a_log_is_text() -> None:
    log = b'[2026-03-04 11:00:00] server_args=ServerArgs(tp_size=1)\n[2026-03-04 11:00:01] Scheduler hit an exception: Traceback (most recent call last):\n  File "x.py", line 1, in f\nVendorError: [red]not [/bold]markup[/red]\n\n'
    assert b"[red]not [/bold]markup[/red]" in servetune("-", stdin=log).stdout


def test_the_assignment_may_be_given() -> None:
    log = b'Traceback (most recent call last):\n  File "/x/server_args.py", line 1, in __post_init__\n    assert x\nAssertionError: moe_dense_tp_size only support 1 and None currently\n'
    answer = diagnose_text(io.BytesIO(log), {"moe-dense-tp-size": 8})
    assert answer["blamed"] == ["--moe-dense-tp-size"]


def test_a_server_that_works_does_not_fail_again() -> None:
    log = RECORDINGS / "cases" / "perf_silent_nccl_fallback.log"
    shown = servetune(str(log)).stdout.decode()
    assert "the server works" in shown
    assert "would fail again" not in shown
    assert "3  custom all-reduce" in shown  # and not the flag that switches it off


FOREIGN = {
    "bytes": bytes(range(128, 256)) * 50,
    "text": b"one\ntwo\nthree\n",
    "accounts": b"root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "document": b"# A tool\n\nUsage: tool [--json] [--batch FILE]\n\n## Start\n\n    python -m sglang.launch_server --model-path m\n",
    "readme": b"# A tool\n\nIt loads weights.\nLoad weight begin. avail mem=79.00 GB\n\n## More\n\ntext\n",
}


@pytest.mark.parametrize("raw", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_what_is_no_log_of_a_server_is_bad_input(raw: bytes, words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(raw)
    done = servetune(str(path), *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(f"error: the file '{path}' is no log of an SGLang server".encode())
    assert done.stderr.count(b"\n") == 1


def test_stdin_that_is_no_log_is_bad_input() -> None:
    done = servetune("-", stdin=FOREIGN["text"])
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"stdin is no log" in done.stderr


FRAGMENTS = {
    "usage": b"usage: launch_server.py [-h] --model-path MODEL_PATH [--model-path X] [--tp-size N]\n",
    "exception": b"VendorError: something nobody has seen\n",
    "frames": b'  File "/x/sglang/srt/models/a.py", line 3, in forward\n    x = y\nVendorError: odd\n',
    "command": b"+ python -m sglang.launch_server --model-path m --tp-size 2\n",
    "issue": b"### Describe the bug\n\n## Log\n\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
}


@pytest.mark.parametrize("raw", FRAGMENTS.values(), ids=FRAGMENTS)
def test_a_fragment_is_diagnosed(raw: bytes) -> None:
    done = servetune("-", stdin=raw)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout


@pytest.mark.parametrize("raw", [b"", b" \n\n"])
def test_no_data_is_bad_input(raw: bytes, tmp_path: Path) -> None:
    done = servetune("-", stdin=raw)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: stdin had no data; give ")
    log = tmp_path / "server.log"
    log.write_bytes(raw)
    assert f"error: the log '{log}' is empty; give ".encode() in servetune(str(log), "--json").stderr


def test_help_has_an_example() -> None:
    assert b"docker logs" in servetune("--help").stdout
