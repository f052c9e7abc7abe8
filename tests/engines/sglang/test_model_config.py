"""Shapes read out of config.json."""

import pytest
from engines.sglang.rule_cases import MODELS, config

from servetune.engines.sglang.model_config import UNKNOWN, model_facts


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_understood(name):
    facts = model_facts(config(name))
    assert facts.known
    assert facts.architecture
    assert min(facts.layers, facts.hidden, facts.heads, facts.kv_heads, facts.vocab, facts.context_tokens) > 0


def test_none_is_unknown():
    assert model_facts(None) is UNKNOWN
    assert not UNKNOWN.known


@pytest.mark.parametrize("odd", [{}, {"architectures": []}, {"architectures": None, "text_config": {}}])
def test_configs_that_say_nothing(odd):
    facts = model_facts(odd)
    assert facts.known
    assert not facts.layers


def test_the_text_model_inside_a_multimodal_one():
    facts = model_facts(config("kimi-k2.5"))
    assert (facts.architecture, facts.multimodal) == ("KimiK25ForConditionalGeneration", True)
    assert (facts.layers, facts.experts, facts.experts_per_token, facts.shared_experts) == (61, 384, 8, 1)
    assert facts.moe_layers == 60
    assert facts.mla
    assert facts.vision_hidden


@pytest.mark.parametrize(
    ("name", "method", "bits", "group"),
    [
        ("kimi-k2.5", "compressed-tensors", 4, 32),
        ("glm-5-nvfp4", "modelopt_fp4", 4, 16),
        ("deepseek-v3", "fp8", 8, 128 * 128),
        ("qwen3-235b-a22b-fp8", "fp8", 8, 128 * 128),
        ("gpt-oss-120b", "mxfp4", 4, 32),
        ("qwen3-30b-a3b", None, 16, None),
    ],
)
def test_quantization(name, method, bits, group):
    found = model_facts(config(name)).quantization
    assert (found.method, found.bits, found.group) == (method, bits, group)


def test_what_a_checkpoint_leaves_unquantized():
    assert {"attention", "shared_experts", "lm_head"} <= model_facts(config("kimi-k2.5")).quantization.skips
    assert model_facts(config("deepseek-v3")).quantization.skips == frozenset()


def test_sparse_attention_is_known_by_its_index():
    assert model_facts(config("glm-5")).dsa
    assert not model_facts(config("deepseek-v3")).dsa


def test_a_mapping_is_parsed_once():
    document = dict(config("llama-3.1-8b"))
    assert model_facts(document) is model_facts(document)
