# ruff: noqa: E501 - log lines are as long as they are

"""Messages of SGLang's versions and of the libraries below it, each where it is raised, and the classes that fit."""

from __future__ import annotations

from engines.sglang.composing import (
    CAPTURE,
    DISTRIBUTED,
    EVENT_LOOP,
    LOADING,
    POOLS,
    SCHEDULER,
    VALIDATION,
    Log,
    captured,
)


def loading(frame):
    return (*LOADING, frame)


#: Where the log is, frames, exception, classes that fit (with | between).
MESSAGES = [
    (
        "validate",
        VALIDATION,
        "AssertionError: Invalid quantization 'compressed-tensors'. \nFlashInfer Cutlass MOE supports only: 'modelopt_fp4', 'modelopt_fp8', None",
        "invalid_combo",
    ),
    (
        "validate",
        VALIDATION,
        "AssertionError: The expert parallel size must be 1 or the same as the tensor parallel size",
        "invalid_combo",
    ),
    (
        "validate",
        VALIDATION,
        "ValueError: nvfp4_online is supported only on NVIDIA Blackwell SM100/SM103 GPUs.",
        "arch_unsupported",
    ),
    (
        "validate",
        VALIDATION,
        "ValueError: flashinfer_cutedsl FP4 MoE only supports DeepEP low_latency dispatch, got normal",
        "invalid_combo",
    ),
    ("validate", VALIDATION, "AssertionError: Triton kernel MoE is only supported when ep_size == 1", "invalid_combo"),
    (
        "load",
        loading("layers/moe/moe_runner/deep_gemm.py:__init__> assert"),
        "AssertionError: --moe-runner-backend deep_gemm on consumer Blackwell (SM120) requires a newer DeepGEMM",
        "arch_unsupported",
    ),
    (
        "load",
        loading("layers/quantization/mxfp4.py:__init__> raise ValueError("),
        "ValueError: moe_runner_backend=flashinfer_mxfp4 requires SM90, SM100, or SM120.",
        "arch_unsupported",
    ),
    (
        "load",
        loading("layers/quantization/modelopt_quant.py:create_moe_runner> raise ValueError("),
        "ValueError: moe_runner_backend=cutlass is not supported for NVFP4 MoE.",
        "invalid_combo",
    ),
    (
        "validate",
        VALIDATION,
        "AssertionError: Flashinfer MoE A2A is only supported with flashinfer_cutlass moe runner backend",
        "invalid_combo",
    ),
    (
        "validate",
        VALIDATION,
        "ValueError: --flashinfer-a2a-dispatch-type requires --moe-a2a-backend flashinfer.",
        "invalid_combo",
    ),
    (
        "load",
        loading("layers/moe/token_dispatcher/deepep.py:__init__> raise ImportError("),
        "ImportError: DeepEP is not available. Please install DeepEP package from https://github.com/deepseek-ai/deepep.",
        "comm_init",
    ),
    (
        "load",
        loading("layers/moe/token_dispatcher/flashinfer.py:__init__> raise ImportError("),
        "ImportError: Flashinfer is not installed or does not support A2A.",
        "comm_init",
    ),
    (
        "load",
        loading("layers/moe/ep_moe/layer.py:__init__> assert num_global_routed % storage_ep_size == 0"),
        "AssertionError",
        "model_artifact",
    ),
    (
        "load",
        loading("models/qwen3_moe.py:__init__> raise ValueError("),
        "ValueError: Tensor parallel size 16 is greater than the number of experts 8.",
        "model_artifact",
    ),
    (
        "validate",
        VALIDATION,
        "ValueError: SBO (single batch overlap) is not supported on SM90 GPUs with latest sgl-deep-gemm wheel; disable it",
        "arch_unsupported|invalid_combo",
    ),
    (
        "validate",
        VALIDATION,
        "AssertionError: Please enable dp attention when setting enable_dp_lm_head.",
        "invalid_combo",
    ),
    ("validate", VALIDATION, "AssertionError: chunked_prefill_size must be divisible by page_size", "invalid_combo"),
    (
        "validate",
        VALIDATION,
        "ValueError: TRTLLM MLA backend is only supported on Blackwell GPUs (SM100/SM12x). Please use a different backend.",
        "arch_unsupported",
    ),
    (
        "validate",
        VALIDATION,
        "ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding.",
        "invalid_combo",
    ),
    (
        "validate",
        VALIDATION,
        "ValueError: The dtype torch.bfloat16 is not supported for quantization method gptq. Supported dtypes: [torch.float16]",
        "model_artifact|invalid_combo",
    ),
    (
        "capture",
        CAPTURE,
        "RuntimeError: No supported CUDA architectures found for major versions [9, 10].",
        "arch_unsupported",
    ),
    (
        "weights",
        (*SCHEDULER, "layers/flashinfer_comm_fusion.py:initialize> raise ValueError("),
        "ValueError: FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs.",
        "arch_unsupported",
    ),
    ("dist", DISTRIBUTED, "RuntimeError: Failed to initialize MSCCL++ collectives", "comm_init"),
    (
        "load",
        loading("model_loader/loader.py:_initialize_model> raise"),
        "ValueError: Model architectures ['FooForCausalLM'] are not supported for now. Supported architectures: dict_keys(['A'])",
        "model_artifact",
    ),
    (
        "validate",
        VALIDATION,
        "OSError: /models/none is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
        "model_artifact",
    ),
    (
        "validate",
        VALIDATION,
        "ValueError: Unrecognized model in /models/x. Should have a `model_type` key in its config.json",
        "model_artifact",
    ),
    (
        "validate",
        VALIDATION,
        "Exception: sgl-kernel is installed with the version 0.3.1, which is less than the minimum required version 0.3.21. Please reinstall the latest version",
        "host_env",
    ),
    (
        "load",
        loading("layers/quantization/fp8.py:process_weights_after_loading> repack("),
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.12 GiB is free.",
        "oom_weights",
    ),
    (
        "dist",
        DISTRIBUTED,
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/x.cpp:77, unhandled cuda error, NCCL version 2.27\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
        "oom_weights|comm_init|host_env",
    ),
    ("dist", DISTRIBUTED, "RuntimeError: CUDA error: system not yet initialized", "host_env"),
    (
        "dist",
        DISTRIBUTED,
        "torch.AcceleratorError: CUDA error: all CUDA-capable devices are busy or unavailable",
        "host_env",
    ),
    (
        "dist",
        DISTRIBUTED,
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (10.0.0.1, 5000). The client socket has timed out after 60000ms",
        "comm_init",
    ),
    (
        "capture",
        (*CAPTURE, "layers/attention/trtllm_mha_backend.py:forward_decode> flashinfer.decode("),
        "RuntimeError: Error in function 'TllmGenFmhaRunner' at fmhaRunner.cuh:37: Unsupported architecture",
        "arch_unsupported",
    ),
    (
        "capture",
        (*CAPTURE, "layers/x.py:f> g()"),
        "RuntimeError: CUDA error: operation not permitted when stream is capturing",
        "graph_capture",
    ),
    (
        "ready",
        (*EVENT_LOOP, "layers/sampler.py:forward> torch.multinomial("),
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        "device_fault",
    ),
    (
        "ready",
        (*EVENT_LOOP, "layers/moe/token_dispatcher/flashinfer.py:dispatch> x"),
        "RuntimeError: FlashInfer A2A runtime token geometry exceeds its fixed workspace",
        "comm_runtime",
    ),
    (
        "ready",
        (*EVENT_LOOP, "layers/quantization/fp8_kernel.py:f> k()"),
        "torch.AcceleratorError: CUDA error: misaligned address",
        "device_fault",
    ),
    (
        "ready",
        (*EVENT_LOOP, "layers/x.py:f> k()"),
        "torch.AcceleratorError: CUDA error: unspecified launch failure",
        "device_fault",
    ),
    (
        "ready",
        EVENT_LOOP,
        "RuntimeError: Prefill out of memory. Try to lower your batch size.\nTry to allocate 8192 tokens.",
        "oom_runtime",
    ),
    (
        "pool",
        (*SCHEDULER[:2], "managers/scheduler.py:init_disaggregation> x"),
        "RuntimeError: weird thing nobody has seen",
        "unknown",
    ),
    ("weights", POOLS, "RuntimeError: CUDA error: out of memory", "kv_budget"),
    (
        "capture",
        CAPTURE,
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 79.15 GiB total capacity; 77.30 GiB already allocated; 12.62 MiB free; 78.00 GiB reserved in total by PyTorch)",
        "oom_graph",
    ),
    (
        "load",
        loading("model_loader/weight_utils.py:pt_weights_iterator> safe_open("),
        "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge",
        "model_artifact",
    ),
    ("ready", (*EVENT_LOOP, "mem_cache/radix_cache.py:evict> x"), "AssertionError", "engine_bug"),
    ("dist", DISTRIBUTED, "AssertionError: world_size (16) is larger than the number of GPUs (8)", "invalid_combo"),
    (
        "ready",
        (*EVENT_LOOP, "layers/moe/fused_moe_triton/fused_moe.py:invoke> kernel["),
        "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered",
        "device_fault",
    ),
    (
        "capture",
        (*CAPTURE, "layers/moe/fused_moe_triton/fused_moe.py:invoke> kernel["),
        "RuntimeError: Triton Error [CUDA]: device kernel image is invalid",
        "arch_unsupported|graph_capture|jit_autotune",
    ),
    (
        "capture",
        (*CAPTURE, "/usr/lib/python3/dist-packages/triton/runtime/build.py:_build> raise RuntimeError("),
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl.",
        "jit_autotune",
    ),
    (
        "capture",
        (*CAPTURE, "/usr/lib/python3/dist-packages/triton/runtime/cache.py:put> os.replace("),
        "FileNotFoundError: [Errno 2] No such file or directory: '/root/.triton/cache/ab12/_fwd_kernel.cubin.tmp.pid_1'",
        "jit_autotune",
    ),
]
RANKS = ("TP0", "TP1")
COMMAND = "$ python3 -m sglang.launch_server --model-path /m --tp 8 --moe-runner-backend flashinfer_cutlass --moe-a2a-backend deepep"


def log_of(place, frames, text):
    """A log that dies of one exception, with its decisive line marked."""
    log = Log()
    if place == "validate":
        return log.add(COMMAND).raises(None, frames, text, header="", decisive=True)
    log.arguments(
        tp_size=8,
        moe_runner_backend="flashinfer_cutlass",
        moe_a2a_backend="deepep",
        attention_backend="fa3",
        quantization="fp8",
    )
    log.start(place, RANKS)
    wrapper = captured(text.partition(": ")[2]) if place == "capture" else None
    log.raises("TP3", frames, text, wrapper=wrapper, decisive=True)
    return log.dies(serving=place == "ready")
