"""Families of messages: the same failure said with other flags, libraries, versions and words."""

# ruff: noqa: E501 - log lines are as long as they are

from __future__ import annotations

from typing import Any

import pytest
from engines.sglang.composing import CAPTURE, DISTRIBUTED, EVENT_LOOP, LOADING, NEW_CAPTURE, SCHEDULER, VALIDATION, Log

from servetune.engines.sglang.logs import SglangLogReader

SITE = "/usr/local/lib/python3.12/dist-packages"
FLAGS: dict[str, Any] = {"tp_size": 8, "ep_size": 8, "mem_fraction_static": 0.8, "chunked_prefill_size": 8192}
DISPATCHER = "layers/moe/token_dispatcher"
CONFIG = (
    *SCHEDULER,
    "model_loader/loader.py:_get_quantization_config> quant_config = get_quant_config(",
    "model_loader/weight_utils.py:get_quant_config> return quant_cls.from_config(hf_quant_config)",
)


def diagnosis(log: Log, assignment: dict[str, Any] | None = None) -> dict[str, Any]:
    reader = SglangLogReader(assignment or {})
    reader.feed(log.text().encode())
    return reader.report(reader.diagnose(None))


def failed(place: str, frames: tuple[str, ...], text: str, part: str = "", **flags: Any) -> tuple[Log, dict[str, Any]]:
    """A log that ends with this exception on one of two ranks, and what it is taken for."""
    if place == "validate":
        log = Log().add(command(flags))
        log.raises(None, frames, text, header="", decisive=True, decisive_part=part)
    else:
        log = Log().arguments(**{**FLAGS, **flags}).start("ready" if place == "serving" else place, ("TP0", "TP1"))
        log.raises("TP1", frames, text, decisive=True, decisive_part=part).dies(serving=place == "serving")
    return log, diagnosis(log)


def command(flags: dict[str, Any]) -> str:
    given = {"tp_size": 8, **flags}
    shown = (
        f"--{name.replace('_', '-')}" if value is True else f"--{name.replace('_', '-')} {value}"
        for name, value in given.items()
    )
    return f"$ python -m sglang.launch_server --model-path /models/moe {' '.join(shown)}"


def repairs(found: dict[str, Any]) -> dict[str, Any]:
    return {repair["flag"]: repair["value"] for repair in found["repair"]}


#: The package of an all-to-all backend is looked for when its buffers are built: place, backend, message.
PACKAGES = (
    (
        "capture",
        "deepep",
        "ImportError: DeepEP is not installed. Please install DeepEP package from https://github.com/deepseek-ai/deepep.",
    ),
    (
        "capture",
        "mooncake",
        "ImportError: Mooncake EP is not installed. Please install Mooncake package at https://github.com/kvcache-ai/Mooncake",
    ),
    ("load", "mori", "ImportError: Mori EP is not installed. Please install."),
    (
        "load",
        "nixl",
        "ImportError: NixlEP is not installed. Please install NixlEP package from https://github.com/ai-dynamo/nixl.",
    ),
    ("capture", "pplx", "ImportError: pplx-kernels is not installed. Please build and install it from source."),
    (
        "capture",
        "deepep",
        "ImportError: DeepEP hybrid (HybridEPBuffer) is not available. Original import error: cannot import name 'HybridEPBuffer' from 'deep_ep'",
    ),
    ("load", "deepep", "ImportError: cannot import name 'Config' from 'deep_ep' (/opt/deep_ep/__init__.py)"),
    (
        "load",
        "flashinfer",
        "ImportError: Flashinfer is not installed or does not support A2A. Please install the appropriate version of Flashinfer.",
    ),
    ("warmup", "mori", "ModuleNotFoundError: No module named 'mori'"),
    ("load", "deepep", "RuntimeError: DeepEP (low latency kernels) were not built with NVSHMEM"),
)


@pytest.mark.parametrize(("place", "backend", "text"), PACKAGES, ids=[row[2][:60] for row in PACKAGES])
def test_a_package_that_an_all_to_all_backend_lacks(place: str, backend: str, text: str) -> None:
    begun = {"load": LOADING, "capture": NEW_CAPTURE, "warmup": EVENT_LOOP}[place]
    frames = (*begun, f"{DISPATCHER}/{backend}ep.py:_get_buffer> raise ImportError(")
    log, found = failed("captured" if place == "warmup" else place, frames, text, moe_a2a_backend=backend)
    phase = "graph_capture" if place == "capture" else place
    assert (found["class"], found["phase"], found["verdict"]) == ("comm_init", phase, "infeasible")
    assert found["evidence"][0]["line"] == log.decisive
    assert repairs(found)["--moe-a2a-backend"] == "none"


#: The variable that a message tells to raise: message, environment, variable, its new value.
CAPS = (
    (
        "AssertionError: num_tokens (700) exceeds num_max_dispatch_tokens_per_rank (256); raise SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK or lower the batch",
        {},
        "SGLANG_PPLX_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
        "1024",
    ),
    (
        "ValueError: DeepEP v2 dispatch input exceeds the per-rank buffer capacity 1024, got 1028. Increase SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK or lower the limit.",
        {},
        "SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
        "2048",
    ),
    (
        "RuntimeError: mori dispatch got more tokens than max_dispatch_tokens=4096, increase SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
        {"SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "4096"},
        "SGLANG_MORI_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
        "8192",
    ),
    (
        "AssertionError: nixl: 129 tokens are more than num_max_dispatch_tokens_per_rank allows, please raise `SGLANG_NIXL_EP_NUM_MAX_DISPATCH_TOKENS_PER_RANK`",
        {"SGLANG_NIXL_EP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "128"},
        "SGLANG_NIXL_EP_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
        "256",
    ),
    (
        "ValueError: token budget exceeds its fixed workspace; enlarge the SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
        {"SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "512"},
        "SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
        "1024",
    ),
    (
        "AssertionError: x.shape[0] <= num_max_dispatch_tokens_per_rank",
        {"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "64"},
        "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
        "128",
    ),
)


@pytest.mark.parametrize(("text", "env", "name", "value"), CAPS, ids=[row[2] for row in CAPS])
def test_the_variable_that_a_message_names_is_raised(text: str, env: dict[str, str], name: str, value: str) -> None:
    set_before = " ".join(f"{key}={one}" for key, one in env.items())
    log = Log().add(
        f"{set_before} python -m sglang.launch_server --model-path /models/moe --tp 8 --moe-a2a-backend deepep"
    )
    log.arguments(**FLAGS, moe_a2a_backend="deepep").start("ready", ("TP0", "TP1"))
    log.raises("TP1", (*EVENT_LOOP, f"{DISPATCHER}/any.py:dispatch> assert ("), text, decisive=True).dies(serving=True)
    found = diagnosis(log)
    assert (found["class"], found["phase"], found["verdict"]) == ("comm_runtime", "serving", "infeasible")
    assert found["repair"][0]["flag"].removeprefix("env.") == name
    assert found["repair"][0]["value"] == value


#: No batch size is left to capture: frame, message, flags, the flag that is changed.
SIZES = (
    (
        "model_executor/cuda_graph_runner.py:get_batch_sizes_to_capture> assert len(capture_bs) > 0 and capture_bs[0] > 0, f'{capture_bs=}'",
        "AssertionError: capture_bs=[]",
        {"cuda_graph_bs": 2},
        "--cuda-graph-bs",
    ),
    (
        "model_executor/runner/base_cuda_graph_runner.py:get_batch_sizes_to_capture> assert len(capture_bs) > 0",
        "AssertionError",
        {"cuda_graph_max_bs_decode": 2},
        "--cuda-graph-max-bs-decode",
    ),
    (
        "speculative/eagle_draft_cuda_graph_runner.py:__init__> self.max_bs = max(self.capture_bs)",
        "ValueError: max() arg is an empty sequence",
        {"cuda_graph_bs_decode": 1},
        "--cuda-graph-bs-decode",
    ),
    (
        "model_executor/cpu_graph_runner.py:get_batch_sizes_to_capture> if capture_bs[-1] > 1:",
        "IndexError: list index out of range",
        {"cuda_graph_max_bs": 1},
        "--cuda-graph-max-bs",
    ),
    (
        "model_executor/runner/prefill_graph_runner.py:_set_capture_num_tokens> assert capture_num_tokens",
        "AssertionError: capture_num_tokens=[]",
        {"cuda_graph_bs_prefill": 3},
        "--cuda-graph-bs-prefill",
    ),
    (
        "model_executor/cuda_graph_runner.py:filter_capture_bs> raise ValueError(",
        "ValueError: no batch sizes are left after rounding to multiples of 8",
        {"cuda_graph_bs": 4},
        "--cuda-graph-bs",
    ),
)


@pytest.mark.parametrize(("frame", "text", "flags", "flag"), SIZES, ids=[row[1] for row in SIZES])
def test_no_batch_size_that_could_be_captured(frame: str, text: str, flags: dict[str, Any], flag: str) -> None:
    log = Log().add(command(flags)).arguments(**FLAGS, **flags).start("pool", ("TP0", "TP1"))
    log.raises("TP1", (*CAPTURE[:1], frame), text, decisive=True).dies()
    found = diagnosis(log)
    assert (found["class"], found["phase"], found["verdict"]) == ("graph_capture", "graph_capture", "infeasible")
    assert found["evidence"][0]["line"] == log.decisive
    assert found["repair"][0]["flag"] == flag
    assert flag in found["blamed"]


#: One flag contradicts another one, or the checkpoint: place, message, flags, the flag to leave out.
CONTRADICTIONS = (
    (
        "load",
        "ValueError: --deepep-dispatcher-output-dtype bf16 contradicts this checkpoint: --moe-a2a-backend deepep_v2 dispatches fp8 for FP8 blockwise experts. Drop the flag to let it follow the checkpoint.",
        {"deepep_dispatcher_output_dtype": "bf16", "moe_a2a_backend": "deepep"},
        "--deepep-dispatcher-output-dtype",
    ),
    (
        "load",
        "ValueError: --kv-cache-dtype fp8_e5m2 disagrees with the checkpoint, whose KV scales are e4m3. Remove the flag.",
        {"kv_cache_dtype": "fp8_e5m2"},
        "--kv-cache-dtype",
    ),
    (
        "load",
        "AssertionError: --dtype float16 does not match the experts of this checkpoint (bfloat16); omit --dtype",
        {"dtype": "float16"},
        "--dtype",
    ),
    (
        "validate",
        "AssertionError: --disable-cuda-graph-padding is incompatible with --enable-torch-compile. With padding disabled every batch size is compiled. Remove --disable-cuda-graph-padding or --enable-torch-compile.",
        {"disable_cuda_graph_padding": True, "enable_torch_compile": True},
        "--disable-cuda-graph-padding",
    ),
    (
        "validate",
        "ValueError: --preferred-sampling-params clashes with --tokenizer-worker-num 4; drop --preferred-sampling-params and send those values per request.",
        {"preferred_sampling_params": "x", "tokenizer_worker_num": 4},
        "--preferred-sampling-params",
    ),
    (
        "validate",
        "AssertionError: CP is only supported for prefill when PD disaggregation, please remove --enable-prefill-cp.",
        {"enable_prefill_cp": True},
        "--enable-prefill-cp",
    ),
    (
        "validate",
        "ValueError: the gRPC server and several tokenizer workers are at odds. Unset --grpc-port or set --tokenizer-worker-num 1.",
        {"grpc_port": 5000, "tokenizer_worker_num": 4},
        "--grpc-port",
    ),
)


@pytest.mark.parametrize(
    ("place", "text", "flags", "flag"), CONTRADICTIONS, ids=[row[1][:60] for row in CONTRADICTIONS]
)
def test_a_flag_that_contradicts_something_is_left_out(place: str, text: str, flags: dict[str, Any], flag: str) -> None:
    frames = VALIDATION if place == "validate" else (*LOADING, "layers/moe/utils.py:get_dtype> raise ValueError(")
    log, found = failed(place, frames, text, **flags)
    assert (found["class"], found["phase"], found["verdict"]) == ("invalid_combo", place, "infeasible")
    assert found["evidence"][0]["line"] == log.decisive
    assert flag in found["blamed"]
    assert flag in repairs(found)
    assert repairs(found)[flag] is None


#: What a quantization's config object refuses stands in the checkpoint.
SCHEMES = (
    (
        "fp8.py:__init__",
        "ValueError: The block-wise quantization only supports dynamic activation scheme for now, but got static activation scheme.",
    ),
    ("fp8.py:__init__", "ValueError: Unsupported activation scheme per_head"),
    (
        "fp8.py:__init__",
        "ValueError: The quantization block size of weight must have 2 dimensions, but got 1 dimensions.",
    ),
    (
        "awq/awq.py:__init__",
        "ValueError: Currently, only 4-bit weight quantization is supported for AWQ, but got 8 bits.",
    ),
    (
        "gptq/gptq.py:__init__",
        "ValueError: Currently, only 2/3/4/8-bit weight quantization is supported for GPTQ, but got 5 bits.",
    ),
    ("modelopt_quant.py:from_config", "ValueError: Cannot find 'quant_algo' in the model's quantization config. "),
    (
        "modelopt_quant.py:from_config",
        "ValueError: NVFP4 quantization requires group_size and exclude_modules specified in the quantization config",
    ),
    ("auto_round.py:__init__", "ValueError: Unsupported weight_bits: 6, currently only support {8, 2, 3, 4}"),
    ("compressed_tensors/compressed_tensors.py:_sparsity_scheme_map_from_config", "AssertionError"),
)


@pytest.mark.parametrize(("place", "text"), SCHEMES, ids=[row[1][:60] for row in SCHEMES])
def test_a_checkpoint_that_is_quantized_otherwise(place: str, text: str) -> None:
    log, found = failed("load", (*CONFIG, f"layers/quantization/{place}> raise ValueError("), text)
    assert (found["class"], found["phase"]) == ("model_artifact", "load")
    assert found["evidence"][0]["line"] == log.decisive


def test_a_quantization_that_goes_with_other_kernels_only_is_still_a_combination() -> None:
    frames = (*LOADING, "layers/quantization/fp8.py:get_quant_method> raise ValueError(")
    text = "ValueError: The hpc_ops MoE runner backend requires static activation scales; use another --moe-runner-backend for this model."
    _, found = failed("load", frames, text, moe_runner_backend="hpc_ops")
    assert found["class"] == "invalid_combo"


#: The host lacks memory for the hierarchical cache: message, flags, the repair.
HOST = (
    (
        "ValueError: Not enough host memory available. Requesting 263.99 GB but only have 241.62 GB free. Please reduce the size of the hierarchical cache.",
        {"hicache_ratio": 4.0},
        ("--hicache-ratio", 3.2),
    ),
    (
        "ValueError: Not enough host memory available. Requesting 100.00 GB but only have 50.00 GB free. Please reduce the size of the hierarchical cache.",
        {"hicache_size": 100},
        ("--hicache-size", 45),
    ),
    (
        "RuntimeError: Insufficient host memory for the KV pool host: requested 80.00 GB, 60.00 GB free",
        {"hicache_ratio": 3.0},
        ("--hicache-ratio", 2.0),
    ),
    ("ValueError: Not enough CPU memory for HiCache", {"hicache_size": 64}, ("--hicache-size", 32)),
    (
        "ValueError: Not enough host memory available. Requesting 90.00 GB but only have 30.00 GB free.",
        {"hicache_ratio": 2.0},
        ("--enable-hierarchical-cache", None),
    ),
)


@pytest.mark.parametrize(("text", "flags", "repair"), HOST, ids=[row[0][:60] + str(row[2][1]) for row in HOST])
def test_a_cache_in_host_memory_becomes_smaller(text: str, flags: dict[str, Any], repair: tuple[str, Any]) -> None:
    frames = (
        "managers/scheduler.py:init_memory_pool_and_cache> self.tree_cache = HiRadixCache(",
        "mem_cache/memory_pool_host.py:__init__> raise ValueError(",
    )
    log, found = failed("captured", frames, text, enable_hierarchical_cache=True, **flags)
    assert (found["class"], found["phase"], found["verdict"]) == ("host_env", "load", "infeasible")
    assert found["evidence"][0]["line"] == log.decisive
    assert (found["repair"][0]["flag"], found["repair"][0]["value"]) == repair


#: An import that fails for several lines: the dynamic loader's own line decides.
LOADERS = (
    (
        "ImportError: \n[sgl_kernel] CRITICAL: Could not load any common_ops library!\n\nAttempted locations:\n1. sm90/common_ops.*\n\nError details from previous import attempts:\n- ImportError: /lib64/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by common_ops.abi3.so)\n- ModuleNotFoundError: No module named 'common_ops'",
        "GLIBCXX",
    ),
    (
        "ImportError: \n[sgl_kernel] CRITICAL: Could not load any common_ops library!\n\nGPU Info:\n- Compute capability: 90\n\nError details:\n- ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
        "libcudart",
    ),
    (
        "ImportError: \n\nIMPORTANT: PLEASE READ THIS FOR ADVICE ON HOW TO SOLVE THIS ISSUE!\n\nOriginal error was: /lib64/libc.so.6: version `GLIBC_2.34' not found",
        "GLIBC_2.34",
    ),
    (
        "RuntimeError: Failed to import transformers.models.qwen3 because of the following error (look up to see its traceback):\n/opt/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommShrink",
        "undefined symbol",
    ),
    (
        "ImportError: could not import flash_attn:\nflash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEab",
        "undefined symbol",
    ),
)


@pytest.mark.parametrize(("text", "part"), LOADERS, ids=[row[1] + row[0][12:50] for row in LOADERS])
def test_the_loaders_own_line_decides(text: str, part: str) -> None:
    frames = (
        "../launch_server.py:<module>> from sglang.srt.server_args import prepare",
        f"{SITE}/sgl_kernel/__init__.py:<module>> x = load()",
    )
    log, found = failed("validate", frames, text, part)
    assert (found["class"], found["verdict"]) == ("host_env", "stop")
    assert found["evidence"][0]["line"] == log.decisive


#: The pool holds no request: place, frame, message.
POOLS_TOO_SMALL = (
    (
        "captured",
        "managers/tp_worker.py:__init__> self.max_req_len > 0 and self.max_req_input_len > 0",
        "AssertionError: Memory pool size is too small",
    ),
    (
        "pool",
        "managers/tp_worker.py:__init__> assert max_req_len > 0, 'Memory pool size is too small'",
        "AssertionError: Memory pool size is too small",
    ),
    (
        "captured",
        "managers/scheduler.py:init_memory_pool_and_cache> raise ValueError(",
        "ValueError: The token pool (5 tokens) is too small for one page of 64",
    ),
    (
        "pool",
        "model_executor/model_runner.py:initialize> raise RuntimeError(",
        "RuntimeError: KV cache is too small: 12 tokens",
    ),
    ("captured", "managers/tp_worker.py:__init__> assert", "AssertionError: max_req_input_len=-3 must be positive"),
    (
        "weights",
        "model_executor/model_runner.py:init_memory_pool> raise ValueError(",
        "ValueError: kv_cache_pool size is insufficient to serve a request",
    ),
)


@pytest.mark.parametrize(("place", "frame", "text"), POOLS_TOO_SMALL, ids=[row[0] + row[2] for row in POOLS_TOO_SMALL])
def test_a_pool_that_holds_no_request_wants_a_larger_fraction(place: str, frame: str, text: str) -> None:
    log, found = failed(place, (*SCHEDULER[:2], frame), text, mem_fraction_static=0.5)
    assert (found["class"], found["phase"], found["verdict"]) == ("kv_budget", "kv_alloc", "infeasible")
    assert found["evidence"][0]["line"] == log.decisive
    assert found["repair"][0]["flag"] == "--mem-fraction-static"
    assert found["repair"][0]["value"] > 0.5


#: What watchers of a server say that answers /health and nothing else.
WATCHERS = (
    '[watch] POST /v1/chat/completions "What is the capital of France?": no byte received for 600 s; last scheduler line 09:16, nvidia-smi: 8 processes, util 0 %',
    "[watch] GET /get_server_info: no answer within 120 s",
    "[watcher] no token for 300 s although /health returns 200",
    "[watchdog] zero tokens received in 240 s, /health ok",
    "[monitor] stream stalled: last chunk 300 s ago, GET /health 200",
    "[tuner] request outstanding for 900 s, /health 200, GPU 0 %",
    "[supervisor] no response from /generate for 10 min while /health is 200",
    "[agent] 12 requests unanswered after 600 s, health endpoint fine",
)
#: The same words where nothing is wrong.
PATIENT = (
    "[watch] GET /get_server_info: no answer within 5 s, asked again",
    "[tuner] no unanswered requests after 600 s",
    "[monitor] 300 s: 512 answers, last token 1 s ago",
)


@pytest.mark.parametrize("line", WATCHERS)
def test_a_server_that_is_healthy_and_silent_hangs(line: str) -> None:
    log = Log().arguments(**FLAGS).start("ready", ("TP0", "TP1")).serve(3)
    for _ in range(4):
        log.add('INFO:     127.0.0.1:45825 - "GET /health HTTP/1.1" 200 OK', "", 30)
    found = diagnosis(log.decides(line, "", 60))
    assert (found["class"], found["phase"], found["verdict"]) == ("hang", "serving", "retry")
    assert found["evidence"][0]["line"] == log.decisive


@pytest.mark.parametrize("line", [*WATCHERS, *PATIENT])
def test_a_server_that_goes_on_does_not_hang(line: str) -> None:
    log = Log().arguments(**FLAGS).start("ready", ("TP0", "TP1")).serve(3).add(line, "", 60).serve(3)
    assert diagnosis(log)["class"] == "none"


@pytest.mark.parametrize("line", PATIENT)
def test_a_watcher_that_has_nothing_to_say(line: str) -> None:
    log = Log().arguments(**FLAGS).start("ready", ("TP0", "TP1")).serve(3).add(line, "", 60)
    assert diagnosis(log)["class"] == "none"


#: What failed had a second way, which was taken.
FALLBACKS = (
    "Failed to allocate shared memory for multimodal feature transport ([Errno 28] No space left on device: '/psm_4be1f0c2'); falling back to inline transport. Consider increasing /dev/shm size.",
    "HiCache L3 prefetch failed for rid=8: [Errno 28] No space left on device; falling back to L2-only LoadingBack",
    "Hugepage mmap via libc failed ([Errno 12] Cannot allocate memory); falling back to plain mmap.",
    "DFLASH fused KV append failed: CUDA_ERROR_NO_BINARY_FOR_GPU no kernel image is available for execution; falling back to the per-layer path",
    "Could not write the trace: [Errno 28] No space left on device, continuing without it",
    "Failed to decode JPEG on GPU, fallback to CPU. Error: no kernel image is available for execution on the device",
    "prometheus: [Errno 98] Address already in use, using port 9091 instead",
)


@pytest.mark.parametrize("line", FALLBACKS)
def test_a_second_way_that_was_taken_is_no_failure(line: str) -> None:
    log = Log().arguments(**FLAGS).start("ready", ("TP0", "TP1")).serve(2).add(line, "TP1").serve(3)
    assert diagnosis(log)["class"] == "none"


def test_a_second_way_that_failed_too_is_one() -> None:
    line = "Failed to write the cache: [Errno 28] No space left on device; falling back to /var/tmp"
    log = Log().arguments(**FLAGS).start("ready", ("TP0", "TP1")).serve(2).decides(line, "TP1").dies(serving=True)
    found = diagnosis(log)
    assert (found["class"], found["evidence"][0]["line"]) == ("host_env", log.decisive)


#: Variables that NCCL does not understand, as a study sets them.
VARIABLES = ("NCCL_ALGO", "NCCL_SOCKET_IFNAME", "NCCL_PROTO", "NCCL_NET", "NCCL_COMM_ID", "NCCL_NET_PLUGIN")
INVALID = (
    "RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    "RuntimeError: NCCL error: invalid argument (run with NCCL_DEBUG=WARN for details)",
)


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("text", INVALID)
def test_a_variable_that_nccl_refuses_is_left_out(name: str, text: str) -> None:
    log = Log().arguments(**FLAGS).start("dist", ("TP0", "TP1"))
    log.raises(
        "TP0",
        (*DISTRIBUTED, "distributed/device_communicators/pynccl.py:__init__> self.nccl.ncclCommInitRank("),
        text,
        decisive=True,
    ).dies()
    found = diagnosis(log, {"tp-size": 8, f"env.{name}": "Bogus", "env.NCCL_DEBUG": "WARN"})
    assert (found["class"], found["phase"], found["verdict"]) == ("comm_init", "load", "infeasible")
    assert found["blamed"] == [name]
    assert repairs(found) == {name: None}
    without = diagnosis(log, {"tp-size": 8, "env.NCCL_DEBUG": "WARN"})
    assert (without["class"], without["verdict"], without["blamed"]) == ("comm_init", "stop", [])


#: Numbers of experts that do not spread: frame.
SPREADS = (
    "eplb/expert_location.py:_init_common> assert num_physical_experts % ep_size == 0",
    "eplb/expert_location.py:_split> assert base_num_physical_experts % initial_ep_size == 0",
    "eplb/expert_location.py:_expand> assert remainder == 0",
    "layers/moe/fused_moe_triton/layer.py:__init__> assert num_experts % self.moe_ep_size == 0",
    "layers/moe/ep_moe/layer.py:__init__> assert self.num_experts % self.moe_ep_size == 0",
    "eplb/eplb_algorithms/deepseek.py:rebalance_experts> assert num_physical_experts % num_gpus == 0",
)


@pytest.mark.parametrize("frame", SPREADS)
def test_redundant_experts_that_do_not_spread(frame: str) -> None:
    log, found = failed("load", (*LOADING, frame), "AssertionError", ep_num_redundant_experts=3)
    assert (found["class"], found["phase"], found["verdict"]) == ("invalid_combo", "load", "infeasible")
    assert found["evidence"][0]["line"] == log.decisive
    assert found["blamed"][0] == "--ep-num-redundant-experts"
    assert repairs(found)["--ep-num-redundant-experts"] == 8


def test_experts_that_do_not_spread_without_redundant_ones_are_the_models() -> None:
    _, found = failed("load", (*LOADING, SPREADS[3]), "AssertionError", ep_num_redundant_experts=0)
    assert found["class"] == "model_artifact"


#: A worker process of the compiler fails: what it wraps, the class.
WORKERS = (
    (
        "triton.compiler.errors.CompilationError: at 1:0:\ndef triton_poi_fused_0(in_ptr0, XBLOCK):\n^\nNameError('cuda_capability_geq is not defined')",
        "NameError(",
        "infeasible",
    ),
    (
        "triton.compiler.errors.CompilationError: at 12:4:\n    x = tl.load(p)\n    ^\nTypeError('unsupported dtype fp8e4nv')",
        "TypeError(",
        "infeasible",
    ),
    ("RuntimeError: PassManager::run failed", "PassManager", "infeasible"),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: '/root/.triton/cache/ab/kernel.cubin'",
        "No such file",
        "retry",
    ),
    ("RuntimeError: `ptxas` failed with error code 255", "ptxas", "stop"),
)


@pytest.mark.parametrize(("text", "part", "verdict"), WORKERS, ids=[row[1] for row in WORKERS])
def test_what_the_compilers_worker_wraps_decides(text: str, part: str, verdict: str) -> None:
    log = Log().arguments(**FLAGS, enable_torch_compile=True).start("capture", ("TP0",))
    worker = "SubprocException: An exception occurred in a subprocess:"
    log.raises(
        "TP0",
        (*CAPTURE, f"{SITE}/torch/_inductor/async_compile.py:get_result> kernel = task()"),
        f"torch._inductor.exc.InductorError: {worker}",
    )
    frames = (
        f"{SITE}/torch/_inductor/compile_worker/subproc_pool.py:do_job> result = job()",
        f"{SITE}/triton/compiler/compiler.py:make_ir> return ast_to_ttir(",
    )
    wrapper = ((*CAPTURE[:1],), f"Exception: Capture cuda graph failed: {worker}\n")
    log.raises(None, frames, text, wrapper, decisive=True, header="", decisive_part=part)
    found = diagnosis(log.dies())
    assert (found["class"], found["phase"], found["verdict"]) == ("jit_autotune", "graph_capture", verdict)
    assert found["evidence"][0]["line"] == log.decisive


#: What messages of the sources tell to do: place, frame, message, flags, the first repair.
ADVICE: tuple[tuple[str, str, str, dict[str, Any], tuple[str, Any]], ...] = (
    (
        "load",
        "server_args.py:f",
        "ValueError: --enable-page-major-kv-layout requires the Triton Mamba kernels for the strided state. Pass --mamba-backend triton.",
        {"enable_page_major_kv_layout": True},
        ("--mamba-backend", "triton"),
    ),
    (
        "load",
        "layers/attention/linear/seg_la.py:f",
        "ValueError: this backend does not support topk > 1 in speculative decoding. Use --speculative-eagle-topk 1.",
        {"speculative_eagle_topk": 4},
        ("--speculative-eagle-topk", 1),
    ),
    (
        "load",
        "layers/attention/xpu.py:f",
        "NotImplementedError: only supported on decode, please set --decode-attention-backend to intel_xpu and do not set --attention-backend.",
        {"attention_backend": "intel_xpu"},
        ("--decode-attention-backend", "intel_xpu"),
    ),
    (
        "load",
        "server_args.py:f",
        "ValueError: Cannot set --encoder-only and --language-only together",
        {"encoder_only": True, "language_only": True},
        ("--encoder-only", None),
    ),
    (
        "load",
        "speculative/dspark.py:f",
        "ValueError: the calibration was fit for gamma=7 but the runtime gamma is 5; refit the table or omit --speculative-dspark-confidence-sts-path.",
        {"speculative_dspark_confidence_sts_path": "/x"},
        ("--speculative-dspark-confidence-sts-path", None),
    ),
    (
        "load",
        "utils/hf_transformers/tokenizer.py:f",
        "RuntimeError: fastokens failed to load this tokenizer. Re-run without --tokenizer-backend=fastokens to use the default.",
        {"tokenizer_backend": "fastokens"},
        ("--tokenizer-backend", None),
    ),
    (
        "load",
        "server_args.py:f",
        "AssertionError: this scoring requires chunked prefill to be disabled. Please set --chunked-prefill-size -1 when using it.",
        {},
        ("--chunked-prefill-size", -1),
    ),
    (
        "serving",
        "layers/moe/mega_moe.py:f",
        "AssertionError: mega MoE: num_tokens=300 exceeds cap SGLANG_OPT_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK=100; raise the env var or shrink the batch",
        {},
        ("SGLANG_OPT_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK", "400"),
    ),
    (
        "serving",
        "disaggregation/utils.py:f",
        "ValueError: Sampling mask length 70 exceeds disaggregation metadata capacity 64. Increase SGLANG_SAMPLING_MASK_MAX_TOKENS.",
        {},
        ("SGLANG_SAMPLING_MASK_MAX_TOKENS", "128"),
    ),
    (
        "serving",
        "mem_cache/memory_pool.py:alloc",
        "AssertionError: Not enough space for mamba cache, try to increase --mamba-full-memory-ratio or --max-mamba-cache-size.",
        {"mamba_full_memory_ratio": 0.5, "max_mamba_cache_size": 40},
        ("--mamba-full-memory-ratio", 1),
    ),
    (
        "load",
        "layers/attention/msa.py:f",
        "RuntimeError: the plan is missing length tensors. Set SGLANG_DISABLE_MSA=1 to use the Triton path meanwhile.",
        {},
        ("SGLANG_DISABLE_MSA", "1"),
    ),
)


@pytest.mark.parametrize(("place", "frame", "text", "flags", "repair"), ADVICE, ids=[row[2][:70] for row in ADVICE])
def test_what_a_message_tells_to_do_is_the_first_repair(
    place: str, frame: str, text: str, flags: dict[str, Any], repair: tuple[str, Any]
) -> None:
    begun = EVENT_LOOP if place == "serving" else LOADING
    _, found = failed(place, (*begun, f"{frame}> raise Error("), text, **flags)
    assert (found["repair"][0]["flag"], found["repair"][0]["value"]) == repair


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: {0} does not support pp_size > 1.",
        "NotImplementedError: no ragged verify in graphs; disable {0} for this configuration.",
        "ValueError: {0} must be one of 'full' / 'swa', got 7",
    ],
)
def test_a_variable_that_a_message_names_and_that_was_asked_for_is_left_out(text: str) -> None:
    name = "SGLANG_RAGGED_VERIFY_MODE"
    log = Log().arguments(**FLAGS).start("load", ("TP0",))
    log.raises("TP0", (*LOADING, "layers/attention/x.py:f> raise ValueError("), text.format(name), decisive=True).dies()
    found = diagnosis(log, {f"env.{name}": "7"})
    assert (found["class"], found["blamed"], repairs(found)) == ("invalid_combo", [name], {name: None})


#: What NCCL warns of, and whether the variable that was asked for is meant.
WARNINGS = (
    ("NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4e000", "NCCL_ALGO", False),
    ("NCCL WARN Bootstrap : no socket interface found", "NCCL_SOCKET_IFNAME", True),
    ("NCCL WARN Error : no algorithm/protocol available for function Broadcast", "NCCL_ALGO", True),
    ("NCCL WARN NET/Plugin: Could not find: libnccl-net-x.so", "NCCL_NET_PLUGIN", True),
)


@pytest.mark.parametrize(("warning", "name", "meant"), WARNINGS, ids=[row[0] for row in WARNINGS])
def test_what_nccl_warns_of_tells_whether_a_variable_is_meant(warning: str, name: str, meant: bool) -> None:
    log = Log().arguments(**FLAGS).start("dist", ("TP0",)).add(f"gpu-7:12:12 [0] {warning}", None)
    log.raises("TP0", (*DISTRIBUTED, "distributed/device_communicators/pynccl.py:__init__> x("), INVALID[0]).dies()
    found = diagnosis(log, {"tp-size": 8, f"env.{name}": "Bogus"})
    assert (found["class"], found["blamed"]) == ("comm_init", [name] if meant else [])
    assert found["verdict"] == ("infeasible" if meant else "stop")
