"""Families of messages rather than sentences: other flags, libraries and versions of one kind of failure."""

# ruff: noqa: E501 - log lines are as long as they are

from __future__ import annotations

import pytest
from engines.sglang.composing import CAPTURE, EVENT_LOOP, LOADING, SCHEDULER, VALIDATION, Log, captured

from servetune.engines.sglang.logs import SglangLogReader

RANKS = ("TP0", "TP1")
SITE = "/usr/local/lib/python3.12/dist-packages"
COMMAND = (
    "$ python -m sglang.launch_server --model-path /models/moe --tp 8 --enable-torch-compile --cuda-graph-max-bs 64"
    " --enable-mixed-chunk --dllm-algorithm LowConfidence --enable-lora --enable-ep-moe"
)
FLAGS = {
    "tp_size": 8,
    "attention_backend": "fa3",
    "kv_cache_dtype": "fp8_e4m3",
    "moe_runner_backend": "deep_gemm",
    "mem_fraction_static": 0.9,
    "enable_torch_compile": True,
    "enable_symm_mem": True,
    "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": "/m/draft",
    "int8_mamba_ckpt_size": 6144,
    "tokenizer_worker_num": 4,
    "disable_cuda_graph_padding": True,
}
ARGPARSE = (
    "../launch_server.py:<module>> server_args = prepare_server_args(sys.argv[1:])",
    "server_args.py:prepare_server_args> raw_args = parser.parse_args(argv)",
    "/usr/lib/python3.12/argparse.py:parse_args> args, argv = self.parse_known_args(args, namespace)",
    "/usr/lib/python3.12/argparse.py:consume_optional> take_action(action, args, option_string)",
    "/usr/lib/python3.12/argparse.py:take_action> action(self, namespace, argument_values, option_string)",
)
CHECKED = (
    "../launch_server.py:<module>> run_server(server_args)",
    "entrypoints/engine.py:_launch_subprocesses> server_args.check_server_args()",
    "arg_groups/validation_hook.py:check_server_args> assert not (",
)
REFUSED = (
    *VALIDATION[:2],
    "server_args.py:_handle_x> raise ValueError(",
)
DRAFTING = (
    "speculative/eagle_draft_cuda_graph_runner.py:__init__> self.capture()",
    "speculative/eagle_worker.py:draft_forward> logits_output = self.draft_model_runner.forward(",
)
SMALL_POOL = (
    *SCHEDULER,
    "model_executor/model_runner.py:initialize> self.init_pools(",
    "mem_cache/mamba_checkpoint_pool.py:maybe_init> raise RuntimeError(",
)
REGISTERING = (
    *CAPTURE,
    "layers/vocab_parallel_embedding.py:forward> with use_symmetric_memory(",
    "distributed/device_communicators/pynccl_allocator.py:_register> assert result == 0",
)
CACHING = (
    *CAPTURE,
    f"{SITE}/triton/compiler/compiler.py:compile> metadata_group[name] = fn_cache_manager.put(",
    f"{SITE}/triton/runtime/cache.py:put> os.removedirs(temp_dir)",
)
INDUCTOR = (
    *CAPTURE,
    f"{SITE}/torch/_inductor/runtime/triton_heuristics.py:precompile> self._make_launchers()",
    f"{SITE}/triton/backends/nvidia/driver.py:libcuda_dirs> assert any(",
)
DEEP_GEMM = (
    *CAPTURE,
    "layers/moe/moe_runner/deep_gemm.py:_run> deep_gemm_wrapper.grouped(",
    f"{SITE}/deep_gemm/__init__.py:m_grouped_fp8> return _C.m_grouped(*args)",
)
ATTENTION = (
    *CAPTURE,
    "layers/attention/flashattention_backend.py:forward_decode> result = flash_attn_with_kvcache(",
    f"{SITE}/sgl_kernel/flash_attn.py:flash_attn_with_kvcache> out = torch.ops.sgl_kernel.fwd.default(",
)
TVM = (
    *CAPTURE,
    "layers/layernorm.py:f> flashinfer_allreduce(",
    f"{SITE}/flashinfer/comm/allreduce.py:allreduce_fusion> module.x(",
    "python/tvm_ffi/cython/function.pxi:tvm_ffi.core.Function.__call__> raise move_from_last_error().py_error()",
)
NUMA = (
    "managers/scheduler.py:run_scheduler_process> scheduler = Scheduler(",
    "utils/numa_utils.py:numa_bind_to_node> libnuma.numa_run_on_node(",
)
AFFINITY = (
    "managers/scheduler.py:run_scheduler_process> set_gpu_proc_affinity(",
    "utils/common.py:set_gpu_proc_affinity> p.cpu_affinity(bind_cpu_ids)",
    f"{SITE}/psutil/__init__.py:cpu_affinity> self._proc.cpu_affinity_set(",
)
#: Place in the log, frames, message, answer (class, phase, verdict), a flag among the first repairs.
RAISED = (
    (
        "validate",
        (
            *ARGPARSE,
            "server_args.py:__call__> raise ValueError(self.help)",
        ),
        "ValueError: NOTE: --enable-ep-moe is deprecated. Please set `--ep-size` to the same value as `--tp-size` instead.",
        ("cli_parse", "parse", "infeasible"),
        "--enable-ep-moe",
    ),
    (
        "validate",
        (
            *ARGPARSE,
            "server_args.py:__call__> raise ValueError(self.help)",
        ),
        "ValueError: NOTE: --enable-deepep-moe is deprecated. Please set `--moe-a2a-backend` to 'deepep' instead.",
        ("cli_parse", "parse", "infeasible"),
        "--moe-a2a-backend",
    ),
    (
        "validate",
        (
            *ARGPARSE,
            "server_args.py:__call__> raise ValueError(self.help)",
        ),
        "ValueError: NOTE: --prefill-round-robin-balance is deprecated.",
        ("cli_parse", "parse", "infeasible"),
        "--prefill-round-robin-balance",
    ),
    (
        "validate",
        (
            *ARGPARSE,
            "server_args.py:__call__> assert lora_name, 'x'",
        ),
        "AssertionError: Expected 'lora_name' and 'lora_path' in --lora-paths entry",
        ("cli_parse", "parse", "infeasible"),
        "--lora-paths",
    ),
    (
        "validate",
        (
            *ARGPARSE,
            "arg_groups/actions.py:__call__> raise RuntimeError(",
        ),
        "RuntimeError: --enable-flashinfer-trtllm-moe was removed in 0.5.12, use --moe-runner-backend flashinfer_trtllm",
        ("cli_parse", "parse", "infeasible"),
        "--moe-runner-backend",
    ),
    (
        "validate",
        (
            *ARGPARSE,
            "server_args.py:__call__> raise KeyError(",
        ),
        "KeyError: 'decode'",
        ("cli_parse", "parse", "infeasible"),
        None,
    ),
    (
        "validate",
        CHECKED,
        "AssertionError: --enable-mixed-chunk is incompatible with --speculative-algorithm, since drafts and chunks time out together and torch.compile would recompile.",
        ("invalid_combo", "validate", "infeasible"),
        "--enable-mixed-chunk",
    ),
    (
        "validate",
        CHECKED,
        "AssertionError: --enable-torch-compile cannot be combined with --disable-cuda-graph: out of the box torch.compile needs fullgraph capture.",
        ("invalid_combo", "validate", "infeasible"),
        None,
    ),
    (
        "validate",
        REFUSED,
        "ValueError: --enable-pdmux conflicts with --enable-torch-compile; the watchdog timeout would fire while NCCL warms up",
        ("invalid_combo", "validate", "infeasible"),
        None,
    ),
    (
        "validate",
        REFUSED,
        "ValueError: --dllm-algorithm requires --disable-radix-cache because prefix memory leaks otherwise",
        ("invalid_combo", "validate", "infeasible"),
        None,
    ),
    (
        "validate",
        REFUSED,
        "NotImplementedError: --enable-lora and --enable-piecewise-cuda-graph are mutually exclusive (no kernel image for punica under piecewise graphs)",
        ("invalid_combo", "validate", "infeasible"),
        None,
    ),
    (
        "validate",
        REFUSED,
        "ValueError: --cuda-graph-bs and --cuda-graph-max-bs cannot be set together; drop --cuda-graph-max-bs",
        ("invalid_combo", "validate", "infeasible"),
        "--cuda-graph-max-bs",
    ),
    (
        "capture",
        (
            *DRAFTING,
            "models/llama_eagle3.py:forward> hidden_states = self.fc(hidden_states)",
            f"{SITE}/torch/nn/modules/linear.py:forward> return F.linear(input, self.weight, self.bias)",
        ),
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x8192 and 6144x2048)",
        ("model_artifact", "graph_capture", "infeasible"),
        "--speculative-draft-model-path",
    ),
    (
        "capture",
        (
            *DRAFTING,
            "models/deepseek_nextn.py:forward> hidden_states = self.eh_proj(",
            f"{SITE}/torch/nn/modules/linear.py:forward> return F.linear(input, self.weight, self.bias)",
        ),
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x14336 and 10240x5120)",
        ("model_artifact", "graph_capture", "infeasible"),
        "--speculative-draft-model-path",
    ),
    (
        "capture",
        (
            *DRAFTING,
            "models/llama_eagle3.py:forward> self.midlayer(",
            "layers/layernorm.py:forward> F.rms_norm(",
        ),
        "RuntimeError: Given normalized_shape=[4096], expected input with shape [*, 4096], but got input of size[48, 5120]",
        ("model_artifact", "graph_capture", "infeasible"),
        "--speculative-draft-model-path",
    ),
    (
        "http",
        (
            *EVENT_LOOP,
            "speculative/eagle_worker.py:forward_draft_extend> self.draft_model_runner.forward(",
            "models/qwen3_eagle3.py:forward> self.fc(",
            f"{SITE}/torch/nn/modules/linear.py:forward> return F.linear(input, self.weight, self.bias)",
        ),
        "RuntimeError: size mismatch, got input (12), mat (12x7680), vec (6144)",
        ("model_artifact", "warmup", "infeasible"),
        "--speculative-draft-model-path",
    ),
    (
        "capture",
        (
            "speculative/dflash_worker.py:__init__> self.capture()",
            "model_executor/runner/decode_cuda_graph_runner.py:capture> run_once()",
            "models/qwen3_dflash.py:forward> self.fc(",
            f"{SITE}/torch/nn/modules/linear.py:forward> return F.linear(input, self.weight, self.bias)",
        ),
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (16x25600 and 20480x4096)",
        ("model_artifact", "graph_capture", "infeasible"),
        "--speculative-draft-model-path",
    ),
    (
        "pool",
        SMALL_POOL,
        "RuntimeError: mamba track buffers need 12.40 GB but only 3.11 GB is available. Reduce --max-mamba-cache-size or --mem-fraction-static.",
        ("kv_budget", "kv_alloc", "infeasible"),
        "--mem-fraction-static",
    ),
    (
        "pool",
        (
            *SCHEDULER,
            "mem_cache/lora_pool.py:__init__> raise RuntimeError(",
        ),
        "RuntimeError: LoRA buffer pool requires 21.0 GiB, 9.3 GiB free. Lower --max-loras-per-batch (currently 32) or --mem-fraction-static.",
        ("kv_budget", "kv_alloc", "infeasible"),
        "--mem-fraction-static",
    ),
    (
        "weights",
        (
            *SCHEDULER,
            "mem_cache/conv_state_pool.py:alloc> raise RuntimeError(",
        ),
        "RuntimeError: conv state cache of 8.00 GB does not fit: free memory is 5.20 GB. Decrease --mem-fraction-static.",
        ("kv_budget", "kv_alloc", "infeasible"),
        "--mem-fraction-static",
    ),
    (
        "weights",
        (
            *SCHEDULER,
            "mem_cache/swa_pool.py:alloc> raise RuntimeError(",
        ),
        "RuntimeError: the sliding-window pool needs 6.20 GB but only 1.10 GB is left under this fraction. Increase --mem-fraction-static.",
        ("kv_budget", "kv_alloc", "infeasible"),
        "--mem-fraction-static",
    ),
    (
        "weights",
        (
            *SCHEDULER,
            "mem_cache/memory_pool.py:alloc> raise ValueError(",
        ),
        "ValueError: Index cache requires 3.50 GB; available: 2.05 GB",
        ("kv_budget", "kv_alloc", "infeasible"),
        None,
    ),
    (
        "weights",
        (
            *SCHEDULER,
            "mem_cache/hicache_pool.py:alloc> raise ValueError(",
        ),
        "ValueError: Not enough host memory available. Requesting 263.99 GB but only have 241.62 GB free.",
        ("host_env", "load", "infeasible"),
        None,
    ),
    (
        "capture",
        REGISTERING,
        "AssertionError: ncclCommWindowRegister failed with return code: 3",
        ("comm_init", "graph_capture", "infeasible"),
        "--enable-symm-mem",
    ),
    (
        "capture",
        REGISTERING,
        "RuntimeError: failed to register symmetric window with the communicator (ncclInvalidUsage)",
        ("comm_init", "graph_capture", "infeasible"),
        "--enable-symm-mem",
    ),
    (
        "capture",
        REGISTERING,
        "RuntimeError: ncclCommRegister returned 5",
        ("comm_init", "graph_capture", "infeasible"),
        "--enable-symm-mem",
    ),
    (
        "load",
        (
            *LOADING,
            "layers/moe/token_dispatcher/nixl.py:__init__> self.agent.register_memory(",
        ),
        "RuntimeError: registering memory with the agent failed: invalid parameter",
        ("comm_init", "load", "stop"),
        None,
    ),
    (
        "capture",
        (
            *CAPTURE,
            "distributed/device_communicators/symm_mem.py:rendezvous> handle = register_window(",
        ),
        "RuntimeError: window registration refused: segment not aligned to 2 MiB",
        ("comm_init", "graph_capture", "infeasible"),
        None,
    ),
    (
        "capture",
        (
            *CACHING,
            "<frozen os>:removedirs",
        ),
        "OSError: [Errno 39] Directory not empty: '/shared/triton_cache/ABC/tmp.pid_1'",
        ("jit_autotune", "graph_capture", "retry"),
        None,
    ),
    (
        "capture",
        CACHING,
        "OSError: [Errno 116] Stale file handle: '/home/u/.triton/cache/XU5/cuda_utils.so'",
        ("jit_autotune", "graph_capture", "retry"),
        None,
    ),
    (
        "capture",
        (
            *CAPTURE,
            f"{SITE}/torch/_inductor/codecache.py:write_atomic> tmp_path.rename(path)",
        ),
        "FileExistsError: [Errno 17] File exists: '/tmp/torchinductor_root/ab/cab.py'",
        ("jit_autotune", "graph_capture", "retry"),
        None,
    ),
    (
        "capture",
        (
            *CAPTURE,
            f"{SITE}/flashinfer/jit/core.py:build> os.replace(a, b)",
        ),
        "OSError: [Errno 26] Text file busy: '/root/.cache/flashinfer/0.5.3/90a/cached_ops/x/x.so'",
        ("jit_autotune", "graph_capture", "retry"),
        None,
    ),
    (
        "capture",
        (
            *CAPTURE,
            f"{SITE}/triton/compiler/compiler.py:__init__> metadata = json.loads(path.read_text())",
            f"{SITE}/triton/runtime/cache.py:get_group> grp = json.load(f)",
            "/usr/lib/python3.12/json/decoder.py:raw_decode> raise JSONDecodeError(",
        ),
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        ("jit_autotune", "graph_capture", "retry"),
        None,
    ),
    (
        "capture",
        (
            *CAPTURE,
            f"{SITE}/torch/_inductor/compile_fx.py:f> raise InductorError(",
        ),
        "torch._inductor.exc.InductorError: OSError: [Errno 16] Device or resource busy: '/root/.triton/cache/XU/tmp.pid_2/cuda_utils.so' -> '/root/.triton/cache/XU/cuda_utils.so'",
        ("jit_autotune", "graph_capture", "retry"),
        None,
    ),
    (
        "capture",
        CACHING,
        "OSError: [Errno 28] No space left on device: '/root/.triton/cache/x'",
        ("host_env", "graph_capture", "stop"),
        None,
    ),
    (
        "capture",
        INDUCTOR,
        "AssertionError: libcuda.so cannot found!\nPossible files are located at ['/usr/local/cuda/compat/lib/libcuda.so.1'].Please create a symlink of libcuda.so to any of the files.",
        ("jit_autotune", "graph_capture", "stop"),
        None,
    ),
    (
        "capture",
        INDUCTOR,
        "torch._inductor.exc.InductorError: AssertionError: libcuda.so cannot found!",
        ("jit_autotune", "graph_capture", "stop"),
        None,
    ),
    (
        "capture",
        (
            *CAPTURE,
            f"{SITE}/torch/_inductor/codecache.py:load> raise",
        ),
        "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        ("jit_autotune", "graph_capture", "stop"),
        None,
    ),
    (
        "capture",
        (
            *CAPTURE,
            f"{SITE}/triton/backends/nvidia/compiler.py:get_ptxas> raise",
        ),
        "RuntimeError: Cannot find ptxas",
        ("jit_autotune", "graph_capture", "stop"),
        None,
    ),
    (
        "capture",
        (
            *CAPTURE,
            f"{SITE}/deep_gemm/jit/compiler.py:x> raise",
        ),
        "RuntimeError: unable to locate libnvrtc in /usr/local/cuda",
        ("jit_autotune", "graph_capture", "stop"),
        None,
    ),
    (
        "capture",
        (
            *CAPTURE,
            f"{SITE}/tilelang/contrib/nvcc.py:find> raise",
        ),
        "RuntimeError: libdevice.10.bc is missing from the CUDA installation",
        ("jit_autotune", "graph_capture", "stop"),
        None,
    ),
    (
        "capture",
        DEEP_GEMM,
        "RuntimeError: Assertion error (/deep_gemm/csrc/apis/gemm.hpp:71): sfa.scalar_type() == torch::kFloat32",
        ("invalid_combo", "graph_capture", "infeasible"),
        "--moe-runner-backend",
    ),
    (
        "capture",
        DEEP_GEMM,
        "RuntimeError: Assertion error (csrc/utils/layout.hpp:52): sf.dim() == static_cast<int>(num_groups.has_value()) + 2",
        ("invalid_combo", "graph_capture", "infeasible"),
        "--moe-runner-backend",
    ),
    (
        "capture",
        (
            *CAPTURE,
            "layers/moe/moe_runner/flashinfer_trtllm.py:run> f(",
            f"{SITE}/flashinfer/fused_moe/core.py:run> m(",
        ),
        "RuntimeError: Check failed: (gemm1_weights_scale.dtype() == float8_e4m3) is false: block scales must be fp8",
        ("invalid_combo", "graph_capture", "infeasible"),
        "--moe-runner-backend",
    ),
    (
        "capture",
        (
            *CAPTURE,
            "layers/moe/moe_runner/cutlass.py:run> assert w1_scale.shape[1] == n // 16",
        ),
        "AssertionError: w1_scale must be shaped (E, 2N, K/16)",
        ("invalid_combo", "graph_capture", "infeasible"),
        "--moe-runner-backend",
    ),
    (
        "http",
        (
            *EVENT_LOOP,
            "layers/moe/moe_runner/deep_gemm.py:_run> g(",
            f"{SITE}/deep_gemm/__init__.py:m> return _C.m(",
        ),
        "RuntimeError: Assertion error (layout.hpp:108): scale.size(-2) == ceil_div(mn, gran_mn)",
        ("invalid_combo", "warmup", "infeasible"),
        "--moe-runner-backend",
    ),
    (
        "capture",
        ATTENTION,
        "RuntimeError: FlashAttention on Ampere/Ada cards only supports fp16 and bf16 data type",
        ("arch_unsupported", "graph_capture", "infeasible"),
        "--kv-cache-dtype",
    ),
    (
        "capture",
        ATTENTION,
        "RuntimeError: Only Hopper supports different V headdim",
        ("arch_unsupported", "graph_capture", "infeasible"),
        "--attention-backend",
    ),
    (
        "capture",
        ATTENTION,
        "RuntimeError: FlashAttention on Ada GPUs does not support fp8 KV caches",
        ("arch_unsupported", "graph_capture", "infeasible"),
        "--kv-cache-dtype",
    ),
    (
        "capture",
        ATTENTION,
        "RuntimeError: Only Hopper and newer GPUs support page tables with these block sizes",
        ("arch_unsupported", "graph_capture", "infeasible"),
        "--attention-backend",
    ),
    (
        "capture",
        ATTENTION,
        "RuntimeError: on SM120 cards FlashMLA only supports the bf16 data type",
        ("arch_unsupported", "graph_capture", "infeasible"),
        "--kv-cache-dtype",
    ),
    (
        "capture",
        TVM,
        "TypeError: Mismatched number of arguments when calling: `bmm_fp8(...) -> void`. Expected 9 but got 8 arguments",
        ("host_env", "graph_capture", "stop"),
        None,
    ),
    (
        "capture",
        (
            *CAPTURE,
            f"{SITE}/sgl_kernel/flash_attn.py:f> torch.ops.sgl_kernel.fwd.default(",
            f"{SITE}/torch/_ops.py:__call__> return self._op(*args)",
        ),
        "RuntimeError: sgl_kernel::fwd() expected at most 30 argument(s) but received 31 argument(s). Declaration: sgl_kernel::fwd(Tensor q)",
        ("host_env", "graph_capture", "stop"),
        None,
    ),
    (
        "http",
        (
            *EVENT_LOOP,
            f"{SITE}/sgl_kernel/moe.py:topk_softmax> torch.ops.sgl_kernel.topk_softmax(",
        ),
        "RuntimeError: sgl_kernel::topk_softmax() is missing value for argument 'renormalize'. Declaration: sgl_kernel::topk_softmax(Tensor a)",
        ("host_env", "warmup", "stop"),
        None,
    ),
    (
        "capture",
        (
            *CAPTURE,
            "layers/quantization/fp8_kernel.py:f> deep_gemm.x(",
        ),
        "TypeError: fp8_gemm_nt(): incompatible function arguments. The following argument types are supported:",
        ("host_env", "graph_capture", "stop"),
        None,
    ),
    ("dist", NUMA, "OSError: [Errno 22] Invalid argument", ("host_env", "load", "stop"), None),
    (
        "dist",
        AFFINITY,
        "ValueError: invalid CPU number 96; choose between [0, 1, 2, 3]",
        ("host_env", "load", "stop"),
        None,
    ),
    (
        "dist",
        AFFINITY,
        "PermissionError: [Errno 1] Operation not permitted (originated from cpu_affinity_set)",
        ("host_env", "load", "stop"),
        None,
    ),
    (
        "dist",
        (
            "managers/scheduler.py:run_scheduler_process> scheduler = Scheduler(",
            "utils/numa_utils.py:configure_subprocess> raise RuntimeError(",
        ),
        "RuntimeError: numactl executable not usable: set_mempolicy is blocked",
        ("host_env", "load", "stop"),
        None,
    ),
)
#: Place, lines, which of them decides, how the log ends, answer.
LINES = (
    (
        "load",
        ("[launcher] deadline of 1800 s reached, server not ready; processes alive",),
        0,
        "",
        ("hang", "load", "retry"),
    ),
    (
        "load",
        ("[tuner] server did not become healthy within 900 s (GET /health: connection refused), stopping it",),
        0,
        "",
        ("hang", "load", "retry"),
    ),
    (
        "weights",
        ("launcher: startup timeout of 1200 s exceeded, last line 700 s ago",),
        0,
        "",
        ("hang", "kv_alloc", "retry"),
    ),
    ("capture", ("[k8s] giving up on the server after 1800 s",), 0, "", ("hang", "graph_capture", "retry")),
    (
        "load",
        ("[wait] timeout of 600 s exceeded while waiting for http://127.0.0.1:30000/health to be ready",),
        0,
        "",
        ("hang", "load", "retry"),
    ),
    ("load", ("[run] server not reachable after 1500 s",), 0, "", ("hang", "load", "retry")),
    (
        "ready",
        (
            "Memory access fault by GPU node-1 (Agent handle: 0x5635) on address 0x7f18. Reason: Page not present or supervisor privilege.",
            "Fatal Python error: Aborted",
        ),
        0,
        "dies_serving",
        ("device_fault", "serving", "retry"),
    ),
    (
        "ready",
        (
            ":0:rocdevice.cpp            :3586: 1183357978 us:  Callback: Queue 0x7f35e8100000 aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016",
            "Fatal Python error: Aborted",
        ),
        0,
        "dies_serving",
        ("device_fault", "serving", "retry"),
    ),
    (
        "ready",
        (
            ":0:rocdevice.cpp :2984: Callback: Queue 0x7fc2 aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond the largest legal address. code: 0x29",
            "Aborted (core dumped)",
        ),
        0,
        "dies_serving",
        ("device_fault", "serving", "retry"),
    ),
    (
        "capture",
        ("HW Exception by GPU node-4 (Agent handle: 0x55) reason :GPU Hang",),
        0,
        "dies",
        ("device_fault", "graph_capture", "retry"),
    ),
    (
        "ready",
        (
            "[ 9231.11] amdgpu 0000:c1:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:24 vmid:3 pasid:32771)",
            "Memory access fault by GPU node-2 (Agent handle: 0x1) on address (nil). Reason: Unknown.",
        ),
        0,
        "dies_serving",
        ("device_fault", "serving", "retry"),
    ),
    (
        "ready",
        ("[tuner] container state: OOMKilled=false exit=134", "Fatal Python error: Aborted"),
        1,
        "dies_serving",
        ("device_fault", "serving", "retry"),
    ),
    (
        "ready",
        ('"OOMKilled": false, "ExitCode": 134', "Fatal Python error: Aborted"),
        1,
        "dies_serving",
        ("device_fault", "serving", "retry"),
    ),
    (
        "ready",
        (
            "Memory access fault by GPU node-1 on address 0x1. Reason: Unknown.",
            "Subprocess scheduler_0 (pid=3) crashed with exit code -6.",
            "docker inspect: OOMKilled: false",
        ),
        0,
        "dies_serving",
        ("device_fault", "serving", "retry"),
    ),
    ("ready", ("State: Terminated Reason: OOMKilled",), 0, "dies_serving", ("host_env", "serving", "retry")),
    ("ready", ("docker inspect: OOMKilled=true ExitCode=137",), 0, "dies_serving", ("host_env", "serving", "retry")),
    (
        "ready",
        (
            "n1:25146:25854 [0] ib_plugin.c:1105 NCCL WARN NET/IB : Got completion from peer 10.0.35.1<49189> with error 4, opcode 5327, len 5327, vendor err 81 (Send)",
            "[rank4]:[E602 10:06:20.118244015 ProcessGroupNCCL.cpp:2057] [PG ID 2 PG GUID 3 Rank 4] Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, NCCL version 2.27.7",
        ),
        0,
        "dies_serving",
        ("comm_runtime", "serving", "retry"),
    ),
    (
        "ready",
        (
            "n1:1:2 [3] transport/net_ib.cc:1892 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",
            "[rank1]:[E] Process group watchdog thread terminated with exception: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
            "terminate called after throwing an instance of 'c10::DistBackendError'",
        ),
        0,
        "dies_serving",
        ("comm_runtime", "serving", "retry"),
    ),
    (
        "ready",
        (
            "a100:183006:183220 [1] misc/socket.cc:518 NCCL WARN Net : Call to recv from 10.200.84.247<58355> failed : Broken pipe",
            "[rank0]:[E] [PG ID 0 Rank 0] Process group watchdog thread terminated with exception: NCCL error: internal error",
        ),
        0,
        "dies_serving",
        ("comm_runtime", "serving", "retry"),
    ),
    (
        "ready",
        (
            "n2:9:8 [0] transport/net_ib.cc:2210 NCCL WARN NET/IB: Got completion from peer with status=IBV_WC_RETRY_EXC_ERR(12)",
            "terminate called after throwing an instance of 'std::runtime_error'",
            "  what():  NCCL error: remote process exited or there was a network error, NCCL version 2.14.3",
        ),
        0,
        "dies_serving",
        ("comm_runtime", "serving", "retry"),
    ),
    (
        "ready",
        (
            "[rank4]:[E602 ProcessGroupNCCL.cpp:2057] [PG ID 2 Rank 4] Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error",
        ),
        0,
        "dies_serving",
        ("comm_runtime", "serving", "retry"),
    ),
    (
        "ready",
        (
            "[rank4]:[E602 ProcessGroupNCCL.cpp:2057] [PG ID 2 Rank 4] Process group watchdog thread terminated with exception: [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)",
        ),
        0,
        "dies_serving",
        ("hang", "serving", "retry"),
    ),
    (
        "dist",
        ("setting membind: Invalid argument", "setting membind: Invalid argument"),
        0,
        "parent",
        ("host_env", "load", "stop"),
    ),
    ("dist", ("set_mempolicy: Operation not permitted",), 0, "parent", ("host_env", "load", "stop")),
    (
        "dist",
        ("numa_sched_setaffinity_v2_int() failed: Invalid argument", "sched_setaffinity: Invalid argument"),
        0,
        "parent",
        ("host_env", "load", "stop"),
    ),
    (
        "dist",
        ("libnuma: Warning: node argument 2 is out of range", "<2> is invalid"),
        0,
        "parent",
        ("host_env", "load", "stop"),
    ),
    ("dist", ("taskset: failed to set pid 0's affinity: Invalid argument",), 0, "parent", ("host_env", "load", "stop")),
    ("dist", ("numactl: This system does not support NUMA policy",), 0, "parent", ("host_env", "load", "stop")),
    (
        "ready",
        ("[bench] progress 812/2048 unchanged for 180 s; 1236 requests open, 0 bytes received on them",),
        0,
        "",
        ("hang", "serving", "retry"),
    ),
    ("ready", ("[bench] giving up: 812 completed, 1236 without any response",), 0, "", ("hang", "serving", "retry")),
    (
        "ready",
        ("[load] 300 requests still in flight, no tokens received since 02:03",),
        0,
        "",
        ("hang", "serving", "retry"),
    ),
    ("ready", ("[client] completed count unchanged since 240 s",), 0, "", ("hang", "serving", "retry")),
    ("ready", ("[bench] 64 requests got no response",), 0, "", ("hang", "serving", "retry")),
    (
        "ready",
        ("[probe] repetition 0.88 in the last 256 tokens (baseline 0.03) FAIL",),
        0,
        "",
        ("wrong_output", "serving", "infeasible"),
    ),
    (
        "ready",
        ("[quality] 4-gram repetition rate: 71 % (reference without --kv-cache-dtype: 6 %)",),
        0,
        "",
        ("wrong_output", "serving", "infeasible"),
    ),
    (
        "ready",
        (
            "[probe] tokens 1-64: 'Once upon a time there was a cat who lived in a lot'",
            "[probe] tokens 65-256: 'lot lot pet dealer lot lot pet dealer lot lot pet dealer lot lot pet dealer lot lot pet dealer lot lot pet dealer lot lot pet dealer'",
        ),
        1,
        "",
        ("wrong_output", "serving", "infeasible"),
    ),
    (
        "ready",
        ("[check] repeated 8-grams 143 (limit 5), output degenerates after token 110",),
        0,
        "",
        ("wrong_output", "serving", "infeasible"),
    ),
    (
        "ready",
        ("[eval] duplicate lines 83 % vs 2 % with bf16 cache",),
        0,
        "",
        ("wrong_output", "serving", "infeasible"),
    ),
    ("ready", ("[eval] gsm8k 71.3 (reference 94.1)",), 0, "", ("wrong_output", "serving", "infeasible")),
    ("ready", ("[eval] mmlu_pro 5-shot: 48.2   baseline 75.9",), 0, "", ("wrong_output", "serving", "infeasible")),
    ("ready", ("[accuracy] livecodebench 22.4 vs 51.0 published",), 0, "", ("wrong_output", "serving", "infeasible")),
    ("ready", ("[eval] aime25: 40.0, expected 86.7",), 0, "", ("wrong_output", "serving", "infeasible")),
    ("ready", ("[eval] ruler 128k 31.0 / reference 88.4",), 0, "", ("wrong_output", "serving", "infeasible")),
    (
        "ready",
        ("[probe] 2 of 8 prompts answered as expected; 8 of 8 with the same command without --enable-torch-compile",),
        0,
        "",
        ("wrong_output", "serving", "infeasible"),
    ),
    (
        "ready",
        ("[bench] after: 10.1 tokens/s per request (same command without --enable-symm-mem: 69.8)",),
        0,
        "",
        ("perf_regression", "serving", "none"),
    ),
    ("ready", ("[bench] 1211 tok/s total (previous run: 4020)",), 0, "", ("perf_regression", "serving", "none")),
    ("ready", ("[compare] 512.4 tokens/s; expected 1630",), 0, "", ("perf_regression", "serving", "none")),
    (
        "ready",
        ("[bench] single stream after pressure 9.8 tok/s, was 71.2 before",),
        0,
        "",
        ("perf_regression", "serving", "none"),
    ),
    (
        "ready",
        ("[bench] median TPOT 61.4 ms (reference with --cuda-graph-max-bs 64: 16.3 ms)",),
        0,
        "",
        ("perf_regression", "serving", "none"),
    ),
)
#: Place, lines of a server that is well.
WELL = (
    ("ready", ("[eval] gsm8k 94.3 (reference 94.1)",)),
    ("ready", ("[eval] pass@1 37.1, reference run with 64 samples: 37.9",)),
    ("ready", ("[eval] aime26 30 problems x 8: 94.6 reference 95.3",)),
    ("ready", ("[eval] mmlu latency 71.3 ms (reference 94.1 ms)",)),
    ("ready", ("[bench] gsm8k 1200 questions in 45.2 s, reference 88.1 s",)),
    ("ready", ("[bench] 4020 tok/s total (previous run: 3990)",)),
    ("ready", ("[bench] 512 requests, input 1024 tok, output 128 tok, expected 512",)),
    ("ready", ("[probe] repetition 0.03 in the last 256 tokens (baseline 0.04) ok",)),
    ("ready", ("[bench] progress 2048/2048, 0 requests open",)),
    ("ready", ("[bench] 0 requests without any response",)),
    ("ready", ("container state: OOMKilled=false",)),
    ("ready", ("[launcher] startup took 95 s (deadline of 1800 s)",)),
    ("dist", ("setting membind: Invalid argument", "libnuma: Warning: node argument 2 is out of range")),
    ("load", ("[launcher] not ready after 60 s, still waiting",)),
    ("ready", ("[probe] tokens 1-64: 'Paris is the capital of France and it has been so for a long time.'",)),
    ("load", ("n1:1:2 [3] transport/net_ib.cc:1892 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error",)),
)
PARENT = (
    "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1). If exit code is -9 (SIGKILL), a common cause "
    "is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
)


def _diagnosis(log: Log) -> dict:
    reader = SglangLogReader({})
    reader.feed(log.text().encode())
    return reader.report(reader.diagnose(None))


@pytest.mark.parametrize("case", RAISED, ids=[f"{number}-{case[2][:40]}" for number, case in enumerate(RAISED)])
def test_exceptions_of_one_kind(case: tuple) -> None:
    place, frames, text, answer, repair = case
    if place == "validate":
        log = Log().add(COMMAND).raises(None, frames, text, header="", decisive=True)
    else:
        log = Log().arguments(**FLAGS).start(place, RANKS)
        log.raises("TP1", frames, text, captured(text) if place == "capture" else None, decisive=True)
    found = _diagnosis(log.dies())
    assert (found["class"], found["phase"], found["verdict"]) == answer
    assert found["evidence"][0]["line"] == log.decisive
    assert repair is None or repair in [one["flag"] for one in found["repair"][:3]]


@pytest.mark.parametrize("case", LINES, ids=[f"{number}-{case[1][0][:40]}" for number, case in enumerate(LINES)])
def test_lines_of_one_kind(case: tuple) -> None:
    place, lines, decisive, end, answer = case
    log = Log().arguments(**FLAGS).start(place, RANKS)
    for number, line in enumerate(lines):
        log = log.decides(line) if number == decisive else log.add(line)
    if end == "parent":
        frames = ("entrypoints/engine.py:_wait_for_scheduler_ready> raise RuntimeError(",)
        log.raises(None, frames, PARENT, header="")
    elif end:
        log.dies(serving=end == "dies_serving")
    found = _diagnosis(log)
    assert (found["class"], found["phase"], found["verdict"]) == answer
    assert found["evidence"][0]["line"] == log.decisive


@pytest.mark.parametrize("case", WELL, ids=[case[1][0][:40] for case in WELL])
def test_lines_of_a_server_that_is_well(case: tuple) -> None:
    place, lines = case
    log = Log().arguments(**FLAGS).start(place, RANKS)
    for line in lines:
        log.add(line)
    if place != "ready":
        log.start("ready", RANKS)
    assert _diagnosis(log.serve(2, "TP0"))["class"] == "none"


def test_the_error_that_a_worker_of_the_compiler_had_decides() -> None:
    log = Log().arguments(**FLAGS).start("capture", RANKS)
    log.raises(
        "TP0", CAPTURE, "torch._inductor.exc.InductorError: SubprocException: An exception occurred in a subprocess:"
    )
    text = "triton.compiler.errors.CompilationError: at 3:8:\n    x = absent(1)\n        ^\nNameError('absent is not defined')"
    wrapper = captured("SubprocException: An exception occurred in a subprocess:")
    log.raises(None, INDUCTOR, text, wrapper, header="", decisive=True, decisive_part="NameError")
    found = _diagnosis(log.dies())
    assert (found["class"], found["phase"], found["verdict"]) == ("jit_autotune", "graph_capture", "infeasible")
    assert found["evidence"][0]["line"] == log.decisive
    assert found["repair"][0]["flag"] == "--enable-torch-compile"


def test_a_value_in_quotes_that_is_overridden() -> None:
    line = "mxfp8 quantization supports only cutlass or flashinfer_trtllm backends. Overriding 'triton'."
    for asked, flag in (
        ("--moe-runner-backend triton", "--moe-runner-backend"),
        ("--moe-runner-backend cutlass", None),
    ):
        log = Log().add(f"$ python -m sglang.launch_server --model-path /m --tp 2 {asked}").add(line, "")
        log.arguments(moe_runner_backend="flashinfer_trtllm").start("ready", RANKS).serve(2)
        found = _diagnosis(log)
        assert (found["class"], found["blamed"]) == (("perf_regression", [flag]) if flag else ("none", []))


def test_graphs_of_prefills_are_made_smaller_by_the_flag_of_the_version() -> None:
    new = {"cuda_graph_max_bs_prefill": 16384, "cuda_graph_max_bs_decode": 256}
    for flags, flag in ((new, "--cuda-graph-max-bs-prefill"), ({}, "--piecewise-cuda-graph-max-tokens")):
        log = (
            Log()
            .arguments(mem_fraction_static=0.9, piecewise_cuda_graph_max_tokens=16384, **flags)
            .start("pool", RANKS)
        )
        frames = ("model_executor/runner/prefill_cuda_graph_runner.py:__init__> self.capture()",)
        text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.06 GiB."
        found = _diagnosis(log.raises("TP1", frames, text).dies())
        assert (found["class"], found["repair"][0]["flag"], found["repair"][0]["value"]) == ("oom_graph", flag, 8192)


def test_what_a_reference_ran_with_is_proposed() -> None:
    line = "[bench] median TPOT 61.4 ms (reference with --cuda-graph-max-bs 64: 16.3 ms)"
    log = Log().arguments(cuda_graph_max_bs=32).start("ready", RANKS).serve(2).add(line)
    found = _diagnosis(log)
    assert (found["repair"][0]["flag"], found["repair"][0]["value"]) == ("--cuda-graph-max-bs", 64)
    log = (
        Log()
        .arguments(tp_size=4, nnodes=3)
        .raises(None, CHECKED, "AssertionError: tp_size must be divisible by number of nodes", header="")
    )
    assert next((one["flag"], one["value"]) for one in _diagnosis(log)["repair"]) == ("--nnodes", 2)


#: Where a start stops, what launchers say then (the line with * decides), the phase.
GIVEN_UP = (
    (
        "capture",
        (
            "launcher: waiting for http://127.0.0.1:30000/health ... 300 s, connection refused",
            "launcher: waiting for http://127.0.0.1:30000/health ... 600 s, connection refused",
            "*launcher: deadline of 600 s exceeded, no log line for 489 s; sending SIGTERM to process group 23310",
            "launcher: still alive after 20 s, sending SIGKILL",
            "launcher: exit -9",
        ),
        "graph_capture",
    ),
    (
        "capture",
        (
            "[launcher 02:34:01] t0231 not ready after 900 s; last server line 720 s ago; GET /health -> connection refused",
            "*[launcher 02:49:01] t0231 startup deadline (1800 s) exceeded without new output, SIGTERM to process group 61182",
            "[launcher] t0231 exit code -9",
        ),
        "graph_capture",
    ),
    (
        "load",
        (
            "supervisor: GET /health: connection refused, 600 s",
            "*supervisor: time limit of 900 s reached, log silent for 840 s, terminating process group 8812",
        ),
        "load",
    ),
    (
        "dist",
        (
            "*run.sh: timed out after 1800 s waiting for http://127.0.0.1:30000/health (connection refused), kill -TERM -23310",
        ),
        "load",
    ),
    (
        "weights",
        ("*[start] /health never answered within 1500 s (connection refused); stopping the process group",),
        "kv_alloc",
    ),
    ("capture", ("*watcher: nothing logged for 900 s and deadline passed: SIGTERM to pgid 91",), "graph_capture"),
    (
        "load",
        ("*launcher ERROR no readiness after 1800s (last log line 1500s ago) - sending SIGKILL to group 77",),
        "load",
    ),
    (
        "capture",
        (
            "[orchestrator] t0042: GET /health: connection refused, 600 s, no output for 420 s",
            "*[orchestrator] t0042: deadline hit, no output for 1420 s, ending process group 5512",
            "[orchestrator] t0042: deadline hit, no output for 1450 s, killing process group 5512",
        ),
        "graph_capture",
    ),
    (
        "pool",
        ("*launch.py: server not up after 30 min; last line of the log is 25 min old; SIGTERM to 5512",),
        "graph_capture",
    ),
    ("capture", ("*start: budget of 1200 s used up without a new log line, killing pgid 412",), "graph_capture"),
    ("load", ("*[ctl] 900 s without a log line and budget exhausted; killing process group 812",), "load"),
    ("load", ("*trial 12: startup timeout after 1800 s (last output 1512 s ago), stopping process group",), "load"),
    ("load", ("*bench.sh: server never became healthy (1800 s), kill -9 -5521",), "load"),
)
#: The same words where nothing hangs: of a launcher that waits, of a server that becomes ready, of its orderly end.
PATIENCE = (
    ("load", "launcher: waiting for http://127.0.0.1:30000/health ... 300 s, connection refused; deadline of 1800 s"),
    ("capture", "launcher: GET /health: connection refused (600 of 1800 s), 8 scheduler processes alive"),
    ("ready", "launcher: ready after 412 s, deadline of 1800 s not exceeded"),
    ("ready", "launcher: idle limit of 900 s reached, no request for 900 s; sending SIGTERM to process group 5512"),
    ("ready", "launcher: benchmark finished after 600 s, sending SIGTERM to process group 5512"),
    ("ready", "[bench] deadline of 60 s exceeded by 0 of 512 requests"),
    ("load", "launcher: deadline for the download of 600 s exceeded, trying again"),
    ("ready", "launcher: study deadline of 3600 s reached, finishing; sending SIGTERM to process group 71"),
    ("load", "launcher: killing process group 5512 of the last trial, which timed out after 1800 s"),
    ("load", "previous server was not ready within 1800 s; its process group was killed"),
    ("load", "Triton server ready timeout of 60 s passed to the process group"),
)
SPECULATING = {"tp_size": 8, "attention_backend": "fa3", "speculative_algorithm": "EAGLE", "speculative_num_steps": 3}
FUSING = {"tp_size": 4, "attention_backend": "fa3", "enable_flashinfer_allreduce_fusion": True}
#: Arguments, lines of an evaluation (the one with * decides), the flag to leave out.
EVALUATED = (
    (
        FUSING,
        (
            "[eval] gsm8k --num-questions 200 (reference of this model without the flag: Accuracy 0.810, Invalid 0.000)",
            "*Accuracy: 0.605",
            "Invalid: 0.000",
            "[eval] threshold 0.77: FAILED",
        ),
        "--enable-flashinfer-allreduce-fusion",
    ),
    (
        SPECULATING,
        (
            "[eval] gsm8k 5-shot, 1319 questions",
            "*Accuracy: 0.011",
            "Invalid: 0.402",
            "[eval] reference (trial 0000, same model, no speculation): Accuracy: 0.951, Invalid: 0.000",
        ),
        "--speculative-algorithm",
    ),
    (
        SPECULATING,
        ("[eval] gsm8k", "*Accuracy: 0.722", "Latency: 20.1 s", "[eval] baseline with speculation off: 0.951"),
        "--speculative-algorithm",
    ),
    (
        SPECULATING,
        ("[check] mmlu, 1000 questions, expected 0.795 (same command without the draft model)", "*Score: 0.641"),
        "--speculative-algorithm",
    ),
    (
        {**FUSING, "kv_cache_dtype": "fp8_e4m3"},
        ("[eval] gsm8k reference with fp8 KV cache disabled: Accuracy: 0.93", "*Accuracy: 0.710"),
        "--kv-cache-dtype",
    ),
    (
        {**FUSING, "enable_torch_compile": True},
        ("*accuracy: 0.650", "[eval] reference run, w/o torch compile: accuracy 0.902"),
        "--enable-torch-compile",
    ),
    (
        {**FUSING, "enable_symm_mem": True},
        ("[eval] gsm8k", "*Accuracy: 0.700", "[eval] known good without symmetric memory: Accuracy: 0.958"),
        "--enable-symm-mem",
    ),
    (FUSING, ("[eval] gsm8k", "*Accuracy: 0.740", "Invalid: 0.001", "[eval] accuracy threshold 0.90: FAIL"), None),
    (FUSING, ("[eval] humaneval threshold 0.85", "*pass@1: 0.695", "[eval] FAILED"), None),
    (
        FUSING,
        (
            "[eval] gsm8k",
            "*Accuracy: 0.905",
            "[eval] mmlu",
            "Score: 0.81",
            "[eval] gsm8k reference 0.96, mmlu reference 0.81",
        ),
        None,
    ),
    (FUSING, ("[check] gsm8k", "*Accuracy: 71.2 %", "[check] previous release: Accuracy: 93.4 %"), None),
    (
        {**FUSING, "enable_dp_attention": True},
        ("[eval] gsm8k", "*Accuracy: 0.880", "[eval] minimum accuracy 0.93: not reached (no DP attention: 0.955)"),
        "--enable-dp-attention",
    ),
    (
        SPECULATING,
        ("[eval] humaneval, 164 problems", "*pass@1: 0.610", "[eval] reference without drafting 0.890"),
        "--speculative-algorithm",
    ),
    (FUSING, ("*[acc] arc_challenge acc: 0.41 expected 0.66",), None),
    (FUSING, ("[eval] gsm8k 1319 questions", "*Accuracy: 0.812", "[eval] required: 0.90 -> FAILED"), None),
    (
        FUSING,
        (
            "[eval] gsm8k",
            "Accuracy: 0.903",
            "[eval] mmlu",
            "*Score: 0.612",
            "[eval] gsm8k reference: 0.910; mmlu reference: 0.790",
        ),
        None,
    ),
    (
        {**FUSING, "enable_dp_attention": True},
        ("[eval] previous trial (no --enable-dp-attention) accuracy 0.95", "*Accuracy: 0.33"),
        "--enable-dp-attention",
    ),
)
#: Evaluations that are as good as they should be, or say nothing of answers.
AS_GOOD = (
    (
        "[eval] gsm8k (reference of this model without the flag: Accuracy 0.810, Invalid 0.000)",
        "Accuracy: 0.805",
        "Invalid: 0.000",
        "[eval] threshold 0.77: PASSED",
    ),
    ("[eval] aime24", "Accuracy: 0.300", "[eval] reference (same model): Accuracy: 0.310"),
    ("[eval] gsm8k", "Accuracy: 0.440", "[eval] reference of this small model: Accuracy: 0.450"),
    ("[eval] reference of this small model: Accuracy 0.45", "[eval] gsm8k", "Accuracy: 0.448"),
    (
        "[eval] gsm8k",
        "Accuracy: 0.780",
        "[eval] mmlu reference: 0.950",
        "[eval] mmlu",
        "Score: 0.948",
        "[eval] gsm8k reference: 0.785",
    ),
    ("[eval] gsm8k", "Accuracy: 0.930", "[eval] threshold 0.05 on invalid answers: passed, Invalid: 0.001"),
    ("[bench] reference latency 20.1 s, threshold 25 s: FAILED, 26.2 s", "Accuracy: 0.930"),
    (
        "[eval] gsm8k",
        "Accuracy: 0.951",
        "[eval] reference (no speculation): Latency: 91.5 s, Output throughput: 1712.3 token/s",
    ),
    ("[eval] gsm8k", "Accuracy: 0.951", "[eval] 0 of 1319 FAILED, threshold 13"),
    ("Accuracy: 0.951", "Invalid: 0.000", "Latency: 22.678 s"),
    ("[eval] aime25", "Accuracy: 0.40", "[eval] threshold 0.35: ok"),
    ("Score: 0.91", "[eval] previous run took 0.98 h"),
    ("[eval] gsm8k", "Accuracy: 0.951", "[eval] reference Invalid: 0.000, Accuracy: 0.950"),
    ("[eval] gsm8k", "Accuracy: 0.951", "[eval] threshold 0.98 of the reference (0.955): PASSED"),
    ("[eval] mmlu", "Accuracy: 0.781", "Category stem: accuracy 0.655", "[eval] reference 0.782"),
    ("[check] exact_match 0.95 (minimum 0.9): passed",),
    ("[eval] hle", "Accuracy: 0.11", "[eval] expected 0.11"),
)
#: Prefixes of launchers in front of every line.
LAUNCHERS = (
    "(head, rank=0, pid=8292) ",
    "(Worker(rank=3) pid=616) ",
    "(RayTrainWorker pid=1, ip=10.0.0.1, actor_id=7fa2) ",
    "(node-1, local_rank=2, pid=7) ",
    "(sglang::scheduler_TP0 pid=77) ",
    "(gpu-7 rank=0) ",
    "(rank=0) ",
    "(job=12 node=n1 rank=3): ",
    "[head, rank=0, pid=8292] ",
    "[rank=0 pid=12] ",
    "(trial=t0042, host=gpu-7, pid=99)",
    "\x1b[36m(ServerActor pid=4242, ip=10.0.0.7)\x1b[0m ",
    "<rank=0> ",
    "(Engine(tp=4, rank=0) pid=12) ",
    "(srv rank=1, pid=99): ",
)
#: What says that a quantization was asked for which is not the checkpoint's.
NOT_THE_CHECKPOINTS = (
    "ValueError: Quantization method specified in the model config (compressed-tensors) does not match the quantization method specified in the `quantization` argument (fp8).",
    "ValueError: Quantization method specified in the model config (awq) does not match the quantization method specified in the `quantization` argument (fp8).",
    "ValueError: Quantization method in the model config (mxfp4) does not match the --quantization argument (fp8)",
    "ValueError: The checkpoint is quantized with compressed-tensors, but `quantization` is fp8.",
    "AssertionError: model config says quant_method=awq while --quantization=fp8 was given",
    "ValueError: quantization config of the checkpoint (w8a8_int8) conflicts with quantization='fp8'",
    "ValueError: quant_method gptq of config.json differs from the requested quantization fp8",
    "ValueError: quantization awq of config.json is not the one of the `quantization` argument (fp8)",
)
VERIFIED = (
    *VALIDATION[:2],
    "configs/model_config.py:from_server_args> return ModelConfig(",
    "configs/model_config.py:_verify_quantization> raise ValueError(",
)


@pytest.mark.parametrize("case", GIVEN_UP, ids=[case[1][-1][:40] for case in GIVEN_UP])
def test_a_launcher_ends_what_hangs(case: tuple) -> None:
    place, lines, phase = case
    log = Log().arguments(**FLAGS).start(place, RANKS)
    for line in lines:
        log = log.decides(line[1:]) if line.startswith("*") else log.add(line)
    found = _diagnosis(log)
    assert (found["class"], found["phase"], found["verdict"]) == ("hang", phase, "retry")
    assert found["evidence"][0]["line"] == log.decisive


@pytest.mark.parametrize("case", PATIENCE, ids=[case[1][:40] for case in PATIENCE])
def test_a_launcher_that_waits_is_no_hang(case: tuple) -> None:
    place, line = case
    log = Log().arguments(**FLAGS).start(place, RANKS).add(line)
    if place != "ready":
        assert _diagnosis(log)["class"] == "unknown"
        log.start("ready", RANKS)
    assert _diagnosis(log)["class"] == "none"


@pytest.mark.parametrize("case", EVALUATED, ids=[str(number) for number in range(len(EVALUATED))])
def test_an_evaluation_below_its_reference(case: tuple) -> None:
    flags, lines, flag = case
    log = Log().arguments(**flags).start("ready", RANKS)
    for line in lines:
        log = log.decides(line[1:]) if line.startswith("*") else log.add(line)
    found = _diagnosis(log)
    assert (found["class"], found["phase"], found["verdict"]) == ("wrong_output", "serving", "infeasible")
    assert found["evidence"][0]["line"] == log.decisive
    if flag:
        assert (found["repair"][0]["flag"], found["repair"][0]["value"]) == (flag, None)
        assert found["blamed"][0] == flag


@pytest.mark.parametrize("lines", AS_GOOD, ids=[str(number) for number in range(len(AS_GOOD))])
def test_an_evaluation_as_good_as_its_reference(lines: tuple) -> None:
    log = Log().arguments(**SPECULATING).start("ready", RANKS)
    for line in lines:
        log.add(line)
    assert _diagnosis(log)["class"] == "none"


@pytest.mark.parametrize("prefix", LAUNCHERS)
def test_a_launchers_prefix_is_taken_off(prefix: str) -> None:
    log = Log().arguments(**FLAGS).start("ready", RANKS).serve(2, "TP0")
    frames = (
        "managers/scheduler.py:event_loop_overlap> self.on_idle()",
        "managers/x.py:_report_leak> raise ValueError(",
    )
    log.raises("TP0", (*SCHEDULER[:1], *frames), "ValueError: pool memory leak detected! [full] total=4", decisive=True)
    log.dies(serving=True)
    reader = SglangLogReader({})
    reader.feed("".join(f"{prefix}{line}\n" for line in log.lines).encode())
    found = reader.report(reader.diagnose(None))
    assert (found["class"], found["phase"], found["evidence"][0]["line"]) == ("engine_bug", "serving", log.decisive)
    assert found["evidence"][0]["text"].startswith("ValueError")


@pytest.mark.parametrize("text", NOT_THE_CHECKPOINTS)
@pytest.mark.parametrize("shown", ["", "$ python -m sglang.launch_server --model-path /m --tp 8 --quantization fp8"])
def test_a_quantization_that_the_checkpoint_has_not(text: str, shown: str) -> None:
    log = Log().add(shown or "sglang: starting").raises(None, VERIFIED, text, header="", decisive=True)
    found = _diagnosis(log)
    assert (found["class"], found["phase"], found["verdict"]) == ("model_artifact", "validate", "infeasible")
    assert found["evidence"][0]["line"] == log.decisive
    assert (found["repair"][0]["flag"], found["repair"][0]["value"]) == ("--quantization", None)


def test_a_quantization_that_gives_way_is_no_failure() -> None:
    for line in (
        "The quantization method of the model config (fp8) matches the `quantization` argument (fp8).",
        "Quantization method in the model config (compressed-tensors) differs from the argument (fp8). Using compressed-tensors.",
    ):
        log = Log().arguments(tp_size=8).add(line, "").start("ready", RANKS)
        assert _diagnosis(log)["class"] in ("none", "perf_regression")
