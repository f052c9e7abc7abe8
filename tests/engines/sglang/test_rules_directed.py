"""Rules of single flags and architectures, each held against SGLang's answer to a command written for it.

Asked by `benchmarks/directed_verdicts.py`, of 0.5.9, 0.5.13 and 0.5.23.
"""

import json
from pathlib import Path

import pytest
from engines.sglang.rule_cases import B200, H200, MODELS, RTX_PRO, config, other_config, resolved

from servetune.engines.sglang.capabilities import capabilities_of
from servetune.engines.sglang.capabilities import violations as capability_violations
from servetune.engines.sglang.flags import parse_argv
from servetune.engines.sglang.model_config import model_facts
from servetune.engines.sglang.rules import all_rules, judge

NODES = {"9.0": H200, "10.0": B200, "12.0": RTX_PRO}
LINES = [
    json.loads(text) for text in (Path(__file__).parents[2] / "recordings" / "directed.jsonl").read_text().splitlines()
]


def _config(model):
    return config(model) if model in MODELS else other_config(model)


def _words(flags):
    return [
        word
        for flag, value in flags.items()
        for word in ([f"--{flag}"] if value is True else [f"--{flag}", str(value)])
    ]


def _violations(line):
    known = capabilities_of(line["version"])
    assignment, unparsed = parse_argv(_words(line["flags"]), known)
    by_parser = [*unparsed, *capability_violations(assignment, known)]
    wrong = {flag for violation in by_parser for flag in violation.flags}
    told = {flag: value for flag, value in assignment.items() if flag not in wrong}
    return [*by_parser, *judge(told, NODES[line["cc"]], line["version"], _config(line["model"])).violations]


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line['version']}-{line['model']}-{'-'.join(line['flags'])}")
def test_the_engine_s_answer(line):
    found = _violations(line)
    if line["ok"]:
        assert not [v.message for v in found if v.layer != "runtime"]
    else:
        assert found, line["message"]
        assert all(v.alternatives and v.flags and v.source for v in found)


def test_every_line_of_the_tables_is_refused_once():
    refusing = {v.rule for line in LINES if not line["ok"] for v in _violations(line)}
    tables = {rule.id for rule in all_rules() if rule.id.startswith("needs.")}
    assert sorted(tables - refusing - NOT_ASKED) == []


#: Of the same kind as their neighbours; the engine was not asked about them.
NOT_ASKED = {
    "needs.dcp_size",  # refused by `sizes.at_least_one` first
}


@pytest.mark.parametrize(
    ("version", "facts", "model", "flags", "field", "value"),
    [
        ("0.5.9", H200, "kimi-linear-48b", {}, "disable_radix_cache", True),
        ("0.5.23", B200, "kimi-linear-48b", {}, "cuda_graph_backend_prefill", "disabled"),
        ("0.5.13", B200, "nemotron-nano-9b-v2", {}, "moe_runner_backend", "flashinfer_trtllm"),
        ("0.5.13", H200, "nemotron-3-nano-nvfp4", {}, "moe_runner_backend", "marlin"),
        ("0.5.23", B200, "nemotron-nano-9b-v2", {}, "attention_backend", "trtllm_mha"),
        ("0.5.23", RTX_PRO, "nemotron-nano-9b-v2", {"speculative_algorithm": "NGRAM"}, "attention_backend", "triton"),
        ("0.5.13", H200, "mimo-v2-flash", {"tp_size": 4}, "attention_backend", "fa3"),
        ("0.5.23", B200, "mimo-v2-flash", {"tp_size": 4}, "flashinfer_allreduce_fusion_backend", "cutedsl"),
        ("0.5.23", H200, "qwen3-vl-8b", {}, "decode_attention_backend", "flashinfer"),
        ("0.5.23", B200, "llama-3.2-90b-vision", {"tp_size": 8}, "chunked_prefill_size", -1),
        (
            "0.5.13",
            H200,
            "llama-4-scout",
            {"tp_size": 8, "enable_multimodal": True},
            "mem_fraction_static",
            0.70912638671875,
        ),
        (
            "0.5.13",
            H200,
            "qwen3-30b-a3b",
            {"enable_mis": True, "attention_backend": "flashinfer"},
            "chunked_prefill_size",
            -1,
        ),
    ],
)
def test_what_an_architecture_makes_the_engine_choose(version, facts, model, flags, field, value):
    if model in MODELS:
        assert resolved(version, facts, model, **flags)[field] == value
        return
    told = {flag.replace("_", "-"): one for flag, one in flags.items()}
    assert judge(told, facts, version, other_config(model)).effective.resolved[field] == value


def test_a_config_that_lists_a_size_for_each_layer_is_understood():
    facts = model_facts(other_config("mimo-v2-flash"))
    assert (facts.experts, facts.moe_layers) == (256, 47)
    varied = {**config("llama-3.1-8b"), "intermediate_size": [8192, 16384]}
    assert model_facts(varied).intermediate == 12288
