"""Runs with the engine's Python: how many tokens SGLang's own pool arithmetic makes of some memory, without a GPU.

First line of standard input: release folder or null, version, folder of servetune's programs, {model: folder},
questions (`[ranks, cache type, flags]`), bytes left for caches. One line of JSON per model and question: tokens, or an
error.
"""

import importlib
import json
import sys
import types

Names = types.SimpleNamespace
RELEASE, VERSION, PROGRAMS, MODELS, QUESTIONS, REST_BYTES = json.loads(sys.stdin.readline())
sys.path[:0] = [*([RELEASE] if RELEASE else []), PROGRAMS]
import _preflight_program  # noqa: E402
import torch  # noqa: E402

GPUS = {"count": 8, "capability": "9.0", "memory_mib": 143771, "cuda": "13.0"}
_preflight_program.prepare({"gpus": GPUS, "path": [RELEASE] if RELEASE else []})
from sglang.srt.configs.model_config import AttentionArch, ModelConfig  # noqa: E402

TYPES = {"auto": torch.bfloat16, "fp8_e4m3": torch.float8_e4m3fn, "fp4_e2m1": torch.float4_e2m1fn_x2}
ASKED = tuple(map(int, VERSION.split(".")))
GIB = 1 << 30


def always(answer):
    return lambda *args, **kwargs: answer


def everywhere(name, answer):
    """Give the answer wherever SGLang has imported the function."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("sglang") and name in vars(module):
            setattr(module, name, always(answer))


def recurrent(config):
    """The config that describes recurrent states; None for a model without."""
    found = (config.hf_config, config.hf_text_config, config.hf_config.get_text_config())
    return next((one for one in found if hasattr(type(one), "mamba2_cache_params")), None)


def settings(flags):
    return Names(
        **{
            "swa_full_tokens_ratio": 0.8,
            "mamba_full_memory_ratio": 0.9,
            "max_mamba_cache_size": None,
            "max_running_requests": None,
            "max_total_tokens": None,
            "disable_radix_cache": False,
            "disable_overlap_schedule": False,
            "chunked_prefill_size": 8192,
            "page_size": 1,
            "dp_size": 1,
            "enable_dp_attention": False,
            "enable_hisparse": False,
            "enable_unified_memory": False,
            "speculative_algorithm": None,
            "speculative_num_draft_tokens": None,
            "disaggregation_mode": "null",
            "kernel": Names(dsa_prefill_backend=None, dsa_decode_backend=None),
            "mamba": Names(enable_linear_replayssm_spec=False, enable_mamba_extra_buffer=False),
            "qsa_indexer_dtype": None,
            "enable_unified_cache_external_linker": False,
            "enable_dsa_cache_layer_split": False,
            "enable_mamba_extra_buffer": always(False),
            "enable_mamba_extra_buffer_lazy": always(False),
            **{flag.replace("-", "_"): value for flag, value in flags.items()},
        }
    )


def runner(config, kind, dtype, told):
    layers = config.num_hidden_layers
    swa = getattr(config, "swa_attention_layer_ids", None)
    full = getattr(config, "full_attention_layer_ids", None)
    no = always(False)
    return Names(
        model_config=config,
        kv_cache_dtype=kind,
        kv_cache_dtype_str=dtype,
        use_mla_backend=config.attention_arch == AttentionArch.MLA,
        server_args=told,
        mambaish_config=recurrent(config),
        hybrid_gdn_config=None,
        hybrid_kda_config=None,
        extra_mamba_cache_bytes_per_req=0,
        num_effective_layers=layers,
        start_layer=0,
        end_layer=layers,
        layer_info=Names(
            num_effective_layers=layers,
            start_layer=0,
            end_layer=layers,
            full_attention_layer_ids=full,
            swa_attention_layer_ids=swa,
        ),
        is_draft_worker=False,
        is_hybrid_swa=config.is_hybrid_swa,
        sliding_window_size=config.sliding_window_size or getattr(config, "attention_chunk_size", None),
        spec_algorithm=Names(is_none=always(True), is_eagle=no, is_standalone=no, is_dflash=no, is_dflash_family=no),
        spec_aux_config=Names(),
        fused_entry_bytes=always(None),
        mem_fraction_static=1.0,
        device="cuda",
        gpu_id=0,
        dp_size=1,
        pp_size=1,
        attn_dp_size=1,
        page_size=told.page_size,
    )


def old(one, size):
    """Up to 0.5.13."""
    from sglang.srt.layers import dp_attention
    from sglang.srt.model_executor import model_runner_kv_cache_mixin as mixin

    everywhere("get_attention_tp_size", size)
    dp_attention.get_attention_tp_size = always(size)
    everywhere("get_available_gpu_memory", REST_BYTES / GIB)
    everywhere("get_world_group", Names(world_size=1, cpu_group=None))
    functions = mixin.ModelRunnerKVCacheMixin
    for name in ("get_cell_size_per_token", "handle_max_mamba_cache", "_calculate_mamba_ratio"):
        if hasattr(functions, name):
            setattr(one, name, types.MethodType(getattr(functions, name), one))
    if ASKED < (0, 5, 10):
        one.max_total_num_tokens = functions.profile_max_num_token(one, 0)
        if one.is_hybrid_swa:
            functions.set_num_tokens_hybrid_swa(one)
        return one.max_total_num_tokens
    from sglang.srt.model_executor.pool_configurator import create_memory_pool_configurator

    everywhere("get_attention_tp_size", size)
    left = functions._profile_available_bytes(one, 0)
    return create_memory_pool_configurator(one).calculate_pool_sizes(left, one.page_size).max_total_num_tokens


def new(one, size):
    """0.5.20 and later."""
    from sglang.srt.mem_cache import kv_cache_configurator
    from sglang.srt.model_executor import pool_configurator

    told = one.server_args
    parallel = Names(attn_tp_size=size, attn_dcp_size=1, attn_cp_size=1, enable_dsa_cache_layer_split=False)
    everywhere("get_parallel", parallel)
    everywhere("linear_attn_tp_size", size)
    for name in ("get_schedule", "get_memory", "get_exec", "get_spec", "get_disagg", "get_model"):
        everywhere(name, told)
    everywhere("get_context", Names(override=lambda _source, **fields: vars(told).update(fields)))
    everywhere("compute_page_shard_scratch_bytes", 0)
    utils = importlib.import_module("sglang.srt.layers.cp.utils")
    utils.get_glm_dsa_layer_split_effective_num_layers = lambda _configurator, layers: layers
    everywhere("mambaish_config", one.mambaish_config)
    left = REST_BYTES
    if one.mambaish_config is not None:
        functions = kv_cache_configurator.KVCacheConfigurator
        one._calculate_mamba_ratio = types.MethodType(functions._calculate_mamba_ratio, one)
        left = int(functions._handle_max_mamba_cache(one, REST_BYTES / GIB) * GIB)
    return pool_configurator.create_memory_pool_configurator(one).calculate_pool_sizes(left, 1).max_total_num_tokens


for model, folder in MODELS.items():
    for number, (ranks, cache_type, named) in enumerate(QUESTIONS):
        try:
            config = ModelConfig(folder, trust_remote_code=True)
            asked = runner(config, TYPES[cache_type], cache_type, settings(named))
            answer = (old if ASKED < (0, 5, 14) else new)(asked, ranks)
        except Exception as error:  # whatever a release makes of a config that it cannot take
            answer = f"{type(error).__name__}: {error}"[:200]
        print(json.dumps([model, number, answer]), flush=True)
