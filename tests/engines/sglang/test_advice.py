"""What a person is told to do next, where no change of a flag mends a crash."""

# ruff: noqa: E501 - log lines are as long as they are

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engines.sglang.composing import DISTRIBUTED, EVENT_LOOP, LOADING, Log
from engines.sglang.test_diagnose import servetune

from servetune.core.failure import Verdict
from servetune.engines.sglang._advice_facts import checked, facts_of
from servetune.engines.sglang._failure_table import Entry, classes
from servetune.engines.sglang.logs import SglangLogReader

CASES = Path(__file__).parents[2] / "recordings" / "cases"
#: Recorded case → words of its advice.
SAID = {
    "oomw_gpu_busy": "process 18422 holds 71.02 GiB of GPU 3",
    "env_disk_full": "/models/cache has 2017.90 MB free and 4901.22 MB are needed",
    "env_http_port": "port 30000: find it with `ss -ltnp`",
    "comm_shm_small": "/dev/shm/nccl-a1b2c3 (7.0 MiB): start it with --shm-size",
    "comm_nccl_unhandled_system": "ibv_reg_mr_iova2 cannot lock memory",
    "jit_nvcc_missing": "no CUDA toolkit at /usr/local/cuda: set CUDA_HOME",
    "env_driver_old": "serves CUDA 12.4 at most",
    "hang_after_sigkill_restart": "end it with TERM",
    "hang_health_20s": "last answered 381 s before",
    "bug_kv_leak_0533": "try another version of SGLang",
}
PERSONAL = ("host_env", "hang", "jit_autotune", "device_fault", "comm_init")


def advice_in(raw: bytes) -> str | None:
    reader = SglangLogReader({})
    reader.feed(raw)
    return reader.diagnose(None).advice


def entries() -> list[Entry]:
    return [Entry(owner=owner, signature=one) for owner in classes() for one in owner.signatures]


@pytest.mark.parametrize(("name", "words"), SAID.items())
def test_recorded_case(name: str, words: str) -> None:
    advice = advice_in((CASES / f"{name}.log").read_bytes())
    assert advice is not None
    assert words in advice


def test_where_a_person_has_to_act_every_entry_says_how() -> None:
    personal = (Verdict.STOP, Verdict.RETRY)
    silent = [
        one.signature.name
        for one in entries()
        if (one.verdict in personal or one.signature.unasked in personal or one.owner.slug in PERSONAL)
        and not one.advice
    ]
    assert silent == []


@pytest.mark.parametrize("advice", [("{moon} is full",), ("ends with {path}",), ("{path}", "still {port}")])
def test_an_advice_that_could_not_always_be_said_is_refused(advice: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"unknown facts|without facts"):
        checked(advice)


def test_a_repair_needs_no_advice() -> None:
    assert advice_in((CASES / "kv_new_guard_minimum.log").read_bytes()) is None


def test_what_no_entry_knows_is_to_be_reported() -> None:
    log = Log().arguments(tp_size=1).start("weights", ("TP0",), begin=78.0, after=50.0)
    log.add("TP0", "Something that nobody has ever heard of").dies()
    assert "report it" in str(advice_in(log.text().encode()))


@pytest.mark.parametrize(
    ("frames", "text", "words"),
    [
        (
            LOADING,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 5 has a total capacity of 79.11 GiB of which 0.50 GiB is free. Process 771 has 40.10 GiB memory in use. Process 772 has 12.00 GiB memory in use.",
            "process 771 holds 40.10 GiB and process 772 holds 12.00 GiB of GPU 5",
        ),
        (
            LOADING,
            "OSError: [Errno 28] No space left on device: '/data/hub/blobs/abc.incomplete'",
            "/data/hub/blobs/abc",
        ),
        (
            LOADING,
            "PermissionError: [Errno 13] Permission denied: '/root/.cache/x.lock'",
            "access to /root/.cache/x.lock",
        ),
        (
            DISTRIBUTED,
            "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
            "memlock",
        ),
        (LOADING, "RuntimeError: CUDA_HOME is not set and nvcc is not found", "CUDA_HOME"),
        (EVENT_LOOP, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "Xid"),
    ],
)
def test_numbers_of_other_nodes(frames: tuple[str, ...], text: str, words: str) -> None:
    log = Log().arguments(tp_size=8, port=30000)
    if frames is EVENT_LOOP:
        log.start("ready", ("TP0",), begin=78.0, after=50.0)
    else:
        log.add("TP0", "Load weight begin. avail mem=25.00 GB")
    log.raises("TP0", frames, text).dies()
    assert words in str(advice_in(log.text().encode()))


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("[Errno 98] error while attempting to bind on address ('::1', 8080)", "port", "8080"),
        ("bind on port 30000 failed", "port", "30000"),
        ("tcp://0.0.0.0:20000 is in use", "port", "20000"),
        ("driver on your system is too old (found version 11080).", "cuda", "11.8"),
        ("tic start time: 00:00:10. last_heartbeat time: 23:59:40", "slow", "30 "),
        ("Need 12 GB, only 3.5 GB free", "needed", "12 GB"),
        ("Need 12 GB, only 3.5 GB free", "free", "3.5 GB"),
    ],
)
def test_fact(text: str, name: str, value: str) -> None:
    assert facts_of(text)[name] == value


def test_the_screen_and_the_object_say_it() -> None:
    log = str(CASES / "env_http_port.log")
    assert "Next: another process listens on port 30000" in servetune(log).stdout.decode()
    assert json.loads(servetune(log, "--json").stdout)["advice"].startswith("another process")
    assert json.loads(servetune(str(CASES / "kv_new_guard_minimum.log"), "--json").stdout)["advice"] is None
