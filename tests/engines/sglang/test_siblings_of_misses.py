"""Families again: options named in words, artifacts that do not come, tiles, modes, file systems, signs, speeds, graphs."""

# ruff: noqa: E501 - log lines are as long as they are

from __future__ import annotations

from typing import Any

import pytest
from engines.sglang.composing import CAPTURE, EVENT_LOOP, LOADING, SCHEDULER, VALIDATION, Log, captured

from servetune.engines.sglang.logs import SglangLogReader

RANKS = ("TP0", "TP1")
SITE = "/usr/local/lib/python3.12/dist-packages"
FLAGS: dict[str, Any] = {
    "tp_size": 8,
    "ep_size": 8,
    "mem_fraction_static": 0.85,
    "attention_backend": "trtllm_mla",
    "moe_runner_backend": "flashinfer_trtllm",
    "quantization": "modelopt_fp4",
}
PACKING = (
    *LOADING[:-1],
    "model_loader/loader.py:load_weights_and_postprocess> quant_method.process_weights_after_loading(module)",
    "layers/quantization/compressed_tensors/schemes/compressed_tensors_w8a16_fp8.py:process_weights_after_loading> prepare_fp8_layer_for_marlin(",
)
MARLIN = (
    *PACKING,
    "layers/quantization/marlin_utils_fp8.py:prepare_fp8_layer_for_marlin> marlin_qweight = gptq_marlin_repack(",
    f"{SITE}/torch/_ops.py:__call__> return self._op(*args, **(kwargs or {{}}))",
)
CREATING = (
    *LOADING,
    "models/glm4_moe.py:__init__> self.gate_up_proj = MergedColumnParallelLinear(",
    "layers/linear.py:__init__> self.quant_method.create_weights(",
    "layers/quantization/marlin_utils.py:verify_marlin_supports_shape> raise ValueError(",
)
WEIGHTS = (
    *LOADING[:-1],
    "models/qwen3_moe.py:load_weights> for name, loaded_weight in weights:",
    "model_loader/weight_utils.py:safetensors_weights_iterator> with safetensors.safe_open(st_file, framework='pt') as f:",
)
DISPATCH = (
    *EVENT_LOOP,
    "models/deepseek_v2.py:forward_deepep> final_hidden_states = self.experts(",
    "layers/moe/token_dispatcher/deepep.py:_combine_core> combined_x, _, event = buffer.combine(",
    f"{SITE}/deep_ep/buffer.py:internode_combine> combined_x, combined_topk_weights, event = self.runtime.internode_combine(",
)
TUNING = (
    *SCHEDULER,
    "model_executor/model_runner.py:kernel_warmup> self._flashinfer_autotune()",
    "layers/quantization/modelopt_quant.py:apply> result = trtllm_fp4_block_scale_moe(",
)
TRTLLM = (
    *TUNING,
    f"{SITE}/flashinfer/fused_moe/core.py:get_trtllm_moe_sm100_module> module = gen_trtllm_gen_fused_moe_sm100_module()",
    f"{SITE}/flashinfer/jit/fused_moe.py:gen_trtllm_gen_fused_moe_sm100_module> assert header_content, f'{{header_name}}.h not found'",
)
CUBINS = (
    *CAPTURE,
    f"{SITE}/flashinfer/mla.py:trtllm_batch_decode_with_kv_cache_mla> run_func(",
    f"{SITE}/flashinfer/jit/cubin_loader.py:get_cubin> raise RuntimeError(",
)
FETCHING = (
    *CAPTURE,
    f"{SITE}/flashinfer/artifacts.py:download_artifacts> raise RuntimeError(",
)
REQUESTS = (
    *CAPTURE,
    f"{SITE}/flashinfer/jit/cubin_loader.py:download_file> response = session.get(source, timeout=timeout)",
    f"{SITE}/requests/models.py:raise_for_status> raise HTTPError(http_error_msg, response=self)",
)
REBALANCING = (
    *EVENT_LOOP,
    "eplb/eplb_manager.py:rebalance> dump_record_output = get_global_expert_distribution_recorder().dump_record(",
)
SPARSE = (
    *EVENT_LOOP,
    "layers/attention/deepseek_v4_backend.py:forward_prefill_sparse> o, _, _ = flash_mla_sparse_fwd(",
    f"{SITE}/sgl_kernel/flash_mla.py:flash_mla_sparse_fwd> torch.ops.sgl_kernel.sparse_prefill_fwd.default(",
)
FREEING = (
    *EVENT_LOOP[:1],
    "mem_cache/common.py:release_kv_cache> kv_committed_len = req.pop_committed_kv_cache()",
    "managers/schedule_batch.py:pop_committed_kv_cache> assert (",
)
VALIDATED = (*VALIDATION[:2], "server_args.py:_handle_speculative_decoding> assert not MoeRunnerBackend(")

TILES = (
    (MARLIN, "RuntimeError: size_n = 5472 is not divisible by tile_n_size = 64"),
    (MARLIN, "RuntimeError: size_k = 684 is not divisible by tile_k_size = 16"),
    (
        CREATING,
        "ValueError: Weight output_size_per_partition = 1368 is not divisible by  min_thread_n = 64. Consider reducing tensor_parallel_size or running with --quantization gptq.",
    ),
    (
        CREATING,
        "ValueError: Weight input_size_per_partition = 342 is not divisible by min_thread_k = 128. Consider reducing tensor_parallel_size or running with --quantization gptq.",
    ),
    (
        CREATING,
        "ValueError: The input size is not aligned with the quantized weight shape. This can be caused by too large tensor parallel size.",
    ),
    (
        CREATING,
        "ValueError: The output size is not aligned with the quantized weight shape. This can be caused by too large tensor parallel size.",
    ),
    (PACKING, "AssertionError: intermediate_size_per_partition=342 must be a multiple of 128 for the trtllm layout"),
    (PACKING, "RuntimeError: gptq_marlin_repack: N (5472) has to be a multiple of the tile width 64"),
    (PACKING, "ValueError: weight N dimension 1368 is not aligned to the kernel's tile size 64"),
)
ARTIFACTS = (
    (TRTLLM, "AssertionError: BatchedGemmEnums.h not found", "warmup"),
    (TRTLLM, "AssertionError: KernelMetaInfo.h not found", "warmup"),
    (TRTLLM, "AssertionError: flashinferMetaInfo.h is missing", "warmup"),
    (CUBINS, "RuntimeError: Failed to load cubin: fmhaSm100fKernel_QkvE4m3OBfloat16HQk576.cubin", "graph_capture"),
    (CUBINS, "RuntimeError: Failed to get cubin checksum for fmhaSm100fKernel_QkvBfloat16.cubin", "graph_capture"),
    (CUBINS, "AssertionError: Failed to download artifact checksums.txt after 4 attempts", "graph_capture"),
    (FETCHING, "RuntimeError: Failed to download cubins", "graph_capture"),
    (
        REQUESTS,
        "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://kernels.example/trtllmGen_bmm_export/KernelMetaInfo.h",
        "graph_capture",
    ),
    (
        REQUESTS,
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='kernels.example', port=443): Max retries exceeded with url: /fmha/checksums.txt",
        "graph_capture",
    ),
)
DEEPEP_CONFIG = (
    "RuntimeError: Failed: Assertion error /sgl-workspace/DeepEP/csrc/kernels/internode.cu:1713 'num_max_nvl_chunked_recv_tokens / num_rdma_ranks > std::max(num_max_rdma_chunked_send_tokens, num_max_nvl_chunked_send_tokens)'",
    "RuntimeError: Failed: Assertion error /sgl-workspace/DeepEP/csrc/kernels/internode.cu:1705 'num_max_rdma_chunked_send_tokens >= num_warps_per_forwarder'",
    "RuntimeError: Failed: Assertion error csrc/config.hpp:41 'num_max_nvl_chunked_send_tokens < num_max_nvl_chunked_recv_tokens'",
    "RuntimeError: Failed: Assertion error csrc/config.hpp:51 'num_max_rdma_chunked_send_tokens <= num_max_rdma_chunked_recv_tokens / 2'",
    "RuntimeError: Failed: Assertion error csrc/kernels/intranode.cu:612 'num_recv_buffer_tokens <= num_nvl_bytes'",
    "RuntimeError: Failed: Assertion error csrc/deep_ep.cpp:310 'config.num_sms % 2 == 0'",
    "RuntimeError: Failed: Assertion error csrc/deep_ep.cpp:1044 'config.get_rdma_buffer_size_hint(hidden_bytes, num_ranks) <= num_rdma_bytes'",
)
FILE_SYSTEM = (
    ("OSError: No such device (os error 19)", "host_env"),
    ("OSError: Input/output error (os error 5)", "host_env"),
    ("OSError: Transport endpoint is not connected (os error 107)", "host_env"),
    ("OSError: Stale file handle (os error 116)", "host_env"),
    ("OSError: [Errno 5] Input/output error: '/mnt/models/model-00012-of-00049.safetensors'", "host_env"),
    ("OSError: [Errno 19] No such device", "host_env"),
    ("OSError: Operation not supported (os error 95)", "host_env"),
    (
        "RuntimeError: unable to mmap 4890000000 bytes from file </mnt/models/model-00012.safetensors>: No such device (19)",
        "host_env",
    ),
)
#: Innermost frame, flags, flag to change.
MODES = (
    (
        'eplb/expert_distribution.py:dump> assert output_mode == "file"',
        {"enable_eplb": True, "expert_distribution_recorder_mode": "per_token"},
        "--expert-distribution-recorder-mode",
    ),
    (
        "eplb/expert_distribution.py:dump> assert output_mode == 'object'",
        {"enable_eplb": True, "expert_distribution_recorder_mode": "per_pass"},
        "--expert-distribution-recorder-mode",
    ),
    (
        'eplb/expert_distribution.py:_get_global_average> assert self._recorder_mode in ("stat", "stat_approx")',
        {"expert_distribution_recorder_mode": "per_token"},
        "--expert-distribution-recorder-mode",
    ),
    (
        "eplb/eplb_algorithms/__init__.py:rebalance_experts> assert algorithm == 'deepseek'",
        {"enable_eplb": True, "eplb_algorithm": "elasticity_aware"},
        "--eplb-algorithm",
    ),
    (
        "layers/attention/trtllm_mla_backend.py:forward_extend> assert self.kv_cache_dtype in ('auto', 'bf16')",
        {"kv_cache_dtype": "fp8_e4m3"},
        "--kv-cache-dtype",
    ),
    (
        "speculative/eagle_worker.py:verify> assert self.speculative_attention_mode == 'decode'",
        {"speculative_algorithm": "EAGLE", "speculative_attention_mode": "prefill"},
        "--speculative-attention-mode",
    ),
)
#: Message, flags given, flag that the first repair turns.
IN_WORDS = (
    (
        "AssertionError: Currently speculative MoE runner backend cannot be flashinfer_trtllm for risk in some draft models.",
        {
            "moe-runner-backend": "flashinfer_trtllm",
            "speculative-algorithm": "NEXTN",
            "speculative-moe-runner-backend": "flashinfer_trtllm",
        },
        "--speculative-moe-runner-backend",
    ),
    (
        "ValueError: speculative MoE A2A backend cannot be deepep here",
        {"moe-a2a-backend": "deepep", "speculative-algorithm": "EAGLE", "speculative-moe-a2a-backend": "deepep"},
        "--speculative-moe-a2a-backend",
    ),
    (
        "ValueError: the speculative draft attention backend must not be trtllm_mla",
        {
            "attention-backend": "trtllm_mla",
            "speculative-algorithm": "EAGLE",
            "speculative-draft-attention-backend": "trtllm_mla",
        },
        "--speculative-draft-attention-backend",
    ),
    (
        "AssertionError: decode attention backend cannot be fa4 on this model",
        {"attention-backend": "fa3", "decode-attention-backend": "fa4"},
        "--decode-attention-backend",
    ),
    (
        "ValueError: Prefill attention backend 'fa4' is not allowed with this page size",
        {"decode-attention-backend": "fa4", "prefill-attention-backend": "fa4"},
        "--prefill-attention-backend",
    ),
    (
        "ValueError: Speculative attention mode cannot be prefill for this algorithm.",
        {"speculative-algorithm": "EAGLE", "speculative-attention-mode": "prefill"},
        "--speculative-attention-mode",
    ),
    (
        "AssertionError: The speculative token map cannot be used with EAGLE3",
        {"speculative-algorithm": "EAGLE3", "speculative-token-map": "/m/map.pt"},
        "--speculative-token-map",
    ),
)
SM_ONLY = (
    "RuntimeError: Sparse Attention Forward Kernel is only supported on SM90a and SM100f architectures.",
    "RuntimeError: Unsupported architecture for the sparse prefill: only sm_90a and sm_100f",
    "RuntimeError: sparse_prefill_fwd requires SM90a or newer Hopper/Blackwell data-centre GPUs",
    "RuntimeError: no kernel image is available for execution on the device",
)
SIGNS = (
    '[probe 1/2] "What is 17 * 23?" -> {"choices":[{"message":{"content":"++++++++++++++++++++++++++++++++++++++++++++++++++"},"finish_reason":"length"}]}  expected 391: MISS',
    '[probe] "Name a river." -> {"choices":[{"message":{"content":"------------------------------------------------"},"finish_reason":"length"}]}',
    '{"id":"1","choices":[{"message":{"role":"assistant","content":"================================================================"},"finish_reason":"length"}]}',
    '[check] Q: "Capital of Norway?" A: "......................................................"',
    '[probe] prompt="Who wrote Faust?" -> "||||||||||||||||||||||||||||||||||||||||||||||||||||"',
    '[smoke] "2+2?" -> "++++++++++++++++++++++++++++++++++++" expected 4: WRONG',
    '[probe 2/2] "Name the capital of Norway." -> "Bergen lies by the sea"  expected Oslo: MISS',
    '[canary] "What is 6*7?" -> "I like turtles"; expected 42 -> INCORRECT',
)
SIGNS_OF_THE_WELL = (
    '[probe] "Draw a line of 40 dashes." -> "----------------------------------------"',
    '{"choices":[{"message":{"role":"assistant","content":"# Title\\n--------------------\\nHello there"},"finish_reason":"length"}]}',
    '{"choices":[{"message":{"role":"assistant","content":"--------------------------------------"},"finish_reason":"stop"}]}',
    '[probe] "What is 17 * 23?" -> "17 * 23 = 391"  expected 391: HIT',
    '[probe] "Name the capital of Norway." -> "Oslo."  expected Oslo: OK, 0 MISS',
    "[probe] radix cache: expected hit, got MISS on the first request (cold)",
    "[cache] prefix lookup -> MISS, stored",
)
LOOPS = (
    '[eval] long mechanical repetition in 57/113 tasks (reference 0/113); 37 responses over 50K output tokens, all 37 loop ("hmm hmm hmm hmm hmm")',
    "[eval] 41 of 200 answers loop until max_tokens (reference: 1 of 200)",
    "[eval] endless repetition in 12/64 responses (baseline 0/64)",
    "[check] 31% of the completions end in a loop, baseline 0.4%",
    "[eval] degenerate repetition: 18/120 samples, reference run 0/120",
    "[quality] 22 of 80 generations never stop and repeat one phrase (same prompts on the reference: 0 of 80)",
)
LOOPS_OF_THE_WELL = (
    "[eval] long mechanical repetition in 0/113 tasks (reference 0/113)",
    "[eval] repetition in 1/113 tasks (reference 1/113)",
    "[eval] 0 of 200 answers loop until max_tokens (reference: 1 of 200)",
    "[bench] event loop lag 12 ms, loop 37/113 done",
    "[eval] 3% of the completions end in a loop, baseline 3.1%",
    "[eval] task loop 57/113 finished, 56 left",
)
SLOW = (
    "[bench] same command, same node, build of the day before: speed=112.05, now speed=14.19",
    "AssertionError: 14.19 not greater than 75",
    "AssertionError: 212.4 not greater than or equal to 900",
    "[bench] output token throughput 2987.44 tok/s (same command with --disable-cuda-graph: 3001.12 tok/s; 0.4.4 baseline of this node pair: 6120.83 tok/s), 0 failed requests",
    "[bench] bs=1 decode 14.2 tok/s (yesterday's nightly on this node: 112.0 tok/s)",
    "[bench] batch size 8: 212 tok/s, last week 901 tok/s",
    "[perf] bs 1: speed 14.19 token/s, required 75 token/s",
    "[bench] batch 32 speed=402.1 (reference build speed=1711.9)",
)
FAST = (
    "[bench] same command, same node, build of the day before: speed=112.05, now speed=114.19",
    "[bench] output token throughput 6087.44 tok/s (same command with --disable-cuda-graph: 3001.12 tok/s; 0.4.4 baseline of this node pair: 6120.83 tok/s), 0 failed requests",
    "[bench] bs=1 decode 112.2 tok/s (yesterday's nightly on this node: 112.0 tok/s)",
    "[bench] batch size 8: 912 tok/s, last week 901 tok/s",
    "[perf] bs 1: speed 94.19 token/s, required 75 token/s",
    "acc_length=1.00 speed=114.19",
    "[bench] 14.2 req/s, 112 tok/s, yesterday 13.9 req/s, 111 tok/s",
    "[bench] concurrency 1: 112 tok/s; concurrency 64: 3100 tok/s",
)


def _diagnosis(log: Log | bytes) -> dict[str, Any]:
    reader = SglangLogReader({})
    reader.feed(log if isinstance(log, bytes) else log.text().encode())
    return reader.report(reader.diagnose(None))


def _crash(place: str, frames: tuple[str, ...], text: str, **flags: Any) -> tuple[Log, dict[str, Any]]:
    log = Log().arguments(**{**FLAGS, **flags}).start(place, RANKS)
    log.raises("TP1", frames, text, captured(text) if place == "capture" else None, decisive=True)
    found = _diagnosis(log.dies(serving=place == "ready"))
    assert found["evidence"][0]["line"] == log.decisive
    return log, found


def _repaired(found: dict[str, Any]) -> list[str]:
    return [one["flag"] for one in found["repair"][:3]]


@pytest.mark.parametrize(("frames", "text"), TILES)
def test_a_share_that_does_not_fill_tiles_asks_for_fewer_ranks(frames: tuple[str, ...], text: str) -> None:
    _, found = _crash("load", frames, text, quantization=None)
    assert (found["class"], found["phase"], found["verdict"]) == ("model_artifact", "load", "infeasible")
    assert {one["flag"]: one["value"] for one in found["repair"]}.get("--tp-size") == 4
    _, found = _crash("load", frames, text, quantization=None, tp_size=1, ep_size=1)
    assert (found["class"], "--tp-size" in _repaired(found)) == ("model_artifact", False)


@pytest.mark.parametrize(("frames", "text", "phase"), ARTIFACTS)
def test_what_was_not_downloaded_for_a_kernel_needs_a_person(frames: tuple[str, ...], text: str, phase: str) -> None:
    place = {"warmup": "captured", "graph_capture": "capture"}[phase]
    _log, found = _crash(place, frames, text)
    assert (found["class"], found["phase"], found["verdict"]) == ("jit_autotune", phase, "stop")
    kernels = {"flashinfer/fused_moe/": "--moe-runner-backend", "flashinfer/mla": "--attention-backend"}
    for module, flag in kernels.items():
        assert (flag in _repaired(found)) == (module in str(frames))


@pytest.mark.parametrize("text", DEEPEP_CONFIG)
def test_checks_on_the_numbers_of_a_tuned_dispatch(text: str) -> None:
    flags = {"moe_a2a_backend": "deepep", "deepep_mode": "normal", "moe_runner_backend": "deep_gemm"}
    for place, phase in (("http", "warmup"), ("ready", "serving")):
        _, found = _crash(place, DISPATCH, text, deepep_config='{"normal_combine":{"num_sms":24}}', **flags)
        assert (found["class"], found["phase"], found["verdict"]) == ("comm_runtime", phase, "infeasible")
        assert _repaired(found)[0] == "--deepep-config"


@pytest.mark.parametrize(("text", "slug"), FILE_SYSTEM)
def test_a_file_system_that_does_not_serve_the_weights(text: str, slug: str) -> None:
    _, found = _crash("load", WEIGHTS, text)
    assert (found["class"], found["phase"], found["verdict"], found["repair"]) == (slug, "load", "stop", [])


@pytest.mark.parametrize(("frame", "flags", "flag"), MODES)
def test_a_check_on_a_mode_blames_the_mode(frame: str, flags: dict[str, Any], flag: str) -> None:
    frames = REBALANCING if "eplb" in frame else EVENT_LOOP
    _, found = _crash("ready", (*frames, frame), "AssertionError", **flags)
    assert (found["class"], found["phase"], found["verdict"]) == ("invalid_combo", "serving", "infeasible")
    assert flag in _repaired(found)


@pytest.mark.parametrize(("text", "flags", "flag"), IN_WORDS)
def test_the_longest_name_that_the_words_spell_is_blamed(text: str, flags: dict[str, str], flag: str) -> None:
    given = " ".join(f"--{name} {value}" for name, value in flags.items())
    log = Log().add(f"$ python -m sglang.launch_server --model-path /models/moe --tp 8 {given}")
    found = _diagnosis(log.raises(None, VALIDATED, text, header="", decisive=True))
    assert (found["class"], found["verdict"], found["blamed"][:1]) == ("invalid_combo", "infeasible", [flag])
    assert _repaired(found)[:1] == [flag]


@pytest.mark.parametrize("text", SM_ONLY)
def test_a_kernel_that_a_larger_batch_chose_is_no_default(text: str) -> None:
    log = Log().add("$ sglang serve --model-path /m --tp 8 --chunked-prefill-size 16384 --mem-fraction-static 0.87")
    log.arguments(tp_size=8, chunked_prefill_size=16384, mem_fraction_static=0.87).start("ready", RANKS)
    found = _diagnosis(log.raises("TP1", SPARSE, text, decisive=True).dies(serving=True))
    assert (found["class"], found["phase"], found["verdict"]) == ("arch_unsupported", "serving", "infeasible")
    log = Log().add("$ sglang serve --model-path /m --tp 8").arguments(tp_size=8).start("http", RANKS)
    found = _diagnosis(log.raises("TP1", SPARSE, text).dies())
    assert (found["class"], found["phase"], found["verdict"]) == ("arch_unsupported", "warmup", "stop")


@pytest.mark.parametrize("line", [*SIGNS, *LOOPS])
def test_signs_and_loops_are_no_answers(line: str) -> None:
    found = _diagnosis(Log().arguments(**FLAGS).start("ready", RANKS).decides(line).serve(2, "TP0"))
    assert (found["class"], found["phase"], found["verdict"]) == ("wrong_output", "serving", "infeasible")


@pytest.mark.parametrize("line", SLOW)
def test_speeds_far_below_what_stands_beside_them(line: str) -> None:
    found = _diagnosis(Log().arguments(**FLAGS).start("ready", RANKS).serve(2, "TP0").decides(line))
    assert (found["class"], found["phase"]) == ("perf_regression", "serving")


@pytest.mark.parametrize("line", [*SIGNS_OF_THE_WELL, *LOOPS_OF_THE_WELL, *FAST])
def test_lines_of_a_server_that_is_well(line: str) -> None:
    found = _diagnosis(Log().arguments(**FLAGS).start("ready", RANKS).add(line).serve(2, "TP0"))
    assert found["class"] == "none"


@pytest.mark.parametrize(
    "prefix",
    [
        "{level} 2026-06-15T14:10:59.{nanos:09d}Z ",
        "{level} 2026-06-15T14:10:59.{nanos:09d}Z [severity: {level}] ",
        "2026-06-15T14:10:59.{nanos:09d}Z {level} ",
        "2026-06-15T14:10:59.{nanos:09d}Z [{level}] ",
        "{level}\t2026-06-15T14:10:59.{nanos:09d}Z\t",
        "[{level}] 2026-06-15T14:10:59.{nanos:09d}Z ",
        "{low} 2026-06-15 14:10:59.{nanos:09d} +0000 UTC ",
    ],
)
def test_a_viewer_that_tells_the_severity_of_each_line(prefix: str) -> None:
    log = Log().arguments(**FLAGS).start("ready", RANKS)
    text = "AssertionError: Committed KV cache already freed (self.kv_committed_len=1)"
    log.raises("TP1", FREEING, text, decisive=True).dies(serving=True)
    dressed = ""
    for number, line in enumerate(log.text().splitlines()):
        level = "INFO" if line.startswith("[20") or not line else "ERROR"
        dressed += prefix.format(level=level, low=level.lower(), nanos=number) + line + "\n"
    found = _diagnosis(dressed.encode())
    assert (found["class"], found["phase"], found["verdict"]) == ("engine_bug", "serving", "infeasible")
    assert found["evidence"][0]["line"] == log.decisive


def _decoding(eager: int, running: int, captured: int = 4, **flags: Any) -> Log:
    log = Log().arguments(**{**FLAGS, "cuda_graph_max_bs": 160, **flags}).start("ready", RANKS)
    for number in range(captured + eager):
        graph, requests = (True, 7) if number < captured else (False, running)
        log.add(
            f"Decode batch. #running-req: {requests}, #token: {4000 + number}, token usage: 0.02, cuda graph: {graph}, "
            "gen throughput (token/s): 187.12, #queue-req: 0",
            "TP0",
            6,
        )
    return log


def test_batches_that_fit_into_graphs_and_run_without() -> None:
    spread = {"enable_dp_attention": True, "dp_size": 16, "tp_size": 16}
    found = _diagnosis(_decoding(12, 32, **spread))
    assert (found["class"], found["phase"], _repaired(found)[0]) == (
        "perf_regression",
        "serving",
        "--cuda-graph-max-bs",
    )
    assert found["repair"][0]["value"] == 512
    found = _diagnosis(_decoding(12, 32, enable_two_batch_overlap=True))
    assert (found["class"], found["blamed"][:1]) == ("perf_regression", ["--cuda-graph-max-bs"])
    for well in (_decoding(12, 256), _decoding(1, 32), _decoding(12, 32, disable_cuda_graph=True), _decoding(0, 32)):
        assert _diagnosis(well)["class"] == "none"


def test_what_stands_beside_a_bad_score_is_blamed() -> None:
    flags = {"moe_a2a_backend": "megamoe", "quantization": "modelopt_fp4", "ep_size": 32, "tp_size": 32}
    for line in (
        "[eval] DeepSWE 113 tasks, this configuration (EP32 + MegaMoE): 42.48% (48/113)   reference TP8, same harness: 68.14% (77/113)",
        "[eval] gsm8k with megamoe: accuracy 0.412, reference 0.951",
    ):
        log = Log().arguments(**{**FLAGS, **flags}).start("ready", RANKS).decides(line)
        log.add('[eval] repetition in 57/113 tasks (reference 0/113), all 37 loop ("hmm hmm hmm hmm hmm")')
        found = _diagnosis(log)
        assert (found["class"], found["blamed"][:1]) == ("wrong_output", ["--moe-a2a-backend"])
        assert "--moe-a2a-backend" in _repaired(found)


def test_the_end_that_a_launcher_makes_of_a_silent_start_is_no_lack_of_memory() -> None:
    for lines, decisive in (
        (
            (
                "[tune] no 'ready to roll' 330 s after 'Application startup complete'; sending SIGTERM",
                "[tune] still alive, SIGKILL; exit code 137",
            ),
            0,
        ),
        (("[launcher] last line 900 s ago, stopping the server", "[launcher] sent SIGKILL, exit code: -9"), 0),
        (("[tuner] no output for 600 s; SIGTERM", "[tuner] SIGKILL after 30 s more; exit status 137"), 0),
        (("[launcher] no answer to SIGTERM after 30 s, SIGKILL sent; container exited with code 137",), 0),
        (("[watch] nothing new in the log for 1200 s", "[watch] killed the process group (SIGKILL), exit code 137"), 0),
    ):
        log = Log().arguments(**FLAGS).start("http", RANKS)
        for number, line in enumerate(lines):
            log = log.decides(line, wait=1) if number == decisive else log.add(line)
        found = _diagnosis(log)
        assert (found["class"], found["phase"], found["verdict"]) == ("hang", "warmup", "retry"), lines
        assert found["evidence"][0]["line"] == log.decisive, lines
    log = Log().arguments(**FLAGS).start("load", RANKS).decides("[launcher] container exited with code 137")
    assert _diagnosis(log)["class"] == "host_env"
