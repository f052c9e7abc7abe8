"""Diffusion models, servers without a GPU, on-policy training, adapters, roles, features of single releases.

Every refusal and value was read off the real checks of 0.5.9, 0.5.13 or 0.5.23.
"""

import pytest
from engines.sglang.rule_cases import B200, H200, RTX_PRO, config, judged, refused, resolved

from servetune.core.node import NodeFacts
from servetune.engines.sglang.rules import judge

QWEN = "qwen3-30b-a3b"
LORA = {"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": "all"}
EAGLE = {"speculative_draft_model_path": "/draft"}
REFUSED = [
    ("0.5.23", H200, "diffusion.model", {"dllm_algorithm": "LowConfidence"}),
    ("0.5.13", H200, "diffusion.model", {"dllm_algorithm": "LowConfidence"}),
    ("0.5.13", H200, "diffusion.model_late", {"dllm_algorithm": "LowConfidence", "disable_radix_cache": True}),
    ("0.5.9", H200, "diffusion.model_late", {"dllm_algorithm": "LowConfidence"}),
    ("0.5.9", H200, "adapters.held", {**LORA, "max_loaded_loras": 4}),
    ("0.5.23", H200, "adapters.held", {**LORA, "enable_lora_overlap_loading": True, "max_loaded_loras": 17}),
    ("0.5.9", H200, "adapters.chunk", {**LORA, "max_lora_chunk_size": 48}),
    ("0.5.23", H200, "adapters.all_modules", {**LORA, "lora_target_modules": "all q_proj"}),
    ("0.5.9", H200, "disaggregation.peer_sizes", {"disaggregation_mode": "decode", "disaggregation_decode_tp": 8}),
    ("0.5.9", H200, "disaggregation.peer_sizes", {"disaggregation_mode": "prefill", "disaggregation_decode_tp": 3}),
    (
        "0.5.23",
        H200,
        "disaggregation.fake_transfer",
        {"disaggregation_mode": "prefill", "disaggregation_transfer_backend": "fake"},
    ),
    ("0.5.9", H200, "disaggregation.offload", {"disaggregation_decode_enable_offload_kvcache": True}),
    (
        "0.5.13",
        H200,
        "disaggregation.offload",
        {"disaggregation_mode": "decode", "disaggregation_decode_enable_offload_kvcache": True},
    ),
    ("0.5.9", H200, "serving.metrics_files", {"export_metrics_to_file": True}),
    ("0.5.23", H200, "serving.metric_buckets", {"prompt_tokens_buckets": "word"}),
    ("0.5.9", H200, "serving.multi_item_delimiter", {"multi_item_scoring_delimiter": 5}),
    ("0.5.23", H200, "speculative.one_block", {**EAGLE, "speculative_algorithm": "DFLASH", "pp_size": 2}),
    ("0.5.23", H200, "speculative.draft_window", {"speculative_draft_window_size": -1}),
    ("0.5.23", H200, "features.fp4_indexer", {"enable_deepseek_v4_fp4_indexer": True}),
    ("0.5.23", H200, "features.layernorm_sp", {"enable_layernorm_sp": True}),
    ("0.5.23", H200, "features.linear_replay", {"enable_linear_replayssm": True, "disaggregation_mode": "decode"}),
    ("0.5.23", H200, "features.prefill_cache_dtype", {"prefill_kv_cache_dequant_dtype": "fp8_e4m3"}),
]
ACCEPTED = [
    ("0.5.23", B200, {"enable_deepseek_v4_fp4_indexer": True}),
    ("0.5.9", H200, {**LORA, "max_loaded_loras": 8}),
    ("0.5.9", H200, {"max_loaded_loras": 4}),  # without --enable-lora nobody asks
    ("0.5.13", H200, {"disaggregation_mode": "decode", "disaggregation_transfer_backend": "fake"}),
    ("0.5.9", H200, {"disaggregation_mode": "prefill", "disaggregation_decode_tp": 4}),
    ("0.5.9", H200, {"disaggregation_mode": "decode", "disaggregation_decode_enable_offload_kvcache": True}),
    ("0.5.23", H200, {"prompt_tokens_buckets": "tse 1000 2 8"}),
    ("0.5.13", H200, {**EAGLE, "speculative_algorithm": "DFLASH", "enable_mixed_chunk": True}),
]


@pytest.mark.parametrize(("version", "facts", "rule", "flags"), REFUSED)
def test_refused(version, facts, rule, flags):
    assert rule in refused(version, facts, QWEN, tp_size=8, ep_size=1, **flags)


@pytest.mark.parametrize(
    ("version", "facts", "model", "flags", "instead"),
    [
        ("0.5.9", H200, QWEN, {"enable_tokenizer_batch_encode": True, "enable_dynamic_batch_tokenizer": True}, None),
        ("0.5.13", H200, QWEN, {"enable_quant_communications": True}, ("leave out --enable-quant-communications",)),
        ("0.5.9", H200, "glm-4.5-air", {"tp_size": 5}, ("4 ranks", "2 ranks", "1 rank")),
        ("0.5.23", H200, QWEN, {"attn_cp_size": 0}, ("1",)),
        ("0.5.23", H200, "deepseek-v3", {"attention_backend": "trtllm_mla"}, ("flashmla", "fa3")),
        *((version, facts, QWEN, {"tp_size": 8, **flags}, None) for version, facts, _, flags in REFUSED),
    ],
)
def test_every_refusal_says_what_may_be(version, facts, model, flags, instead):
    violations = judged(version, facts, model, **flags).violations
    assert violations
    assert all(violation.alternatives and violation.flags and violation.source for violation in violations)
    assert instead is None or any(violation.alternatives == instead for violation in violations)


@pytest.mark.parametrize(("version", "facts", "flags"), ACCEPTED)
def test_accepted(version, facts, flags):
    assert refused(version, facts, QWEN, tp_size=8, **flags) == []


@pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
def test_training_on_policy_makes_inference_deterministic(version):
    found = resolved(version, RTX_PRO, QWEN, tp_size=8, rl_on_policy_target="fsdp")
    assert found["enable_deterministic_inference"]
    assert found["disable_custom_all_reduce"]
    assert found["sampling_backend"] == "pytorch"


@pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
def test_a_cpu_samples_in_pytorch_and_reckons_with_the_hosts_memory(version):
    facts = NodeFacts(node="here")
    found = judge({"device": "cpu"}, facts, version, config("llama-3.1-8b")).effective.resolved
    assert (found["attention_backend"], found["sampling_backend"]) == ("intel_amx", "pytorch")
    on_gpu = judge({"device": "cpu"}, H200, version, config("llama-3.1-8b")).effective.resolved
    assert on_gpu["mem_fraction_static"] is None, "nobody knows the host's memory here"


def test_a_diffusion_model_settles_the_others():
    sdar = {**config("llama-3.1-8b"), "architectures": ["SDARForCausalLM"]}
    flags = {"tp-size": 1, "dllm-algorithm": "LowConfidence", "enable-mixed-chunk": True, "page-size": 2}
    found = judge(flags, H200, "0.5.23", sdar)
    assert not found.violations
    values = found.effective.resolved
    assert (values["attention_backend"], values["page_size"]) == ("flashinfer", 4)
    assert values["disable_overlap_schedule"]
    assert not values["enable_mixed_chunk"]
    assert judge(flags, H200, "0.5.9", sdar).effective.resolved["disable_radix_cache"]


LLAMA_4 = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "text_config": {"hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8},
}


@pytest.mark.parametrize(("facts", "backend"), [(H200, "fa3"), (B200, "trtllm_mha"), (RTX_PRO, "triton")])
@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_llama_4_attends_in_chunks(version, facts, backend):
    assert judge({"tp-size": 8}, facts, version, LLAMA_4).effective.resolved["attention_backend"] == backend
    wrong = judge({"tp-size": 8, "attention-backend": "flashinfer"}, facts, version, LLAMA_4)
    assert "model.llama4" in [v.rule for v in wrong.violations]


def test_up_to_0_5_9_deepseek_v3_2_is_loaded_as_v3_with_its_indexer():
    """Its transformers does not know the newer type, so `_load_deepseek_v32_model` renames it."""
    sparse = {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
    v3_2 = {**config("deepseek-v3"), **sparse, "architectures": ["DeepseekV32ForCausalLM"]}
    found = judge({"tp-size": 8}, H200, "0.5.9", v3_2).effective.resolved
    assert (found["attention_backend"], found["page_size"]) == ("nsa", 64)


@pytest.mark.parametrize(("vision", "factor"), [({"depth": 32}, 0.95 * 0.94375), ({"num_hidden_layers": 32}, 0.84708)])
def test_the_vision_tower_counts_under_the_engines_own_name(vision, factor):
    """`adjust_mem_fraction_for_vlm` knows `num_hidden_layers` alone, and takes 24 where a config says `depth`."""
    model = {
        **config("llama-3.1-8b"),
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "vision_config": {**vision, "hidden_size": 1280},
    }
    plain = judge({"tp-size": 1}, H200, "0.5.9", config("llama-3.1-8b")).effective.resolved["mem_fraction_static"]
    found = judge({"tp-size": 1}, H200, "0.5.9", model).effective.resolved["mem_fraction_static"]
    assert found / plain == pytest.approx(factor, rel=1e-4)


def test_roles_balance_and_lose_graphs_up_to_0_5_10():
    flags = {"tp_size": 8, "disaggregation_mode": "prefill"}
    found = resolved("0.5.9", H200, QWEN, **flags, load_balance_method="auto")
    assert found["load_balance_method"] == "follow_bootstrap_room"
    assert found["disable_cuda_graph"]
    assert not resolved("0.5.9", H200, QWEN, **flags, enable_piecewise_cuda_graph=True)["disable_cuda_graph"]


@pytest.mark.parametrize(("version", "workers"), [("0.5.9", 1), ("0.5.13", 1), ("0.5.23", 4)])
def test_without_a_tokenizer_its_flags_do_nothing(version, workers):
    flags = {"skip_tokenizer_init": True, "tokenizer_worker_num": 4, "enable_tokenizer_batch_encode": True}
    found = resolved(version, H200, QWEN, tp_size=8, **flags)
    assert found["tokenizer_worker_num"] == workers
    assert not found["enable_tokenizer_batch_encode"]


def test_deterministic_inference_of_glm_lite_turns_to_triton():
    lite = {**config("deepseek-v3"), "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite"}
    found = judge({"tp-size": 8, "enable-deterministic-inference": True}, B200, "0.5.23", lite)
    assert not found.violations
    assert found.effective.resolved["attention_backend"] == "triton"


@pytest.mark.parametrize(
    ("flags", "adaptive"),
    [
        ({"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 8, **EAGLE}, False),
        ({"speculative_algorithm": "EAGLE", **EAGLE}, True),
        ({"speculative_algorithm": "FROZEN_KV_MTP", **EAGLE}, False),
    ],
)
def test_adaptive_drafting_is_for_chains(flags, adaptive):
    if "speculative_eagle_topk" in flags:
        flags = {**flags, "speculative_num_steps": 3, "speculative_num_draft_tokens": 8}
    found = resolved("0.5.23", H200, QWEN, tp_size=8, speculative_adaptive=True, **flags)
    assert bool(found["speculative_adaptive"]) is adaptive
    assert found["max_running_requests"] == 48


@pytest.mark.parametrize(
    ("flags", "accepted"),
    [
        ({"enable_page_major_kv_layout": True}, False),
        ({"enable_page_major_kv_layout": True, "enable_unified_memory": True}, True),
        ({"enable_int8_mamba_checkpoint": True, "enable_hierarchical_cache": True}, False),
        ({"enable_int8_mamba_checkpoint": True}, True),
        ({"enable_tp_lm_head_all_to_all": True}, False),
    ],
)
def test_switches_that_need_or_exclude_another(flags, accepted):
    assert ("features.pairs" not in refused("0.5.23", H200, QWEN, tp_size=8, **flags)) is accepted


@pytest.mark.parametrize(
    ("version", "flags"),
    [
        ("0.5.13", {"enable_prefill_context_parallel": True}),
        ("0.5.13", {"enable_prefill_context_parallel": True, "dp_size": 2}),
        ("0.5.23", {"enable_prefill_cp": True, "cp_strategy": "zigzag"}),
        ("0.5.23", {"enable_prefill_cp": True, "cp_strategy": "zigzag", "attn_dp_size": 2}),
    ],
)
def test_context_parallelism_of_latent_attention_brings_expert_parallelism(version, flags):
    """So --enable-eplb, which needs it, is no reason for a refusal."""
    groups = flags.get("dp_size") or flags.get("attn_dp_size") or 1
    found = judged(version, H200, "deepseek-v3", tp_size=8, enable_eplb=True, **flags)
    assert not found.violations
    values = found.effective.resolved
    assert (values["ep_size"], values["moe_a2a_backend"], values["attn_cp_size"]) == (8, "deepep", 8 // groups)
