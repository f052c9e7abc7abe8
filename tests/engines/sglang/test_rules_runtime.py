"""What the engine's checks accept and what dies later, from real launches and SGLang's sources."""

import pytest
from engines.sglang.rule_cases import B200, H100, H200, RTX_PRO, UNKNOWN_NODE, judged, node, refused

ONE_H200 = node("NVIDIA H200", 1, 143771, "9.0")
TWO_H200 = node("NVIDIA H200", 2, 143771, "9.0", "nvlink")


def runtime(version, facts, model, **flags):
    found = judged(version, facts, model, **flags).violations
    return [v.rule for v in found if v.layer == "runtime"]


class TestRecordedLaunches:
    """Launches on H200 in `tests/recordings/h200` that died, and the rule that says so beforehand."""

    @pytest.mark.parametrize(
        ("facts", "flags", "rule"),
        [
            (ONE_H200, {"tp_size": 2}, "runtime.more_ranks_than_gpus"),
            (ONE_H200, {"ep_size": 2}, "runtime.expert_ranks"),
            (TWO_H200, {"tp_size": 2, "dp_size": 2}, "runtime.more_ranks_than_gpus"),
            (TWO_H200, {"tp_size": 2, "ep_size": 3}, "runtime.expert_ranks"),
            (TWO_H200, {"tp_size": 2, "ep_size": 2, "ep_num_redundant_experts": 3}, "runtime.experts_per_rank"),
            (ONE_H200, {"moe_runner_backend": "flashinfer_mxfp4"}, "runtime.mxfp4_runner"),
            (ONE_H200, {"moe_runner_backend": "flashinfer_trtllm"}, "runtime.trtllm_runner_gpu"),
        ],
    )
    def test_died(self, facts, flags, rule):
        assert rule in runtime("0.5.18", facts, "qwen3-30b-a3b", **flags)

    @pytest.mark.parametrize(
        ("facts", "flags"),
        [
            (ONE_H200, {"moe_runner_backend": "triton"}),
            (ONE_H200, {"moe_runner_backend": "triton_kernel"}),
            (ONE_H200, {"moe_runner_backend": "cutlass"}),
            (ONE_H200, {"moe_runner_backend": "marlin"}),
            (TWO_H200, {"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}),
            (TWO_H200, {"tp_size": 2, "disable_custom_all_reduce": True}),
            (ONE_H200, {"mem_fraction_static": 0.05}),
        ],
    )
    def test_started(self, facts, flags):
        assert not refused("0.5.18", facts, "qwen3-30b-a3b", **flags)

    @pytest.mark.parametrize("runner", ["cutlass", "marlin"])
    def test_runners_that_bf16_does_not_know_run_on_triton(self, runner):
        named = judged("0.5.18", ONE_H200, "qwen3-30b-a3b", moe_runner_backend=runner).effective
        triton = judged("0.5.18", ONE_H200, "qwen3-30b-a3b", moe_runner_backend="triton").effective
        assert named.assignment == triton.assignment
        assert [n.flag for n in named.no_effect] == ["moe-runner-backend"]


class TestShapes:
    @pytest.mark.parametrize(("tp", "ep", "wrong"), [(4, 1, False), (8, 1, True), (8, 2, False), (8, 8, False)])
    def test_fp8_experts_split_into_whole_blocks(self, tp, ep, wrong):
        """Qwen3-235B-A22B-FP8: 1,536 columns per expert, blocks of 128."""
        found = judged("0.5.9", H200, "qwen3-235b-a22b-fp8", tp_size=tp, ep_size=ep)
        assert [v.rule for v in found.violations] == (["runtime.fp8_blocks"] if wrong else [])
        if wrong:
            assert found.violations[0].alternatives == ("--ep-size 2", "--ep-size 4", "--ep-size 8")

    def test_experts_spread_evenly(self):
        assert runtime("0.5.9", H200, "qwen3-30b-a3b", tp_size=8, ep_size=8, ep_num_redundant_experts=4) == [
            "runtime.experts_per_rank"
        ]

    def test_heads_spread_evenly(self):
        assert runtime("0.5.9", node("NVIDIA H200", 24, 143771, "9.0"), "llama-3.1-8b", tp_size=3) == [
            "runtime.attention_heads"
        ]

    @pytest.mark.parametrize(
        ("version", "flags", "wrong"),
        [
            ("0.5.9", {"tp_size": 8, "pp_size": 2}, True),
            ("0.5.9", {"tp_size": 4, "dp_size": 2}, False),
            ("0.5.9", {"tp_size": 4, "dp_size": 4}, True),
            ("0.5.9", {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, False),
            ("0.5.23", {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, False),
            ("0.5.23", {"tp_size": 8, "dp_size": 2}, True),
            ("0.5.9", {"tp_size": 4, "base_gpu_id": 5}, True),
            ("0.5.9", {"tp_size": 16, "nnodes": 2}, False),
        ],
    )
    def test_ranks_need_gpus(self, version, flags, wrong):
        assert ("runtime.more_ranks_than_gpus" in runtime(version, H200, None, **flags)) is wrong


class TestKernels:
    @pytest.mark.parametrize(
        ("version", "facts", "model", "flags", "rule"),
        [
            ("0.5.9", RTX_PRO, "qwen3-30b-a3b", {"attention_backend": "fa3"}, "runtime.fa3_gpu"),
            ("0.5.9", RTX_PRO, "qwen3-30b-a3b", {"prefill_attention_backend": "fa4"}, "runtime.fa4_gpu"),
            ("0.5.9", RTX_PRO, "qwen3-30b-a3b", {"attention_backend": "flashmla"}, "runtime.latent_backends"),
            ("0.5.9", H200, "qwen3-30b-a3b", {"attention_backend": "nsa"}, "runtime.latent_backends"),
            ("0.5.9", H200, "qwen3-30b-a3b", {"attention_backend": "aiter"}, "runtime.foreign_attention"),
            ("0.5.9", H200, "qwen3-30b-a3b", {"moe_a2a_backend": "ascend_fuseep"}, "runtime.foreign_a2a"),
            ("0.5.9", H100, "qwen3-30b-a3b", {"quantization": "modelopt_fp4"}, "runtime.nvfp4_gpu"),
            ("0.5.9", H200, "llama-3.1-8b", {"quantization": "awq"}, "runtime.quantized_checkpoint"),
            ("0.5.23", B200, "glm-5-nvfp4", {"tp_size": 8, "moe_runner_backend": "cutlass"}, "runtime.cutlass_nvfp4"),
            ("0.5.23", B200, "deepseek-v3", {"tp_size": 8, "moe_runner_backend": "hpc_ops"}, "runtime.hpc_ops"),
            ("0.5.9", H200, None, {"mem_fraction_static": 1.0}, "runtime.memory_fraction_range"),
            ("0.5.9", H200, None, {"mem_fraction_static": 0.0}, "runtime.memory_fraction_range"),
        ],
    )
    def test_what_has_none(self, version, facts, model, flags, rule):
        found = runtime(version, facts, model, **flags)
        assert rule in found

    @pytest.mark.parametrize(
        ("version", "facts", "model", "flags"),
        [
            ("0.5.9", H200, "qwen3-30b-a3b", {"attention_backend": "fa3"}),
            ("0.5.9", B200, "glm-5-nvfp4", {"tp_size": 8}),
            ("0.5.13", H200, "glm-5-nvfp4", {"tp_size": 8}),
            ("0.5.9", H200, "deepseek-v3", {"tp_size": 8, "attention_backend": "flashmla"}),
            ("0.5.9", H200, "llama-3.1-8b", {"quantization": "fp8"}),
            ("0.5.9", RTX_PRO, "glm-5-nvfp4", {"tp_size": 8}),
        ],
    )
    def test_what_has_some(self, version, facts, model, flags):
        assert not runtime(version, facts, model, **flags)

    def test_nothing_is_claimed_of_an_unknown_gpu(self):
        assert not runtime("0.5.9", UNKNOWN_NODE, "qwen3-30b-a3b", attention_backend="fa3", moe_a2a_backend="mori")
