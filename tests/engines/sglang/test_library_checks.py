"""Checks of libraries and of the engine that trip under load, several lines about one cause, and what a message allows."""

# ruff: noqa: E501 - log lines are as long as they are

from __future__ import annotations

import pytest
from engines.sglang.composing import CAPTURE, DISTRIBUTED, EVENT_LOOP, LOADING, SCHEDULER, VALIDATION, Log

from servetune.engines.sglang.logs import SglangLogReader

SITE = "/usr/local/lib/python3.12/dist-packages"
CALL = "python/tvm_ffi/cython/function.pxi:tvm_ffi.Function.__call__"
PLAIN = {"tp_size": 8, "page_size": 64, "chunked_prefill_size": 8192}
#: Further arguments, place in the log, frames, message, answer (class, phase), the first repair where it matters.
CASES = (
    (
        {},
        "serving",
        (*EVENT_LOOP, "layers/moe/topk.py:select_experts> assert hidden_states.shape[0] == gating.shape[0]"),
        "AssertionError: Rows of hidden states and gates do not match",
        ("engine_bug", "serving"),
        None,
    ),
    (
        {},
        "serving",
        (*EVENT_LOOP, "layers/moe/fused_moe.py:fused_experts> assert weights.stride(-1) == 1"),
        "AssertionError",
        ("engine_bug", "serving"),
        None,
    ),
    (
        {"moe_runner_backend": "triton_kernel"},
        "serving",
        (*EVENT_LOOP, "layers/moe/fused_moe.py:fused_experts> assert isinstance(topk, StandardTopK)"),
        "AssertionError",
        ("invalid_combo", "serving"),
        None,
    ),
    (
        {},
        "serving",
        (*EVENT_LOOP[:2], f"{SITE}/xgrammar/matcher.py:fill_next_token_bitmask> self._handle.fill("),
        "xgrammar.XGrammarError: [11:02:01] /project/cpp/parser.cc:33: this kind of element is not supported: 9",
        ("engine_bug", "serving"),
        None,
    ),
    (
        {},
        "serving",
        (*EVENT_LOOP, "layers/logits_processor.py:forward> x = linear(", f"{SITE}/torch/nn/functional.py:linear>"),
        "RuntimeError: Expected all tensors to be on the same device, but found cuda:1 and cpu",
        ("engine_bug", "serving"),
        None,
    ),
    (
        {},
        "serving",
        (*EVENT_LOOP, f"{SITE}/flashinfer/decode.py:run> self._module.run(", CALL),
        "RuntimeError: Error in function 'run' at /workspace/csrc/launcher.cu:41: logits must have 512 rows, got 511",
        ("engine_bug", "serving"),
        None,
    ),
    (
        {},
        "serving",
        (*EVENT_LOOP, f"{SITE}/flashinfer/mla/core.py:_validate> raise PlanError("),
        "flashinfer.mla.PlanError: this plan was made for another wrapper",
        ("engine_bug", "serving"),
        None,
    ),
    (
        {},
        "serving",
        (*EVENT_LOOP, f"{SITE}/flashinfer/mla/core.py:_run> raise RuntimeError("),
        "RuntimeError: cuLaunchKernelEx gives 719 on this driver",
        ("unknown", "serving"),
        None,
    ),
    (
        {"moe_a2a_backend": "flashinfer"},
        "serving",
        (*EVENT_LOOP, f"{SITE}/flashinfer/moe_ep/kernel_src/mega.py:mega_moe> raise ValueError("),
        "ValueError: tokens of a rank must be in [0, 4096], got 8192.",
        ("comm_runtime", "serving"),
        None,
    ),
    (
        {"enable_symm_mem": True},
        "serving",
        (
            *EVENT_LOOP,
            "distributed/device_communicators/pynccl_allocator.py:__exit__> self.comm.register(",
            "distributed/device_communicators/pynccl_wrapper.py:NCCL_CHECK> raise RuntimeError(",
        ),
        "RuntimeError: NCCL error: unhandled system error",
        ("comm_runtime", "serving"),
        ("--enable-symm-mem", None),
    ),
    (
        {"enable_torch_symm_mem": True},
        "load",
        (*DISTRIBUTED, f"{SITE}/torch/distributed/_symmetric_memory/__init__.py:rendezvous> return handle("),
        "RuntimeError: CUDA driver error: system not yet initialized",
        ("comm_init", "load"),
        ("--enable-torch-symm-mem", None),
    ),
    (
        {},
        "load",
        (*DISTRIBUTED, f"{SITE}/torch/distributed/distributed_c10d.py:barrier> work.wait()"),
        "torch.distributed.DistBackendError: [5] is setting up NCCL communicator and got error: wait timeout after 600000ms",
        ("comm_init", "load"),
        None,
    ),
    (
        {},
        "load",
        (*LOADING, "models/moe.py:__init__> assert self.total_num_heads % attn_tp_size == 0"),
        "AssertionError",
        ("model_artifact", "load"),
        ("--tp-size", 4),
    ),
    (
        {"enable_lora": True},
        "load",
        (*LOADING, "lora/layers.py:slice_b> raise NotImplementedError("),
        "NotImplementedError: this layer does not support tensor parallelism > 1. Got tp_size=8",
        ("invalid_combo", "load"),
        ("--tp-size", 1),
    ),
    (
        {"enable_pdmux": True},
        "load",
        (*SCHEDULER, "multiplex/pdmux_context.py:divide> raise ValueError("),
        "ValueError: Unsupported compute capability: 12.0",
        ("arch_unsupported", "load"),
        ("--enable-pdmux", None),
    ),
    (
        {"quantization": "modelopt_fp4", "fp4_gemm_runner_backend": "trtllm"},
        "capture",
        (*CAPTURE, f"{SITE}/flashinfer/gemm/base.py:mm_fp4> raise BackendSupportedError("),
        "flashinfer.utils.BackendSupportedError: mm_fp4 does not support backend 'trtllm' with capability 120",
        ("arch_unsupported", "graph_capture"),
        ("--fp4-gemm-backend", None),
    ),
    (
        {"moe_runner_backend": "cutlass"},
        "load",
        (*LOADING, "layers/moe/w4.py:__init__> assert is_sm90_supported() or is_sm100_supported()"),
        "AssertionError",
        ("arch_unsupported", "load"),
        None,
    ),
    (
        {"moe_a2a_backend": "deepep", "deepep_mode": "normal"},
        "captured",
        (*EVENT_LOOP, "layers/moe/ep_moe/layer.py:forward> raise NotImplementedError("),
        "NotImplementedError: this expert layer supports low_latency mode only",
        ("invalid_combo", "warmup"),
        ("--deepep-mode", "low_latency"),
    ),
    (
        {},
        "serving",
        (*EVENT_LOOP[:2], "managers/scheduler.py:switch_role> raise NotImplementedError"),
        "NotImplementedError",
        ("engine_bug", "serving"),
        None,
    ),
    (
        {},
        "load",
        (*LOADING, "layers/rope_cache.py:wrap> raise ValueError("),
        "ValueError: tables are wrapped once",
        ("engine_bug", "load"),
        None,
    ),
    (
        {"speculative_algorithm": "EAGLE"},
        "load",
        (*LOADING, "mem_cache/pools.py:build> raise ValueError("),
        "ValueError: the page size of drafts must match the one of the target.",
        ("invalid_combo", "load"),
        ("--speculative-algorithm", None),
    ),
    (
        {"attention_backend": "flashinfer", "lora_backend": "flashinfer"},
        "load",
        (*LOADING, "lora/backend/registry.py:get_backend> raise ValueError("),
        "ValueError: Invalid backend: flashinfer",
        ("invalid_combo", "load"),
        ("--lora-backend", None),
    ),
    (
        {},
        "load",
        (*LOADING, "layers/quantization/nvfp4.py:process_weights_after_loading> raise ValueError("),
        "ValueError: the gate and up projection weights of an expert have to share one scale",
        ("model_artifact", "load"),
        None,
    ),
    (
        {},
        "load",
        (*SCHEDULER, "utils/network.py:bind> raise OSError("),
        "OSError: Could not bind port 30000 on any address family",
        ("host_env", "load"),
        None,
    ),
    (
        {"attention_backend": "torch_native", "speculative_algorithm": "NGRAM"},
        "captured",
        (
            *EVENT_LOOP,
            "speculative/worker.py:forward> self.target(",
            "layers/attention/native.py:extend> n = lens.shape",
        ),
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        ("invalid_combo", "warmup"),
        ("--attention-backend", None),
    ),
    (
        {"enable_expert_distribution_metrics": True},
        "capture",
        (*CAPTURE, "eplb/expert_distribution.py:_append> rate.item()"),
        "torch.AcceleratorError: CUDA error: operation not permitted when stream is capturing",
        ("graph_capture", "graph_capture"),
        ("--enable-expert-distribution-metrics", None),
    ),
    (
        {},
        "validate",
        (*VALIDATION, "arg_groups/overrides.py:_attention> raise ValueError("),
        "ValueError: Currently only ['fa3', 'triton'] attention backends are supported here, but 'trtllm_mha' was given.",
        ("invalid_combo", "validate"),
        ("--attention-backend", "triton"),
    ),
    (
        {},
        "validate",
        (*VALIDATION, "arg_groups/kv_cache.py:_handle> assert backend in CHOICES"),
        "AssertionError: this cache expects decode_attention_backend to be one of ['cutlass_mla', 'flashinfer'], but got fa4",
        ("invalid_combo", "validate"),
        ("--decode-attention-backend", "flashinfer"),
    ),
)


def _diagnosis(log: Log) -> dict:
    reader = SglangLogReader({})
    reader.feed(log.text().encode())
    return reader.report(reader.diagnose(None))


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case[3][:40]}" for number, case in enumerate(CASES)])
def test_what_frames_type_and_grammar_say(case: tuple) -> None:
    given, place, frames, text, answer, repair = case
    if place == "validate":
        log = Log().add("$ python -m sglang.launch_server --model-path /models/moe --tp 8")
        log.raises(None, frames, text, header="", decisive=True)
    else:
        log = Log().arguments(**PLAIN, **given).start("ready" if place == "serving" else place, ("TP0", "TP1"))
        log.raises("TP1", frames, text, decisive=True).dies(serving=place == "serving")
    found = _diagnosis(log)
    assert (found["class"], found["phase"], found["evidence"][0]["line"]) == (*answer, log.decisive)
    if repair:
        assert (repair[0], repair[1]) in [(one["flag"], one["value"]) for one in found["repair"]]


def test_an_exception_that_points_at_the_lines_above_leaves_the_cause_to_them() -> None:
    log = Log().arguments(**PLAIN).start("dist", ("TP0",))
    log.decides("Failed: Cuda error /src/custom_all_reduce.cuh:307 'peer access is not supported'")
    frames = ("server.py:__init__> raise RuntimeError(",)
    log.raises(None, frames, "RuntimeError: Initialization failed. Please see the error messages above.", header="")
    found = _diagnosis(log)
    assert (found["class"], found["phase"], found["evidence"][0]["line"]) == ("comm_init", "load", log.decisive)


def test_the_assemblers_error_comes_before_its_end() -> None:
    text = (
        "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error\n"
        "ptxas /tmp/t.ptx, line 9; error   : Feature '.e2m1x2' not supported on .target 'sm_89'\n"
        "ptxas fatal   : Ptx assembly aborted due to errors"
    )
    frames = (*CAPTURE, f"{SITE}/triton/backends/nvidia/compiler.py:make_cubin> raise PTXASError(")
    found = _diagnosis(Log().arguments(**PLAIN).start("capture", ("TP0",)).raises("TP0", frames, text).dies())
    assert "Feature '.e2m1x2'" in found["evidence"][0]["text"]


def test_why_requests_are_refused_comes_before_that_they_are() -> None:
    log = Log().arguments(**PLAIN).start("ready", ("TP0", "TP1")).serve(2)
    log.add('INFO:     127.0.0.1:4000 - "POST /v1/chat/completions HTTP/1.1" 503 Service Unavailable', "")
    log.decides('[bench] 5 of 64 requests failed: {"message":"The request is aborted by a higher priority request."}')
    found = _diagnosis(log.serve(1))
    assert (found["class"], found["verdict"], found["evidence"][0]["line"]) == ("overload", "none", log.decisive)


def test_a_cache_that_did_not_arrive_is_told_although_the_server_lives() -> None:
    log = Log().arguments(**PLAIN, disaggregation_mode="prefill").start("ready", ("TP0", "TP1")).serve(1)
    log.decides("Prefill transfer failed for request rank=0 with exception KVTransferError(bootstrap_room=4)", "TP0")
    found = _diagnosis(log.serve(1))
    assert (found["class"], found["verdict"], found["evidence"][0]["line"]) == ("comm_runtime", "retry", log.decisive)


def test_an_evaluation_names_what_it_was_better_without() -> None:
    log = Log().arguments(**PLAIN, enable_dp_attention=True).start("ready", ("TP0", "TP1")).serve(1)
    log.decides("[eval] gsm8k: 0/128 (0%)   baseline without --enable-dp-attention: 124/128 (96.9%)", "")
    found = _diagnosis(log)
    assert (found["class"], found["repair"][0]["flag"]) == ("wrong_output", "--enable-dp-attention")


def test_what_nccl_said_of_an_exchange_comes_before_the_exception() -> None:
    log = Log().arguments(**PLAIN, enable_symm_mem=True).start("ready", ("TP0", "TP1")).serve(1)
    log.decides("n1:9:9 [0] misc/argcheck.cc:172 NCCL WARN symmetric registration check failed on rank 0", None)
    frames = (*EVENT_LOOP, "distributed/device_communicators/pynccl_wrapper.py:NCCL_CHECK> raise RuntimeError(")
    found = _diagnosis(log.raises("TP0", frames, "RuntimeError: NCCL error: invalid usage").dies(serving=True))
    assert (found["class"], found["evidence"][0]["line"]) == ("comm_runtime", log.decisive)
    assert found["repair"][0]["flag"] == "--enable-symm-mem"


def test_the_compilers_own_line_comes_before_the_exception_that_a_build_failed() -> None:
    log = Log().arguments(**PLAIN).start("capture", ("TP0",)).add("[1/2] nvcc -c fused.cu -o fused.o")
    log.decides('/root/ops/fused.cu(88): error: namespace "cute" has no member "Copy_Atom"')
    log.add("ninja: build stopped: subcommand failed.")
    frames = (*CAPTURE, f"{SITE}/torch/utils/cpp_extension.py:_run_ninja_build> raise RuntimeError(")
    found = _diagnosis(log.raises("TP0", frames, "RuntimeError: Error building extension 'fused'").dies())
    assert (found["class"], found["evidence"][0]["line"]) == ("jit_autotune", log.decisive)


def test_a_process_that_cannot_open_its_channel_is_no_consequence() -> None:
    log = Log().arguments(**PLAIN).start("dist", ("TP0",))
    frames = (*SCHEDULER, "zmq/sugar/socket.py:bind> super().bind(addr)")
    text = "zmq.error.ZMQError: No such file or directory (addr='ipc:///tmp/gone/ipc_1')"
    found = _diagnosis(log.raises("TP0", frames, text, decisive=True).dies())
    assert (found["class"], found["phase"], found["evidence"][0]["line"]) == ("host_env", "load", log.decisive)
