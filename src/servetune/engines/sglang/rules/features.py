"""Features of single releases: which models, GPUs and other flags each one needs."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

_LAYERNORM_SP = ("MuseSparkForConditionalGeneration", "Qwen3ForCausalLM")


@rule(
    "features.sparse_context_decode",
    Stage.MODEL,
    since="0.5.23",
    source="arg_groups/model_overrides/deepseek_v2.py:_dsa_dcp_overrides",
)
def sparse_context_decode(s: State) -> Effects:
    """Decode context parallelism of sparse attention runs without host caches, disaggregation and draft trees."""
    if not s.model.dsa or s.dcp_size <= 1:
        return
    for wrong, flag in (
        (s.enable_hierarchical_cache, "enable_hierarchical_cache"),
        (s.user.get("enable_hisparse"), "enable_hisparse"),
        (s.disaggregation_mode != "null", "disaggregation_mode"),
        (s.speculative_eagle_topk not in (None, 1), "speculative_eagle_topk"),
    ):
        if wrong:
            yield Refuse(
                f"--dcp-size {s.dcp_size} of a model with sparse attention excludes --{flag.replace('_', '-')}",
                ("dcp_size", flag),
                ("--dcp-size 1",),
            )


@rule("features.fp4_indexer", Stage.CACHE, since="0.5.23", source="serving_hook.py:handle_environment_variables")
def fp4_indexer(s: State) -> Effects:
    """DeepSeek-V4's FP4 indexer needs compute capability 10 or 12."""
    flag = "enable_deepseek_v4_fp4_indexer"
    if s.user.get(flag) and s.gpu.known and not (s.gpu.sm100 or s.gpu.sm120):
        yield Refuse("--enable-deepseek-v4-fp4-indexer needs compute capability 10 or 12", (flag,), ("leave it out",))


@rule(
    "features.layernorm_sp",
    Stage.BUDGET,
    since="0.5.23",
    source="arg_groups/layernorm_sp_hook.py:validate_layernorm_sp",
)
def layernorm_sp(s: State) -> Effects:
    """Sequence-parallel layer norms are for two architectures and several ranks."""
    if not s.user.get("enable_layernorm_sp") or not s.model.known:
        return
    if s.model.architecture not in _LAYERNORM_SP:
        yield Refuse(
            f"--enable-layernorm-sp is for {' and '.join(_LAYERNORM_SP)}, not {s.model.architecture}",
            ("enable_layernorm_sp",),
            ("leave it out",),
        )
    elif s.tp_size <= 1:
        yield Refuse(
            "--enable-layernorm-sp needs --tp-size above 1", ("enable_layernorm_sp", "tp_size"), ("--tp-size 2",)
        )


@rule(
    "features.linear_replay",
    Stage.LINEAR_ATTENTION,
    since="0.5.23",
    source="arg_groups/attention_hook.py:handle_linear_attn_backend",
)
def linear_replay(s: State) -> Effects:
    """Replayed states of linear attention run on triton, without an extra buffer and without disaggregation."""
    flag = "enable_linear_replayssm"
    if not s.user.get(flag):
        return
    decode = s.linear_attn_decode_backend or s.linear_attn_backend
    buffered = s.mamba_radix_cache_strategy in ("extra_buffer", "extra_buffer_lazy") and not s.disable_radix_cache
    for wrong, other, instead in (
        (decode not in ("triton", "helion"), "linear_attn_decode_backend", "--linear-attn-decode-backend triton"),
        (buffered, "mamba_radix_cache_strategy", "--mamba-radix-cache-strategy no_buffer"),
        (s.disaggregation_mode != "null", "disaggregation_mode", "leave out --disaggregation-mode"),
    ):
        if wrong:
            yield Refuse(f"--enable-linear-replayssm needs: {instead}", (flag, other), (instead,))


@rule(
    "features.prefill_cache_dtype",
    Stage.DETERMINISTIC,
    since="0.5.23",
    source="arg_groups/kv_cache_hook.py:handle_nvfp4_prefill_kv_dequant_dtype",
)
def prefill_cache_dtype(s: State) -> Effects:
    """How prefill reads an NVFP4 cache is said only where there is one."""
    flag = "prefill_kv_cache_dequant_dtype"
    if s.user.get(flag) is not None and s.kv_cache_dtype != "nvfp4":
        yield Refuse(
            f"--prefill-kv-cache-dequant-dtype is for --kv-cache-dtype nvfp4, not {s.kv_cache_dtype}",
            (flag, "kv_cache_dtype"),
            ("leave it out", "--kv-cache-dtype nvfp4"),
        )


#: Flag → (a flag or switch that it needs, or with `no ` one that it excludes); from 0.5.23 on, each a plain refusal.
_PAIRS = (
    ("enable_int8_mamba_checkpoint", "no enable_hierarchical_cache", "mamba_hook.py:handle_int8_mamba_checkpoint"),
    ("enable_int8_mamba_checkpoint", "no enable_lmcache", "mamba_hook.py:handle_int8_mamba_checkpoint"),
    ("enable_tp_lm_head_all_to_all", "no enable_dp_lm_head", "overrides.py:_dp_lm_head_validation"),
    ("enable_prefill_cp", "cp_strategy", "parallel_hook.py:handle_context_parallelism"),
    ("enable_page_major_kv_layout", "enable_unified_memory", "kv_cache_hook.py:handle_page_major_kv_layout"),
)


@rule("features.pairs", Stage.CACHE, since="0.5.23", source="; ".join(sorted({source for _, _, source in _PAIRS})))
def pairs(s: State) -> Effects:
    """Switches that need another one, or exclude it."""
    for flag, condition, _ in _PAIRS:
        word, _, name = condition.rpartition(" ")
        if s.user.get(flag) and bool(s.user.get(name)) == (word == "no"):
            shown, other = flag.replace("_", "-"), name.replace("_", "-")
            verb = "excludes" if word == "no" else "needs"
            yield Refuse(f"--{shown} {verb} --{other}", (flag, name), (f"leave out --{shown}",))
    if s.user.get("enable_tp_lm_head_all_to_all") and s.attention_dp <= 1:
        yield Refuse(
            "--enable-tp-lm-head-all-to-all needs attention data parallelism",
            ("enable_tp_lm_head_all_to_all", "attn_dp_size"),
            ("--attn-dp-size above 1", "leave it out"),
        )
