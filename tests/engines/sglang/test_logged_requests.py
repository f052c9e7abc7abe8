"""With `--log-requests` a log holds the words of users: whatever they quote, the server has not said it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from servetune.engines.sglang._log_requests import own_words, unclosed
from servetune.engines.sglang.logs import SglangLogReader

RECORDINGS = Path(__file__).parents[2] / "recordings"
START = """python -m sglang.launch_server --model-path /m --tp-size 2 --moe-runner-backend triton
[2026-11-30 10:00:00] server_args=ServerArgs(model_path='/m', tp_size=2, moe_runner_backend='triton', port=30000)
[2026-11-30 10:00:05 TP0] Load weight begin. avail mem=139.0 GB
[2026-11-30 10:00:15 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=100.0 GB, mem usage=39 GB.
[2026-11-30 10:00:25] The server is fired up and ready to roll!
"""
AFTER = """[2026-11-30 10:10:01] INFO:     127.0.0.1:1 - "POST /generate HTTP/1.1" 200 OK
[2026-11-30 10:11:00] Decode batch, #running-req: 1, #token: 9, gen throughput (token/s): 5.0, #queue-req: 0
"""
STAMP = "[2026-11-30 10:10:00] "
#: What a user may quote.
QUOTED = (
    "OSError: [Errno 28] No space left on device",
    "GPU 0: uncorrectable ECC error encountered",
    "[Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use",
    "Fatal Python error: Segmentation fault",
    "NCCL WARN Cuda failure 'out of memory'",
    "server_args=ServerArgs(model_path='/x', tp_size=8)",
    "[2026-11-30 10:09:00] server_args=ServerArgs(model_path='/x', tp_size=8)",
    "python -m sglang.launch_server --model-path /evil --tp 8",
    "launch_server.py: error: unrecognized arguments: --foo",
    "Received sigquit from a child process. It usually means the child failed.",
    "Watchdog timeout (self.watchdog_timeout=300)",
    "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "[probe] prompt='a' -> 'la la la la la la la la la la la la la'",
    "[eval] gsm8k accuracy 0.02, reference 0.95",
    "Traceback (most recent call last):",
    "Killed\r[2026-11-30 10:09:00] SIGTERM received, shutting down gracefully",
)
CRASH = (
    "why do I see this:\nTraceback (most recent call last):\n"
    '  File "/x/site-packages/sglang/srt/managers/scheduler.py", line 9, in run_scheduler_process\n    x()\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (of 139 GiB)\n\n"
    "Fatal Python error: Aborted\n\nserver_args=ServerArgs(model_path='/x')\nKilled"
)
#: What is printed of a request and of an answer: as Python writes it, and in older versions between plain quotes.
RECORDS: dict[str, Callable[[str], str]] = {
    "receive": lambda text: f"Receive: obj=GenerateReqInput(rid='1', text={text!r}, sampling_params={{'top_k': 1}})",
    "plain quotes": lambda text: f"Receive: obj=GenerateReqInput(rid='1', text=\"{text}\", stream=False)",
    "embedding": lambda text: f"Receive: obj=EmbeddingReqInput(rid='1', text=[{text!r}, 'b'])",
    "cut": lambda text: f"Receive: obj=GenerateReqInput(text={text!r} ... 'end', stream=False)",
    "finish": lambda text: f"Finish: obj=GenerateReqInput(), out={{'text': {text!r}, 'meta_info': {{'id': '1'}}}}",
    "finish, plain": lambda text: f"Finish: obj=GenerateReqInput(rid='1'), out={{'text': \"{text}\", 'index': 0}}",
    "event": lambda text: json.dumps({"timestamp": "2026", "event": "request.received", "obj": {"text": text}}),
}
PREFIXES = (
    "",
    "2026-11-30T10:00:00.123456789Z stdout F ",
    "server-1  | ",
    "[pod/server-0/sglang] ",
    "Nov 30 10:00:00 host python[17]: ",
    "\x1b[32m",
)


def diagnosed(log: str) -> tuple[str, bool, str]:
    reader = SglangLogReader({})
    for line in log.encode().splitlines(keepends=True):
        reader.feed(line)
    failure = reader.diagnose(None)
    whole = SglangLogReader({})
    whole.feed(log.encode())
    assert whole.diagnose(None) == failure
    return failure.slug, reader.decided, reader.phase.value


def dressed(text: str, prefix: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.split("\n")[:-1])


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_words_of_a_prompt_or_an_answer_are_no_signs(record: str, prefix: str) -> None:
    shown = "".join(STAMP + RECORDS[record](f"please explain: {words} Thanks") + "\n" for words in QUOTED)
    assert diagnosed(dressed(START + shown + AFTER, prefix)) == ("none", False, "serving")


@pytest.mark.parametrize("record", ["plain quotes", "finish, plain"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_text_with_line_breaks_is_followed_to_its_end(record: str, prefix: str) -> None:
    log = START + STAMP + RECORDS[record](CRASH) + "\n" + AFTER
    assert diagnosed(dressed(log, prefix)) == ("none", False, "serving")


def test_no_error_line_of_any_recording_counts_inside_a_prompt() -> None:
    told = set[str]()
    for path in sorted(RECORDINGS.rglob("*.log")):
        for line in path.read_bytes()[:400_000].decode("utf-8", "replace").split("\n"):
            text = re.sub(r"\d+", "7", re.sub(r"^\[[^\]]*\] ?", "", line))
            if re.search(r"(?i)error|warn|fail|killed|fatal|abort|timeout|busy|in use|exit", text) and len(text) < 300:
                told.add(text)
    assert len(told) > 100
    for form in ("receive", "finish, plain"):
        shown = "".join(STAMP + RECORDS[form](f"What is this: {words} Please help") + "\n" for words in sorted(told))
        assert diagnosed(START + shown + AFTER)[:2] == ("none", False)


def test_what_follows_a_record_is_the_servers() -> None:
    crash = (
        f"{STAMP}Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/site-packages/sglang/srt/managers/scheduler.py", line 9, in run_scheduler_process\n    x()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n\n"
    )
    for record in RECORDS.values():
        assert diagnosed(START + STAMP + record("a (b") + "\n" + crash)[0] == "oom_runtime"
    open_text = STAMP + "Receive: obj=GenerateReqInput(text=\"a (b\nand 'c\n"
    assert diagnosed(START + open_text + crash)[0] == "oom_runtime"
    silent = STAMP + RECORDS["receive"]("it's (a") + "\nKilled\n"
    assert diagnosed(START + silent)[0] == diagnosed(START + "Killed\n")[0] != "none"


def test_where_a_record_ends() -> None:
    assert own_words("Receive: obj=A(text='b)', c=[1]) rest") == ("Receive: obj=A", "", 32)
    assert own_words("Receive: obj=A(text=\"he said 'b") == ("Receive: obj=A", '("', 31)
    assert own_words("the prompt 'Receive: obj=A()'") is None
    assert own_words("Finish: obj=A(text='it\\'s'), out={'b': 1}") == ("Finish: obj=A", "", 41)
    assert unclosed('and so on", c=1)', 0, '("')[0] == ""
