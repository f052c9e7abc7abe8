"""Launch configurations far from `sampled_configurations.py`: whole features at once, and any flag of the version.

`draw(seed, count, capabilities)` yields assignments; the same seed and version give the same ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from servetune.engines.sglang.capabilities import Capabilities, FlagSpec

Assignment = dict[str, object]

#: Flags that name files, other machines or programs: what becomes of them is no judgement on arguments.
_FILES = """
    model-path host port help version config decrypted-config-file tokenizer-path revision chat-template
    served-model-name json-model-override-args decrypted-draft-config-file ssl-keyfile ssl-certfile ssl-ca-certs
    speculative-token-map quantization-param-path lora-paths forward-hooks custom-sigquit-handler
    hicache-storage-backend
    device nnodes node-rank dist-init-addr grpc-mode smg-grpc-mode remote-instance-weight-loader-seed-instance-ip
    modelopt-checkpoint-restore-path modelopt-quant load-format model-loader-extra-config trust-remote-code
    debug-tensor-dump-input-file debug-tensor-dump-output-folder init-expert-location fastapi-root-path
"""
_NOT_DRAWN = frozenset(_FILES.split())
_WORDS: dict[str, tuple[object, ...]] = {
    "speculative-draft-model-path": ("DRAFT",),
    "deepep-config": ("auto",),
    "hicache-size": (0, 10),
    "cuda-graph-bs": ("1 2 4 8", "16"),
    "cuda-graph-bs-decode": ("1 2 4 8", "16"),
    "lora-target-modules": ("all", "qkv_proj o_proj"),
    "dist-init-addr": ("127.0.0.1:5000",),
    "moe-dense-tp-size": (1, 2),
    "swa-full-tokens-ratio": (0.5, 0.8, 1.0),
    "mamba-full-memory-ratio": (0.2, 0.9),
    "json-model-override-args": ('{"num_hidden_layers": 4}',),
}
_INTEGERS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 8192, -1)
_FLOATS = (0.0, 0.1, 0.3, 0.5, 0.8, 0.9, 1.0)


def draw(seed: int, count: int, capabilities: Capabilities) -> Iterator[Assignment]:
    source = random.Random(seed)
    for _ in range(count):
        yield _one(source, capabilities)


def _one(source: random.Random, known: Capabilities) -> Assignment:
    found: Assignment = {}
    if source.random() < 0.85:
        found["tp-size"] = source.choice((1, 2, 4, 8, 8, 8, 16))
    for bundle in source.sample(BUNDLES, source.choice((0, 1, 1, 1, 2, 2, 3))):
        bundle(source, known, found)
    flags = [f for f in known.flags.values() if f.name not in _NOT_DRAWN and f.kind not in ("removed", "ignored")]
    for flag in source.sample(flags, source.choice((0, 0, 1, 1, 2, 4))):
        if flag.name not in found:
            found[flag.name] = _value(source, flag)
    return {
        name: value for name, value in found.items() if name in known.spellings and _fits(known.spellings[name], value)
    }


def _fits(flag: FlagSpec, value: object) -> bool:
    """A bundle names what newer releases offer; an older one's parser refuses most of that, which teaches nothing."""
    return flag.choices is None or value is True or str(value) in map(str, flag.choices)


def _value(source: random.Random, flag: FlagSpec) -> object:
    if flag.name in _WORDS:
        return source.choice(_WORDS[flag.name])
    if flag.choices:
        return source.choice(list(flag.choices))
    if not flag.valued:
        return True
    if flag.kind in ("int", "human_int"):
        near = [flag.default] if isinstance(flag.default, int) else []
        return source.choice([*near, *_INTEGERS])
    if flag.kind == "float":
        return source.choice(_FLOATS)
    return "{}" if flag.kind == "json" else "word"


def _maybe(source: random.Random, found: Assignment, rate: float, **values: tuple[object, ...]) -> None:
    for name, offered in values.items():
        if source.random() < rate:
            found[name.replace("_", "-")] = source.choice(offered)


def _speculative(source: random.Random, known: Capabilities, found: Assignment) -> None:
    algorithm = source.choice(("EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE", "DFLASH", "FROZEN_KV_MTP", "DSPARK"))
    found["speculative-algorithm"] = algorithm
    if source.random() < 0.5:
        found["speculative-draft-model-path"] = "DRAFT"
    if source.random() < 0.6:
        found["speculative-num-steps"] = source.choice((1, 2, 3, 5))
        found["speculative-eagle-topk"] = source.choice((1, 1, 2, 8))
        found["speculative-num-draft-tokens"] = source.choice((2, 4, 6, 16))
    _maybe(
        source,
        found,
        0.15,
        speculative_attention_mode=("prefill", "decode"),
        speculative_draft_attention_backend=("fa3", "triton", "flashinfer", "trtllm_mha"),
        speculative_moe_runner_backend=("auto", "triton", "deep_gemm", "flashinfer_trtllm"),
        speculative_ngram_max_bfs_breadth=(1, 4, 10),
        speculative_adaptive=(True,),
        page_size=(1, 16, 64),
        max_running_requests=(8, 128),
        enable_mixed_chunk=(True,),
        speculative_accept_threshold_single=(0.5,),
        pp_size=(2,),
    )


def _disaggregation(source: random.Random, known: Capabilities, found: Assignment) -> None:
    found["disaggregation-mode"] = source.choice(("prefill", "decode"))
    _maybe(
        source,
        found,
        0.3,
        disaggregation_transfer_backend=("mooncake", "nixl", "fake", "ascend"),
        disaggregation_decode_enable_offload_kvcache=(True,),
        disaggregation_decode_tp=(2, 8),
        disaggregation_decode_dp=(1, 8),
        disaggregation_prefill_pp=(1, 2),
        disaggregation_bootstrap_port=(9000,),
        disaggregation_ib_device=("mlx5_0",),
        num_reserved_decode_tokens=(128, 512),
        disable_radix_cache=(True,),
        enable_hierarchical_cache=(True,),
        disable_overlap_schedule=(True,),
        prefill_round_robin_balance=(True,),
        load_balance_method=("round_robin", "shortest_queue", "minimum_tokens", "auto", "total_requests"),
        disaggregation_decode_enable_radix_cache=(True,),
    )


def _lora(source: random.Random, known: Capabilities, found: Assignment) -> None:
    _maybe(
        source,
        found,
        0.5,
        enable_lora=(True,),
        max_lora_rank=(8, 64),
        max_loras_per_batch=(1, 8),
        max_loaded_loras=(4, 16),
        lora_backend=("triton", "csgmv", "torch_native", "ascend"),
        lora_target_modules=("all", "qkv_proj o_proj"),
    )
    _maybe(
        source,
        found,
        0.2,
        max_lora_chunk_size=(16, 64, 128),
        lora_eviction_policy=("lru", "fifo"),
        enable_lora_overlap_loading=(True,),
        lora_drain_wait_threshold=(0.0, 1.0),
        experts_shared_outer_loras=(True,),
        lora_use_virtual_experts=(True,),
    )


def _hicache(source: random.Random, known: Capabilities, found: Assignment) -> None:
    found["enable-hierarchical-cache"] = True
    _maybe(
        source,
        found,
        0.35,
        hicache_ratio=(1.0, 2.0, 4.0),
        hicache_size=(0, 32),
        hicache_write_policy=("write_back", "write_through", "write_through_selective"),
        hicache_io_backend=("direct", "kernel", "kernel_ascend"),
        hicache_mem_layout=("layer_first", "page_first", "page_first_direct", "page_head"),
        hicache_storage_backend=("file", "mooncake", "hf3fs", "nixl", "aibrix"),
        hicache_storage_prefetch_policy=("best_effort", "wait_complete", "timeout"),
        page_size=(1, 64),
        disable_radix_cache=(True,),
        attention_backend=("fa3", "triton", "flashinfer", "trtllm_mha"),
        decode_attention_backend=("fa3", "flashinfer"),
        kv_cache_dtype=("fp8_e4m3",),
        enable_lmcache=(True,),
    )


def _attention(source: random.Random, known: Capabilities, found: Assignment) -> None:
    flag = known.flags.get("attention-backend")
    offered = tuple(flag.choices or ()) if flag is not None else ("triton",)
    _maybe(
        source,
        found,
        0.5,
        attention_backend=offered,
        prefill_attention_backend=offered,
        decode_attention_backend=offered,
        kv_cache_dtype=("auto", "fp8_e4m3", "fp8_e5m2", "bf16", "fp4_e2m1", "nvfp4"),
        page_size=(1, 16, 32, 64, 128, 256),
    )
    _maybe(
        source,
        found,
        0.15,
        mm_attention_backend=("sdpa", "fa3", "fa4", "triton_attn"),
        nsa_prefill_backend=("flashmla_sparse", "flashmla_kv", "fa3", "tilelang", "trtllm"),
        nsa_decode_backend=("flashmla_sparse", "flashmla_kv", "fa3", "tilelang", "trtllm"),
        dsa_prefill_backend=("flashmla_sparse", "flashmla_kv", "fa3", "tilelang", "trtllm"),
        dsa_decode_backend=("flashmla_sparse", "flashmla_kv", "fa3", "tilelang", "trtllm"),
        triton_attention_num_kv_splits=(8, 16),
        flashinfer_mla_disable_ragged=(True,),
        enable_double_sparsity=(True,),
        hybrid_kvcache_ratio=(0.5,),
        disable_hybrid_swa_memory=(True,),
        sampling_backend=("pytorch", "flashinfer"),
    )


def _quantized(source: random.Random, known: Capabilities, found: Assignment) -> None:
    flag = known.flags.get("quantization")
    offered = tuple(flag.choices or ()) if flag is not None else ("fp8",)
    runner = known.flags.get("moe-runner-backend")
    runners = tuple(runner.choices or ()) if runner is not None else ("auto",)
    _maybe(
        source,
        found,
        0.6,
        quantization=offered,
        moe_runner_backend=runners,
        fp8_gemm_backend=("deep_gemm", "triton", "cutlass", "flashinfer_trtllm"),
        fp4_gemm_backend=("flashinfer_cudnn", "flashinfer_cutlass", "flashinfer_trtllm"),
        dtype=("auto", "half", "float16", "bfloat16", "float32"),
        ep_size=(1, 2, 8),
        torchao_config=("int8wo", "fp8wo"),
    )


def _graphs(source: random.Random, known: Capabilities, found: Assignment) -> None:
    _maybe(
        source,
        found,
        0.25,
        enable_piecewise_cuda_graph=(True,),
        disable_piecewise_cuda_graph=(True,),
        enforce_piecewise_cuda_graph=(True,),
        piecewise_cuda_graph_max_tokens=(256, 4096, 20000),
        piecewise_cuda_graph_tokens=("16 64 256",),
        piecewise_cuda_graph_compiler=("eager", "inductor"),
        cuda_graph_max_bs=(1, 3, 100, 700),
        cuda_graph_max_bs_decode=(1, 3, 100, 700),
        cuda_graph_max_bs_prefill=(100, 700, 9000),
        cuda_graph_bs=("1 2 4 8", "100 3"),
        cuda_graph_bs_decode=("1 2 4 8", "100 3"),
        cuda_graph_backend_decode=("full", "breakable", "tc_piecewise", "disabled"),
        cuda_graph_backend_prefill=("full", "breakable", "tc_piecewise", "disabled"),
        disable_cuda_graph=(True,),
        disable_cuda_graph_padding=(True,),
        disable_decode_cuda_graph=(True,),
        disable_prefill_cuda_graph=(True,),
        enable_torch_compile=(True,),
        enable_profile_cuda_graph=(True,),
        debug_cuda_graph=(True,),
        enable_breakable_cuda_graph=(True,),
    )


def _deterministic(source: random.Random, known: Capabilities, found: Assignment) -> None:
    found["enable-deterministic-inference"] = True
    _maybe(
        source,
        found,
        0.3,
        attention_backend=("fa3", "triton", "flashinfer", "fa4", "trtllm_mha", "torch_native"),
        sampling_backend=("pytorch", "flashinfer"),
        disable_radix_cache=(True,),
        rl_on_policy_target=("fsdp",),
        speculative_algorithm=("EAGLE", "NGRAM"),
    )


def _parallel(source: random.Random, known: Capabilities, found: Assignment) -> None:
    _maybe(
        source,
        found,
        0.35,
        dp_size=(1, 2, 4, 8, 16),
        attn_dp_size=(1, 2, 4, 8, 16),
        enable_dp_attention=(True, True),
        pp_size=(1, 2, 4),
        ep_size=(1, 2, 4, 8, 16),
        moe_a2a_backend=("none", "deepep", "mooncake", "flashinfer", "nixl", "megamoe", "pplx", "deepep_v2"),
        moe_dense_tp_size=(1, 2),
        enable_dp_lm_head=(True,),
        deepep_mode=("auto", "normal", "low_latency"),
        attn_cp_size=(2, 4),
        moe_dp_size=(2, 4),
        dcp_size=(2, 8),
        enable_two_batch_overlap=(True,),
        enable_single_batch_overlap=(True,),
        enable_eplb=(True,),
        ep_num_redundant_experts=(0, 32),
        ep_dispatch_algorithm=("static", "dynamic", "fake"),
        load_balance_method=("round_robin", "shortest_queue", "minimum_tokens"),
        chunked_prefill_size=(-1, 256, 4096, 32768),
        elastic_ep_backend=("none", "mooncake"),
        enable_nsa_prefill_context_parallel=(True,),
        enable_prefill_context_parallel=(True,),
        enable_attn_tp_input_scattered=(True,),
        enable_prefill_delayer=(True,),
    )


def _scheduling(source: random.Random, known: Capabilities, found: Assignment) -> None:
    _maybe(
        source,
        found,
        0.3,
        mem_fraction_static=(0.1, 0.6, 0.88, 0.95),
        max_running_requests=(1, 7, 48, 4096),
        max_total_tokens=(1024, 1000000),
        max_prefill_tokens=(1024, 65536),
        chunked_prefill_size=(-1, 0, 64, 1000, 65536),
        schedule_policy=("lpm", "random", "fcfs", "dfs-weight", "lof", "priority", "routing-key", "hrrn"),
        schedule_conservativeness=(0.1, 2.0),
        enable_priority_scheduling=(True,),
        abort_on_priority_when_disabled=(True,),
        schedule_low_priority_values_first=(True,),
        disable_overlap_schedule=(True,),
        enable_mixed_chunk=(True,),
        num_continuous_decode_steps=(1, 4),
        context_length=(2048, 100000),
        cpu_offload_gb=(0, 4),
        enable_memory_saver=(True,),
        skip_tokenizer_init=(True,),
        tokenizer_worker_num=(1, 4),
        enable_dynamic_batch_tokenizer=(True,),
        enable_tokenizer_batch_encode=(True,),
        prefill_max_requests=(1, 8),
        enable_pdmux=(True,),
        enable_streaming_session=(True,),
        disable_chunked_prefix_cache=(True,),
        enable_multimodal=(True,),
        enable_return_routed_experts=(True,),
        delete_ckpt_after_loading=(True,),
        radix_eviction_policy=("lru", "lfu", "fifo", "priority", "slru"),
        enable_mfu_metrics=(True,),
        dllm_algorithm=("LowConfidence",),
        mamba_scheduler_strategy=("no_buffer", "extra_buffer"),
        mamba_ssm_dtype=("float32", "bfloat16"),
        device=("cuda", "cpu"),
    )


BUNDLES: tuple[Callable[[random.Random, Capabilities, Assignment], None], ...] = (
    _speculative,
    _disaggregation,
    _lora,
    _hicache,
    _attention,
    _quantized,
    _graphs,
    _deterministic,
    _parallel,
    _parallel,
    _scheduling,
)
