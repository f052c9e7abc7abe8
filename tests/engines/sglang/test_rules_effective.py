"""What the engine makes of an assignment: the key that finds duplicates, silent changes, flags without effect."""

import pytest
from engines.sglang.rule_cases import B200, H100, H200, RTX_PRO, config, judged, resolved

from servetune.engines.sglang.rules import effective


def key(version, facts, model, **flags):
    return dict(judged(version, facts, model, **flags).effective.assignment)


class TestKeys:
    @pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({}, {"moe_a2a_backend": "none"}),
            ({}, {"attention_backend": "triton"}),
            ({}, {"schedule_policy": "fcfs", "schedule_conservativeness": 1.0}),
            ({}, {"disable_custom_all_reduce": True}),
            ({}, {"enable_torch_symm_mem": True}),
            ({}, {"enable_nccl_nvls": True}),
            ({}, {"enable_single_batch_overlap": True}),
            ({}, {"deepep_mode": "normal"}),
            ({}, {"speculative_num_steps": 3}),
            ({}, {"hicache_io_backend": "direct"}),
            ({}, {"chunked_prefill_size": 8192}),
            ({}, {"torch_compile_max_bs": 16}),
            ({"attention_backend": "triton"}, {"attention_backend": "triton", "decode_attention_backend": "triton"}),
        ],
    )
    def test_configurations_that_are_the_same_server_have_one_key(self, version, one, other):
        assert key(version, RTX_PRO, "kimi-k2.5", tp_size=8, **one) == key(
            version, RTX_PRO, "kimi-k2.5", tp_size=8, **other
        )

    @pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
    @pytest.mark.parametrize(
        "other",
        [
            {"enable_mscclpp": True},
            {"mem_fraction_static": 0.8},
            {"chunked_prefill_size": 4096},
            {"attention_backend": "flashinfer"},
            {"max_running_requests": 64},
            {"disable_radix_cache": True},
            {"stream_interval": 8},
            {"ep_size": 8},
            {"kv_cache_dtype": "fp8_e4m3"},
            {"flag_of_the_future": 1},
        ],
    )
    def test_configurations_that_differ_have_two(self, version, other):
        assert key(version, RTX_PRO, "kimi-k2.5", tp_size=8) != key(version, RTX_PRO, "kimi-k2.5", tp_size=8, **other)

    def test_environment_variables_belong_to_it(self):
        plain, ring = ({"tp-size": 8}, {"tp-size": 8, "env.NCCL_ALGO": "Ring"})
        assert effective(ring, RTX_PRO, "0.5.9", None).assignment["env.NCCL_ALGO"] == "Ring"
        assert "env.NCCL_ALGO" not in effective(plain, RTX_PRO, "0.5.9", None).assignment

    def test_two_spellings_of_one_flag(self):
        one = effective({"tp": 8, "nsa-decode-backend": "trtllm"}, B200, "0.5.13", config("glm-5"))
        other = effective({"tensor-parallel-size": 8, "dsa-decode-backend": "trtllm"}, B200, "0.5.13", config("glm-5"))
        assert one.assignment == other.assignment

    def test_on_nvlink_the_custom_all_reduce_is_a_choice(self):
        assert key("0.5.9", H200, None, tp_size=8) != key(
            "0.5.9", H200, None, tp_size=8, disable_custom_all_reduce=True
        )

    def test_an_all_to_all_backend_makes_the_expert_parallel_size_redundant(self):
        flags = {"tp_size": 8, "moe_a2a_backend": "deepep"}
        assert key("0.5.9", H200, None, **flags) == key("0.5.9", H200, None, ep_size=8, **flags)

    def test_on_hopper_the_all_reduce_fusion_is_on_already(self):
        on = key("0.5.9", H200, "qwen3-30b-a3b", tp_size=8)
        assert on["enable-flashinfer-allreduce-fusion"] is True
        assert on == key("0.5.9", H200, "qwen3-30b-a3b", tp_size=8, enable_flashinfer_allreduce_fusion=True)
        assert "enable-flashinfer-allreduce-fusion" not in key("0.5.9", RTX_PRO, "qwen3-30b-a3b", tp_size=8)

    def test_graphs_above_the_running_requests_are_not_captured(self):
        flags = {"tp_size": 8, "max_running_requests": 64}
        one = judged("0.5.13", RTX_PRO, None, cuda_graph_max_bs=128, mem_fraction_static=0.8, **flags)
        other = judged("0.5.13", RTX_PRO, None, cuda_graph_max_bs=64, mem_fraction_static=0.8, **flags)
        assert one.effective.assignment == other.effective.assignment
        assert one.effective.no_effect[0].flag == "cuda-graph-max-bs"


class TestChanges:
    def test_a_change_says_from_to_why_and_where(self):
        found = judged("0.5.9", RTX_PRO, "kimi-k2.5", tp_size=8, moe_a2a_backend="deepep")
        change = next(c for c in found.effective.changed if c.flag == "ep-size")
        assert (change.before, change.after) == (1, 8)
        assert change.reason
        assert change.source.startswith("server_args.py:_handle_a2a_moe")

    def test_defaults_are_no_changes(self):
        assert not judged("0.5.9", RTX_PRO, "qwen3-30b-a3b", tp_size=8).effective.changed

    @pytest.mark.parametrize(
        ("facts", "model", "runner"),
        [
            (B200, "qwen3-30b-a3b", "flashinfer_trtllm"),
            (B200, "deepseek-v3", "flashinfer_trtllm"),
            (B200, "gpt-oss-120b", "flashinfer_mxfp4"),
            (RTX_PRO, "qwen3-30b-a3b", "auto"),
            (H100, "deepseek-v3", "auto"),
        ],
    )
    def test_the_runner_that_a_model_gets(self, facts, model, runner):
        assert resolved("0.5.9", facts, model, tp_size=8)["moe_runner_backend"] == runner

    def test_quantization_is_read_from_the_checkpoint_on_compute_capability_10_only(self):
        assert resolved("0.5.9", B200, "deepseek-v3", tp_size=8)["quantization"] == "fp8"
        assert resolved("0.5.9", RTX_PRO, "deepseek-v3", tp_size=8)["quantization"] is None


class TestNoEffect:
    @pytest.mark.parametrize(
        ("version", "facts", "flags", "named"),
        [
            ("0.5.9", RTX_PRO, {"tp_size": 8, "disable_custom_all_reduce": True}, "disable-custom-all-reduce"),
            ("0.5.9", RTX_PRO, {"tp_size": 8, "enable_torch_symm_mem": True}, "enable-torch-symm-mem"),
            ("0.5.9", RTX_PRO, {"tp_size": 8, "enable_nccl_nvls": True}, "enable-nccl-nvls"),
            ("0.5.9", RTX_PRO, {"tp_size": 4, "enable_mscclpp": True}, "enable-mscclpp"),
            ("0.5.9", H200, {"tp_size": 8, "enable_mscclpp": True}, "enable-mscclpp"),
            ("0.5.9", H200, {"enable_mscclpp": True}, "enable-mscclpp"),
            ("0.5.10", H200, {"enable_piecewise_cuda_graph": True}, "enable-piecewise-cuda-graph"),
            ("0.5.9", H200, {"disable_cuda_graph": True, "cuda_graph_max_bs": 8}, "cuda-graph-max-bs"),
            ("0.5.9", H200, {"speculative_eagle_topk": 4}, "speculative-eagle-topk"),
        ],
    )
    def test_it_is_named_with_a_reason(self, version, facts, flags, named):
        found = judged(version, facts, "qwen3-30b-a3b", **flags)
        assert not found.violations
        (idle,) = found.effective.no_effect
        assert idle.flag == named
        assert idle.reason
        assert idle.source

    @pytest.mark.parametrize(
        ("version", "facts", "flags"),
        [
            ("0.5.9", RTX_PRO, {"tp_size": 8, "enable_mscclpp": True}),
            ("0.5.9", H200, {"tp_size": 8, "enable_mscclpp": True, "disable_custom_all_reduce": True}),
            ("0.5.13", H200, {"tp_size": 8, "enable_mscclpp": True}),
            ("0.5.23", RTX_PRO, {"tp_size": 4, "enable_mscclpp": True}),
            ("0.5.9", H200, {"tp_size": 8, "enable_torch_symm_mem": True}),
            ("0.5.9", RTX_PRO, {"tp_size": 2, "disable_custom_all_reduce": True}),
        ],
    )
    def test_what_does_something_is_not_named(self, version, facts, flags):
        assert not judged(version, facts, "qwen3-30b-a3b", **flags).effective.no_effect

    def test_without_facts_of_the_links_nothing_is_claimed(self):
        facts = RTX_PRO.model_copy(update={"interconnect": None})
        found = judged("0.5.9", facts, None, tp_size=8, disable_custom_all_reduce=True, enable_nccl_nvls=True)
        assert not found.effective.no_effect

    def test_moe_flags_of_a_dense_model(self):
        found = judged("0.5.9", H200, "llama-3.1-8b", moe_runner_backend="triton", ep_num_redundant_experts=8)
        assert {n.flag for n in found.effective.no_effect} == {"moe-runner-backend", "ep-num-redundant-experts"}
        assert found.effective.assignment == judged("0.5.9", H200, "llama-3.1-8b").effective.assignment
