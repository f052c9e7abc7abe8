"""Data, pipeline and context parallelism, dense layers, speculation, graphs, caches, and the rest of the checks."""

import pytest
from engines.sglang.rule_cases import B200, H200, NODES, RTX_PRO, judged, node, refused, resolved


class TestDpAttention:
    @pytest.mark.parametrize(("groups", "wrong"), [(2, False), (3, True), (8, False)])
    def test_groups_divide_the_tensor_parallel_size(self, groups, wrong):
        flags = {"tp_size": 8, "dp_size": groups, "enable_dp_attention": True}
        assert ("dp.divides_tp" in refused("0.5.9", RTX_PRO, None, **flags)) is wrong

    def test_chunk_and_admission_shrink_with_the_groups(self):
        found = resolved("0.5.9", RTX_PRO, None, tp_size=8, dp_size=4, enable_dp_attention=True)
        assert found["chunked_prefill_size"] == 8192 // 4
        assert found["schedule_conservativeness"] == pytest.approx(0.3)

    def test_the_shrunken_chunk_must_be_whole_pages(self):
        flags = {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True, "page_size": 64}
        assert not refused("0.5.9", RTX_PRO, None, chunked_prefill_size=1024, **flags)
        found = judged("0.5.9", RTX_PRO, None, chunked_prefill_size=1000, **flags)
        assert [v.rule for v in found.violations] == ["kv_cache.prefill_chunk_in_pages"]

    def test_one_group_means_off(self):
        found = judged("0.5.9", RTX_PRO, None, tp_size=8, dp_size=1, enable_dp_attention=True)
        assert not found.violations
        assert "enable-dp-attention" not in found.effective.assignment
        assert [c.flag for c in found.effective.changed] == ["enable-dp-attention"]

    def test_the_lm_head_needs_it(self):
        assert "dp.lm_head_needs_dp_attention" in refused(
            "0.5.9", RTX_PRO, None, tp_size=8, dp_size=2, enable_dp_lm_head=True
        )

    def test_from_0_5_22_on_it_has_a_flag_of_its_own(self):
        old = judged("0.5.23", RTX_PRO, None, tp_size=8, dp_size=8, enable_dp_attention=True)
        new = judged("0.5.23", RTX_PRO, None, tp_size=8, attn_dp_size=8)
        assert old.effective.assignment == new.effective.assignment
        assert new.effective.assignment["attn-dp-size"] == 8
        assert "dp.size_positive" in refused("0.5.23", RTX_PRO, None, tp_size=2, attn_dp_size=2, dp_size=2)


class TestLayout:
    @pytest.mark.parametrize(("size", "wrong"), [(1, False), (2, True)])
    def test_dense_layers(self, size, wrong):
        found = refused("0.5.9", RTX_PRO, None, tp_size=8, moe_dense_tp_size=size)
        assert ("dense.moe_dense_tp_size" in found) is wrong

    def test_pipeline_parallelism_runs_without_the_overlap_scheduler(self):
        found = judged("0.5.9", RTX_PRO, None, tp_size=4, pp_size=2)
        assert found.effective.assignment["disable-overlap-schedule"] is True

    def test_pipeline_parallelism_excludes_mixed_chunks(self):
        flags = {"tp_size": 4, "pp_size": 2, "enable_mixed_chunk": True}
        assert "pp.excludes" in refused("0.5.9", RTX_PRO, None, **flags)
        assert "pp.excludes" not in refused("0.5.23", RTX_PRO, None, **flags)

    def test_nodes_divide_ranks(self):
        assert "parallel.nodes_divide_ranks" in refused("0.5.9", RTX_PRO, None, tp_size=8, nnodes=3)


class TestSpeculation:
    def test_running_requests_are_capped_unless_named(self):
        assert resolved("0.5.9", H200, None, speculative_algorithm="EAGLE")["max_running_requests"] == 48
        named = resolved("0.5.9", H200, None, speculative_algorithm="EAGLE", max_running_requests=256)
        assert named["max_running_requests"] == 256

    def test_parameters_are_given_together(self):
        found = refused("0.5.9", H200, None, speculative_algorithm="EAGLE", speculative_eagle_topk=4)
        assert "speculative.eagle_parameters" in found

    def test_a_chain_drafts_steps_and_one(self):
        flags = {"speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 8}
        found = judged("0.5.9", H200, "deepseek-v3", tp_size=8, speculative_algorithm="EAGLE", **flags)
        assert found.effective.assignment["speculative-num-draft-tokens"] == 4

    def test_a_tree_does_not_run_on_trtllm_mha(self):
        flags = {"speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
        found = refused(
            *("0.5.9", B200, "qwen3-30b-a3b"), speculative_algorithm="EAGLE", attention_backend="trtllm_mha", **flags
        )
        assert "speculative.tree_backends" in found

    def test_pipeline_parallelism_excludes_it(self):
        found = refused("0.5.9", H200, None, tp_size=4, pp_size=2, speculative_algorithm="EAGLE")
        assert "pp.excludes" in found


class TestGraphs:
    def test_padding_and_torch_compile(self):
        flags = {"disable_cuda_graph_padding": True, "enable_torch_compile": True}
        assert "graphs.padding_with_torch_compile" in refused("0.5.23", H200, None, **flags)
        assert not refused("0.5.9", H200, None, **flags)

    def test_old_switches_become_backends_per_phase(self):
        found = resolved("0.5.23", H200, None, disable_cuda_graph=True)
        assert (found["cuda_graph_backend_decode"], found["cuda_graph_backend_prefill"]) == ("disabled", "disabled")

    @pytest.mark.parametrize(
        ("flags", "off"),
        [
            ({}, False),
            ({"dp_size": 2, "enable_dp_attention": True}, True),
            ({"enable_torch_compile": True}, True),
            ({"pp_size": 2}, True),
            ({"moe_a2a_backend": "deepep"}, True),
        ],
    )
    def test_what_switches_piecewise_graphs_off(self, flags, off):
        found = resolved("0.5.12", H200, "qwen3-30b-a3b", tp_size=4, **flags)
        assert found["disable_piecewise_cuda_graph"] is off


class TestCaches:
    def test_the_hierarchical_cache_extends_the_radix_cache(self):
        flags = {"enable_hierarchical_cache": True, "disable_radix_cache": True}
        assert "misc.hierarchical_cache_needs_radix" in refused("0.5.9", H200, None, **flags)

    @pytest.mark.parametrize(("value", "wrong"), [(-0.1, True), (0.0, False), (1.5, False)])
    def test_conservativeness_is_not_negative(self, value, wrong):
        found = judged("0.5.9", H200, None, schedule_conservativeness=value)
        assert bool(found.violations) is wrong
        assert not wrong or found.violations[0].flags == ("schedule-conservativeness",)

    def test_priority_scheduling_needs_an_order_that_knows_priorities(self):
        flags = {"enable_priority_scheduling": True}
        assert refused("0.5.9", H200, None, schedule_policy="random", **flags)
        assert not refused("0.5.9", H200, None, schedule_policy="fcfs", **flags)


class TestAttention:
    @pytest.mark.parametrize(
        ("facts", "model", "backend"),
        [
            (H200, "qwen3-30b-a3b", "fa3"),
            (B200, "llama-3.1-8b", "trtllm_mha"),
            (RTX_PRO, "qwen3-30b-a3b", "flashinfer"),
            (H200, "deepseek-v3", "fa3"),
            (B200, "deepseek-v3", "trtllm_mla"),
            (RTX_PRO, "kimi-k2.5", "triton"),
            (RTX_PRO, "glm-5", "nsa"),
        ],
    )
    def test_the_automatic_backend(self, facts, model, backend):
        assert resolved("0.5.9", facts, model, tp_size=8)["attention_backend"] == backend

    @pytest.mark.parametrize(
        ("backend", "asked", "pages"),
        [("flashmla", 1, 64), ("trtllm_mla", 16, 64), ("trtllm_mla", 32, 32), ("cutlass_mla", 1, 128)],
    )
    def test_pages(self, backend, asked, pages):
        found = judged("0.5.9", B200, "deepseek-v3", tp_size=8, attention_backend=backend, page_size=asked)
        assert found.effective.assignment["page-size"] == pages
        assert (asked != pages) == any(c.flag == "page-size" for c in found.effective.changed)

    def test_trtllm_mla_needs_blackwell(self):
        found = judged("0.5.9", H200, "deepseek-v3", tp_size=8, attention_backend="trtllm_mla")
        assert "attention.trtllm_mla" in [v.rule for v in found.violations]
        assert not refused("0.5.9", B200, "deepseek-v3", tp_size=8, attention_backend="trtllm_mla")

    def test_trtllm_mla_takes_few_cache_types(self):
        flags = {"tp_size": 8, "attention_backend": "trtllm_mla", "kv_cache_dtype": "fp8_e5m2"}
        assert "attention.trtllm_mla" in refused("0.5.9", B200, "deepseek-v3", **flags)

    def test_fa3_turns_to_triton_for_e5m2(self):
        found = resolved("0.5.9", H200, "qwen3-30b-a3b", attention_backend="fa3", kv_cache_dtype="fp8_e5m2")
        assert found["attention_backend"] == "triton"

    @pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
    def test_sparse_attention_has_pages_of_64_and_two_cache_types(self, version):
        assert resolved(version, RTX_PRO, "glm-5", tp_size=8, page_size=16)["page_size"] == 64
        assert resolved(version, RTX_PRO, "glm-5", tp_size=8)["kv_cache_dtype"] == "fp8_e4m3"
        assert resolved(version, H200, "glm-5", tp_size=8)["kv_cache_dtype"] == "bfloat16"
        assert "model.dsa_kv_cache_dtype" in refused(version, H200, "glm-5", tp_size=8, kv_cache_dtype="fp8_e5m2")

    @pytest.mark.parametrize("backend", ["torch_native", "flex_attention"])
    def test_plain_torch_runs_without_graphs(self, backend):
        assert resolved("0.5.9", H200, "llama-3.1-8b", attention_backend=backend)["disable_cuda_graph"]

    def test_deterministic_inference_changes_what_it_must(self):
        found = judged("0.5.9", H200, "llama-3.1-8b", tp_size=2, enable_deterministic_inference=True)
        assert found.effective.resolved["sampling_backend"] == "pytorch"
        assert found.effective.resolved["disable_custom_all_reduce"] is True
        assert "deterministic.attention" in refused(
            *("0.5.9", B200, "llama-3.1-8b"), enable_deterministic_inference=True, attention_backend="trtllm_mha"
        )


class TestFractions:
    """Section 3.2 of the facts: computed from the engine's source and checked against the engine."""

    @pytest.mark.parametrize(
        ("facts", "plain", "small_graphs", "dp", "dp_small_graphs"),
        [
            ("RTX PRO", 0.848, 0.856, 0.66, 0.825),
            ("H200", 0.897, 0.902, 0.769, 0.881),
            ("H100", 0.818, 0.827, 0.592, 0.79),
            ("B200", 0.852, 0.856, 0.751, 0.839),
        ],
    )
    def test_the_automatic_fraction_of_0_5_9(self, facts, plain, small_graphs, dp, dp_small_graphs):
        def fraction(**flags):
            return resolved("0.5.9", NODES[facts], "qwen3-30b-a3b", tp_size=8, **flags)["mem_fraction_static"]

        groups = {"dp_size": 8, "enable_dp_attention": True}
        assert fraction() == plain
        assert fraction(cuda_graph_max_bs=128) == small_graphs
        assert fraction(**groups) == dp
        assert fraction(cuda_graph_max_bs=128, **groups) == dp_small_graphs

    @pytest.mark.parametrize(("model", "fraction"), [("qwen3-30b-a3b", 0.844), ("deepseek-v3", 0.833)])
    def test_the_automatic_fraction_of_0_5_23(self, model, fraction):
        assert resolved("0.5.23", RTX_PRO, model, tp_size=8)["mem_fraction_static"] == fraction

    def test_the_first_journeys_fraction_to_the_last_digit(self):
        found = resolved("0.5.9", RTX_PRO, "kimi-k2.5", tp_size=8, cuda_graph_max_bs=128)
        assert found["mem_fraction_static"] == 0.778734296875

    @pytest.mark.parametrize(
        ("mib", "tp", "chunk", "graphs"),
        [
            (16384, 1, 2048, 8),
            (24576, 1, 2048, 24),
            (24576, 4, 2048, 80),
            (46068, 1, 4096, 32),
            (46068, 4, 4096, 160),
            (81559, 1, 8192, 256),
            (81559, 4, 8192, 512),
            (143771, 2, 8192, 256),
            (183359, 1, 16384, 512),
        ],
    )
    def test_chunk_and_graphs_follow_the_gpus_memory(self, mib, tp, chunk, graphs):
        found = resolved("0.5.9", node("some GPU", 8, mib, "9.0"), None, tp_size=tp)
        assert (found["chunked_prefill_size"], found["cuda_graph_max_bs"]) == (chunk, graphs)

    def test_a_named_fraction_stays(self):
        found = resolved("0.5.9", RTX_PRO, "kimi-k2.5", tp_size=8, mem_fraction_static=0.92)
        assert found["mem_fraction_static"] == 0.92
