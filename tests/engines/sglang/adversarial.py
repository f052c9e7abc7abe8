"""Failures that the handed logs do not hold, composed as a real server would print them, and what must be said of them."""

# ruff: noqa: E501 - log lines are as long as they are

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engines.sglang.composing import (
    CAPTURE,
    CAPTURE_WRAPPER,
    DISTRIBUTED,
    EVENT_LOOP,
    HINTS,
    LOADING,
    NEW_CAPTURE,
    OOM,
    POOLS,
    SCHEDULER,
    VALIDATION,
    Log,
    captured,
)

TP2, TP4, TP8 = ("TP0", "TP1"), tuple(f"TP{i}" for i in range(4)), tuple(f"TP{i}" for i in range(8))
DP8 = tuple(f"DP{i} TP{i} EP{i}" for i in range(8))
NCCL_TIMEOUT = (
    "[rank{r}]:[E304 11:20:{r:02d}.519119021 ProcessGroupNCCL.cpp:685] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1187, OpType=ALLREDUCE, NumelIn=58720256, NumelOut=58720256, Timeout(ms)=600000) ran for 600064 "
    "milliseconds before timing out."
)


@dataclass(frozen=True)
class Case:
    """`slug`, `phase`, `verdicts` allowed; `repair`: a flag and what must become of it (raise, lower, drop, or a value)."""

    name: str
    build: Callable[[Log], Log]
    slug: str
    phase: str
    verdicts: str
    repair: tuple[str, object] | None = None
    blamed: str | None = None


CASES: list[Case] = []


def case(slug, phase, verdicts, repair=None, blamed=None):
    def add(build):
        CASES.append(Case(build.__name__, build, slug, phase, verdicts, repair, blamed))
        return build

    return add


# --- parse


@case("cli_parse", "parse", "infeasible", ("--enable-reasoning", "drop"), "--enable-reasoning")
def unknown_flag_old(log):
    log.add(
        "usage: launch_server.py [-h] --model-path MODEL_PATH [--tokenizer-path TOKENIZER_PATH] [--tp-size TP_SIZE]"
    )
    return log.decides("launch_server.py: error: unrecognized arguments: --enable-reasoning")


@case("cli_parse", "parse", "infeasible", ("--cuda-graph-max-bs-decode", 64), "--cuda-graph-max-bs")
def ambiguous(log):
    log.add("$ python3 -m sglang.launch_server --model-path /models/m --tp 8 --cuda-graph-max-bs 64")
    log.add("usage: sglang serve [-h] [--model-path MODEL_PATH] [--cuda-graph-max-bs-decode N]")
    return log.decides(
        "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill"
    )


@case("cli_parse", "parse", "infeasible", None, "--moe-a2a-backend")
def invalid_a2a(log):
    log.add("usage: launch_server.py [-h] --model-path MODEL_PATH [--moe-a2a-backend {none,deepep}]")
    return log.decides(
        "launch_server.py: error: argument --moe-a2a-backend: invalid choice: 'flashinfer' (choose from 'none', 'deepep', 'mooncake')"
    )


@case("cli_parse", "parse", "infeasible", None, "--tp-size")
def not_a_number(log):
    log.add("usage: launch_server.py [-h] --model-path MODEL_PATH")
    return log.decides("launch_server.py: error: argument --tensor-parallel-size/--tp-size: invalid int value: 'eight'")


@case("cli_parse", "parse", "infeasible")
def missing_value(log):
    log.add("usage: launch_server.py [-h] --model-path MODEL_PATH")
    return log.decides("launch_server.py: error: argument --mem-fraction-static: expected one argument")


# --- validate


@case("invalid_combo", "validate", "infeasible", ("--moe-a2a-backend", "none"), "--moe-a2a-backend")
def a2a_needs_dp_attention(log):
    log.add(
        "$ python3 -m sglang.launch_server --model-path /m --tp 8 --moe-a2a-backend flashinfer --moe-runner-backend flashinfer_cutlass"
    )
    return log.raises(
        None,
        VALIDATION,
        "AssertionError: Flashinfer MoE A2A requires --attn-dp-size equal to --tp-size, except for Muse Spark TP4/EP4 or "
        "TP8/EP8 prefill sequence parallelism.",
        decisive=True,
        header="",
    )


@case("invalid_combo", "validate", "infeasible", ("--moe-dense-tp-size", "drop"), "--moe-dense-tp-size")
def dense_tp(log):
    log.add("$ python -m sglang.launch_server --model-path /m --tp 8 --moe-dense-tp-size 8")
    frames = (*VALIDATION[:2], "server_args.py:__post_init__> assert self.moe_dense_tp_size in {")
    return log.raises(
        None, frames, "AssertionError: moe_dense_tp_size only support 1 and None currently", decisive=True, header=""
    )


@case("invalid_combo", "validate", "infeasible", ("--ep-size", 1), "--ep-size")
def cutlass_with_ep(log):
    log.add(
        "+ python3 -m sglang.launch_server --model-path /m --tp 8 --ep-size 8 --moe-runner-backend cutlass --quantization fp8"
    )
    frames = (*VALIDATION, "server_args.py:_handle_moe_kernel_config> assert (")
    return log.raises(
        None,
        frames,
        "AssertionError: FP8/MXFP8 Cutlass MoE is only supported with ep_size == 1",
        decisive=True,
        header="",
    )


@case("invalid_combo", "validate", "infeasible", None, "--enable-two-batch-overlap")
def two_batch_without_a2a(log):
    log.add("$ python3 -m sglang.launch_server --model-path /m --tp-size 8 --enable-two-batch-overlap")
    frames = (
        VALIDATION[0].replace("prepare_server_args(sys.argv[1:])", "run_server(server_args)"),
        "server_args.py:check_server_args> raise ValueError(",
    )
    return log.raises(
        None,
        frames,
        "ValueError: When enabling two batch overlap, moe_a2a_backend cannot be 'none'.",
        decisive=True,
        header="",
    )


@case("invalid_combo", "validate", "infeasible")
def bare_assert_in_hook(log):
    log.add("$ sglang serve --model-path /m --tp-size 8 --dp-size 3 --enable-dp-attention")
    frames = (
        "../launch_server.py:<module>> run_server(server_args)",
        "server_args.py:resolve_once> run_resolution_pipeline(self)",
        "arg_groups/parallel_hook.py:handle_data_parallelism> assert args.tp_size % args.dp_size == 0",
    )
    return log.raises(None, frames, "AssertionError", decisive=True, header="")


@case("invalid_combo", "validate", "infeasible")
def token_budget(log):
    log.add("UserWarning: something is deprecated")
    frames = (*VALIDATION[:2], "arg_groups/moe_hook.py:validate_flashinfer_a2a_token_budget> raise ValueError(")
    return log.raises(
        None,
        frames,
        "ValueError: FlashInfer MoE A2A per-rank token budget exceeds its workspace: required=16384, capacity=8192",
        decisive=True,
        header="",
    )


@case("model_artifact", "validate", "infeasible", ("--quantization", "drop"), "--quantization")
def quantization_mismatch(log):
    log.add("$ python3 -m sglang.launch_server --model-path /m --quantization fp8")
    frames = (*VALIDATION[:2], "configs/model_config.py:_verify_quantization> raise ValueError(")
    return log.raises(
        None,
        frames,
        "ValueError: Quantization method specified in the model config (awq) does not match the quantization method "
        "specified in the `quantization` argument (fp8).",
        decisive=True,
        header="",
    )


@case("host_env", "validate", "stop")
def abi_mismatch(log):
    frames = (
        "../launch_server.py:<module>> from sglang.srt.server_args import prepare_server_args",
        "layers/quantization/marlin_utils.py:<module>> from sgl_kernel import fused_marlin_moe",
    )
    log.add("$ python3 -m sglang.launch_server --model-path /m")
    return log.raises(
        None,
        frames,
        "ImportError: cannot import name 'fused_marlin_moe' from 'sgl_kernel' (/usr/lib/python3/dist-packages/sgl_kernel/__init__.py)",
        decisive=True,
        header="",
    )


@case("host_env", "validate", "stop infeasible")
def undefined_symbol(log):
    frames = (
        "../launch_server.py:<module>> from sglang.srt.entrypoints import http_server",
        "/usr/lib/python3/dist-packages/torch/_ops.py:load_library> ctypes.CDLL(path)",
    )
    return log.raises(
        None,
        frames,
        "OSError: /usr/lib/python3/dist-packages/sgl_kernel/sm100/common_ops.abi3.so: undefined symbol: cuGreenCtxDestroy",
        decisive=True,
        header="",
    )


@case("host_env", "validate", "stop")
def no_driver(log):
    log.add(
        "/usr/lib/python3/dist-packages/torch/cuda/__init__.py:63: FutureWarning: The pynvml package is deprecated."
    )
    frames = (*VALIDATION[:2], "utils/common.py:get_device_memory_capacity> torch._C._cuda_init()")
    return log.raises(
        None,
        frames,
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver "
        "from http://www.nvidia.com/Download/index.aspx",
        decisive=True,
        header="",
    )


# --- load


@case("invalid_combo", "load", "infeasible", None, "--deepep-mode")
def mooncake_normal(log):
    log.arguments(tp_size=4, moe_a2a_backend="mooncake", deepep_mode="auto").start("load", TP4)
    frames = (*LOADING, "layers/moe/token_dispatcher/mooncake.py:__init__> raise NotImplementedError")
    log.raises("TP2", frames, "NotImplementedError: Normal mode is not supported for Mooncake EP yet.", decisive=True)
    return log.dies()


@case("invalid_combo", "load", "infeasible", None, "--enable-multi-layer-eagle")
def multi_layer_eagle(log):
    log.arguments(new=True, tp_size=1, speculative_algorithm="EAGLE", enable_multi_layer_eagle=True).start("load")
    frames = (
        *SCHEDULER[:2],
        "managers/scheduler.py:maybe_init_draft_worker> self.draft_worker = DraftWorkerClass(",
        "speculative/multi_layer_eagle_worker.py:__init__> assert (",
    )
    log.raises(
        "",
        frames,
        "AssertionError: multi-layer EAGLE requires speculative_num_draft_tokens == speculative_num_steps + 1, got 8 and 5",
        decisive=True,
    )
    return log.dies()


@case("model_artifact", "load", "infeasible", ("--ep-size", 4), "--tp-size")
def block_size_of_experts(log):
    log.arguments(tp_size=4, ep_size=1).start("load", TP4)
    frames = (*LOADING, "layers/quantization/fp8.py:create_weights> raise ValueError(")
    log.raises(
        "TP3",
        frames,
        "ValueError: The output_size of gate's and up's weight = 160 is not divisible by weight quantization block_n = 128.",
        decisive=True,
    )
    log.raises(
        "TP0",
        frames[-2:],
        "ValueError: The output_size of gate's and up's weight = 160 is not divisible by weight quantization block_n = 128.",
    )
    return log.dies()


@case("model_artifact", "load", "infeasible", None, "--tp-size")
def block_size_formula(log):
    log.arguments(tp_size=4).start("load", TP4)
    frames = (*LOADING, "layers/moe/fused_moe_triton/layer.py:__init__> raise ValueError(")
    log.raises(
        "TP1",
        frames,
        "ValueError: (moe_intermediate_size=640 / moe_tp_size=4) % weight_block_size_n=128 != 0",
        decisive=True,
    )
    return log.dies()


@case("model_artifact", "load", "infeasible")
def gptq_bare_assert(log):
    log.arguments(tp_size=8, moe_runner_backend="flashinfer_cutlass").start("load", TP8)
    frames = (*LOADING, "layers/quantization/gptq.py:create_weights> assert get_moe_runner_backend().is_auto()")
    log.raises("TP6", frames, "AssertionError", decisive=True)
    return log.dies()


@case("model_artifact", "load", "infeasible")
def unknown_weight(log):
    log.arguments(tp_size=8, quantization="compressed-tensors").start("load", TP8)
    frames = (*LOADING, "models/deepseek_v2.py:load_weights> param = params_dict[name]")
    log.raises("TP4", frames, "KeyError: 'model.layers.3.mlp.experts.w13_weight_scale_inv'", decisive=True)
    return log.dies()


@case("model_artifact", "load", "infeasible", ("--tp-size", "lower"), "--tp-size")
def too_few_experts(log):
    log.arguments(tp_size=16).start("load", TP2)
    frames = (*LOADING, "models/qwen3_moe.py:__init__> raise ValueError(")
    log.raises(
        "TP1", frames, "ValueError: Tensor parallel size 16 is greater than the number of experts 8.", decisive=True
    )
    return log.dies()


@case("oom_weights", "load", "infeasible", ("--tp-size", "raise"), "--tp-size")
def repacking_runs_out(log):
    log.arguments(tp_size=2, mem_fraction_static=0.9).start("load", TP2)
    frames = (*LOADING, "layers/quantization/marlin_utils_fp4.py:prepare_moe_fp4_layer_for_marlin> repack(")
    log.raises("TP1", frames, OOM.format(mib="1792.00", gpu=1), decisive=True)
    log.raises("TP0", frames, OOM.format(mib="1792.00", gpu=0), wait=2)
    return log.dies()


@case("oom_weights", "load", "infeasible", ("--moe-a2a-backend", "drop"), "--moe-a2a-backend")
def replicated_experts_run_out(log):
    log.arguments(tp_size=8, ep_size=8, moe_a2a_backend="deepep").start("load", DP8)
    frames = (*LOADING, "layers/moe/ep_moe/layer.py:__init__> torch.empty(")
    log.raises("DP5 TP5 EP5", frames, OOM.format(mib="448.00", gpu=5).replace("torch.", "torch.cuda."), decisive=True)
    return log.dies()


@case("host_env", "load", "retry")
def unbalanced_memory(log):
    log.arguments(tp_size=8).add("Init torch distributed begin.", "TP0", 1)
    text = (
        "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
        "min_per_gpu_memory=31.10, local_gpu_memory=78.41, local_gpu_memory * 0.9=70.57"
    )
    log.raises("TP3", DISTRIBUTED, text, decisive=True)
    return log.dies()


@case("host_env", "load", "retry stop")
def host_memory_while_loading(log):
    log.arguments(tp_size=8).start("load", TP8)
    log.add("Loading safetensors checkpoint shards:  41% Completed | 27/64 [01:22<01:53,  3.08s/it]")
    log.raises(
        None,
        (
            "/usr/lib/python3.12/runpy.py:_run_module_as_main",
            "entrypoints/engine.py:_wait_for_scheduler_ready> data = scheduler_pipe_readers[i].recv()",
        ),
        "EOFError",
        wrapper=(
            (
                "/usr/lib/python3.12/runpy.py:_run_module_as_main",
                "entrypoints/engine.py:_wait_for_scheduler_ready> raise _scheduler_died_error(",
            ),
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common "
            "cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        ),
        header="",
    )
    log.decisive = next(i for i, line in enumerate(log.lines, 1) if "died during" in line)
    return log


@case("host_env", "load", "retry", None, "--port")
def tokenizer_workers_linger(log):
    log.arguments(tp_size=1, tokenizer_worker_num=4, port=30000).start("http")
    log.lines.pop()
    return log.decides(
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use", ""
    )


@case("host_env", "load", "retry")
def nccl_port_busy(log):
    log.arguments(tp_size=2)
    frames = (
        "../launch_server.py:<module>> run_server(server_args)",
        "utils/network.py:wait_port_available> raise ValueError(",
    )
    return log.raises(
        None,
        frames,
        "ValueError: nccl_port at 28555 is not available in 30 seconds. It is used by a process already.",
        decisive=True,
        header="",
    )


@case("comm_init", "load", "infeasible", ("--moe-a2a-backend", "none"), "--moe-a2a-backend")
def deepep_missing(log):
    log.arguments(tp_size=8, moe_a2a_backend="deepep").start("load", TP8)
    frames = (*LOADING, "layers/moe/token_dispatcher/deepep.py:__init__> raise ImportError(")
    log.raises(
        "TP7",
        frames,
        "ImportError: DeepEP is not installed. Please install DeepEP package from https://github.com/deepseek-ai/deepep.",
        decisive=True,
    )
    return log.dies()


@case(
    "comm_init",
    "load",
    "infeasible",
    ("--enable-flashinfer-allreduce-fusion", "drop"),
    "--enable-flashinfer-allreduce-fusion",
)
def mnnvl_index(log):
    log.arguments(tp_size=8, enable_flashinfer_allreduce_fusion=True).start("weights", TP8)
    frames = (
        *SCHEDULER,
        "layers/flashinfer_comm_fusion.py:initialize> self.workspace = create_allreduce_fusion_workspace(",
        "/usr/local/lib/python3.12/dist-packages/flashinfer/comm/mnnvl.py:_parse_bus> int(bus[1])",
    )
    log.raises("TP4", frames, "IndexError: string index out of range", decisive=True)
    return log.dies()


@case(
    "comm_init",
    "load",
    "infeasible",
    ("--enable-flashinfer-allreduce-fusion", "drop"),
    "--enable-flashinfer-allreduce-fusion",
)
def no_multicast(log):
    log.arguments(tp_size=4, enable_flashinfer_allreduce_fusion=True).start("dist", TP4)
    frames = (*DISTRIBUTED, "/usr/lib/python3/dist-packages/flashinfer/comm/mnnvl.py:__init__> raise RuntimeError(")
    log.raises("TP3", frames, "RuntimeError: [SymmDeviceMemory] Device does not support multicasting.", decisive=True)
    return log.dies()


@case("comm_init", "load", "stop infeasible")
def nvshmem_privileges(log):
    log.arguments(tp_size=8, moe_a2a_backend="deepep", deepep_mode="low_latency").start("load", DP8)
    log.decides(
        "/dvs/p4/build/sw/rel/gpgpu/toolkit/r12.8/main_nvshmem/src/modules/transport/ibgda/ibgda.cpp:1889: NULL value cannot allocate mlx5dv_devx_uar"
    )
    log.add("nvshmem setup connections failed")
    log.add("Subprocess scheduler_2 (pid=4242) crashed with exit code -6. Triggering SIGQUIT for cleanup...", "", 1)
    return log.dies()


@case("comm_init", "load", "infeasible", ("--enable-mscclpp", "drop"), "--enable-mscclpp")
def mscclpp_ibverbs(log):
    log.arguments(tp_size=16, nnodes=2, enable_mscclpp=True).start("dist", TP8)
    frames = (
        *DISTRIBUTED,
        "distributed/device_communicators/pymscclpp.py:__init__> self._comm = mscclpp.Communicator(",
    )
    log.raises(
        "TP9",
        frames,
        "RuntimeError: libibverbs.so: cannot open shared object file: No such file or directory",
        decisive=True,
    )
    return log.dies()


@case("comm_init", "load", "stop retry infeasible")
def nccl_socket(log):
    log.arguments(tp_size=8).add("Init torch distributed begin.", "TP0", 1)
    text = (
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, remote process "
        "exited or there was a network error, NCCL version 2.27.5\nncclRemoteError: A call failed possibly due to a network error "
        "or a remote process exiting prematurely.\nLast error:\nsocketStartConnect: Connect to 10.0.0.9<41337> failed : No route to host"
    )
    log.raises("TP1", DISTRIBUTED, text, decisive=True)
    return log.dies()


@case("arch_unsupported", "load", "infeasible", None, "--moe-runner-backend")
def runner_needs_another_gpu(log):
    log.arguments(tp_size=8, moe_runner_backend="hpc_ops", quantization="fp8").start("load", TP8)
    frames = (*LOADING, "layers/moe/moe_runner/runner.py:__init__> raise ValueError(")
    log.raises("TP2", frames, "ValueError: moe_runner_backend=hpc_ops requires SM90.", decisive=True)
    return log.dies()


@case("arch_unsupported", "load", "infeasible stop", None, "--quantization")
def minimum_capability(log):
    log.arguments(tp_size=1, quantization="modelopt_fp4").start("load")
    frames = (*LOADING, "model_loader/loader.py:_get_quantization_config> raise ValueError(")
    log.raises(
        "",
        frames,
        "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU. Minimum capability: 100. "
        "Current capability: 90.",
        decisive=True,
    )
    return log.dies()


@case("hang", "load", "retry")
def hang_over_four_nodes(log):
    log.arguments(tp_size=32, nnodes=4).add("Init torch distributed begin.", "TP0", 1)
    log.decides(NCCL_TIMEOUT.format(r=3))
    for rank in (5, 8, 11):
        log.add(NCCL_TIMEOUT.format(r=rank))
    log.add("terminate called after throwing an instance of 'c10::DistBackendError'")
    log.add("  what():  [PG ID 0 PG GUID 0 Rank 3] Process group watchdog thread terminated with exception")
    return log.dies()


# --- KV pool


@case("kv_budget", "kv_alloc", "infeasible", ("--mem-fraction-static", "raise"), "--mem-fraction-static")
def not_enough_memory_059(log):
    log.arguments(tp_size=8, mem_fraction_static=0.7787, moe_a2a_backend="flashinfer")
    log.start("weights", tuple(f"TP{i} EP{i}" for i in range(8)), begin=94.0, after=16.3)
    frames = (*POOLS[:-1], "model_executor/model_runner_kv_cache_mixin.py:init_memory_pool> raise RuntimeError(")
    log.raises(
        "TP6 EP6",
        frames,
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
        "self.server_args.mem_fraction_static=0.7787",
        decisive=True,
    )
    return log.dies()


@case("kv_budget", "kv_alloc", "infeasible", ("--mem-fraction-static", "raise"), "--mem-fraction-static")
def max_running_zero(log):
    log.arguments(new=True, tp_size=1, mem_fraction_static=0.25).start("weights", version="0.5.14")
    frames = (*SCHEDULER[:3], "mem_cache/kv_cache_configurator.py:configure> assert max_num_reqs > 0")
    log.raises("", frames, "AssertionError: max_running_request is zero", decisive=True)
    return log.dies()


@case("kv_budget", "kv_alloc", "infeasible", ("--mem-fraction-static", "lower"), "--mem-fraction-static")
def pool_allocation_runs_out(log):
    log.arguments(tp_size=2, mem_fraction_static=0.97).start("weights", TP2)
    log.raises("TP1", POOLS, OOM.format(mib="3072.00", gpu=1), decisive=True)
    return log.dies()


# --- graph capture


@case("oom_graph", "graph_capture", "infeasible", ("--mem-fraction-static", "lower"), "--mem-fraction-static")
def graph_oom_small_batch(log):
    log.arguments(
        tp_size=16,
        dp_size=16,
        enable_dp_attention=True,
        moe_a2a_backend="deepep",
        cuda_graph_max_bs=8,
        mem_fraction_static=0.87,
    )
    log.start("capture", DP8)
    text = OOM.format(mib="896.00", gpu=3)
    log.raises("DP3 TP3 EP3", CAPTURE, text, wrapper=captured(text.partition(": ")[2]), decisive=True)
    return log.dies()


@case("oom_graph", "graph_capture", "infeasible", ("--cuda-graph-max-bs", "lower"), "--cuda-graph-max-bs")
def graph_oom_new_format(log):
    log.arguments(new=True, tp_size=4, cuda_graph_max_bs=256, mem_fraction_static=0.9).start("capture", TP4, "0.5.20")
    text = OOM.format(mib="512.00", gpu=2)
    log.raises(
        "TP2",
        NEW_CAPTURE,
        text,
        wrapper=(NEW_CAPTURE[:2], f"Exception: Capture cuda graph failed: {text.partition(': ')[2]}\n{HINTS}"),
        decisive=True,
    )
    log.raises(
        "TP0",
        NEW_CAPTURE,
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:2571",
        wait=1,
    )
    return log.dies()


@case("graph_capture", "graph_capture", "infeasible", None, "--moe-a2a-backend")
def deepep_in_capture(log):
    log.arguments(tp_size=8, pp_size=2, moe_a2a_backend="deepep", enable_dp_attention=True, dp_size=8).start(
        "capture", DP8
    )
    text = "RuntimeError: Failed: Assertion error /sgl-workspace/DeepEP/csrc/deep_ep.cpp:1105 'not low_latency_mode'"
    frames = (
        *CAPTURE,
        "/usr/lib/python3/dist-packages/deep_ep/buffer.py:low_latency_dispatch> self.runtime.low_latency_dispatch(",
    )
    log.raises("DP1 TP1 EP1", frames, text, wrapper=captured(text.partition(": ")[2]), decisive=True)
    return log.dies()


@case("graph_capture", "graph_capture", "infeasible", ("--deepep-mode", "drop"), "--deepep-mode")
def deepep_normal_in_capture(log):
    log.arguments(tp_size=8, moe_a2a_backend="deepep", deepep_mode="normal").start("capture", TP8, "0.4.6")
    log.raises(
        "TP5",
        CAPTURE_WRAPPER,
        f"Exception: Capture cuda graph failed: CUDA error: capturing stream has unjoined work\n{HINTS}",
        decisive=True,
    )
    return log.dies()


@case(
    "graph_capture",
    "graph_capture",
    "infeasible",
    ("--enable-piecewise-cuda-graph", "drop"),
    "--enable-piecewise-cuda-graph",
)
def dynamo_cannot_trace(log):
    log.arguments(tp_size=8, enable_piecewise_cuda_graph=True, quantization="modelopt_fp4").start("captured", TP8)
    log.add("Capture piecewise CUDA graph begin. avail mem=9.60 GB", "TP0", 1)
    frames = (
        "model_executor/piecewise_cuda_graph_runner.py:__init__> self.capture()",
        "/usr/lib/python3/dist-packages/torch/_dynamo/eval_frame.py:compile_wrapper> raise e.with_traceback(None)",
    )
    text = (
        "torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped\n  Explanation: Dynamo developers have "
        "intentionally marked that the function `get_device_capability` should not be traced."
    )
    log.raises("TP1", frames, text, decisive=True)
    return log.dies()


@case("arch_unsupported", "graph_capture", "infeasible stop")
def no_kernel_image(log):
    log.arguments(tp_size=1).start("capture", version="0.4.7")
    text = "RuntimeError: RMSNorm failed with error code no kernel image is available for execution on the device"
    log.raises(
        "",
        (*CAPTURE, "layers/layernorm.py:forward_cuda> out = rmsnorm("),
        text,
        wrapper=captured(text.partition(": ")[2]),
        decisive=True,
    )
    return log.dies()


@case("arch_unsupported", "graph_capture", "infeasible", None, "--attention-backend")
def fa4_on_b300(log):
    log.arguments(new=True, tp_size=8, attention_backend="fa4", moe_runner_backend="flashinfer_trtllm").start(
        "capture", TP8, "0.5.20"
    )
    frames = (
        *NEW_CAPTURE,
        "layers/attention/flashattention_backend.py:forward_decode> result = flash_attn_with_kvcache(",
        "/usr/lib/python3/dist-packages/flash_attn/cute/interface.py:_flash_attn_fwd> assert arch // 10 in [10, 11]",
    )
    text = "AssertionError: Only SM 10.x and 11.x are supported"
    log.raises("TP4", frames, text, wrapper=captured("Only SM 10.x and 11.x are supported"), decisive=True)
    return log.dies()


@case("jit_autotune", "graph_capture", "stop")
def ninja_stopped(log):
    log.arguments(tp_size=1).start("capture", version="0.5.11")
    text = (
        "RuntimeError: Ninja build failed. Ninja output:\nninja: Entering directory '/root/.cache/flashinfer'\n"
        "FAILED: batch_decode.cuda.o\nninja: build stopped: subcommand failed."
    )
    frames = (
        *CAPTURE,
        "/usr/lib/python3/dist-packages/flashinfer/jit/cpp_ext.py:run_ninja> raise RuntimeError(msg) from e",
    )
    log.raises(
        "", frames, text, wrapper=captured("Ninja build failed."), decisive=True, decisive_part="ninja: build stopped"
    )
    return log.dies()


@case("jit_autotune", "graph_capture", "infeasible", None, "--moe-runner-backend")
def jit_has_no_target(log):
    log.arguments(tp_size=8, moe_runner_backend="flashinfer_trtllm").start("capture", TP8)
    frames = (
        *CAPTURE,
        "/usr/lib/python3/dist-packages/flashinfer/jit/fused_moe.py:gen_trtllm_gen_fused_moe_sm100_module> nvcc_flags",
        "/usr/lib/python3/dist-packages/flashinfer/compilation_context.py:get_nvcc_flags_list> raise RuntimeError(",
    )
    text = "RuntimeError: No supported CUDA architectures found for major versions [10]."
    log.raises("TP2", frames, text, wrapper=captured(text.partition(": ")[2]), decisive=True)
    return log.dies()


@case("device_fault", "graph_capture", "retry infeasible")
def illegal_access_in_capture(log):
    log.arguments(tp_size=8).start("capture", TP8)
    text = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."
    log.raises(
        "TP3", CAPTURE, text, wrapper=captured("CUDA error: an illegal memory access was encountered"), decisive=True
    )
    return log.dies()


@case("invalid_combo", "graph_capture", "infeasible", None, "--attention-backend")
def backend_without_graph_state(log):
    log.arguments(tp_size=2, attention_backend="flex_attention").start("capture", TP2)
    text = "AttributeError: 'TorchFlexAttnBackend' object has no attribute 'init_cuda_graph_state'"
    log.raises("TP1", CAPTURE, text, wrapper=captured(text.partition(": ")[2]), decisive=True)
    return log.dies()


# --- warm-up


@case("jit_autotune", "warmup", "retry", ("--disable-flashinfer-autotune", True))
def autotune_illegal_access(log):
    log.arguments(new=True, tp_size=4, moe_runner_backend="flashinfer_cutlass").start("pool", TP4, "0.5.20")
    log.add("Running FlashInfer autotune with cache: /root/.cache/sglang/flashinfer/autotune/x.json", "TP0", 1)
    frames = (
        *SCHEDULER[:2],
        "model_executor/runner/base_runner.py:_flashinfer_autotune> run_flashinfer_autotune_forward(",
        "/usr/lib/python3/dist-packages/flashinfer/autotuner.py:_profile_single_kernel> torch.cuda.synchronize()",
    )
    log.raises(
        "TP1", frames, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", decisive=True
    )
    return log.dies()


@case("invalid_combo", "warmup", "infeasible", None, "--moe-runner-backend")
def runner_signature(log):
    log.arguments(tp_size=1, moe_runner_backend="flashinfer_mxfp4").start("http")
    frames = (
        *EVENT_LOOP,
        "layers/moe/fused_moe_triton/layer.py:run_moe_core> return self.quant_method.apply(",
        "layers/quantization/unquant.py:forward_cuda> return self.runner.run(",
    )
    log.raises("", frames, "TypeError: fused_experts() got an unexpected keyword argument 'topk_output'", decisive=True)
    return log.dies(serving=True)


@case("wrong_output", "warmup", "infeasible")
def nan_assertion_at_warmup(log):
    log.arguments(tp_size=4, moe_runner_backend="flashinfer_trtllm").start("http", TP4)
    log.decides(
        "/pytorch/aten/src/ATen/native/cuda/TensorCompare.cu:112: _assert_async_msg_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion `NaN detected! sampler: next_token_logits` failed."
    )
    log.raises("TP1", EVENT_LOOP, "torch.AcceleratorError: CUDA error: device-side assert triggered")
    return log.dies(serving=True)


# --- serving


@case("arch_unsupported", "serving", "infeasible")
def shared_memory_under_load(log):
    log.arguments(tp_size=1, quantization="fp8").start("ready", version="0.4.6")
    frames = (*EVENT_LOOP, "layers/moe/fused_moe_triton/fused_moe.py:invoke_fused_moe_kernel> fused_moe_kernel[grid](")
    log.raises(
        "",
        frames,
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840, Hardware limit: 101376. "
        "Reducing block sizes or `num_stages` may help.",
        decisive=True,
    )
    return log.dies(serving=True)


@case(
    "comm_runtime", "serving", "retry infeasible", ("--disable-custom-all-reduce", True), "--disable-custom-all-reduce"
)
def custom_all_reduce_under_load(log):
    log.arguments(tp_size=8).start("ready", TP8)
    frames = (
        *EVENT_LOOP,
        "models/deepseek_v2.py:forward> x = tensor_model_parallel_all_reduce(x)",
        "distributed/parallel_state.py:_all_reduce_out_place> out = ca_comm.custom_all_reduce(input_)",
        "distributed/device_communicators/custom_all_reduce.py:all_reduce> ops.all_reduce(self._ptr, inp, out",
    )
    log.raises(
        "TP2",
        frames,
        "RuntimeError: Failed: Cuda error custom_all_reduce.cuh:455 'invalid resource handle'",
        decisive=True,
    )
    return log.dies(serving=True)


@case("comm_runtime", "serving", "infeasible", None)
def flashinfer_dispatch_cap(log):
    log.arguments(tp_size=8, moe_a2a_backend="flashinfer", moe_runner_backend="flashinfer_cutlass").start("ready", TP8)
    frames = (*EVENT_LOOP, "layers/moe/token_dispatcher/flashinfer.py:dispatch> recv = self.moe_a2a.dispatch(")
    log.raises("TP7", frames, "ValueError: num_tokens (12288) exceeds max_num_tokens (8192)", decisive=True)
    return log.dies(serving=True)


@case("comm_runtime", "serving", "retry")
def deepep_times_out(log):
    log.arguments(tp_size=8, moe_a2a_backend="deepep").start("ready", DP8)
    frames = (
        *EVENT_LOOP,
        "/usr/lib/python3/dist-packages/deep_ep/buffer.py:internode_dispatch> self.runtime.internode_dispatch(",
    )
    log.raises("DP4 TP4 EP4", frames, "RuntimeError: DeepEP error: CPU recv timeout", decisive=True)
    return log.dies(serving=True)


@case("oom_runtime", "serving", "infeasible", ("--mem-fraction-static", "lower"), "--mem-fraction-static")
def decode_growth(log):
    log.arguments(tp_size=1, mem_fraction_static=0.9).start("ready")
    log.raises(
        "",
        (*EVENT_LOOP, "layers/logits_processor.py:_get_logits> logits = torch.matmul("),
        OOM.format(mib="594.00", gpu=0),
        decisive=True,
    )
    return log.dies(serving=True)


@case("oom_runtime", "serving", "infeasible", ("--max-running-requests", "lower"), "--max-running-requests")
def pool_exhausted(log):
    log.arguments(tp_size=1, max_running_requests=512).start("ready")
    for _ in range(3):
        log.add("KV cache pool is full. Retract requests. #retracted_reqs: 12, #new_token_ratio: 0.70 -> 0.94", "", 1)
    frames = (*EVENT_LOOP[:2], "mem_cache/allocation.py:alloc_for_decode> raise RuntimeError(error_msg)")
    log.raises(
        "",
        frames,
        "RuntimeError: Decode out of memory. Try to lower your batch size.\nTry to allocate 48 tokens.",
        decisive=True,
    )
    return log.dies(serving=True)


@case(
    "device_fault",
    "serving",
    "retry infeasible",
    ("--enable-piecewise-cuda-graph", "drop"),
    "--enable-piecewise-cuda-graph",
)
def piecewise_and_all_reduce(log):
    log.arguments(tp_size=4, enable_piecewise_cuda_graph=True).start("ready", TP4)
    frames = (
        *EVENT_LOOP,
        "model_executor/piecewise_cuda_graph_runner.py:replay> output = self.model_runner.model.forward(",
    )
    log.raises("TP0", frames, "RuntimeError: an illegal memory access was encountered", decisive=True)
    return log.dies(serving=True)


@case("device_fault", "serving", "retry infeasible")
def index_assertion(log):
    log.arguments(tp_size=2, speculative_algorithm="EAGLE", speculative_num_draft_tokens=64).start("ready", TP2)
    log.decides(
        '/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:93: operator(): block: [3,0,0], thread: [64,0,0] Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.'
    )
    log.raises("TP0", EVENT_LOOP, "torch.AcceleratorError: CUDA error: device-side assert triggered")
    return log.dies(serving=True)


@case("engine_bug", "serving", "infeasible")
def leak_with_pages(log):
    log.arguments(tp_size=8, page_size=64, speculative_algorithm="NEXTN").start("ready", TP8, "0.4.7")
    frames = (*EVENT_LOOP[:2], "managers/scheduler.py:check_memory> raise ValueError(msg)")
    log.raises(
        "TP0",
        frames,
        "ValueError: token_to_kv_pool_allocator memory leak detected! available_size=64, protected_size=0",
        decisive=True,
    )
    return log.dies(serving=True)


@case("engine_bug", "serving", "infeasible")
def scheduler_key_error(log):
    log.arguments(tp_size=1).start("ready")
    frames = (
        *EVENT_LOOP[:2],
        "managers/scheduler_output_processor_mixin.py:stream_output> self.rid_to_state[req.rid]",
        "managers/schedule_batch.py:filter_batch> self.reqs[i]",
    )
    log.raises("", frames, "IndexError: list index out of range", decisive=True)
    return log.dies(serving=True)


@case("hang", "serving", "retry")
def watchdog_only(log):
    log.arguments(tp_size=4).start("ready", TP4)
    log.add("Scheduler debug info:\nself.cur_batch.batch_size()=3", "TP2", 300)
    log.add(
        'Pyspy dump for PID 309:\nThread 309 (active): "MainThread"\n    synchronize (torch/cuda/streams.py:255)', "TP2"
    )
    log.decides("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "TP2")
    return log.dies(serving=True)


@case("hang", "serving", "retry")
def health_without_answer(log):
    log.arguments(tp_size=4, enable_symm_mem=True, enable_nccl_nvls=True).start("ready", TP4)
    log.add('INFO:     127.0.0.1:4000 - "GET /health HTTP/1.1" 200 OK', "", 30)
    return log.decides("[probe] GET /get_server_info: timed out after 60 s, GPU util 0%", "")


@case("wrong_output", "serving", "infeasible", None, "--attention-backend")
def exact_match_zero(log):
    log.arguments(tp_size=4, attention_backend="trtllm_mha", moe_runner_backend="flashinfer_trtllm").start("ready", TP4)
    return log.decides("[eval] gsm8k 5-shot: exact_match=0.0000 (expected about 0.9)", "", 60)


@case("wrong_output", "serving", "infeasible")
def low_accuracy(log):
    log.arguments(tp_size=2, enable_piecewise_cuda_graph=True).start("ready", TP2)
    return log.decides("[eval] gsm8k accuracy 0.745 vs 0.855 without the flag", "", 60)


@case("overload", "serving", "none")
def client_lost_connection(log):
    log.arguments(tp_size=1).start("ready")
    log.decides(
        "[eval] request failed: ('Connection aborted.', RemoteDisconnected('Remote end closed connection without response'))",
        "",
        2,
    )
    return log.serve(2)


@case("perf_regression", "serving", "none", ("--max-running-requests", "lower"))
def retracting(log):
    log.arguments(tp_size=1, max_running_requests=512, mem_fraction_static=0.8).start("ready")
    log.decides("KV cache pool is full. Retract requests. #retracted_reqs: 12, #new_token_ratio: 0.70 -> 0.94", "", 1)
    return log.serve(3)


@case("perf_regression", "load", "none", ("--enable-torch-symm-mem", "drop"), "--enable-torch-symm-mem")
def symm_mem_ignored(log):
    log.arguments(tp_size=8, enable_torch_symm_mem=True)
    log.decides(
        "TorchSymmMemCommunicator: Device capability 12 not supported, communicator is not available.", "TP0", 1
    )
    return log.start("ready", TP8)


# --- healthy


@case("none", "warmup", "none")
def nan_of_dummy_tokens(log):
    log.arguments(tp_size=2, enable_torch_compile=True).start("http", TP2)
    log.add("Detected errors during sampling! NaN in the probability.", "TP0", 1)
    log.add("The server is fired up and ready to roll!", "", 2)
    return log.serve(4, "TP0")


@case("none", "serving", "none")
def healthy_and_stopped(log):
    log.arguments(tp_size=2).start("ready", TP2).serve(10, "TP0")
    log.add("SIGTERM received. signum=None frame=None. Draining requests and shutting down...", "", 1)
    log.add("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].", "", 1)
    log.raises(
        None,
        ("/usr/lib/python3.12/asyncio/runners.py:run> return self._loop.run_until_complete(task)",),
        "KeyboardInterrupt",
        header="",
    )
    return log.add("Subprocess scheduler_0 (pid=77) crashed with exit code -9. Triggering SIGQUIT for cleanup...", "")


@case("none", "serving", "none")
def healthy_with_a_failed_request(log):
    log.arguments(tp_size=1).start("ready").serve(3)
    log.add("ERROR:    Exception in ASGI application", "")
    log.raises(
        None,
        ("/usr/lib/python3/dist-packages/uvicorn/protocols/http/httptools_impl.py:run_asgi> result = await app(",),
        "ValueError: The input is longer than the model's context length",
        header="",
    )
    return log.serve(5)


# --- two causes, other ranks first, consequences before the cause


@case("oom_weights", "load", "infeasible")
def consequence_printed_first(log):
    log.arguments(tp_size=8).start("load", TP8)
    frames = (*LOADING, "layers/quantization/fp8.py:create_weights> torch.empty(")
    log.second += 5
    log.raises(
        "TP0",
        DISTRIBUTED,
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error, NCCL version 2.27.5\nncclRemoteError: A call failed possibly due to a network error",
    )
    log.second -= 3
    log.raises("TP5", frames, OOM.format(mib="672.00", gpu=5), decisive=True)
    log.second += 4
    return log.dies()


@case("kv_budget", "kv_alloc", "infeasible", ("--mem-fraction-static", "raise"))
def warning_then_kv_budget(log):
    log.arguments(tp_size=2, mem_fraction_static=0.5)
    log.add(
        "Setup Custom allreduce failed with CUDART error: peer access is not supported between these two devices. To silence this warning, specify --disable-custom-all-reduce explicitly.",
        "TP0",
        1,
    )
    log.start("weights", TP2, begin=47.2, after=20.1)
    log.raises(
        "TP1",
        POOLS[:-1],
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.5",
        decisive=True,
    )
    return log.dies()


@case("device_fault", "serving", "retry infeasible")
def fault_then_oom_then_timeouts(log):
    log.arguments(tp_size=8).start("ready", TP8)
    log.raises(
        "TP6", EVENT_LOOP, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", decisive=True
    )
    log.raises("TP2", EVENT_LOOP, OOM.format(mib="20.00", gpu=2), wait=3)
    for rank in (0, 1, 3):
        log.add(NCCL_TIMEOUT.format(r=rank))
    return log.dies(serving=True)


@case("oom_runtime", "serving", "infeasible", ("--mem-fraction-static", "lower"))
def autotuner_noise_then_oom(log):
    log.arguments(tp_size=2, mem_fraction_static=0.9, moe_runner_backend="flashinfer_cutlass").start("pool", TP2)
    log.add("Running FlashInfer autotune...", "TP0", 1)
    log.add(
        "2026-03-04 11:00:20,319 - WARNING - autotuner.py:485 - flashinfer.jit: [Autotuner]: Skipping tactic <x.MoERunner object at 0x7> 11, due to failure while profiling: [TensorRT-LLM][ERROR] Assertion failed: Failed to initialize cutlass TMA WS grouped gemm. Error: Error Internal (/x.cu:60)"
    )
    log.add("[Autotuner]: OOM detected, falling back to default tactic")
    log.add("FlashInfer autotune completed.", "TP0", 3)
    log.start("ready", TP2)
    log.raises(
        "TP1",
        (*EVENT_LOOP, "layers/activation.py:forward_cuda> out = torch.empty("),
        OOM.format(mib="256.00", gpu=1),
        decisive=True,
    )
    return log.dies(serving=True)


@case("invalid_combo", "load", "infeasible")
def reworded_incompatibility(log):
    log.arguments(tp_size=8, enable_two_batch_overlap=True, speculative_algorithm="EAGLE").start("load", TP8)
    frames = (*SCHEDULER, "batch_overlap/two_batch_overlap.py:__init__> raise ValueError(")
    log.raises(
        "TP1",
        frames,
        "ValueError: Two-batch overlap cannot be combined with speculative decoding (EAGLE) on this path.",
        decisive=True,
    )
    return log.dies()


@case("unknown", "serving", "infeasible retry")
def never_seen(log):
    log.arguments(tp_size=1).start("ready")
    log.raises(
        "",
        (*EVENT_LOOP[:1], "/opt/vendor/plugin.py:hook> tick()"),
        "VendorError: frobnication stalled at 17",
        decisive=True,
    )
    return log.dies(serving=True)


@case("unknown", "graph_capture", "retry")
def cut_while_starting(log):
    return log.arguments(tp_size=2).start("capture", TP2)


@case("host_env", "serving", "retry")
def killed_under_load(log):
    log.arguments(tp_size=1).start("ready").serve(5)
    log.decides(
        "Subprocess scheduler_0 (pid=19981) crashed with exit code -9. Triggering SIGQUIT for cleanup...", "", 1
    )
    return log.dies(serving=True)


@case("kv_budget", "warmup", "infeasible", ("--max-total-tokens", "drop"), "--max-total-tokens")
def pool_of_ten_tokens(log):
    log.arguments(new=True, tp_size=1, max_total_tokens=10).start("http", version="0.5.23")
    text = 'AssertionError: {"error":{"message":"Input length (11 tokens) exceeds the maximum allowed length (4 tokens). Use a shorter input or enable --allow-auto-truncate."}}'
    log.raises(
        "",
        ('entrypoints/http_server.py:_execute_server_warmup> assert res.status_code == 200, f"{res.text}"',),
        text,
        decisive=True,
        header="Initialization failed. warmup error: ",
    )
    return log.add("kill_process_tree called: parent_pid=1861, include_parent=True, pid=1861", "")


# --- as people paste them: lost indentation, cut stamps, other launchers, restarts


def unindented(log, start):
    """What a paste into a form leaves of a traceback."""
    log.lines[start:] = [line.strip() for line in log.lines[start:]]
    return log


@case("comm_init", "load", "stop retry infeasible")
def lost_indentation(log):
    log.arguments(tp_size=8).add("Init torch distributed begin.", "TP3", 1)
    start = len(log.lines)
    frames = (
        *DISTRIBUTED,
        "distributed/parallel_state.py:__init__> self.pynccl_comm = PyNcclCommunicator(",
        'distributed/device_communicators/pynccl_wrapper.py:NCCL_CHECK> raise RuntimeError(f"NCCL error: {error_str}")',
    )
    log.raises(
        "TP3",
        frames,
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        decisive=True,
    )
    return unindented(log, start).dies()


@case("model_artifact", "load", "infeasible", ("--disable-shared-experts-fusion", True))
def cut_stamps(log):
    log.arguments(tp_size=8, quantization="modelopt_fp4").start("load", TP8)
    frames = (
        *LOADING,
        "models/minimax_m3_vl.py:load_weights> self._load_llm_weight(",
        "layers/moe/fused_moe_triton/layer.py:_load_w13> expert_data.copy_(loaded_weight)",
    )
    log.raises(
        "TP1",
        frames,
        "RuntimeError: The size of tensor a (6144) must match the size of tensor b (3072) at non-singleton dimension 1",
        decisive=True,
    )
    log.lines = [
        line.replace("[2026-03-04 11:", "[").replace("] ", "] ", 1)
        if "hit an exception" not in line
        else line.replace(line[1 : line.index("TP")], "")
        for line in log.lines
    ]
    return log.dies()


@case("comm_runtime", "serving", "infeasible", ("--deepep-mode", "auto"), "--deepep-mode")
def worker_client_of_046(log):
    log.arguments(
        tp_size=8, dp_size=8, enable_dp_attention=True, enable_deepep_moe=True, deepep_mode="low_latency"
    ).start("ready", ("DP0 TP0",), "0.4.6")
    frames = (
        "managers/tp_worker_overlap_thread.py:forward_thread_func> self.forward_thread_func_()",
        "managers/tp_worker_overlap_thread.py:forward_thread_func_> logits_output, next_token_ids = self.worker.forward_batch_generation(",
        "/usr/lib/python3/dist-packages/deep_ep/buffer.py:low_latency_dispatch> self.runtime.low_latency_dispatch(",
    )
    text = "RuntimeError: Failed: Assertion error /sgl-workspace/DeepEP/csrc/deep_ep.cpp:1025 'x.size(0) == topk_idx.size(0) and x.size(0) <= num_max_dispatch_tokens_per_rank'"
    log.raises("DP0 TP0", frames, text, decisive=True, header="TpModelWorkerClient hit an exception: ")
    return log.dies(serving=True)


@case("device_fault", "serving", "retry infeasible")
def watchdog_sees_the_fault(log):
    log.arguments(tp_size=8).start("ready", TP8)
    log.decides(
        "[rank5]:[E304 11:21:16.789822241 ProcessGroupNCCL.cpp:2068] [PG ID 2 PG GUID 3 Rank 5] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered"
    )
    log.add(
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nException raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:43 (most recent call first):\nframe #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f05 in libc10.so)"
    )
    log.add(
        "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 2 PG GUID 3 Rank 5] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered"
    )
    log.add(
        'Fatal Python error: Aborted\n\nThread 0x00007f0 (most recent call first):\n  File "/usr/lib/python3.12/threading.py", line 359 in wait'
    )
    log.add("Subprocess scheduler_5 (pid=771) crashed with exit code -6. Triggering SIGQUIT for cleanup...", "", 1)
    return log.dies(serving=True)


@case("hang", "serving", "retry")
def aborted_by_collective_timeout(log):
    log.arguments(tp_size=16, nnodes=2).start("ready", TP8)
    log.second += 600
    log.decides(NCCL_TIMEOUT.format(r=2))
    log.add(
        'Fatal Python error: Aborted\n\nThread 0x00007f0 (most recent call first):\n  File "/usr/lib/python3.12/threading.py", line 359 in wait'
    )
    log.add(
        "[rank2]:[E304 11:30:02.394775308 ProcessGroupNCCL.cpp:1595] [PG ID 2 PG GUID 3 Rank 2] Process group watchdog thread terminated with exception: [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1522789)"
    )
    return log.dies(serving=True)


@case("arch_unsupported", "warmup", "infeasible", None, "--attention-backend")
def trtllm_gen_during_autotune(log):
    log.arguments(new=True, tp_size=4, attention_backend="trtllm_mla").start("pool", TP4, "0.5.20")
    log.add(
        "Running FlashInfer autotune with cache: /root/.cache/sglang/flashinfer/autotune/0.6.18/sm120/x.json", "TP0", 1
    )
    frames = (
        *SCHEDULER[:2],
        "model_executor/runner/base_runner.py:_flashinfer_autotune> run_flashinfer_autotune_forward(self.model_runner, forward_fn)",
        "layers/attention/trtllm_mla_backend.py:forward_decode> raw_out = flashinfer.decode.trtllm_batch_decode_with_kv_cache_mla(",
    )
    text = "tvm.error.InternalError: Error in function 'TllmGenFmhaRunner' at /x/flashinfer/trtllm/fmha/fmhaRunner.cuh:37: Unsupported architecture"
    log.raises("TP1", frames, text, decisive=True)
    bar = "[AutoTuner]: Tuning trtllm_batch_decode_mla:   0%|          | 0/21 [00:00<?, ?profile/s]"
    first = next(index for index, line in enumerate(log.lines) if "hit an exception" in line)
    log.lines[first] = bar + log.lines[first]
    return log.dies()


@case("host_env", "validate", "stop infeasible")
def kernel_package_missing(log):
    frames = (
        "../launch_server.py:<module>> from sglang.srt.entrypoints.http_server import launch_server",
        "layers/activation.py:<module>> from sgl_kernel import gelu_and_mul",
    )
    return log.raises(None, frames, "ModuleNotFoundError: No module named 'sgl_kernel'", decisive=True, header="")


@case("engine_bug", "serving", "infeasible")
def sparse_attention_assertion(log):
    log.arguments(tp_size=8, dp_size=8, enable_dp_attention=True).start("ready", DP8)
    frames = (
        *EVENT_LOOP,
        "layers/attention/nsa/nsa_indexer.py:_get_topk_paged> assert logits.shape[0] == len(seq_lens_expanded)",
    )
    log.raises("DP6 TP6 EP6", frames, "AssertionError", decisive=True)
    return log.dies(serving=True)


@case("hang", "load", "retry")
def another_rank_did_not_load(log):
    log.arguments(tp_size=16, nnodes=2).start("load", TP2)
    text = "ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading. It is likely due to unexpected failures (e.g., OOM) or a slow node."
    log.raises(
        "TP1",
        (*LOADING[:-1], "model_executor/model_runner.py:load_model> raise ValueError("),
        text,
        decisive=True,
        wait=300,
    )
    return log.dies()


@case("oom_weights", "load", "infeasible")
def restarting_container(log):
    for _ in range(3):
        log.arguments(tp_size=2).start("load", TP2)
        log.raises(
            "TP1",
            (*LOADING, "layers/linear.py:create_weights> torch.empty("),
            OOM.format(mib="448.00", gpu=1),
            decisive=True,
        )
        log.dies()
    return log


@case("none", "serving", "none")
def crashed_then_healthy(log):
    log.arguments(tp_size=2).start("load", TP2)
    log.raises(
        "TP1",
        DISTRIBUTED,
        "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
    ).dies()
    return log.arguments(tp_size=2).start("ready", TP2).serve(5, "TP0")


@case("graph_capture", "graph_capture", "infeasible")
def nccl_tree_in_capture(log):
    log.add("+ export NCCL_ALGO=Tree")
    log.arguments(tp_size=8).start("capture", TP8)
    text = "RuntimeError: NCCL error: operation not permitted when stream is capturing"
    log.raises(
        "TP3",
        (*CAPTURE, "distributed/device_communicators/pynccl.py:all_reduce> self.nccl.ncclAllReduce("),
        text,
        wrapper=captured(text.partition(": ")[2]),
        decisive=True,
    )
    return log.dies()


@case("engine_bug", "serving", "infeasible", ("--max-running-requests", "lower"), "--max-running-requests")
def request_slots_run_out(log):
    log.arguments(tp_size=1, max_running_requests=128).start("ready")
    text = "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`. req_to_token_pool.available_size()=0, num_reqs=1"
    log.raises(
        "", (*EVENT_LOOP[:2], "managers/schedule_batch.py:alloc_req_slots> raise RuntimeError("), text, decisive=True
    )
    return log.dies(serving=True)


@case("arch_unsupported", "graph_capture", "infeasible", None, "--kv-cache-dtype")
def fp8_type_of_triton(log):
    log.arguments(tp_size=1, kv_cache_dtype="fp8_e4m3", attention_backend="triton").start("capture")
    text = "triton.compiler.errors.CompilationError: at 93:19:\n        k = tl.load(\n                   ^\nValueError(\"type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')\")"
    log.raises(
        "",
        (*CAPTURE, "layers/attention/triton_ops/decode_attention.py:_decode_att_m_fwd> _fwd_kernel_stage1[grid]("),
        text,
        wrapper=captured("at 93:19"),
        decisive=True,
        decisive_part="not supported in this",
    )
    return log.dies()


@case("jit_autotune", "graph_capture", "stop")
def old_nvcc(log):
    log.arguments(tp_size=1).start("capture")
    text = "RuntimeError: Error building extension 'fp4_quant': [1/2] /usr/local/cuda/bin/nvcc -gencode=arch=compute_120a\nnvcc fatal   : Unsupported gpu architecture 'compute_120a'\nninja: build stopped: subcommand failed."
    log.raises(
        "",
        (
            *CAPTURE,
            "/usr/lib/python3/dist-packages/torch/utils/cpp_extension.py:_run_ninja_build> raise RuntimeError(message) from e",
        ),
        text,
        wrapper=captured("Error building extension"),
        decisive=True,
        decisive_part="Error building",
    )
    return log.dies()


@case("host_env", "load", "infeasible", ("--hicache-ratio", "lower"), "--hicache-ratio")
def host_cache_too_large(log):
    log.arguments(tp_size=1, enable_hierarchical_cache=True, hicache_ratio=8.0).start("pool")
    frames = (*SCHEDULER[:2], "mem_cache/memory_pool_host.py:__init__> raise ValueError(")
    log.raises(
        "",
        frames,
        "ValueError: Not enough host memory available. Requesting 310.10 GB but only have 190.20 GB free. Please reduce the size of the hierarchical cache.",
        decisive=True,
    )
    return log.dies()


@case("invalid_combo", "load", "infeasible", ("--speculative-algorithm", "drop"), "--speculative-algorithm")
def speculative_with_pipeline(log):
    log.arguments(tp_size=4, pp_size=2, speculative_algorithm="EAGLE").start("load", ("TP0 PP0", "TP0 PP1"))
    log.raises(
        "TP2 PP1",
        (*SCHEDULER[:2], "managers/scheduler.py:init_overlap> assert ("),
        "AssertionError: Pipeline parallelism is not compatible with overlap schedule, speculative decoding, mixed chunked prefill.",
        decisive=True,
    )
    return log.dies()


@case("engine_bug", "serving", "infeasible")
def detokenizer_dies(log):
    log.arguments(tp_size=1).start("ready")
    log.raises(
        "",
        (
            "managers/detokenizer_manager.py:run_detokenizer_process> manager.event_loop()",
            "managers/detokenizer_manager.py:handle_batch_token_id_out> self.decode_status[rid]",
        ),
        "KeyError: '7f3a'",
        decisive=True,
        header="DetokenizerManager hit an exception: ",
    )
    return log.dies(serving=True)


@case("device_fault", "serving", "retry infeasible")
def cublas_fails(log):
    log.arguments(tp_size=16).start("ready", TP8)
    log.raises(
        "TP4",
        (*EVENT_LOOP, "layers/linear.py:apply> return F.linear(x, layer.weight, bias)"),
        "RuntimeError: CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasGemmEx( handle, opa, opb, m, n, k)`",
        decisive=True,
    )
    return log.dies(serving=True)


@case("oom_graph", "graph_capture", "infeasible", ("--mem-fraction-static", "lower"))
def cublas_handle_in_capture(log):
    log.arguments(tp_size=2, mem_fraction_static=0.93, cuda_graph_max_bs=160).start("capture", TP2)
    text = "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    log.raises("TP0", CAPTURE, text, wrapper=captured(text.partition(": ")[2]), decisive=True)
    return log.dies()


# --- what a driver writes beside the server


@case("perf_regression", "serving", "none")
def far_below_the_baseline(log):
    log.arguments(
        tp_size=8, enable_flashinfer_allreduce_fusion=True, flashinfer_allreduce_fusion_backend="trtllm"
    ).start("ready", TP8)
    return log.decides(
        "[bench] output throughput 61.20 tok/s at concurrency 1 (baseline without fusion: 2104.10 tok/s)", "", 60
    )


@case("none", "serving", "none")
def above_the_baseline(log):
    log.arguments(tp_size=8).start("ready", TP8)
    log.add("[bench] output throughput 2204.10 tok/s at concurrency 10 (baseline: 2104.10 tok/s)", "", 60)
    log.add(
        "[probe] prompt='The capital of France is' temperature=0 -> ' Paris, of course' (expected substring 'Paris')",
        "",
    )
    return log.add("[eval] gsm8k accuracy 0.853 vs 0.855 reference", "")


@case("wrong_output", "serving", "infeasible")
def answers_differ(log):
    log.arguments(tp_size=4, enable_symm_mem=True).start("ready", TP4)
    return log.decides("[probe] 3 of 20 answers differ between identical prompts at temperature 0", "", 30)


@case("wrong_output", "serving", "infeasible", ("--enable-ep-moe", "drop"), "--enable-ep-moe")
def accuracy_alone(log):
    log.arguments(tp_size=8, enable_ep_moe=True).start("ready", TP8, "0.4.6")
    return log.decides("[eval] Accuracy: 0.540", "", 30)


@case("hang", "load", "retry")
def silent_start(log):
    log.arguments(tp_size=8).start("load", TP8)
    for seconds in (30, 60, 240, 300, 600):
        text = f"[wait_ready] still waiting for server to become ready ({seconds}s)"
        if seconds == 300:
            log.decides(text, "", 60)
        else:
            log.add(text, "", 60)
    return log


@case("hang", "serving", "retry")
def stuck_without_a_word(log):
    log.arguments(tp_size=4, enable_symm_mem=True, enable_nccl_nvls=True).start("ready", TP4)
    log.add('INFO:     127.0.0.1:4000 - "GET /health HTTP/1.1" 200 OK', "", 30)
    return log.decides("[bench] /health 200 but /get_server_info hangs for 120 s, GPU util 0% on all ranks", "", 120)


@case("host_env", "load", "retry")
def killed_while_loading(log):
    log.arguments(tp_size=1).start("load")
    log.add("Loading safetensors checkpoint shards:  41% Completed | 27/64 [01:22<01:53,  3.08s/it]")
    return log.decides("Killed")


@case("oom_weights", "load", "infeasible")
def two_pods_interleaved(log):
    """Two pods of one server, line by line; the second one's timeout is a consequence."""
    log.arguments(tp_size=16, nnodes=2).start("load", TP2)
    begin = len(log.lines)
    log.raises("TP3", (*LOADING, "layers/linear.py:create_weights> torch.empty("), OOM.format(mib="448.00", gpu=3))
    first = log.lines[begin:]
    del log.lines[begin:]
    log.raises(
        "TP9",
        DISTRIBUTED,
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error",
        wait=1,
    )
    second = log.lines[begin:]
    del log.lines[begin:]
    log.lines[:] = [f"[pod/sglang-0/server] {line}" for line in log.lines]
    for index in range(max(len(first), len(second))):
        log.lines += [f"[pod/sglang-0/server] {first[index]}"] if index < len(first) else []
        log.lines += [f"[pod/sglang-1/server] {second[index]}"] if index < len(second) else []
    log.decisive = next(number for number, line in enumerate(log.lines, 1) if "OutOfMemoryError" in line)
    return log


@case("device_fault", "serving", "retry infeasible")
def many_failed_requests_before(log):
    log.arguments(tp_size=1).start("ready")
    for number in range(130):
        log.add("ERROR:    Exception in ASGI application", "")
        log.raises(
            None,
            ("/usr/lib/python3/dist-packages/uvicorn/protocols/http/httptools_impl.py:run_asgi> result = await app(",),
            f"ValueError: request {number} is longer than the context",
            header="",
        )
    log.raises(
        "", EVENT_LOOP, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", decisive=True
    )
    return log.dies(serving=True)


@case("oom_weights", "load", "infeasible")
def another_port_was_taken(log):
    log.arguments(tp_size=1).add("Port 29500 is already in use, using 29501 instead.", "", 1)
    log.start("load")
    log.raises(
        "", (*LOADING, "layers/linear.py:create_weights> torch.empty("), OOM.format(mib="448.00", gpu=0), decisive=True
    )
    return log.dies()


@case("model_artifact", "load", "stop infeasible")
def checkpoint_file_missing(log):
    log.arguments(tp_size=1).start("load")
    frames = (
        *LOADING,
        'model_loader/weight_utils.py:safetensors_weights_iterator> with safe_open(st_file, framework="pt") as f:',
    )
    log.raises(
        "",
        frames,
        "FileNotFoundError: [Errno 2] No such file or directory: '/root/.cache/huggingface/hub/models--x--y/snapshots/1/model-00003-of-00010.safetensors'",
        decisive=True,
    )
    return log.dies()


# --- the node, the installation and the model's files


LAUNCHER = (
    "/usr/lib/python3/dist-packages/sglang/launch_server.py:<module>> run_server(server_args)",
    "entrypoints/engine.py:_launch_subprocesses> data = scheduler_pipe_readers[i].recv()",
)
KILLED_BY_KERNEL = "[81231.300] Memory cgroup out of memory: Killed process 4211 (sglang::schedul) total-vm:812345678kB, anon-rss:201234567kB"


@case("host_env", "load", "retry")
def exit_code_with_a_capital(log):
    log.arguments(tp_size=8).start("load", TP8)
    log.add("Rank 3 scheduler is dead. Please check if there are relevant logs.", "", 40)
    log.decides("Exit code: -9", "")
    return log.raises(None, LAUNCHER, "EOFError", header="")


@case("host_env", "load", "retry")
def kernel_speaks_right_after_a_traceback(log):
    log.arguments(tp_size=8).start("load", TP8)
    log.add("Rank 1 scheduler is dead. Please check if there are relevant logs.", "", 40)
    log.raises(None, LAUNCHER, "EOFError", header="")
    log.lines.pop()  # no blank line in between
    log.decides("[81231.221] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=sglang::schedul,pid=4211,uid=0")
    return log.add(KILLED_BY_KERNEL)


@case("host_env", "load", "retry")
def only_the_kernel_of_the_group_speaks(log):
    log.arguments(tp_size=8).start("load", TP8)
    log.decides(KILLED_BY_KERNEL)
    return log.add("Rank 3 scheduler is dead. Please check if there are relevant logs.", "", 1)


@case("host_env", "parse", "stop")
def engine_is_not_installed(log):
    return log.decides("/usr/bin/python3: No module named sglang")


@case("host_env", "parse", "stop")
def engine_specification_is_not_found(log):
    return log.decides(
        "python3.11: Error while finding module specification for 'sglang.launch_server' (ModuleNotFoundError: No module named 'sglang')"
    )


@case("host_env", "validate", "stop")
def launcher_cannot_be_imported(log):
    frames = (
        "<frozen runpy>:_run_module_as_main",
        "/usr/lib/python3/dist-packages/sglang/launch_server.py:<module>> from sglang.srt.server_args import x",
        "server_args.py:<module>> import msgspec",
    )
    frames = tuple(f"/{frame}" if frame.startswith("<") else frame for frame in frames)
    log.raises(None, frames, "ModuleNotFoundError: No module named 'msgspec'", header="", decisive=True)
    return log


@case("host_env", "load", "stop")
def kernels_of_another_torch(log):
    log.arguments(tp_size=8, moe_runner_backend="triton", attention_backend="fa3").start("load", TP8)
    frames = ("layers/moe/topk.py:<module>> import sgl_kernel", "../../sgl_kernel/__init__.py:<module>> load()")
    text = "ImportError: /opt/lib/sgl_kernel/sm90/common_ops.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEab"
    return log.raises("TP0", frames, text, decisive=True).dies()


@case("model_artifact", "load", "stop")
def weights_were_copied_in_part(log):
    log.arguments(tp_size=8, load_format="auto", quantization="fp8").start("load", TP8)
    frames = (*LOADING, "model_loader/weight_utils.py:safetensors_weights_iterator> with safe_open(file) as f:")
    text = "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"
    return log.raises("TP5", frames, text, decisive=True).dies()


@case("model_artifact", "validate", "infeasible", ("--chat-template", "drop"), "--chat-template")
def unknown_chat_template(log):
    log.arguments(tp_size=2, chat_template="kimi9").start("pool", TP2)
    frames = (LAUNCHER[0], "managers/template_manager.py:_load_explicit_chat_template> raise RuntimeError(")
    text = "RuntimeError: Chat template kimi9 is not a built-in template name or a valid chat template file path."
    log.raises(None, frames, text, header="", decisive=True)
    return log


@case("model_artifact", "validate", "stop", None, "--model-path")
def model_behind_a_gate(log):
    frames = ("/usr/lib/python3/dist-packages/huggingface_hub/utils/_http.py:hf_raise_for_status> raise x",)
    text = "huggingface_hub.errors.GatedRepoError: 401 Client Error.\nCannot access gated repo for url https://huggingface.co/org/model/resolve/main/config.json."
    log.raises(None, (LAUNCHER[0], *frames), text, header="", decisive=True)
    return log


@case("device_fault", "serving", "stop")
def memory_of_a_gpu_is_broken(log):
    log.arguments(tp_size=8, moe_runner_backend="triton", enable_symm_mem=True).start("ready", TP8)
    text = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
    return log.raises("TP6", EVENT_LOOP, text, decisive=True, wait=50).dies(serving=True)


@case("jit_autotune", "graph_capture", "stop")
def build_tool_is_missing(log):
    log.arguments(tp_size=2).start("capture", TP2)
    text = "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"
    return log.raises("TP0", CAPTURE, text, wrapper=captured(text.partition(": ")[2]), decisive=True).dies()


@case("hang", "serving", "retry")
def watchdog_of_old_versions(log):
    log.arguments(tp_size=2).start("ready", TP2)
    log.decides("Watchdog timeout (self.watchdog_timeout=300)", "TP1", 310)
    return log.add("Received sigquit from a child process. It usually means the child failed.", "", 5)


@case("none", "load", "none")
def somebody_pressed_control_c(log):
    log.arguments(tp_size=2).start("load", TP2)
    log.add("Received sigquit from a child process. It usually means the child failed.", "", 3)
    frames = ("/usr/lib/python3.12/multiprocessing/connection.py:_recv> chunk = read(handle, remaining)",)
    return log.raises(None, frames, "KeyboardInterrupt", header="")


# --- several launches in one file, and servers that work


NO_POOL = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: self.server_args.mem_fraction_static=0.7"


def without_a_pool(log):
    log.arguments(tp_size=8, mem_fraction_static=0.7).start("weights", TP2, begin=94.0, after=20.0)
    return log.raises("TP1", POOLS, NO_POOL, decisive=True).dies()


@case("kv_budget", "kv_alloc", "infeasible", ("--mem-fraction-static", "raise"), "--mem-fraction-static")
def worked_and_was_started_again(log):
    log.arguments(tp_size=8, mem_fraction_static=0.85).start("ready", TP2)
    log.second += 1800
    return without_a_pool(log)


@case("kv_budget", "kv_alloc", "infeasible", ("--mem-fraction-static", "raise"), "--mem-fraction-static")
def vanished_while_loading_and_was_started_again(log):
    log.arguments(tp_size=8, mem_fraction_static=0.7).start("load", TP2, begin=60.0)
    log.second += 300
    return without_a_pool(log)


@case("none", "serving", "none")
def one_retraction_in_half_an_hour(log):
    log.arguments(tp_size=2, mem_fraction_static=0.8).start("ready", TP2).serve(2, "TP0")
    log.add("KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_token_ratio: 0.41 -> 0.59", "TP0", 100)
    log.second += 1500
    log.serve(2, "TP0").add("INFO:     Shutting down", "", 1)
    return log.add("Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].", "")


@case("none", "load", "none")
def nobody_asked_for_the_default(log):
    log.arguments(tp_size=2).start("dist", TP2)
    text = "Setup Custom allreduce failed with out of memory. To silence this warning, specify --disable-custom-all-reduce explicitly."
    return log.add(text, "TP0", 1).start("ready", TP2).serve(3, "TP0")


@case("perf_regression", "load", "none")
def custom_all_reduce_was_asked_for(log):
    log.add("$ python3 -m sglang.launch_server --model-path /m --tp 2 --disable-custom-all-reduce=False")
    log.arguments(tp_size=2).start("dist", TP2)
    text = "Setup Custom allreduce failed with out of memory. To silence this warning, specify --disable-custom-all-reduce explicitly."
    return log.decides(text, "TP0", 1).start("ready", TP2).serve(3, "TP0")


@case("device_fault", "serving", "retry", None, "--moe-a2a-backend")
def crash_in_native_code(log):
    log.arguments(tp_size=8).start("ready", TP8)
    log.decides("Fatal Python error: Segmentation fault", None, 60)
    log.add(
        '\nThread 0x00007f1b2ffff640 (most recent call first):\n  File "/usr/lib/python3.12/threading.py", line 359 in wait\n'
    )
    log.add("Current thread 0x00007f1b4bfff640 (most recent call first):")
    log.add('  File "/app/python/sglang/srt/layers/moe/token_dispatcher/deepep.py", line 611 in _dispatch_core')
    log.add('  File "/app/python/sglang/srt/managers/scheduler.py", line 11 in event_loop_overlap\n')
    return log.add(
        "Subprocess scheduler_5 (pid=77) crashed with exit code -11. Triggering SIGQUIT for cleanup...", "", 2
    )
