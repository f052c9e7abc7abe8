"""KV tokens in 40 GiB, as SGLang's own functions reckon them (`benchmarks/cache_bytes.py --record`)."""

import json
from pathlib import Path

import pytest
from engines.sglang.rule_cases import H200, MODELS, config, other_config

from servetune.engines.sglang._memory_pools import cache_pools
from servetune.engines.sglang.memory import forecast
from servetune.engines.sglang.model_config import model_facts
from servetune.engines.sglang.rules import judge
from servetune.engines.sglang.rules._registry import parse_version
from servetune.engines.sglang.rules._run import run
from servetune.engines.sglang.rules._state import State

RECORDED = json.loads((Path(__file__).parents[2] / "recordings" / "cache_pools.json").read_text())
REST_BYTES = 40 << 30


def _tokens(version, model, ranks, kind, flags):
    told = {"tp-size": ranks, "page-size": 1, "chunked-prefill-size": 8192, "attention-backend": "triton", **flags}
    facts = model_facts(config(model) if model in MODELS else other_config(model))
    state = State(told, H200, parse_version(version), facts)
    run(state)
    fixed = {"kv_cache_dtype": kind, "page_size": 1, "chunked_prefill_size": 8192, "disable_overlap_schedule": False}
    fixed |= {"disable_radix_cache": "disable-radix-cache" in flags, "mamba_radix_cache_strategy": "no_buffer"}
    vars(state).update(fixed)
    return cache_pools(state).tokens(REST_BYTES)


@pytest.mark.parametrize("version", sorted(RECORDED))
def test_tokens_are_those_of_the_engine(version):
    wrong = [
        (model, ranks, kind, flags, real)
        for model, ranks, kind, flags, real in RECORDED[version]
        if _tokens(version, model, ranks, kind, flags) != pytest.approx(real, rel=0.0001)
    ]
    assert len(RECORDED[version]) > 140
    assert not wrong


def test_a_hybrid_model_is_forecast():
    found = forecast({"tp-size": 4}, H200, "0.5.23", config("qwen3-next-80b-a3b"))
    assert found is not None
    assert found.kv_tokens > 100_000
    assert found.fraction_for(found.kv_tokens) == pytest.approx(found.fraction, abs=0.01)
    assert (
        forecast({"tp-size": 4}, H200, "0.5.23", other_config("nemotron-nano-9b-v2")) is None
    )  # layers of other kinds


@pytest.mark.parametrize("flag", ["tp-size", "dp-size", "ep-size", "cuda-graph-max-bs", "chunked-prefill-size"])
def test_a_number_of_twenty_digits_is_judged_at_once(flag):
    for version in ("0.5.9", "0.5.23"):
        told = {
            flag: 10**20 - 1,
            "enable-dp-attention": flag == "dp-size",
            "tp-size": 10**20 if flag != "tp-size" else 10**20 - 1,
        }
        judge(told, H200, version, config("qwen3-30b-a3b"))
        forecast(told, H200, version, config("qwen3-30b-a3b"))
