"""Deaths whose cause stands in a plain line, or beside an exception that is only its consequence."""

# ruff: noqa: E501 - log lines are as long as they are

import pytest
from engines.sglang.composing import CAPTURE, DISTRIBUTED, EVENT_LOOP, LOADING, POOLS, Log

from servetune.engines.sglang.logs import SglangLogReader

FLAGS = {
    "tp_size": 8,
    "mem_fraction_static": 0.8,
    "attention_backend": "torch_native",
    "speculative_algorithm": "NGRAM",
}


def diagnosis(log: Log) -> dict:
    reader = SglangLogReader({})
    reader.feed(log.text().encode())
    return reader.report(reader.diagnose(None))


def test_a_stuck_watchdog_of_nccl_is_a_hang_although_the_process_aborts():
    log = Log().arguments(**FLAGS).start("ready", ("TP0", "TP3")).serve(2)
    log.decides(
        "[rank3]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 3] Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=4",
        "",
    )
    log.add(
        "[rank3]:[F ProcessGroupNCCL.cpp:1169] [PG 0 Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
        "",
    )
    log.add("Fatal Python error: Aborted", "")
    found = diagnosis(log)
    assert (found["class"], found["phase"], found["evidence"][0]["line"]) == ("hang", "serving", log.decisive)


def test_weights_that_cannot_be_mapped_for_want_of_host_memory_are_the_hosts():
    log = Log().arguments(**FLAGS).start("load", ("TP0", "TP5"))
    text = "RuntimeError: unable to mmap 9013372412 bytes from file </models/m/model-00007-of-00009.safetensors>: Cannot allocate memory (12)"
    found = diagnosis(log.raises("TP5", LOADING, text, decisive=True).dies())
    assert (found["class"], found["phase"]) == ("host_env", "load")


def test_an_out_of_memory_that_is_only_logged_counts_when_the_server_dies_of_it():
    said = "Failed to initialize experts: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 has a total capacity of 47.37 GiB of which 8.31 MiB is free."
    found = diagnosis(Log().arguments(**FLAGS).start("load", ("TP0", "TP1")).decides(said, "TP1").dies())
    assert (found["class"], found["phase"]) == ("oom_weights", "load")
    survived = Log().arguments(**FLAGS).start("load", ("TP0", "TP1")).add(said, "TP1").start("ready", ("TP0", "TP1"))
    assert diagnosis(survived.serve(2))["class"] == "none"


def test_a_warm_up_that_loses_its_own_server_is_no_failed_download():
    log = Log().arguments(**FLAGS).start("ready", ("TP0",))
    frames = (*EVENT_LOOP, "layers/attention/torch_native_backend.py:_run_sdpa> per_req = lens.shape[0]")
    log.raises("TP0", frames, "AttributeError: 'NoneType' object has no attribute 'shape'", decisive=True)
    lost = "requests.exceptions.ConnectionError: ('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))"
    log.raises(None, ("/usr/lib/python3.12/site-packages/requests/adapters.py:send> raise ConnectionError(err)",), lost)
    found = diagnosis(log.dies(serving=True))
    assert found["class"] == "engine_bug"
    assert found["evidence"][0]["line"] == log.decisive


def test_a_pool_of_sliding_windows_that_holds_no_request_wants_a_larger_fraction():
    log = Log().arguments(**{**FLAGS, "mem_fraction_static": 0.5}).start("weights", ("TP0",))
    text = "ValueError: SWA pool (640 tokens) cannot hold even one request: the floor is sliding_window_size (1024) + page_size (1). Increase --swa-full-tokens-ratio or the total KV budget."
    found = diagnosis(log.raises("TP0", POOLS, text, decisive=True).dies())
    assert (found["class"], found["phase"]) == ("kv_budget", "kv_alloc")
    assert found["repair"][0]["flag"] == "--mem-fraction-static"
    assert found["repair"][0]["value"] > 0.5


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (
            "[probe] prompt='The capital of France is' -> ' Parisъ了 gutter の Schul' (expected 'Paris', then an end)",
            "wrong_output",
        ),
        ("[eval] gsm8k: 0/256 (0.0%)   baseline: 240/256 (93.8%)", "wrong_output"),
        ("[probe] prompt='Say hello in three languages' -> ' hello привет 你好' ok", "none"),
        ("[eval] gsm8k: 240/256 (93.8%)   baseline: 243/256 (94.9%)", "none"),
        ("[bench] HTTP 503 Service Unavailable: No available workers (all circuits open or unhealthy)", "overload"),
        ("[bench] concurrency 512: 90 of 2048 requests failed (429), server alive", "overload"),
        ("[tuner] no new log line for 300 s, giving up on the trial", "hang"),
    ],
)
def test_what_others_say_about_a_server_that_lives(line: str, answer: str):
    log = Log().arguments(**FLAGS).start("ready", ("TP0", "TP1")).serve(3).add(line, "")
    assert diagnosis(log)["class"] == answer


def test_a_custom_all_reduce_that_fails_in_a_plain_line():
    log = Log().arguments(**FLAGS).start("load", ("TP0", "TP1"))
    log.decides("Failed: Cuda error /src/csrc/custom_all_reduce.cuh:419 'invalid resource handle'", "")
    found = diagnosis(log.dies())
    assert (found["class"], found["evidence"][0]["line"]) == ("comm_init", log.decisive)
    assert found["repair"][0]["flag"] == "--disable-custom-all-reduce"


def test_memory_of_other_gpus_that_cannot_be_mapped():
    frames = (
        *DISTRIBUTED,
        "/usr/lib/python3.12/site-packages/torch/distributed/_symmetric_memory/__init__.py:rendezvous> return _SymmetricMemory.rendezvous(tensor)",
    )
    log = Log().arguments(**{**FLAGS, "enable_torch_symm_mem": True}).start("load", ("TP0", "TP1"))
    found = diagnosis(
        log.raises("TP1", frames, "RuntimeError: CUDA driver error: operation not supported", decisive=True).dies()
    )
    assert (found["class"], found["blamed"]) == ("comm_init", ["--enable-torch-symm-mem"])


def test_the_compiler_and_not_the_command_that_ran_it_decides():
    log = Log().arguments(**FLAGS).start("capture", ("TP0",))
    jit = "/usr/lib/python3.12/site-packages/flashinfer/jit/cpp_ext.py"
    said = (
        "RuntimeError: Ninja build failed. Ninja output:\n[1/4] nvcc -c attention.cu\n"
        "/usr/include/fp8.h:12:10: fatal error: cuda_fp6.h: No such file or directory\n"
        "ninja: build stopped: subcommand failed."
    )
    log.raises(
        "TP0",
        (f"{jit}:run_ninja> subprocess.run(",),
        "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
        wrapper=((*CAPTURE, f"{jit}:run_ninja> raise RuntimeError(msg)"), said),
    )
    found = diagnosis(log.dies())
    assert found["class"] == "jit_autotune"
    assert "cuda_fp6.h" in found["evidence"][0]["text"]


def test_the_thread_of_the_forward_pass_takes_its_server_along():
    log = Log().arguments(**FLAGS).start("ready", ("TP0",)).serve(2)
    frames = ("managers/tp_worker_overlap_thread.py:forward_thread_func> self.forward_thread_func_()", *EVENT_LOOP[3:])
    log.raises(
        None,
        frames,
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        header="Exception in thread Thread-7 (forward_thread_func):\n",
        decisive=True,
    )
    assert diagnosis(log)["class"] == "device_fault"


SERVING = (
    ("torch.AcceleratorError: CUDA error: operation not supported on global/shared address space", "device_fault"),
    ("RuntimeError: [10:01:02] /project/cpp/matcher.cc:87: Check failed: !stopped_", "engine_bug"),
    ("ValueError: k.shape[0] (513) does not match kv_indptr[-1] (512).", "engine_bug"),
)


@pytest.mark.parametrize(("text", "answer"), SERVING)
def test_a_batch_that_a_library_refuses(text: str, answer: str):
    log = Log().arguments(**FLAGS).start("ready", ("TP0",)).serve(2)
    frames = (*EVENT_LOOP, "/usr/lib/python3.12/site-packages/library/prefill.py:run> self._module.run(")
    found = diagnosis(log.raises("TP0", frames, text, decisive=True).dies(serving=True))
    assert (found["class"], found["evidence"][0]["line"]) == (answer, log.decisive)


def test_a_gpu_that_another_process_holds_is_tried_again():
    log = Log().arguments(**FLAGS).start("load", ("TP0",))
    text = "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    found = diagnosis(log.raises("TP0", DISTRIBUTED, text, decisive=True).dies())
    assert (found["class"], found["verdict"]) == ("host_env", "retry")
