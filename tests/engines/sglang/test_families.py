"""Sentences that no entry of the table knows: what the families of last resort make of them, and what they leave alone."""

# ruff: noqa: E501 - log lines are as long as they are

from __future__ import annotations

import pytest
from engines.sglang.composing import CAPTURE, DISTRIBUTED, EVENT_LOOP, LOADING, POOLS, SCHEDULER, VALIDATION, Log

from servetune.engines.sglang._failure_causes import LAST_ORDER, VAGUE_ORDER
from servetune.engines.sglang._failure_table import classes
from servetune.engines.sglang.logs import SglangLogReader

SITE = "/usr/local/lib/python3.12/dist-packages"
FLAGS = {
    "tp_size": 8,
    "ep_size": 3,
    "mem_fraction_static": 0.6,
    "max_running_requests": 64,
    "chunked_prefill_size": 8192,
    "moe_a2a_backend": "flashinfer",
    "moe_runner_backend": "deep_gemm",
    "speculative_algorithm": "EAGLE",
    "speculative_eagle_topk": 4,
    "page_size": 64,
    "enable_mscclpp": True,
}
#: Place in the log, frames, message, answer (class, phase, verdict), the first repair where it matters.
CASES = (
    (
        "load",
        (*DISTRIBUTED, f"{SITE}/torch/distributed/distributed_c10d.py:_new_process_group_helper> ProcessGroupGloo("),
        "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:209] ifa != nullptr. Unable to find interface for: [0.0.0.0]",
        ("comm_init", "load", "stop"),
        None,
    ),
    (
        "load",
        (*DISTRIBUTED, f"{SITE}/torch/distributed/rendezvous.py:_create_c10d_store> return TCPStore("),
        "RuntimeError: The server socket has failed to listen on any local network address.",
        ("comm_init", "load", "stop"),
        None,
    ),
    (
        "serving",
        (
            *EVENT_LOOP,
            "layers/moe/token_dispatcher/flashinfer.py:dispatch> recv = self.moe_a2a.dispatch(",
            f"{SITE}/flashinfer/comm/trtllm_moe_alltoall.py:dispatch> assert (",
        ),
        "ValueError: payload of 33554432 bytes is greater than the workspace size 16777216",
        ("comm_runtime", "serving", "infeasible"),
        None,
    ),
    (
        "load",
        (*LOADING, "layers/dp_attention.py:compute_groups> raise ValueError("),
        "ValueError: tp_size 8 must be divisible by ep_size 3",
        ("invalid_combo", "load", "infeasible"),
        ("--ep-size", 2),
    ),
    (
        "capture",
        (*CAPTURE, "layers/attention/linear/verify.py:forward> raise ValueError("),
        "ValueError: this verify kernel only supports topk=1 (no parents are kept).",
        ("invalid_combo", "graph_capture", "infeasible"),
        ("--speculative-eagle-topk", 1),
    ),
    (
        "load",
        (*LOADING, "layers/quantization/gptq.py:create_weights> raise ValueError("),
        "ValueError: The output size is not aligned with the quantized weight shape. This can be caused by too large tensor parallel size.",
        ("model_artifact", "load", "infeasible"),
        ("--tp-size", 4),
    ),
    (
        "weights",
        (*POOLS[:-1], "mem_cache/kv_cache_configurator.py:handle_states> raise RuntimeError("),
        "RuntimeError: the hybrid state cache is too small to serve any requests: max_states=2, max_num_reqs=0",
        ("kv_budget", "kv_alloc", "infeasible"),
        ("--mem-fraction-static", None),
    ),
    (
        "validate",
        (*VALIDATION, "utils/common.py:get_nvgpu_memory_capacity> raise RuntimeError("),
        "RuntimeError: nvidia-smi not found. Ensure NVIDIA drivers are installed and accessible.",
        ("host_env", "validate", "stop"),
        None,
    ),
    (
        "validate",
        (*VALIDATION, "utils/common.py:assert_pkg_version> raise Exception("),
        "Exception: sgl_kernel is installed with version 0.3.1, which is less than the minimum required version 0.3.9.",
        ("host_env", "validate", "stop"),
        None,
    ),
    (
        "load",
        (*SCHEDULER, "managers/scheduler.py:init_threads> thread.start()"),
        "RuntimeError: can't start new thread",
        ("host_env", "load", "stop"),
        None,
    ),
    (
        "capture",
        (*CAPTURE, "models/deepseek_v4.py:hc_pre> mixes = deep_gemm.tf32_hc_prenorm_gemm("),
        "RuntimeError: CUDA driver error (csrc/jit/handle.hpp:88): 200 (CUDA_ERROR_INVALID_IMAGE, device kernel image is invalid)",
        ("jit_autotune", "graph_capture", "stop"),
        None,
    ),
    (
        "captured",
        (*SCHEDULER, f"{SITE}/tilelang/jit/adapter/libgen.py:compile_lib> raise RuntimeError("),
        'RuntimeError: Compilation Failed! catastrophic error: cannot open source file "cute/tensor.hpp"',
        ("jit_autotune", "warmup", "stop"),
        None,
    ),
    (
        "serving",
        (*EVENT_LOOP, f"{SITE}/flashinfer/fused_moe/core.py:trtllm_fp8_block_scale_moe_op> moe_op.run("),
        "RuntimeError: Error in function 'run' at /workspace/csrc/batched_gemm_runner.cu:258: Error occurred when running GEMM! (numBatches: 256)",
        ("device_fault", "serving", "retry"),
        None,
    ),
    (
        "capture",
        (*CAPTURE, f"{SITE}/triton_kernels/matmul_ogs_details/opt_flags.py:make_opt_flags> raise"),
        "triton_kernels.matmul_ogs_details.opt_flags.InapplicableConstraint: cannot enforce `block_k=256` constraint",
        ("arch_unsupported", "graph_capture", "infeasible"),
        ("--moe-runner-backend", None),
    ),
    (
        "validate",
        (*VALIDATION, f"{SITE}/transformers/models/auto/configuration_auto.py:__getitem__> raise KeyError(key)"),
        "KeyError: 'qwen9_moe'",
        ("model_artifact", "validate", "stop"),
        None,
    ),
    (
        "captured",
        (*EVENT_LOOP, "model_executor/forward_batch_info.py:init_new> batch.mm_inputs,"),
        "AttributeError: 'ForwardBatch' object has no attribute 'mm_inputs'",
        ("engine_bug", "warmup", "infeasible"),
        None,
    ),
    (
        "serving",
        (*EVENT_LOOP, "sampling/sampling_batch_info.py:merge> raise RuntimeError("),
        "RuntimeError: penalizer rows do not fit: expected 4, got 3",
        ("engine_bug", "serving", "infeasible"),
        None,
    ),
    (
        "weights",
        (
            *POOLS[:-1],
            "model_executor/model_runner.py:init_memory_pool> self.tree_cache = create_tree_cache(",
            "mem_cache/storage/mooncake_store/mooncake_store.py:register_buffer> raise RuntimeError(",
        ),
        "RuntimeError: Failed to register buffer to Mooncake Store, error code: -1",
        ("comm_init", "kv_alloc", "infeasible"),
        None,
    ),
    (
        "serving",
        (*EVENT_LOOP, f"{SITE}/torch/distributed/distributed_c10d.py:reduce_scatter_tensor> work = group._base("),
        "RuntimeError: input tensor must be the same size as output size times world size",
        ("engine_bug", "serving", "infeasible"),
        None,
    ),
    (
        "weights",
        POOLS,
        "RuntimeError: a thing that nobody has seen",
        ("unknown", "kv_alloc", "infeasible"),
        None,
    ),
)
PROBES = (
    "[probe] concurrency=5 temperature=0: 0 of 5 answers contain the expected text",
    "[probe] prompt='The capital of France is' -> ' the the the the the the the the the the the the the the' (32 tokens)",
    "[canary] 7 of 8 outputs are degenerate",
    "[check] prompt='What is 17 + 25?' -> ' a fish' FAIL",
)
FINE_PROBES = (
    "[probe] concurrency=5 temperature=0: 5 of 5 answers contain the expected text",
    "[probe] prompt='The capital of France is' -> ' Paris. --------------------------------' ok",
    "[bench] 0 of 512 outputs are degenerate",
    "[bench] 3 of 512 prompts were passed over, the client was refused by its proxy",
)


def _diagnosis(log: Log) -> dict:
    reader = SglangLogReader({})
    reader.feed(log.text().encode())
    return reader.report(reader.diagnose(None))


@pytest.mark.parametrize("case", CASES, ids=[case[2][:60] for case in CASES])
def test_a_sentence_that_the_table_does_not_know(case: tuple) -> None:
    place, frames, text, answer, repair = case
    if place == "validate":
        log = Log().add("$ python -m sglang.launch_server --model-path /models/moe --tp 8")
        log.raises(None, frames, text, header="", decisive=True)
    else:
        log = Log().arguments(**FLAGS).start("ready" if place == "serving" else place, ("TP0", "TP1"))
        log.raises("TP1", frames, text, decisive=True).dies(serving=place == "serving")
    found = _diagnosis(log)
    assert (found["class"], found["phase"], found["verdict"]) == answer
    assert found["evidence"][0]["line"] == log.decisive
    if repair:
        flag, value = repair
        assert found["repair"][0]["flag"] == flag
        assert value is None or found["repair"][0]["value"] == value


def test_a_general_rule_is_less_sure_and_comes_after_the_specific_ones() -> None:
    # each is told by a structure that the next entry ignores
    early = {"invalid_image", "more_than_the_buffers_hold", "sizes_at_the_experts"}
    for one in classes():
        for signature in one.signatures:
            if signature.order >= LAST_ORDER:
                assert signature.confidence <= 0.6, signature.name
    names = [signature for one in classes() for signature in one.signatures if signature.name in early]
    assert all(signature.order < VAGUE_ORDER and signature.confidence <= 0.7 for signature in names)


@pytest.mark.parametrize("line", PROBES)
def test_a_probe_that_is_wrong_in_any_words(line: str) -> None:
    log = Log().arguments(**FLAGS).start("ready", ("TP0", "TP1")).serve(2).decides(line, "").serve(1)
    found = _diagnosis(log)
    assert (found["class"], found["phase"], found["evidence"][0]["line"]) == ("wrong_output", "serving", log.decisive)


@pytest.mark.parametrize("line", FINE_PROBES)
def test_a_probe_that_is_right_stays_right(line: str) -> None:
    log = Log().arguments(**{**FLAGS, "enable_mscclpp": False}).start("ready", ("TP0", "TP1")).serve(2).add(line, "")
    assert _diagnosis(log)["class"] == "none"


def test_what_is_said_to_be_off_and_was_asked_for_is_not_in_effect() -> None:
    log = Log().arguments(**FLAGS)
    log.decides("PyMscclpp is disabled due to an unsupported world size: 4. Supported world sizes: [8, 16].", "TP0")
    found = _diagnosis(log.start("ready", ("TP0", "TP1")).serve(2))
    assert (found["class"], found["evidence"][0]["line"]) == ("perf_regression", log.decisive)
    assert found["repair"][0] == {**found["repair"][0], "flag": "--enable-mscclpp", "value": None}


def test_what_is_said_to_be_off_and_nobody_asked_for_is_no_failure() -> None:
    log = Log().arguments(**{**FLAGS, "enable_mscclpp": False})
    log.add("PyMscclpp is disabled due to an unsupported world size: 4.", "TP0")
    log.add("Double sparsity is not available for this model", "TP0")
    assert _diagnosis(log.start("ready", ("TP0", "TP1")).serve(2))["class"] == "none"


def test_the_linker_and_not_the_end_of_the_build_decides() -> None:
    log = Log().arguments(**FLAGS).start("capture", ("TP0",))
    text = (
        "RuntimeError: Ninja build failed. Ninja output:\n[1/2] nvcc -c decode.cu\nFAILED: [code=1] decode.so\n"
        "/usr/bin/ld: cannot find -lcuda: No such file or directory\ncollect2: error: ld returned 1 exit status\n"
        "ninja: build stopped: subcommand failed."
    )
    frames = (*CAPTURE, f"{SITE}/flashinfer/jit/cpp_ext.py:run_ninja> raise RuntimeError(msg) from e")
    found = _diagnosis(log.raises("TP0", frames, text, decisive=True).dies())
    assert found["class"] == "jit_autotune"
    assert "cannot find -lcuda" in found["evidence"][0]["text"]


def test_a_node_without_rank_0_retracts() -> None:
    log = Log().arguments(tp_size=16, nnodes=2, mem_fraction_static=0.7).start("captured", ("TP8", "TP9"))
    for number in range(4):
        full = "Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.0980 -> 0.1919"
        log = log.add(full, "TP8", 5) if number else log.decides(full, "TP8", 5)
    found = _diagnosis(log)
    assert (found["class"], found["phase"]) == ("perf_regression", "serving")


#: Place, the deciding line of native code, class and phase; no Python exception follows.
NATIVE = (
    ("load", "  what():  ibv_reg_mr failed: Cannot allocate memory", ("comm_init", "load")),
    (
        "load",
        "[1736412.331] [n1:12 :0] ib_device.c:1294 UCX  ERROR ibv_open_device(mlx5_0) failed",
        ("comm_init", "load"),
    ),
    ("load", "  what():  Resource temporarily unavailable", ("host_env", "load")),
    ("capture", "ptxas fatal   : Unresolved extern function '__nv_fp8'", ("jit_autotune", "graph_capture")),
    ("capture", "  what():  CUDA out of memory. Tried to allocate 2.00 GiB", ("oom_graph", "graph_capture")),
    ("ready", "  what():  NCCL communicator was aborted on rank 2", ("comm_runtime", "serving")),
    ("ready", "gemm.cu:88: void launch(): Assertion `status == kSuccess' failed.", ("device_fault", "serving")),
)


@pytest.mark.parametrize("case", NATIVE, ids=[case[1][:40] for case in NATIVE])
def test_native_code_that_ends_the_server_without_an_exception(case: tuple) -> None:
    place, line, answer = case
    log = Log().arguments(**FLAGS).start(place, ("TP0", "TP1"))
    if "what()" in line:
        log.add("terminate called after throwing an instance of 'std::runtime_error'", "")
    found = _diagnosis(log.decides(line, "").dies(serving=place == "ready"))
    assert (found["class"], found["phase"]) == answer
    assert found["evidence"][0]["line"] == log.decisive


def test_what_native_code_says_and_the_server_survives_is_no_failure() -> None:
    log = Log().arguments(**{**FLAGS, "enable_mscclpp": False}).start("load", ("TP0", "TP1"))
    log.add("[1736412.331] [n1:12 :0] ib_device.c:1294 UCX  ERROR ibv_open_device(mlx5_0) failed", "")
    log.add("Port 30001 is already in use, trying port 30002", "TP0")
    assert _diagnosis(log.start("ready", ("TP0", "TP1")).serve(2))["class"] == "none"


def test_a_requirement_of_a_size_is_no_missing_package() -> None:
    log = Log().arguments(**FLAGS).start("load", ("TP0",))
    frames = (*LOADING, "layers/attention/tiny_backend.py:__init__> assert pp_size == 1")
    text = "AssertionError: this backend requires page_size == 1"
    found = _diagnosis(log.raises("TP0", frames, text, decisive=True).dies())
    assert (found["class"], found["repair"][0]["flag"], found["repair"][0]["value"]) == (
        "invalid_combo",
        "--page-size",
        1,
    )
