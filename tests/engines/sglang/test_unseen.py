"""Messages that the table of failure classes had not seen when they were written down, each with its answer."""

# ruff: noqa: E501 - log lines are as long as they are

from __future__ import annotations

from typing import NamedTuple

import pytest
from engines.sglang.composing import CAPTURE, DISTRIBUTED, EVENT_LOOP, LOADING, POOLS, SCHEDULER, SRT, VALIDATION, Log

from servetune.engines.sglang.logs import SglangLogReader

SITE = "/usr/local/lib/python3.12/dist-packages"
FLAGS = {
    "tp_size": 8,
    "attention_backend": "fa3",
    "moe_runner_backend": "deep_gemm",
    "enable_hierarchical_cache": True,
    "mem_fraction_static": 0.9,
    "moe_a2a_backend": "flashinfer",
    "pp_size": 2,
}


class Unseen(NamedTuple):
    """`place`: how far the log came. `repaired`: a flag that a repair must turn ("" for none at all, None: any)."""

    place: str
    frames: tuple[str, ...]
    text: str
    answer: tuple[str, str, str]  # class, phase, verdict
    repaired: str | None = None


CASES = (
    Unseen(
        "capture",
        (*CAPTURE, "layers/moe/cutlass_moe.py:cutlass_fused_experts_fp8> grouped_mm("),
        "RuntimeError: No implemented fp8_blockwise_scaled_grouped_mm for current compute capability: 120",
        ("arch_unsupported", "graph_capture", "infeasible"),
    ),
    Unseen(
        "load",
        (*LOADING, "layers/quantization/modelopt_quant.py:process_weights_after_loading> raise ValueError("),
        "ValueError: Current platform does not support NVFP4 quantization. Please use Blackwell and up.",
        ("arch_unsupported", "load", "infeasible"),
    ),
    Unseen(
        "capture",
        (*CAPTURE, f"{SITE}/sgl_kernel/flash_attn.py:flash_attn_with_kvcache> raise NotImplementedError("),
        "NotImplementedError: flash_attn at sgl-kernel is only supported on sm90 and above",
        ("arch_unsupported", "graph_capture", "infeasible"),
        "attention-backend",
    ),
    Unseen(
        "capture",
        (*CAPTURE, f"{SITE}/triton/backends/nvidia/driver.py:compile_module_from_src> subprocess.check_call("),
        "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmp1/main.c', '-O3', '-shared']' returned non-zero exit status 1.",
        ("jit_autotune", "graph_capture", "stop"),
        "",
    ),
    Unseen(
        "weights",
        (*POOLS[:-1], "mem_cache/kv_cache_configurator.py:profile_available_bytes> raise ValueError("),
        "ValueError: Not enough GPU memory for the KV cache: available 30.00 GB after loading weights is less than the 35.33 GB reserved.",
        ("kv_budget", "kv_alloc", "infeasible"),
        "mem-fraction-static",
    ),
    Unseen(
        "captured",
        (
            *SCHEDULER,
            "model_executor/model_runner.py:kernel_warmup> self._flashinfer_autotune()",
            f"{SITE}/flashinfer/jit/cpp_ext.py:run_ninja> raise RuntimeError(msg)",
        ),
        "RuntimeError: Ninja build failed. ninja: error: '/usr/local/cuda/bin/nvcc', needed by 'moe.o', missing and no known rule to make it",
        ("jit_autotune", "warmup", "stop"),
        "",
    ),
    Unseen(
        "weights",
        (*SCHEDULER, "model_executor/model_runner.py:init_attention_backend> raise ValueError("),
        "ValueError: Invalid attention backend: fa3 for hybrid model",
        ("invalid_combo", "load", "infeasible"),
        "attention-backend",
    ),
    Unseen(
        "weights",
        (*SCHEDULER, "mem_cache/hiradix_cache.py:__init__> raise ValueError("),
        "ValueError: HiRadixCache only supports MHA and MLA yet",
        ("invalid_combo", "kv_alloc", "infeasible"),
        "enable-hierarchical-cache",
    ),
    Unseen(
        "ready",
        (*EVENT_LOOP, "constrained/xgrammar_backend.py:accept_token> self.matcher.accept_token(token)"),
        "RuntimeError: GrammarMatcher rejected token after termination",
        ("engine_bug", "serving", "infeasible"),
    ),
    Unseen(
        "ready",
        (*EVENT_LOOP, "layers/sampler.py:forward> torch.multinomial(probs, num_samples=1)"),
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
        ("wrong_output", "serving", "infeasible"),
    ),
    Unseen(
        "load",
        (*SCHEDULER, "multimodal/processor.py:get_mm_processor> raise ValueError("),
        "ValueError: No processor registered for architecture: ['Foo2VLForConditionalGeneration'].",
        ("model_artifact", "load", "stop"),
        "",
    ),
    Unseen(
        "dist",
        (*DISTRIBUTED, "disaggregation/mooncake/transfer_engine.py:initialize> raise RuntimeError("),
        "RuntimeError: Mooncake Transfer Engine initialization failed.",
        ("comm_init", "load", "infeasible"),
    ),
    Unseen(
        "dist",
        (SCHEDULER[0], "utils/common.py:get_zmq_socket> socket.bind(endpoint)"),
        "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:30111')",
        ("host_env", "load", "retry"),
        "",
    ),
    Unseen(
        "ready",
        (EVENT_LOOP[0], f"{SITE}/zmq/sugar/socket.py:recv_pyobj> msg = self.recv(flags)"),
        "zmq.error.ZMQError: Too many open files",
        ("host_env", "serving", "stop"),
        "",
    ),
    Unseen(
        "ready",
        (
            "managers/tokenizer_manager.py:handle_loop> obj = await self.recv()",
            "managers/mm_utils.py:wrap> shm = SharedMemory(",
        ),
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'",
        ("host_env", "serving", "stop"),
        "",
    ),
    Unseen(
        "load",
        (*LOADING, "layers/moe/fused_moe_triton/layer.py:_weight_loader_impl> raise ValueError("),
        "ValueError: input_scales of w1 and w3 of a layer must be equal. But got 0.0123 vs. 0.0139",
        ("model_artifact", "load", "infeasible"),
    ),
    Unseen(
        "load",
        (*LOADING, "layers/linear.py:weight_loader_v2> raise ValueError("),
        "ValueError: Expected scale of shape [128, 56], the checkpoint has [64, 56]",
        ("model_artifact", "load", "infeasible"),
    ),
    Unseen(
        "load",
        (*LOADING, "models/qwen3_5.py:load_weights> param = params_dict[name]"),
        "KeyError: 'model.layers.4.mlp.experts.w13_weight'",
        ("model_artifact", "load", "infeasible"),
        "pp-size",
    ),
    Unseen(
        "capture",
        (*CAPTURE, "batch_overlap/single_batch_overlap.py:execute_sbo> with configure_deep_gemm_num_sms("),
        "torch.AcceleratorError: CUDA error: operation would make the legacy stream depend on a capturing blocking stream",
        ("graph_capture", "graph_capture", "infeasible"),
        "disable-cuda-graph",
    ),
    Unseen(
        "capture",
        (*CAPTURE, "layers/sampler.py:forward> torch.rand_like(x)"),
        "RuntimeError: Offset increment outside graph capture encountered unexpectedly.",
        ("graph_capture", "graph_capture", "infeasible"),
    ),
    Unseen(
        "capture",
        (*CAPTURE, "layers/layernorm.py:forward> self._impl(x)"),
        "RuntimeError: CUDA error: operation would result in a merge of separate capture sequences",
        ("graph_capture", "graph_capture", "infeasible"),
    ),
    Unseen(
        "load",
        (
            *LOADING,
            "layers/moe/token_dispatcher/flashinfer.py:__init__> self.moe_a2a = MoeAlltoAll(",
            f"{SITE}/flashinfer/comm/mnnvl.py:open_mnnvl_memory> raise RuntimeError(",
        ),
        "RuntimeError: pidfd_getfd(pidfd=173, fd=160) failed with errno 1: Operation not permitted. Permission denied. If "
        "running in a container, try adding --cap-add=SYS_PTRACE to your docker run command.",
        ("comm_init", "load", "infeasible"),
        "moe-a2a-backend",
    ),
    Unseen(
        "capture",
        (
            *CAPTURE,
            "layers/flashinfer_comm_fusion.py:initialize> comm.trtllm_create_ipc_workspace_for_all_reduce_fusion(",
            f"{SITE}/flashinfer/comm/cuda_ipc.py:CUDART_CHECK> raise RuntimeError(",
        ),
        "RuntimeError: CUDART error: invalid resource handle",
        ("comm_init", "graph_capture", "infeasible"),
    ),
    Unseen(
        "capture",
        (*CAPTURE, f"{SITE}/torch/_ops.py:__call__> return self._op(*args, **kwargs)"),
        'RuntimeError: Assertion error (/build/csrc/jit/compiler.hpp:189): false and "NVCC compilation failed"',
        ("jit_autotune", "graph_capture", "stop"),
        "",
    ),
    Unseen(
        "http",
        (*EVENT_LOOP, f"{SITE}/deep_gemm/jit/compiler.py:compile> assert False, f'Failed to compile'"),
        "AssertionError: Failed to compile /root/.cache/deep_gemm/cache/kernel.gemm_fp8/kernel.cu",
        ("jit_autotune", "warmup", "stop"),
        "",
    ),
    Unseen(
        "captured",
        (
            *SCHEDULER,
            "model_executor/model_runner.py:_flashinfer_autotune> self._dummy_run(batch_size=size)",
            f"{SITE}/flashinfer/fused_moe/core.py:trtllm_fp4_block_scale_moe_op> return moe_op.run(",
        ),
        "RuntimeError: _Map_base::at",
        ("jit_autotune", "warmup", "retry"),
        "disable-flashinfer-autotune",
    ),
    Unseen(
        "captured",
        (*SCHEDULER, f"{SITE}/flashinfer/autotuner.py:choose_one> raise RuntimeError("),
        "RuntimeError: tensor a has an odd stride",
        ("jit_autotune", "warmup", "retry"),
        "disable-flashinfer-autotune",
    ),
    Unseen(
        "http",
        (*EVENT_LOOP, "layers/attention/trtllm_mha_backend.py:forward_extend> o = flashinfer.prefill.run("),
        "RuntimeError: Error in function 'trtllm_paged_attention_launcher' at /x.cu:171: Missing TRTLLM-GEN kernel (context): qkvLayout=2",
        ("arch_unsupported", "warmup", "infeasible"),
        "attention-backend",
    ),
    Unseen(
        "capture",
        (*CAPTURE, f"{SITE}/flashinfer/decode.py:plan> self._module.plan("),
        "RuntimeError: FlashInfer Internal Error: Invalid configuration : NUM_MMA_Q=1 NUM_MMA_D_QK=12, please create an issue",
        ("arch_unsupported", "graph_capture", "infeasible"),
        "attention-backend",
    ),
)


def diagnosis(log: Log) -> dict:
    reader = SglangLogReader({})
    reader.feed(log.text().encode())
    return reader.report(reader.diagnose(None))


@pytest.mark.parametrize("case", CASES, ids=[case.text[:50] for case in CASES])
def test_unseen_message(case: Unseen) -> None:
    log = Log().arguments(**FLAGS).start(case.place, ("TP0", "TP1"))
    log.raises("TP1", case.frames, case.text, decisive=True, wait=2).raises("TP0", case.frames, case.text, wait=1)
    found = diagnosis(log.dies(case.place == "ready"))
    assert (found["class"], found["phase"], found["verdict"]) == case.answer
    assert (found["first_rank"], found["evidence"][0]["line"]) == ("TP1", log.decisive)
    repaired = [one["flag"] for one in found["repair"]]
    if case.repaired is not None:
        assert f"--{case.repaired}" in repaired if case.repaired else repaired == []


def test_what_a_kernel_printed_explains_its_assert() -> None:
    log = Log().arguments(tp_size=8, moe_a2a_backend="deepep").start("ready", ("TP0",))
    printed = (
        "Assertion failed: /build/DeepEP/csrc/kernels/internode.cu:483, condition: state->num_rc_per_pe >= channels"
    )
    log.decides(printed).raises(
        "TP0", EVENT_LOOP, "torch.AcceleratorError: CUDA error: device-side assert triggered", wait=1
    )
    found = diagnosis(log.dies(serving=True))
    assert (found["class"], found["evidence"][0]["line"]) == ("device_fault", log.decisive)


def test_an_unanswered_warm_up_is_a_hang() -> None:
    log = Log().arguments(tp_size=8).start("http", ("TP0",)).add("", None, 600)
    log.add("Initialization failed. warmup error: Traceback (most recent call last):", "")
    log.add(f'  File "{SRT}/entrypoints/http_server.py", line 1, in _execute_server_warmup\n    res = requests.post(')
    log.decides("requests.exceptions.ReadTimeout: HTTPConnectionPool(host='127.0.0.1', port=30000): Read timed out.")
    found = diagnosis(log.add("Killed"))
    assert (found["class"], found["phase"], found["verdict"]) == ("hang", "warmup", "retry")
    assert found["evidence"][0]["line"] == log.decisive


def test_what_the_shell_says_of_a_killed_server_is_its_end() -> None:
    log = Log().arguments(tp_size=8).start("captured", ("TP0",))
    log.decides(
        "./run.sh: line 22: 103525 Killed                  python -m sglang.launch_server --model-path /m --tp 8"
    )
    found = diagnosis(log)
    assert (found["class"], found["verdict"]) == ("host_env", "retry")


def test_the_dispatch_cap_is_raised_to_what_the_batch_needed() -> None:
    """8192 tokens were room for 1024 per rank: 40,000 need 5 times that, so 8 times (a power of two) is tried."""
    log = Log().arguments(tp_size=8, moe_a2a_backend="flashinfer").start("ready", ("TP0",))
    text = "AssertionError: num_tokens (40000) exceeds max_num_tokens (8192)"
    found = diagnosis(log.raises("TP0", EVENT_LOOP, text).dies(serving=True))
    caps = {one["flag"]: one["value"] for one in found["repair"]}
    assert caps["SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] == "8192"


def test_a_refused_command_is_followed_by_the_server_that_counts() -> None:
    """What argparse refused before the arguments of the next server is none of its troubles."""
    log = Log().add("+ python3 -m sglang.launch_server --model-path /m --enable-moe-ep")
    log.add("launch_server.py: error: unrecognized arguments: --enable-moe-ep")
    refused = diagnosis(log)
    log.add("+ python3 -m sglang.launch_server --model-path /m --tp 8").arguments(tp_size=8)
    log.start("ready", ("TP0",)).serve(4)
    assert (refused["class"], diagnosis(log)["class"]) == ("cli_parse", "none")
    reader = SglangLogReader({})
    reader.feed(log.text().encode())
    assert reader.facts()["command"] == {"model-path": "/m", "tp-size": 8}


def test_a_bus_error_is_full_memory_and_no_fault_of_the_device() -> None:
    log = Log().arguments(tp_size=8).start("dist", ("TP0", "TP1"))
    log.add("Fatal Python error: Bus error\n\nCurrent thread 0x00007f10a3fff640 (most recent call first):")
    log.add(f'  File "{SRT}/distributed/device_communicators/shm_broadcast.py", line 88 in __init__')
    log.add("Rank 1 scheduler is dead. Please check if there are relevant logs.", "", 1).add("Exit code: -7", "")
    found = diagnosis(log)
    assert (found["class"], found["phase"], found["verdict"]) == ("host_env", "load", "stop")


def test_a_connection_that_is_tried_again_is_no_trouble() -> None:
    log = Log().arguments(tp_size=8).start("ready", ("TP0",))
    log.add("[Errno 104] Connection reset by peer while sending a metric; will retry", "TP0").serve(4)
    assert diagnosis(log)["class"] == "none"


def test_the_first_rank_decides_whatever_the_others_say_of_it() -> None:
    log = Log().arguments(tp_size=8).start("ready", tuple(f"TP{rank}" for rank in range(8)))
    text = "RuntimeError: CUDA error: an illegal memory access was encountered"
    log.raises("TP5", (*EVENT_LOOP, "managers/schedule_batch.py:get_model_worker_batch> seq_lens.cpu()"), text)
    lost = "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0."
    log.raises(
        "TP0", (*EVENT_LOOP, "distributed/parallel_state.py:all_reduce> torch.distributed.all_reduce("), lost, wait=3
    )
    found = diagnosis(log.dies(serving=True))
    assert (found["class"], found["phase"], found["first_rank"]) == ("device_fault", "serving", "TP5")


def test_nccl_says_that_it_found_no_memory() -> None:
    """The exception speaks of NCCL only; the warning of the library above it says why."""
    for place, text, answer in (
        ("capture", "Cuda failure 2 'out of memory'", ("oom_graph", "graph_capture")),
        ("capture", "Failed to CUDA calloc async 10485760 bytes", ("oom_graph", "graph_capture")),
        ("ready", "Failed to CUDA malloc 33554432 bytes", ("oom_runtime", "serving")),
    ):
        log = (
            Log().arguments(**FLAGS).start(place, ("TP0",)).decides(f"node:88:88 [6] enqueue.cc:1540 NCCL WARN {text}")
        )
        frames = (
            *(CAPTURE if place == "capture" else EVENT_LOOP),
            "distributed/device_communicators/pynccl_wrapper.py:NCCL_CHECK> raise RuntimeError(",
        )
        log.raises(
            "TP6", frames, "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
        )
        found = diagnosis(log.dies(place == "ready"))
        assert (found["class"], found["phase"], found["verdict"]) == (*answer, "infeasible")
        assert found["evidence"][0]["line"] == log.decisive
        assert "--mem-fraction-static" in [one["flag"] for one in found["repair"]]


@pytest.mark.parametrize(
    "printed",
    [
        "DeepEP timeout check failed: rank = 6, thread = 0, value = 0)",
        "DeepEP RDMA sender coordinator timeout, channel: 3, IB: 0, dst IB: 1, tail: 12, remaining: 4",
        "DeepEP timeout for dispatch senders, rank 2, responsible_channel = 4",
    ],
)
def test_what_an_all_to_all_printed_before_its_kernel_gave_up(printed: str) -> None:
    log = Log().arguments(tp_size=8, moe_a2a_backend="deepep").start("ready", ("TP0",)).decides(printed, wait=60)
    text = "torch.AcceleratorError: CUDA error: unspecified launch failure"
    found = diagnosis(log.raises("TP6", EVENT_LOOP, text, wait=40).dies(serving=True))
    assert (found["class"], found["phase"], found["verdict"]) == ("comm_runtime", "serving", "retry")
    assert found["evidence"][0]["line"] == log.decisive


def test_nvshmem_fails_where_it_is_first_used() -> None:
    log = Log().arguments(tp_size=8, moe_a2a_backend="deepep").start("capture", ("TP0",))
    log.decides("/build/nvshmem/src/modules/transport/ibrc/ibrc.cpp:418: non-zero status: 22 ibv_modify_qp failed")
    log.add("/build/nvshmem/src/host/init/init.cu:1007: non-zero status: 7 nvshmem setup connections failed")
    log.add("Rank 3 scheduler is dead. Please check if there are relevant logs.", "", 1)
    found = diagnosis(log.add("Exit code: 255", ""))
    assert (found["class"], found["phase"], found["verdict"]) == ("comm_init", "graph_capture", "infeasible")
    assert found["evidence"][0]["line"] == log.decisive
    assert ("--moe-a2a-backend", "none") in [(one["flag"], one["value"]) for one in found["repair"]]


def test_what_a_tuner_writes_behind_an_exception_is_not_its_message() -> None:
    """No command and no arguments in the log: the message alone says what to leave out, and what must not be missing."""
    log = Log().raises(
        None,
        (*VALIDATION[:2], "server_args.py:check_server_args> raise ValueError("),
        "ValueError: When enabling two batch overlap, moe_a2a_backend cannot be 'none'.\n"
        "[tuner] trial 19: exit=1, argv=--model-path /m --tp-size 8 --enable-two-batch-overlap",
        decisive=True,
        header="",
    )
    found = diagnosis(log)
    assert (found["class"], found["phase"]) == ("invalid_combo", "validate")
    assert "--tp-size" not in found["blamed"]
    assert [(one["flag"], one["value"]) for one in found["repair"]] == [("--enable-two-batch-overlap", None)]


def test_a_message_that_says_what_to_set_and_what_to_lower() -> None:
    log = Log().add(
        "+ sglang serve --model-path /m --tp-size 8 --moe-a2a-backend flashinfer --chunked-prefill-size 16384"
    )
    text = (
        "ValueError: FlashInfer MoE A2A per-rank token budget exceeds its workspace: required=2048, capacity=1024. Set "
        "SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK>=2048, or lower --chunked-prefill-size."
    )
    frames = (*VALIDATION[:2], "arg_groups/moe_hook.py:validate_flashinfer_a2a_token_budget> raise ValueError(")
    found = diagnosis(log.raises(None, frames, text, header=""))
    assert "token budget exceeds" in found["evidence"][0]["text"]
    assert [(one["flag"], one["value"]) for one in found["repair"][:2]] == [
        ("SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "2048"),
        ("--chunked-prefill-size", 8192),
    ]


@pytest.mark.parametrize(
    ("kind", "value", "mended"),
    [("int", "8192.0", 8192), ("int", "8k", 8000), ("float", "90%", 0.9), ("int", "0.5", None), ("int", "auto", None)],
)
def test_a_number_that_the_parser_does_not_take(kind: str, value: str, mended: float | None) -> None:
    found = diagnosis(
        Log().add(f"launch_server.py: error: argument --chunked-prefill-size: invalid {kind} value: '{value}'")
    )
    assert [(one["flag"], one["value"]) for one in found["repair"]] == [("--chunked-prefill-size", mended)]


def test_retractions_explain_a_slow_benchmark() -> None:
    log = Log().arguments(tp_size=8, mem_fraction_static=0.84, max_running_requests=256).start("ready", ("TP0",))
    for number in range(4):
        full = "KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.52 -> 0.81"
        log = log.add(full, "TP0", 5) if number else log.decides(full, "TP0", 5)
        log.serve(1, "TP0")
    log.add("[bench] 1024/1024 requests, output throughput 398.71 tok/s (baseline: 1507.20 tok/s)", "", 60)
    found = diagnosis(log)
    assert (found["class"], found["evidence"][0]["line"]) == ("perf_regression", log.decisive)
    assert found["repair"][0]["flag"] == "--mem-fraction-static"


def test_a_benchmark_that_measured_a_throughput_was_answered() -> None:
    log = Log().arguments(tp_size=8).start("ready", ("TP0",)).serve(3)
    log.decides(
        "[bench] 412 of 3000 requests failed: ('Connection aborted.', TimeoutError('client timeout 60 s')); 2588 ok, "
        "output throughput 1961.30 tok/s",
        "",
    )
    found = diagnosis(log)
    assert (found["class"], found["evidence"][0]["line"]) == ("overload", log.decisive)


def test_a_further_node_serves_without_saying_that_it_is_ready() -> None:
    log = (
        Log().arguments(tp_size=16, nnodes=2, mem_fraction_static=0.9).start("captured", ("TP8", "TP9")).serve(3, "TP8")
    )
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB. GPU 7 has 521.12 MiB free."
    found = diagnosis(log.raises("TP15", EVENT_LOOP, text, decisive=True, wait=600).dies(serving=True))
    assert (found["class"], found["phase"]) == ("oom_runtime", "serving")


def test_the_kernel_names_whom_it_killed() -> None:
    log = Log().arguments(tp_size=8).start("load", ("TP0", "TP1"))
    log.add("[kmsg] python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0")
    log.decides("[kmsg] Memory cgroup out of memory: Killed process 41877 (sglang::schedul) total-vm:1420811320kB")
    found = diagnosis(log.add("Killed"))
    assert (found["class"], found["phase"], found["evidence"][0]["line"]) == ("host_env", "load", log.decisive)


class Fragment(NamedTuple):
    """What somebody pasted of a log, without its start; `decides` is part of the line that must decide."""

    text: str
    answer: tuple[str, str, str]
    decides: str


_SCHEDULER = f'  File "{SRT}/managers/scheduler.py", line 3034, in run_scheduler_process\n'
_LOOP = f'{_SCHEDULER}    scheduler.event_loop_normal()\n  File "{SRT}/managers/scheduler.py", line 814, in event_loop_normal\n'
_DIED = "[2026-03-04 11:00:09 DP1 TP3] Scheduler hit an exception: Traceback (most recent call last):\n"
FRAGMENTS = {
    "bare_line": Fragment(
        "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`. num_reqs=2",
        ("engine_bug", "serving", "infeasible"),
        "alloc_req_slots",
    ),
    "bare_validation": Fragment(
        "ValueError: TRTLLM MHA backend for prefill is only supported on Blackwell GPUs (SM100). Please use a different prefill backend.",
        ("arch_unsupported", "validate", "infeasible"),
        "TRTLLM MHA",
    ),
    "bare_capture": Fragment(
        "Exception: Capture cuda graph failed: Could not run 'sgl_kernel::rmsnorm' with arguments from the 'CUDA' backend.",
        ("host_env", "graph_capture", "stop"),
        "Could not run",
    ),
    "bare_custom_all_reduce": Fragment(
        "RuntimeError: Runtime check failed at /src/sgl_kernel/distributed/custom_all_reduce.cuh:37: CUDA error: invalid argument\n"
        "Exception: Capture cuda graph failed",
        ("graph_capture", "graph_capture", "infeasible"),
        "custom_all_reduce.cuh:37",
    ),
    "head_of_traceback_lost": Fragment(
        f'  File "{SRT}/managers/scheduler.py", line 1105, in event_loop_normal\n    self.self_check_during_idle()\n'
        f'  File "{SRT}/utils/common.py", line 3774, in raise_error_or_warn\n    raise ValueError(message)\n'
        "ValueError: token_to_kv_pool_allocator memory leak detected! full_available_size=6016\n\n"
        "./run.sh: line 24: 3557732 Killed                  python -m sglang.launch_server $ARGS",
        ("engine_bug", "serving", "infeasible"),
        "memory leak detected",
    ),
    "event_loop_without_a_start": Fragment(
        f"{_DIED}{_LOOP}    result = self.run_batch(batch)\nRuntimeError: CUDA error: an illegal memory access was encountered",
        ("device_fault", "serving", "retry"),
        "illegal memory access",
    ),
    "end_of_traceback_lost": Fragment(
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1500: indexSelectSmallIndex: block: [32,0,0], thread: [63,0,0] "
        f"Assertion `srcIndex < srcSelectDimSize` failed.\n{_DIED}{_LOOP}    result = self.run_batch(",
        ("device_fault", "serving", "retry"),
        "srcSelectDimSize",
    ),
    "before_the_weights": Fragment(
        f"{_DIED}{_SCHEDULER}    faulthandler.enable()\nOSError: [Errno 12] Cannot allocate memory",
        ("host_env", "load", "retry"),
        "Errno 12",
    ),
    "viewer_of_a_cloud": Fragment(
        "".join(
            f"ERROR 2026-02-18T14:43:05.8214{number:02d}064Z [severity: ERROR] {line.strip()}\n"
            for number, line in enumerate(
                f"{_DIED}{_LOOP}result = self.run_batch(batch)\n"
                "RuntimeError: The size of tensor a (163840) must match the size of tensor b (163842) at dimension 1".split(
                    "\n"
                )
            )
        ),
        ("engine_bug", "serving", "infeasible"),
        "size of tensor a",
    ),
    "compiler_behind_the_import": Fragment(
        "[2026-03-04 11:00:08 TP6] Ignore import error when loading sglang.srt.models.deepseek_v2. Command '['/usr/bin/gcc', "
        "'/tmp/t/main.c', '-lcuda']' returned non-zero exit status 1.\n"
        f"{_DIED}{_SCHEDULER}    scheduler = Scheduler(\n"
        "ValueError: Model architectures ['DeepseekV3ForCausalLM'] are not supported for now. Supported architectures: dict_keys([])",
        ("jit_autotune", "load", "stop"),
        "Ignore import error",
    ),
    "draft_and_grammar": Fragment(
        f"{_DIED}{_LOOP}    vocab_mask = generate_token_bitmask(\nValueError: Tokens not accepted: 151551",
        ("engine_bug", "serving", "infeasible"),
        "Tokens not accepted",
    ),
    "attention_workspace": Fragment(
        f"{_DIED}{_LOOP}    result = self.run_batch(batch)\nRuntimeError: Failed to allocate memory for batch_prefill_tmp_v with "
        "size 435814400 and alignment 16 in AlignedAllocator",
        ("oom_runtime", "serving", "infeasible"),
        "AlignedAllocator",
    ),
    "config_of_another_model": Fragment(
        f'{_DIED}  File "{SRT}/configs/model_config.py", line 93, in __init__\n    self.hf_text_config.hidden_size //\n'
        "AttributeError: 'InternVLChatConfig' object has no attribute 'hidden_size'",
        ("model_artifact", "validate", "stop"),
        "InternVLChatConfig",
    ),
    "name_of_a_weight": Fragment(
        f'{_DIED}  File "{SRT}/model_executor/model_runner.py", line 361, in load_model\n    self.model = get_model(\n'
        "KeyError: 'model.layers.13.mlp.experts.w2_weight_scale'",
        ("model_artifact", "load", "infeasible"),
        "w2_weight_scale",
    ),
    "advice_alone": Fragment(
        "    self._waitpid_lock = threading.Lock()\n\nPiecewise CUDA Graph is enabled by default as an experimental feature.\n"
        "To work around this error, add --disable-piecewise-cuda-graph to your launch command.",
        ("graph_capture", "graph_capture", "infeasible"),
        "--disable-piecewise-cuda-graph",
    ),
    "no_room_at_all": Fragment(
        "[2026-03-04 11:00:08 DP0 TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=21.73 GB, mem usage=166.59 GB.\n"
        + "[2026-03-04 11:00:09 DP0 TP0] max_total_tokens=131072 is larger than the profiled value -561981. Use the profiled value instead.\n"
        * 9
        + "[2026-03-04 11:",
        ("kv_budget", "kv_alloc", "infeasible"),
        "profiled value -561981",
    ),
}


@pytest.mark.parametrize("name", FRAGMENTS)
def test_a_pasted_fragment(name: str) -> None:
    fragment = FRAGMENTS[name]
    reader = SglangLogReader({})
    reader.feed(fragment.text.encode())
    failure = reader.diagnose(None)
    assert (failure.slug, failure.phase.value, failure.verdict.value) == fragment.answer
    assert fragment.decides in failure.evidence[0].text


def test_out_of_memory_without_a_place_is_not_judged() -> None:
    """Its phase decides about the direction of the memory fraction, and one line does not tell the phase."""
    reader = SglangLogReader({})
    reader.feed(
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 226.00 MiB. GPU 0 has a total capacity of 15.58 GiB"
    )
    assert reader.diagnose(None).slug == "unknown"


def test_an_error_of_one_request_in_a_fragment_is_survived() -> None:
    """Batches behind it show that the server lives; without a start nothing says that it is healthy, either."""
    log = Log().serve(2)
    log.raises(
        "", ("entrypoints/http_server.py:handle> await respond()",), "ValueError: Tokens not accepted: 1", header=""
    ).serve(2)
    reader = SglangLogReader({})
    reader.feed("\n".join(log.lines).encode())
    failure = reader.diagnose(None)
    assert failure.slug == "unknown"
    assert "without an error" in failure.message
