"""Disaggregated roles, graphs named in JSON, host tiers, and the flags around the engine.

Every figure and refusal was read off the real checks of 0.5.9, 0.5.13 and 0.5.23.
"""

import pytest
from engines.sglang.rule_cases import B200, H200, RTX_PRO, config, judged, refused, resolved

from servetune.engines.sglang.rules import judge

DISAGGREGATED = [
    ("0.5.23", B200, "deepseek-v3", "decode", 0.944),
    ("0.5.23", RTX_PRO, "deepseek-v3", "decode", 0.895),
    ("0.5.23", H200, "qwen3-30b-a3b", "prefill", 0.901),
    ("0.5.23", B200, "qwen3-30b-a3b", "prefill", 0.854),
    ("0.5.23", RTX_PRO, "qwen3-30b-a3b", "prefill", 0.854),
]


class TestDisaggregation:
    @pytest.mark.parametrize(("version", "facts", "model", "mode", "fraction"), DISAGGREGATED)
    def test_a_role_reserves_memory_for_its_own_graphs_only(self, version, facts, model, mode, fraction):
        found = resolved(version, facts, model, tp_size=8, disaggregation_mode=mode)
        other = {"prefill": "decode", "decode": "prefill"}[mode]
        assert found["mem_fraction_static"] == pytest.approx(fraction)
        assert found[f"cuda_graph_backend_{other}"] == "disabled"

    def test_a_backend_that_is_named_stays(self):
        found = resolved(
            "0.5.23",
            H200,
            "qwen3-30b-a3b",
            tp_size=8,
            disaggregation_mode="prefill",
            cuda_graph_backend_decode="full",
        )
        assert found["cuda_graph_backend_decode"] == "full"

    @pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
    def test_a_decode_server_has_no_radix_cache_to_extend(self, version):
        flags = {"tp_size": 8, "disaggregation_mode": "decode"}
        assert resolved(version, B200, "deepseek-v3", **flags)["disable_radix_cache"]
        rules = refused(version, B200, "deepseek-v3", **flags, enable_hierarchical_cache=True)
        assert "misc.hierarchical_cache_needs_radix" in rules

    def test_a_decode_server_may_keep_its_radix_cache(self):
        flags = {"tp_size": 8, "disaggregation_mode": "decode", "disaggregation_decode_enable_radix_cache": True}
        assert not resolved("0.5.23", B200, "deepseek-v3", **flags)["disable_radix_cache"]


class TestGraphsInJson:
    @pytest.mark.parametrize(("facts", "fraction"), [(B200, 0.853), (RTX_PRO, 0.851)])
    def test_they_count_like_the_flags_per_phase(self, facts, fraction):
        named = {"tp_size": 8, "ep_size": 8}
        found = resolved("0.5.23", facts, "qwen3-235b-a22b-fp8", **named, cuda_graph_config='{"decode":{"max_bs":128}}')
        plain = resolved("0.5.23", facts, "qwen3-235b-a22b-fp8", **named, cuda_graph_max_bs_decode=128)
        assert found["mem_fraction_static"] == pytest.approx(fraction)
        assert found["mem_fraction_static"] == plain["mem_fraction_static"]
        assert found["cuda_graph_max_bs_decode"] == 128

    def test_they_win_over_the_flags_per_phase(self):
        found = resolved(
            "0.5.23",
            B200,
            "qwen3-30b-a3b",
            cuda_graph_max_bs_decode=256,
            cuda_graph_config='{"decode":{"bs":[1,2,64]}}',
        )
        assert found["cuda_graph_max_bs_decode"] == 64

    @pytest.mark.parametrize("text", ["[1]", "3", '{"both":{}}', '{"decode":8}'])
    def test_another_shape_is_refused(self, text):
        assert "graphs.config_shape" in refused("0.5.23", B200, "qwen3-30b-a3b", cuda_graph_config=text)

    @pytest.mark.parametrize("text", ['{"decode":{"max_bs":"x"}}', '{"decode":{"bs":[]}}', '{"decode":{"bs":["a"]}}'])
    def test_sizes_that_are_none_end_no_judgement(self, text):
        assert resolved("0.5.23", B200, "qwen3-30b-a3b", cuda_graph_config=text)["mem_fraction_static"]


class TestContextParallelism:
    def test_of_sparse_attention_takes_every_rank(self):
        found = resolved("0.5.13", B200, "glm-5", tp_size=8, enable_nsa_prefill_context_parallel=True)
        assert found["attn_cp_size"] == 8
        assert found["moe_dense_tp_size"] == 1
        assert not found["enable_flashinfer_allreduce_fusion"]
        assert found["mem_fraction_static"] == pytest.approx(0.852)

    def test_0_5_9_spreads_nothing_and_reserves_the_same(self):
        found = resolved("0.5.9", H200, "glm-5", tp_size=8, enable_nsa_prefill_context_parallel=True)
        assert (found["attn_cp_size"], found["moe_dense_tp_size"]) == (1, 1)
        assert found["mem_fraction_static"] == pytest.approx(0.897)

    def test_it_ends_at_one_machine(self):
        flags = {"tp_size": 4, "enable_nsa_prefill_context_parallel": True}
        assert refused("0.5.9", H200, "glm-5", **flags) == ["model.dsa_context_parallel"]
        assert refused("0.5.13", H200, "glm-5", **flags) == []


class TestHostTier:
    @pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
    @pytest.mark.parametrize(("io", "layout"), [("kernel", "page_first"), ("direct", "page_first_direct")])
    def test_mooncake_takes_pages(self, version, io, layout):
        found = resolved(
            version,
            B200,
            "deepseek-v3",
            tp_size=8,
            enable_hierarchical_cache=True,
            hicache_storage_backend="mooncake",
            hicache_mem_layout="layer_first",
            hicache_io_backend=io,
        )
        assert found["hicache_mem_layout"] == layout

    def test_a_file_store_keeps_the_layout(self):
        flags = {"enable_hierarchical_cache": True, "hicache_mem_layout": "layer_first"}
        found = resolved("0.5.23", B200, "deepseek-v3", tp_size=8, hicache_storage_backend="file", **flags)
        assert found["hicache_mem_layout"] == "layer_first"

    @pytest.mark.parametrize(("version", "expected"), [("0.5.13", False), ("0.5.23", True)])
    def test_lmcache_excludes_it(self, version, expected):
        rules = refused(version, B200, "deepseek-v3", tp_size=8, enable_lmcache=True, enable_hierarchical_cache=True)
        assert ("misc.hierarchical_cache_needs_radix" in rules) == expected

    @pytest.mark.parametrize(
        "flags",
        [
            {"enable_hierarchical_cache": True},
            {"pp_size": 2},
            {"speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_eagle_topk": 1},
        ],
    )
    def test_a_hybrid_model_buffers_its_states(self, flags):
        found = resolved("0.5.23", B200, "qwen3-next-80b-a3b", tp_size=8, **flags)
        assert found["mamba_radix_cache_strategy"] == "extra_buffer"

    @pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
    def test_their_interval_may_be_named(self, version):
        flags = {"mamba_scheduler_strategy": "extra_buffer", "page_size": 64, "tp_size": 8}
        rules = {"hybrid.without_buffer", "hybrid.state_cache"}
        assert rules.intersection(refused(version, H200, "qwen3-next-80b-a3b", mamba_track_interval=96, **flags))
        assert not rules.intersection(refused(version, H200, "qwen3-next-80b-a3b", mamba_track_interval=64, **flags))

    @pytest.mark.parametrize(("page", "refuses"), [(7, True), (64, False)])
    def test_snapshots_of_states_fall_on_pages(self, page, refuses):
        flags = {"mamba_scheduler_strategy": "extra_buffer", "page_size": page}
        found = refused("0.5.13", RTX_PRO, "qwen3-next-80b-a3b", tp_size=8, **flags)
        assert ("hybrid.without_buffer" in found) == refuses


class TestPagesOfNothing:
    @pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
    def test_a_backend_that_sets_its_own_page_size_mends_them(self, version):
        assert refused(version, B200, "qwen3-30b-a3b", tp_size=8, page_size=0) == []

    @pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
    def test_the_prefill_chunk_is_divided_by_them_elsewhere(self, version):
        found = refused(version, RTX_PRO, "qwen3-30b-a3b", tp_size=8, page_size=0)
        assert "kv_cache.page_divided_by" in found

    def test_snapshots_of_states_are_divided_by_them(self):
        flags = {"page_size": 0, "mamba_scheduler_strategy": "extra_buffer"}
        assert "hybrid.without_buffer" in refused("0.5.13", B200, "qwen3-next-80b-a3b", tp_size=8, **flags)

    def test_without_a_chunk_nothing_divides_and_no_server_runs(self):
        found = judged("0.5.23", RTX_PRO, "qwen3-30b-a3b", tp_size=8, page_size=0, chunked_prefill_size=-1)
        assert {(v.rule, v.layer) for v in found.violations} == {("kv_cache.page_at_least_one", "runtime")}


AROUND = [
    ("serving.gc_threshold", {"gc_threshold": "1 2 3 4"}, {"gc_threshold": "1 2 3"}, {"0.5.13", "0.5.23"}),
    ("serving.lora_shapes", {"enable_lora": True}, {"lora_paths": "a=/x"}, {"0.5.9", "0.5.13", "0.5.23"}),
    (
        "serving.pdmux",
        {"enable_pdmux": True},
        {"enable_pdmux": True, "chunked_prefill_size": -1, "disable_overlap_schedule": True},
        {"0.5.9", "0.5.13", "0.5.23"},
    ),
    ("serving.tls", {"ssl_keyfile": "x"}, {"ssl_keyfile": "x", "ssl_certfile": "y"}, {"0.5.13", "0.5.23"}),
    ("serving.tls", {"enable_ssl_refresh": True}, {}, {"0.5.13", "0.5.23"}),
    ("serving.tls", {"ssl_ca_certs": "x"}, {"ssl_ca_certs": "x", "ssl_keyfile": "k", "ssl_certfile": "c"}, {"0.5.23"}),
    ("serving.log_level", {"log_level": "verbose"}, {"log_level": "Debug"}, {"0.5.13", "0.5.23"}),
    ("serving.port_with_grpc", {"port": 99999}, {"port": 30000}, {"0.5.13"}),
    ("serving.port_with_grpc", {"port": 60000}, {"port": 55535}, {"0.5.13"}),
    ("serving.port", {"port": 99999}, {"port": 65535}, {"0.5.9", "0.5.23"}),
    ("serving.model_override", {"json_model_override_args": "{bad"}, {}, {"0.5.9", "0.5.13", "0.5.23"}),
    (
        "serving.model_override",
        {"json_model_override_args": "3"},
        {"json_model_override_args": "[]"},
        {"0.5.9", "0.5.13", "0.5.23"},
    ),
    ("speculative.dflash_draft", {"speculative_algorithm": "dflash"}, {}, {"0.5.13", "0.5.23"}),
    ("serving.mm_process_config", {"mm_process_config": "[1]"}, {"mm_process_config": "{}"}, {"0.5.13", "0.5.23"}),
    ("serving.mm_process_config", {"mm_process_config": '{"image": 1}'}, {}, {"0.5.13", "0.5.23"}),
    (
        "speculative.known",
        {"speculative_algorithm": "MEDUSA"},
        {"speculative_algorithm": "NEXTN"},
        {"0.5.13", "0.5.23"},
    ),
    ("speculative.known", {"speculative_algorithm": "DSPARK"}, {"speculative_algorithm": "nextn"}, {"0.5.13"}),
]


class TestAroundTheEngine:
    @pytest.mark.parametrize(("written", "meant"), [("qwen25", "qwen"), ("glm45", "glm"), ("kimi_k2", "kimi_k2")])
    def test_old_names_of_parsers(self, written, meant):
        assert resolved("0.5.23", B200, "qwen3-30b-a3b", tool_call_parser=written)["tool_call_parser"] == meant

    @pytest.mark.parametrize(("rule", "wrong", "right", "versions"), AROUND)
    def test_what_the_checks_refuse(self, rule, wrong, right, versions):
        for version in versions:
            assert rule in refused(version, B200, "qwen3-30b-a3b", tp_size=8, **wrong), version
            assert rule not in refused(version, B200, "qwen3-30b-a3b", tp_size=8, **right), version

    @pytest.mark.parametrize(
        "flags",
        [
            {"gc_threshold": "1 2 3 4"},
            {"ssl_keyfile": "x"},
            {"mm_process_config": "[1]"},
            {"port": 60000},
        ],
    )
    def test_0_5_9_checks_none_of_it(self, flags):
        assert not [v for v in judged("0.5.9", H200, "qwen3-30b-a3b", tp_size=8, **flags).violations]

    def test_a_grpc_port_that_is_named_frees_the_ports_above(self):
        told = {"port": 60000, "env.SGLANG_GRPC_PORT": "50051"}
        assert not judge(told, B200, "0.5.13", config("llama-3.1-8b")).violations

    def test_a_late_check_is_no_refusal_of_the_parser(self):
        found = judged("0.5.9", H200, "qwen3-30b-a3b", tp_size=8, log_level="verbose").violations
        assert [(v.rule, v.layer) for v in found] == [("serving.log_level_late", "runtime")]
