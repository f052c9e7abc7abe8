"""MoE runner, all-to-all backend, expert parallelism and overlap: what SGLang refuses, by version and GPU."""

import pytest
from engines.sglang.rule_cases import B200, H100, H200, RTX_PRO, judged, refused, resolved

from servetune.engines.sglang.rules import violations

A2A = {"tp_size": 8, "moe_a2a_backend": "flashinfer", "moe_runner_backend": "flashinfer_cutlass"}


class TestRunner:
    @pytest.mark.parametrize("version", ["0.5.9", "0.5.13", "0.5.23"])
    @pytest.mark.parametrize(("quantization", "wrong"), [(None, False), ("modelopt_fp4", False), ("fp8", True)])
    def test_flashinfer_cutlass_takes_few_quantizations(self, version, quantization, wrong):
        flags = {"quantization": quantization} if quantization else {}
        found = refused(version, RTX_PRO, None, tp_size=8, moe_runner_backend="flashinfer_cutlass", **flags)
        assert ("moe.flashinfer_cutlass" in found) is wrong

    @pytest.mark.parametrize(("ep", "wrong"), [(1, False), (2, True), (4, True), (8, False)])
    def test_flashinfer_cutlass_spans_one_or_all_ranks(self, ep, wrong):
        found = judged("0.5.9", RTX_PRO, None, tp_size=8, ep_size=ep, moe_runner_backend="flashinfer_cutlass")
        rules = [v.rule for v in found.violations]
        assert rules == (["moe.flashinfer_cutlass"] if wrong else [])
        if wrong:
            assert found.violations[0].alternatives == ("--ep-size 1", "--ep-size 8")
            assert set(found.violations[0].flags) == {"moe-runner-backend", "ep-size", "tp-size"}

    def test_in_0_5_2_flashinfer_cutlass_needs_nvfp4_to_be_named(self):
        assert "moe.flashinfer_cutlass_0_5_2" in refused(
            "0.5.2", RTX_PRO, None, tp_size=8, moe_runner_backend="flashinfer_cutlass"
        )

    @pytest.mark.parametrize(
        ("version", "quantization", "wrong"),
        [
            ("0.5.9", "compressed-tensors", False),
            ("0.5.9", "mxfp8", True),
            ("0.5.15", "mxfp8", False),
            ("0.5.9", "awq", True),
            ("0.5.23", "awq", True),
        ],
    )
    def test_flashinfer_trtllm_takes_few_quantizations(self, version, quantization, wrong):
        found = refused(version, B200, None, moe_runner_backend="flashinfer_trtllm", quantization=quantization)
        if version == "0.5.9" and quantization == "mxfp8":  # it is moved to cutlass before anybody looks
            wrong = False
        assert ("moe.flashinfer_trtllm" in found) is wrong

    @pytest.mark.parametrize("version", ["0.5.9", "0.5.15"])
    def test_trtllm_keeps_shared_experts_apart(self, version):
        assert resolved(version, B200, None, moe_runner_backend="flashinfer_trtllm")["disable_shared_experts_fusion"]

    @pytest.mark.parametrize("quantization", ["fp8", "mxfp8"])
    @pytest.mark.parametrize(("ep", "wrong"), [(1, False), (8, True)])
    def test_cutlass_with_fp8_has_no_expert_parallelism(self, quantization, ep, wrong):
        found = refused(
            "0.5.23", H200, None, tp_size=8, ep_size=ep, moe_runner_backend="cutlass", quantization=quantization
        )
        assert ("moe.cutlass_fp8_ep" in found) is wrong

    @pytest.mark.parametrize(
        ("version", "runner", "becomes"),
        [
            ("0.5.9", "triton", "cutlass"),
            ("0.5.15", "auto", "flashinfer_trtllm"),
            ("0.5.15", "triton", "flashinfer_trtllm"),
            ("0.5.23", "deep_gemm", "deep_gemm"),
        ],
    )
    def test_mxfp8_picks_its_runner(self, version, runner, becomes):
        found = resolved(version, B200, None, quantization="mxfp8", moe_runner_backend=runner)
        assert found["moe_runner_backend"] == becomes

    def test_nvfp4_online_needs_compute_capability_10(self):
        flags = {"quantization": "nvfp4_online", "moe_runner_backend": "flashinfer_trtllm"}
        assert "moe.nvfp4_online" in refused("0.5.23", RTX_PRO, None, **flags)
        assert not refused("0.5.23", B200, None, **flags)

    @pytest.mark.parametrize(("version", "runner"), [("0.5.9", "auto"), ("0.5.23", "flashinfer_cutlass")])
    def test_nvfp4_on_compute_capability_12(self, version, runner):
        found = resolved(version, RTX_PRO, None, quantization="modelopt_fp4", tp_size=8)
        assert found["moe_runner_backend"] == runner

    def test_gpt_oss_triton_kernel_has_no_expert_parallelism(self):
        flags = {"tp_size": 8, "moe_runner_backend": "triton_kernel"}
        assert "model.gpt_oss_runner" in refused("0.5.9", H200, "gpt-oss-120b", ep_size=8, **flags)
        assert not refused("0.5.9", H200, "gpt-oss-120b", **flags)

    def test_megamoe_is_another_name(self):
        found = judged("0.5.23", B200, None, tp_size=8, moe_runner_backend="megamoe")
        assert found.effective.resolved["moe_a2a_backend"] == "megamoe"
        assert found.effective.resolved["moe_runner_backend"] == "auto"


class TestAllToAll:
    @pytest.mark.parametrize("backend", ["deepep", "flashinfer", "mooncake"])
    def test_expert_parallelism_spans_the_tensor_parallel_ranks(self, backend):
        found = judged(
            "0.5.9", RTX_PRO, None, tp_size=8, moe_a2a_backend=backend, moe_runner_backend="flashinfer_cutlass"
        )
        assert found.effective.assignment["ep-size"] == 8
        (change,) = [c for c in found.effective.changed if c.flag == "ep-size"]
        assert (change.before, change.after) == (1, 8)

    def test_the_runner_is_checked_against_the_users_size_before_it_is_rewritten(self):
        """Both orders matter: ep 4 is refused though it would become 8; fp8 on cutlass passes though it becomes 8."""
        assert "moe.flashinfer_cutlass" in refused("0.5.9", RTX_PRO, None, ep_size=4, **A2A)
        found = judged(
            *("0.5.9", H200, None),
            tp_size=8,
            moe_a2a_backend="deepep",
            moe_runner_backend="cutlass",
            quantization="fp8",
        )
        assert not [v for v in found.violations if v.layer == "rule"]
        assert found.effective.resolved["ep_size"] == 8

    @pytest.mark.parametrize(
        ("version", "runner", "accepted"),
        [
            ("0.5.9", "auto", False),
            ("0.5.9", "triton", False),
            ("0.5.9", "flashinfer_cutlass", True),
            ("0.5.12", "flashinfer_cutedsl", False),
            ("0.5.13", "flashinfer_cutedsl", True),
            ("0.5.13", "flashinfer_trtllm_routed", False),
            ("0.5.15", "flashinfer_trtllm_routed", True),
            ("0.5.18", "deep_gemm", False),
            ("0.5.23", "deep_gemm", True),
        ],
    )
    def test_runners_of_the_flashinfer_backend(self, version, runner, accepted):
        flags = {"tp_size": 8, "dp_size": 8, "enable_dp_attention": True, "chunked_prefill_size": 8192}
        quantization = {} if runner == "deep_gemm" else {"quantization": "modelopt_fp4"}
        found = refused(
            *(version, B200, None), moe_a2a_backend="flashinfer", moe_runner_backend=runner, **flags, **quantization
        )
        assert ("a2a.flashinfer_runner" not in found) is accepted

    @pytest.mark.parametrize(
        ("version", "wrong"), [("0.5.9", False), ("0.5.12", False), ("0.5.13", True), ("0.5.23", True)]
    )
    def test_from_0_5_13_on_flashinfer_needs_dp_attention_over_all_ranks(self, version, wrong):
        assert ("a2a.flashinfer_needs_dp_attention" in refused(version, RTX_PRO, None, **A2A)) is wrong
        groups = {"dp_size": 8, "enable_dp_attention": True}
        assert "a2a.flashinfer_needs_dp_attention" not in refused(version, RTX_PRO, None, **A2A, **groups)

    def test_deepep_in_normal_mode_runs_without_graphs(self):
        found = judged("0.5.9", H200, None, tp_size=8, moe_a2a_backend="deepep", deepep_mode="normal")
        assert found.effective.assignment["disable-cuda-graph"] is True
        newer = judged("0.5.23", H200, None, tp_size=8, moe_a2a_backend="deepep", deepep_mode="normal")
        assert newer.effective.resolved["cuda_graph_backend_decode"] == "disabled"

    def test_cutedsl_with_deepep_has_the_low_latency_mode_only(self):
        flags = {"tp_size": 8, "moe_a2a_backend": "deepep", "moe_runner_backend": "flashinfer_cutedsl"}
        flags["quantization"] = "modelopt_fp4"
        assert "a2a.deepep_cutedsl_mode" in refused("0.5.23", B200, None, deepep_mode="normal", **flags)
        assert resolved("0.5.23", B200, None, **flags)["deepep_mode"] == "low_latency"

    @pytest.mark.parametrize("flag", ["enable_two_batch_overlap", "enable_single_batch_overlap"])
    def test_megamoe_excludes_overlap(self, flag):
        flags = {"tp_size": 8, "moe_a2a_backend": "megamoe", flag: True}
        assert "megamoe.compatible" in refused("0.5.23", B200, None, **flags)

    def test_megamoe_on_compute_capability_12(self):
        assert "megamoe.gpu" in refused("0.5.23", RTX_PRO, None, tp_size=8, moe_a2a_backend="megamoe")

    def test_a_dispatch_type_belongs_to_flashinfer(self):
        assert "a2a.flashinfer_dispatch_type" in refused(
            "0.5.23", B200, None, tp_size=8, moe_a2a_backend="deepep", flashinfer_a2a_dispatch_type="nvfp4"
        )

    def test_the_newest_checks_the_token_budget_of_the_workspace(self):
        """It sizes the workspace by the chunk unless the environment says otherwise."""
        flags = {"tp-size": 8, "dp-size": 8, "enable-dp-attention": True, "quantization": "modelopt_fp4"}
        flags |= {"moe-a2a-backend": "flashinfer", "moe-runner-backend": "flashinfer_cutlass"}
        small = {"env.SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK": 256}
        for wrong in (flags | {"chunked-prefill-size": -1}, flags | {"chunked-prefill-size": 16384} | small):
            assert [v.rule for v in violations(wrong, B200, "0.5.23", None)] == ["budget.flashinfer"]
        assert not violations(flags | {"chunked-prefill-size": 16384}, B200, "0.5.23", None)


class TestExpertBalancing:
    def test_it_needs_expert_parallelism(self):
        assert "eplb.needs_expert_parallelism" in refused("0.5.9", H200, None, tp_size=8, enable_eplb=True)
        assert not refused("0.5.9", H200, None, tp_size=8, enable_eplb=True, moe_a2a_backend="deepep")

    def test_it_dispatches_statically(self):
        found = resolved("0.5.9", H200, None, tp_size=8, ep_size=8, enable_eplb=True)
        assert found["ep_dispatch_algorithm"] == "static"
        assert found["expert_distribution_recorder_mode"] == "stat"


class TestOverlap:
    @pytest.mark.parametrize("version", ["0.5.9", "0.5.12", "0.5.13"])
    def test_two_batch_overlap_needs_an_all_to_all(self, version):
        found = judged(version, H200, None, tp_size=8, enable_two_batch_overlap=True)
        assert [v.rule for v in found.violations] == ["overlap.two_batch_needs_a2a"]
        assert found.violations[0].flags == ("enable-two-batch-overlap", "moe-a2a-backend")
        assert not refused(version, H200, None, tp_size=8, enable_two_batch_overlap=True, moe_a2a_backend="deepep")

    def test_newer_versions_take_dp_attention_instead(self):
        flags = {"tp_size": 8, "enable_two_batch_overlap": True}
        assert "overlap.two_batch_needs_a2a" in refused("0.5.23", H200, None, **flags)
        assert not refused("0.5.23", H200, None, dp_size=8, enable_dp_attention=True, **flags)

    def test_single_batch_overlap_without_deepep_is_another_name_for_nothing(self):
        found = judged("0.5.9", H200, None, tp_size=8, enable_single_batch_overlap=True)
        assert not found.violations
        assert [n.flag for n in found.effective.no_effect] == ["enable-single-batch-overlap"]


class TestJourneys:
    """Section 9 of the facts: what the rules say about what was tried by hand on 8 RTX PRO 6000."""

    def test_kimi_with_flashinfer_all_to_all_passes_the_engines_checks_and_dies_of_its_int4_weights(self):
        found = judged("0.5.9", RTX_PRO, "kimi-k2.5", **A2A)
        assert [(v.rule, v.layer) for v in found.violations] == [("runtime.flashinfer_a2a_weights", "runtime")]
        assert found.effective.resolved["ep_size"] == 8
        assert found.effective.resolved["quantization"] is None
        assert found.effective.resolved["disable_shared_experts_fusion"] is True

    def test_on_compute_capability_10_its_quantization_is_read_and_refused(self):
        assert "moe.flashinfer_cutlass" in refused("0.5.9", B200, "kimi-k2.5", **A2A)

    def test_from_0_5_13_on_it_is_refused_for_want_of_dp_attention(self):
        assert "a2a.flashinfer_needs_dp_attention" in refused("0.5.13", RTX_PRO, "kimi-k2.5", **A2A)

    def test_glm_5_in_nvfp4_passes(self):
        flags = {**A2A, "enable_mscclpp": True}
        assert not [r for r in refused("0.5.9", RTX_PRO, "glm-5-nvfp4", **flags) if not r.startswith("runtime")]

    def test_glm_5s_automatic_chunk_fits_the_workspace_by_a_hair(self):
        """1,024 x 8 = 8,192 tokens: the automatic chunk. One more page and it is known to die under load."""
        assert "runtime.flashinfer_a2a_workspace" not in refused("0.5.9", RTX_PRO, "glm-5-nvfp4", **A2A)
        assert "runtime.flashinfer_a2a_workspace" in refused(
            "0.5.9", RTX_PRO, "glm-5-nvfp4", chunked_prefill_size=8256, **A2A
        )

    @pytest.mark.parametrize(
        ("version", "variable", "wrong"),
        [
            ("0.5.12", {}, True),
            ("0.5.12", {"env.SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK": 2048}, False),
            ("0.5.13", {}, False),
            ("0.5.17", {}, False),
            ("0.5.17", {"env.SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK": 2048}, True),
            ("0.5.17", {"env.SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK": 4096}, False),
        ],
    )
    def test_the_workspace_follows_the_chunk_from_0_5_13_on(self, version, variable, wrong):
        """Two ranks, a chunk of 4,096 tokens for each: 2 x 1,024 was too little; the variable counted for all ranks."""
        flags = {
            "tp-size": 2,
            "dp-size": 2,
            "enable-dp-attention": True,
            "moe-a2a-backend": "flashinfer",
            "moe-runner-backend": "flashinfer_cutlass",
            "chunked-prefill-size": 8192,
            **variable,
        }
        found = violations(flags, H100, version, None)
        assert ("runtime.flashinfer_a2a_workspace" in [v.rule for v in found]) == wrong

    def test_all_reduce_fusion_dies_in_capture(self):
        for version in ("0.5.9", "0.5.23"):
            found = judged(version, RTX_PRO, "kimi-k2.5", tp_size=8, enable_flashinfer_allreduce_fusion=True)
            assert [(v.rule, v.layer) for v in found.violations] == [("runtime.allreduce_fusion_gpu", "runtime")]

    @pytest.mark.parametrize(
        ("flags", "facts", "wrong"),
        [
            ({"env.NCCL_ALGO": "Tree"}, RTX_PRO, True),
            ({"env.NCCL_ALGO": "Ring"}, RTX_PRO, False),
            ({"env.NCCL_ALGO": "Tree", "disable-cuda-graph": True}, RTX_PRO, False),
            ({"env.NCCL_ALGO": "Tree"}, H100, False),
        ],
    )
    def test_ncclss_tree_dies_in_graphs_over_pcie(self, flags, facts, wrong):
        found = violations({"tp-size": 8, **flags}, facts, "0.5.9", None)
        assert [v.rule for v in found] == (["runtime.nccl_tree_in_graphs"] if wrong else [])
        assert all("env.NCCL_ALGO" in v.flags for v in found), "a variable is named as it is written"
