"""What flags of parallel layouts, caches and drafts need: one line each."""

from __future__ import annotations

from servetune.engines.sglang.rules._needs import Need, below, number, other_model, register, with_role, without
from servetune.engines.sglang.rules._state import State, json_of

_PARALLEL = "server_args.py:_handle_elastic_ep, _handle_context_parallelism; 0.5.20+: arg_groups/parallel_hook.py"
_CACHE = "arg_groups/kv_cache_hook.py:handle_cache_compatibility; hicache_hook.py; memory_hook.py"
_SHARDING = "arg_groups/kv_shard_hook.py:handle_kv_cache_sharding"
_HISPARSE = "arg_groups/hisparse_hook.py:validate_hisparse"
_PREFILL_ONLY = "kv_cache_hook.py:validate_prefill_only_disable_kv_cache_args"
_MODEL = "arg_groups/model_hook.py:handle_model_specific_adjustments"
_MAMBA = "arg_groups/mamba_hook.py:handle_mamba_backend"
_DRAFTS = "arg_groups/speculative_hook.py"
_ELASTIC = "elastic_ep_backend"
_RETRACTION = "disaggregation_decode_retraction_backup"
_EAGLE_LIKE = ("EAGLE", "EAGLE3", "STANDALONE")
_ELASTICITY = ("auto", "elasticity_aware", "elasticity_aware_hierarchical")
_LATENT_CONTEXT = frozenset({"DeepseekV4ForCausalLM", "GlmMoeDsaForCausalLM"})
_OTHER_SPARSE_LISTED = """
    DeepseekV4ForCausalLM MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration HYV4ForCausalLM
    Glm5NextForConditionalGeneration Dots3NoteForCausalLM MistralLarge3ForCausalLM PixtralForConditionalGeneration
    LongcatFlashForCausalLM
"""
#: Sparse attention of other kinds than the indexer that `ModelFacts.dsa` knows.
_OTHER_SPARSE = frozenset(_OTHER_SPARSE_LISTED.split())


def _dense(s: State) -> bool:
    return s.model.known and not s.model.dsa and s.model.architecture not in _OTHER_SPARSE


def _host_pool(s: State) -> bool:
    return bool(s.user[_RETRACTION] == "host_pool")


def _fruitless_tlru(s: State) -> bool:
    if s.user["radix_eviction_policy"] != "tlru":
        return False
    given = json_of(s.user.get("radix_eviction_policy_config"))
    told = given if isinstance(given, dict) else {}
    threshold, estimate = told.get("threshold", 0), told.get("next_prompt_estimate", 0)
    known = isinstance(threshold, int | float) and isinstance(estimate, int | float)
    return known and (threshold < 0 or estimate < 0 or threshold <= estimate)


def _cannot_grow(s: State) -> bool:
    largest = number(s, "max_ep_size")
    return s.elastic_ep_backend is None or largest is None or largest <= s.tp_size


def _split_unlike(s: State) -> bool:
    return bool(s.dwdp_size > 1 and (s.dwdp_size != s.tp_size or s.pp_size != 1))


def _split_among_others(s: State) -> bool:
    others = s.enable_eplb or s.enable_two_batch_overlap or s.disaggregation_mode == "decode"
    return bool(s.dwdp_size > 1 and (others or s.speculative_algorithm is not None))


def _nowhere_to_buffer(s: State) -> bool:
    buffers = s.user["hicache_host_memory_mode"] == "buffer_only" and s.enable_hierarchical_cache
    return bool(buffers and (s.hicache_storage_backend is None or s.disaggregation_mode == "decode"))


def _lmcache_among_others(s: State) -> bool:
    wide = s.attention_dp > 1 or s.dcp_size > 1
    return bool(wide or s.speculative_algorithm is not None or with_role(s) or s.user.get("enable_streaming_session"))


def _keeps_cache(s: State) -> bool:
    whole = s.user.get("is_embedding") and s.user.get("chunked_prefill_size") == -1
    return not (whole and s.disable_radix_cache)


def _offloads(s: State) -> bool:
    return (s.cpu_offload_gb or 0) > 0 or (number(s, "offload_group_size") or 0) > 0


def _unified_drafts(s: State) -> bool:
    return s.speculative_algorithm not in (None, "DSPARK", "EAGLE", "EAGLE3", "NEXTN", "DFLASH")


def _linker_among_others(s: State) -> bool:
    stored = s.enable_hierarchical_cache or s.hicache_storage_backend is not None
    return bool(stored or s.disable_radix_cache or s.user.get("radix_cache_backend") is not None)


def _role_fixed(s: State) -> bool:
    wide = s.ep_size > 1 or s.pp_size > 1 or s.dcp_size > 1 or s.moe_a2a_backend != "none"
    return with_role(s) and bool(wide or s.speculative_algorithm is not None)


def _accepts_less(s: State) -> bool:
    return any(number(s, f"speculative_accept_threshold_{kind}") not in (None, 1) for kind in ("single", "acc"))


def _not_a_chain(s: State) -> bool:
    chain = s.speculative_algorithm in ("EAGLE", "EAGLE3") and s.speculative_eagle_topk == 1
    return s.speculative_algorithm in _EAGLE_LIKE and not chain


def _unblocked(s: State) -> bool:
    return s.speculative_algorithm not in ("EAGLE", "EAGLE3", "NEXTN", "DFLASH", "DSPARK")


register(_PARALLEL, "0.5.9", (
    Need(
        _ELASTIC,
        lambda s: bool(s.enable_eplb) and s.eplb_algorithm not in _ELASTICITY,
        "--eplb-algorithm elasticity_aware",
        ("eplb_algorithm",),
        "elastic_ep_algorithm",
    ),
))  # fmt: skip
register(_PARALLEL, "0.5.13", (
    Need(_ELASTIC, lambda s: s.pp_size != 1, "--pp-size 1", ("pp_size",)),
    Need("elastic_ep_rejoin", without(_ELASTIC), "--elastic-ep-backend", (_ELASTIC,)),
))  # fmt: skip
register(_PARALLEL, "0.5.13", (
    Need(
        "enable_prefill_context_parallel",
        lambda s: any(s.user.get(f"enable_{kind}_prefill_context_parallel") for kind in ("nsa", "dsa")),
        "no switch of sparse attention's own context parallelism",
    ),
), until="0.5.13")  # fmt: skip
register(_PARALLEL, "0.5.23", (
    Need("dcp_size", below("dcp_size", 1), "1 or more"),
    Need(
        "dcp_size",
        lambda s: s.dcp_size > 1 and bool(s.user.get("enable_prefill_cp")),
        "no --enable-prefill-cp",
        ("enable_prefill_cp",),
        "dcp_size_prefill",
    ),
    Need(
        "dcp_comm_backend",
        lambda s: s.user["dcp_comm_backend"] in ("a2a", "fi_a2a") and s.dcp_size <= 1,
        "--dcp-size 2",
        ("dcp_size",),
    ),
    Need("dcp_replicate_q_proj", lambda s: s.dcp_size <= 1, "--dcp-size 2", ("dcp_size",)),
    Need("dwdp_size", _split_unlike, "the same --tp-size, and --pp-size 1", ("tp_size", "pp_size")),
    Need(
        "dwdp_size",
        _split_among_others,
        "no expert balancing, speculation, two-batch overlap or decode role",
        ("enable_eplb", "speculative_algorithm", "enable_two_batch_overlap", "disaggregation_mode"),
        "dwdp_alone",
    ),
    Need("shared_experts_tp_size", other_model(frozenset({"KimiK3ForConditionalGeneration"})), "Kimi-K3"),
    Need(
        "attn_cp_size",
        lambda s: s.attn_cp_size > 1 and s.model.model_type in ("nemotron_h", "nemotron_h_puzzle"),
        "another model than Nemotron-H",
    ),
    Need("elastic_ep_join_mode", without(_ELASTIC), "--elastic-ep-backend", (_ELASTIC,)),
    Need(
        "elastic_ep_join_rank_offset",
        lambda s: s.user["elastic_ep_join_rank_offset"] != 0 and s.user.get("elastic_ep_join_mode") != "scale",
        "--elastic-ep-join-mode scale",
        ("elastic_ep_join_mode",),
    ),
    Need("max_ep_size", lambda s: s.elastic_ep_backend is None or s.user["max_ep_size"] <= 0, "--elastic-ep-backend"),
    Need(
        "elastic_ep_initial_size",
        _cannot_grow,
        "--elastic-ep-backend, and --max-ep-size above --tp-size",
        (_ELASTIC, "max_ep_size"),
    ),
))  # fmt: skip
register(_MODEL, "0.5.23", (
    Need("enable_cp_decode_attn_tp", other_model(_LATENT_CONTEXT), "DeepSeek-V4 or GLM-5"),
    Need("enable_megamoe_for_layernorm_sp", without("enable_layernorm_sp"), "--enable-layernorm-sp"),
    Need("enable_dsa_cache_layer_split", _dense, "a model with sparse attention"),
    Need(
        "enable_encoder_swa_bounded_replay",
        lambda s: s.model.known and s.model.model_type != "deepseek_v41",
        "DeepSeek-V4.1",
    ),
))  # fmt: skip
register(_HISPARSE, "0.5.13", (
    Need("enable_hisparse", _dense, "a model with sparse attention"),
    Need(
        "enable_hisparse",
        lambda s: not s.disable_radix_cache,
        "--disable-radix-cache",
        ("disable_radix_cache",),
        "hisparse_radix_cache",
    ),
))  # fmt: skip
register(_PREFILL_ONLY, "0.5.13", (
    Need(
        "prefill_only_disable_kv_cache",
        _keeps_cache,
        "--is-embedding, --chunked-prefill-size -1 and --disable-radix-cache",
        ("is_embedding", "chunked_prefill_size", "disable_radix_cache"),
    ),
))  # fmt: skip
register("server_args.py:_handle_environment_variables", "0.5.13", (
    Need(
        "enable_deepseek_v4_fp4_indexer",
        lambda s: s.gpu.known and not s.gpu.sm100,
        "compute capability 10",
        (),
        "fp4_indexer_sm100",
    ),
), until="0.5.13")  # fmt: skip
register(_SHARDING, "0.5.23", (
    Need(
        "enable_kv_cache_sharding",
        lambda s: s.disaggregation_mode != "prefill",
        "--disaggregation-mode prefill",
        ("disaggregation_mode",),
    ),
))  # fmt: skip
register(_CACHE, "0.5.23", (
    Need(
        "radix_eviction_policy",
        _fruitless_tlru,
        "--radix-eviction-policy-config with a threshold above next_prompt_estimate for tlru",
        ("radix_eviction_policy_config",),
    ),
    Need(
        _RETRACTION,
        lambda s: _host_pool(s) and s.disaggregation_mode != "decode",
        "--disaggregation-mode decode for host_pool",
        ("disaggregation_mode",),
    ),
    Need(
        _RETRACTION,
        lambda s: _host_pool(s) and s.dcp_size > 1,
        "--dcp-size 1 for host_pool",
        ("dcp_size",),
        "host_pool_context",
    ),
    Need(
        "hicache_host_memory_fraction",
        lambda s: not 0 < s.user["hicache_host_memory_fraction"] <= 1,
        "a number above 0, at most 1",
    ),
    Need(
        "hicache_host_memory_mode",
        _nowhere_to_buffer,
        "--hicache-storage-backend for buffer_only, and no decode role",
        ("hicache_storage_backend", "disaggregation_mode"),
    ),
    Need("swa_prefix_tails", below("swa_prefix_tails", 0), "0 or more"),
    Need("enable_lmcache", lambda s: bool(s.disable_radix_cache), "the radix cache", ("disable_radix_cache",)),
    Need(
        "enable_lmcache",
        _lmcache_among_others,
        "no speculation, attention data parallelism, decode context parallelism, role or streaming session",
        ("speculative_algorithm", "attn_dp_size", "dcp_size", "disaggregation_mode"),
        "lmcache_alone",
    ),
    Need(
        "enable_linker_mla_dedup",
        without("enable_unified_cache_external_linker"),
        "--enable-unified-cache-external-linker",
    ),
    Need("enable_unified_memory", _unified_drafts, "drafts of EAGLE, DFLASH or DSPARK", ("speculative_algorithm",)),
    Need(
        "enable_unified_memory",
        lambda s: bool(s.enable_two_batch_overlap or s.user.get("enable_lmcache")),
        "no two-batch overlap and no --enable-lmcache",
        ("enable_two_batch_overlap", "enable_lmcache"),
        "unified_memory_alone",
    ),
    Need(
        "enable_unified_cache_external_linker",
        _linker_among_others,
        "the radix cache, without --enable-hierarchical-cache and --hicache-storage-backend",
        ("disable_radix_cache", "enable_hierarchical_cache", "hicache_storage_backend"),
    ),
    Need(
        "enable_pd_role_switch",
        _role_fixed,
        "no expert or pipeline parallelism, all-to-all or speculation",
        ("ep_size", "pp_size", "moe_a2a_backend", "speculative_algorithm"),
    ),
    Need(
        "weight_cache_mode",
        lambda s: s.user["weight_cache_mode"] != "off" and s.speculative_algorithm is not None,
        "no --speculative-algorithm",
        ("speculative_algorithm",),
    ),
    Need("ple_offload_embedding", _offloads, "no --cpu-offload-gb", ("cpu_offload_gb", "offload_group_size")),
))  # fmt: skip
register(_MAMBA, "0.5.23", (
    Need("mamba_cache_philox_rounds", below("mamba_cache_philox_rounds", 0), "0 or more"),
    Need(
        "mamba_max_states_per_path",
        lambda s: s.user["mamba_max_states_per_path"] == 0 or s.user["mamba_max_states_per_path"] < -1,
        "-1, or 1 or more",
    ),
    Need(
        "enable_mamba_cache_stochastic_rounding",
        lambda s: s.mamba_ssm_dtype != "float16",
        "--mamba-ssm-dtype float16",
        ("mamba_ssm_dtype",),
    ),
))  # fmt: skip
register(_DRAFTS, "0.5.13", (
    Need(
        "speculative_skip_dp_mlp_sync",
        lambda s: s.speculative_algorithm not in ("EAGLE", "NEXTN"),
        "--speculative-algorithm EAGLE",
        ("speculative_algorithm",),
    ),
), until="0.5.13")  # fmt: skip
register(_DRAFTS, "0.5.13", (
    Need(
        "speculative_dflash_block_size",
        lambda s: s.speculative_algorithm == "DFLASH" and s.user["speculative_dflash_block_size"] <= 0,
        "1 or more",
    ),
))  # fmt: skip
register(_DRAFTS, "0.5.23", (
    Need(
        "speculative_dspark_block_size",
        lambda s: s.speculative_algorithm == "DSPARK" and s.user["speculative_dspark_block_size"] <= 0,
        "1 or more",
    ),
    Need(
        "speculative_use_rejection_sampling",
        _not_a_chain,
        "EAGLE with --speculative-eagle-topk 1",
        ("speculative_algorithm", "speculative_eagle_topk"),
    ),
    Need(
        "speculative_use_rejection_sampling",
        lambda s: s.speculative_algorithm in _EAGLE_LIKE and _accepts_less(s),
        "accept thresholds of 1",
        ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"),
        "rejection_thresholds",
    ),
    Need(
        "speculative_use_block_verification", _unblocked, "EAGLE, DFLASH or DSPARK", ("speculative_algorithm",),
    ),
))  # fmt: skip
