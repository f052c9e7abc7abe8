"""Forecasts of memory: held against the engine's formulas, the two journeys, and launches on H200."""

from pathlib import Path

import pytest
from engines.sglang.rule_cases import B200, GIB, H200, NODES, RTX_PRO, UNKNOWN_NODE, VERSIONS, config, node
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.engines.sglang.logs import SglangLogReader
from servetune.engines.sglang.memory import Calibration, calibrate, forecast, memory_violations

LOGS = Path(__file__).parents[2] / "recordings" / "h200"
A2A = {"moe-a2a-backend": "flashinfer", "moe-runner-backend": "flashinfer_cutlass"}
KIMI = {"tp-size": 8, "cuda-graph-max-bs": 128}
#: The two models of the H200 launches, as shapes of Qwen3-30B-A3B.
SMALL = {**config("qwen3-30b-a3b"), "num_hidden_layers": 12, "num_experts": 64, "vocab_size": 32768}
LARGE = config("qwen3-30b-a3b")
AFTER_CAPTURE = {"env.SGLANG_ENABLE_POST_CAPTURE_KV_SIZING": "1"}
H200_VERSION = "0.5.18"


def log_facts(name):
    reader = SglangLogReader({})
    reader.feed((LOGS / name).read_bytes())
    return reader.facts()


def launched(facts):
    apart = ("model-path", "load-format", "host", "port")
    return {flag: value for flag, value in facts["command"].items() if flag not in apart}


def on_h200(name, assignment, calibration=None):
    facts = node("NVIDIA H200", int(assignment.get("tp-size", 1)), 143771, "9.0")
    return forecast(assignment, facts, H200_VERSION, LARGE if "moe30b" in name else SMALL, calibration)


class TestFirstJourney:
    """Kimi-K2.5 on 8 GPUs of 94 GB: foretold from config.json, before any launch."""

    def test_expert_parallelism_takes_5_4_gib_more(self):
        plain = forecast(KIMI, RTX_PRO, "0.5.9", config("kimi-k2.5"))
        parallel = forecast({**KIMI, **A2A}, RTX_PRO, "0.5.9", config("kimi-k2.5"))
        assert (parallel.weights_bytes - plain.weights_bytes) / GIB == pytest.approx(5.4, abs=0.05)
        shared = parallel.weights["shared_experts"] - plain.weights["shared_experts"]
        assert shared == pytest.approx(7 / 8 * parallel.weights["shared_experts"], rel=1e-6)  # whole on every rank
        assert parallel.workspace_bytes / GIB == pytest.approx(1.125)
        assert plain.workspace_bytes == 0

    def test_memory_free_after_loading(self):
        for flags, free_gib in ((KIMI, 21.7), ({**KIMI, **A2A}, 16.3)):
            found = forecast(flags, RTX_PRO, "0.5.9", config("kimi-k2.5"))
            assert (found.before_load_bytes - found.weights_bytes) / GIB == pytest.approx(free_gib, abs=0.05)

    def test_the_smallest_fraction(self):
        found = forecast({**KIMI, **A2A}, RTX_PRO, "0.5.9", config("kimi-k2.5"))
        assert found.fraction == 0.778734296875
        assert found.fraction_needed == pytest.approx(0.827, abs=0.0005)
        assert found.kv_tokens == 0
        assert found.known_from == "shapes"

    def test_one_launch_of_the_baseline_makes_it_exact(self):
        seen = {"memory_gib": {"before_load_gib": 94.0, "after_load_gib": 21.7}}
        calibration = calibrate(Calibration(), {"tp-size": 8}, seen)
        found = forecast({**KIMI, **A2A}, RTX_PRO, "0.5.9", config("kimi-k2.5"), calibration)
        assert found.known_from == "node"
        assert found.fraction_needed == pytest.approx(0.827, abs=0.0006)
        (violation,) = memory_violations(found, {**KIMI, **A2A}, named_only=False)
        assert violation.rule == "memory.fraction_too_low"
        assert violation.message.endswith("the smallest fraction is 1 - 16.3/94.0 = 0.827")
        assert violation.alternatives == ("--mem-fraction-static above 0.827",)

    def test_the_second_launch_passes_the_memory_check(self):
        found = forecast({**KIMI, **A2A, "mem-fraction-static": 0.92}, RTX_PRO, "0.5.9", config("kimi-k2.5"))
        assert found.fits
        assert found.kv_tokens * found.kv_bytes_per_token / GIB == pytest.approx(8.8, abs=0.1)

    @pytest.mark.parametrize("version", ["0.5.9", "0.5.13"])
    def test_the_baseline_fits(self, version):
        found = forecast({"tp-size": 8}, RTX_PRO, version, config("kimi-k2.5"))
        assert found.kv_tokens > 0
        assert not memory_violations(found, {"tp-size": 8}, named_only=False)


class TestLaunchesOnH200:
    """KV tokens of every recorded launch that came to its pool, from shapes alone and after calibration."""

    LAUNCHES = (
        ("run1_base_m0.5_g256.log", 2711089),
        ("run1_m0.5_g8.log", 2711089),
        ("run1_m0.5_nograph.log", 2711089),
        ("run2_m0.5_g256_triton_kernel.log", 2711089),
        ("run2_m0.9_g256.log", 5143674),
        ("run2_moe30b_m0.9_g256.log", 745609),
        ("run2_runner_cutlass_bf16.log", 20000),
        ("run2_runner_deep_gemm_bf16.log", 20000),
        ("run2_runner_flashinfer_mxfp4_bf16.log", 20000),
        ("run2_runner_flashinfer_trtllm_bf16.log", 20000),
        ("run2_runner_marlin_bf16.log", 20000),
        ("run3_m0.5_g256_triton.log", 2711089),
        ("run3_moe30b_m0.9_g256.log", 745609),
        ("x2_tp2_custom_ar_v1.log", 5710264),
        ("x2_tp2_nccl_ring.log", 5711032),
    )

    @pytest.mark.parametrize(("name", "tokens"), LAUNCHES)
    def test_kv_tokens(self, name, tokens):
        facts = log_facts(name)
        assert facts["kv_tokens"] == tokens
        assignment = launched(facts)
        assert on_h200(name, assignment).kv_tokens == pytest.approx(tokens, rel=0.02)
        calibrated = on_h200(name, assignment, calibrate(Calibration(), assignment, facts))
        assert calibrated.kv_tokens == pytest.approx(tokens, rel=0.001)
        assert calibrated.fits

    @pytest.mark.parametrize("name", ["run2_fail_mem0.04.log", "run3_fail_mem0.05.log"])
    def test_launches_that_died_for_want_of_memory(self, name):
        assignment = launched(log_facts(name))
        found = on_h200(name, assignment)
        (violation,) = memory_violations(found, assignment)
        assert violation.rule == "memory.fraction_too_low"
        assert "mem-fraction-static" in violation.flags
        assert found.kv_tokens == 0

    @pytest.mark.parametrize("name", [name for name, _ in LAUNCHES])
    def test_no_launch_that_came_up_is_refused(self, name):
        assignment = launched(log_facts(name))
        assert not memory_violations(on_h200(name, assignment), assignment)

    def test_a_log_of_one_class_tightens_both_ends(self):
        facts = log_facts("run2_moe30b_m0.9_g256.log")
        assignment = launched(facts)
        shapes = on_h200("moe30b", assignment)
        known = on_h200("moe30b", assignment, calibrate(Calibration(), assignment, facts))
        assert shapes.fraction_low < known.fraction_low <= known.fraction_needed
        assert known.fraction_high < shapes.fraction_high
        assert known.fraction_needed == pytest.approx(56.89 / 139.07, abs=0.001)


class TestCacheBytes:
    @pytest.mark.parametrize(
        ("model", "flags", "expected"),
        [
            ("llama-3.1-8b", {}, 2 * 8 * 128 * 32 * 2),
            ("llama-3.1-8b", {"tp-size": 2}, 2 * 4 * 128 * 32 * 2),
            ("llama-3.1-8b", {"kv-cache-dtype": "fp8_e4m3"}, 2 * 8 * 128 * 32),
            ("qwen3-30b-a3b", {"tp-size": 8}, 2 * 1 * 128 * 48 * 2),  # 4 heads over 8 ranks: one each
            ("qwen3-235b-a22b-fp8", {"tp-size": 8, "dp-size": 8, "enable-dp-attention": True}, 2 * 4 * 128 * 94 * 2),
            ("deepseek-v3", {"tp-size": 8}, (512 + 64) * 61 * 2),  # the whole latent on every rank
            ("deepseek-v3", {"tp-size": 8, "kv-cache-dtype": "fp8_e4m3"}, (512 + 64) * 61),
            ("deepseek-v3", {"tp-size": 8, "speculative-algorithm": "EAGLE"}, (512 + 64) * 62 * 2),
            ("deepseek-v3", {"tp-size": 4, "pp-size": 2}, (512 + 64) * 61 * 2 / 2),
            ("kimi-k2.5", {"tp-size": 8}, (512 + 64) * 61 * 2),
            ("glm-5", {"tp-size": 8}, ((512 + 64) * 2 + 132) * 78),  # bfloat16 latent and 8-bit index on Hopper
        ],
    )
    def test_one_token(self, model, flags, expected):
        assert forecast(flags, H200, "0.5.9", config(model)).kv_bytes_per_token == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("flags", "share"), [({}, 0.8), ({"swa-full-tokens-ratio": 0.5}, 0.5), ({"disable-hybrid-swa-memory": True}, 1)]
    )
    def test_layers_with_a_sliding_window_keep_fewer_tokens(self, flags, share):
        """GPT-OSS: 18 layers of each kind, 8 heads of 64."""
        found = forecast(flags, H200, "0.5.9", config("gpt-oss-120b"))
        assert found.kv_bytes_per_token == pytest.approx(2 * 8 * 64 * 2 * (18 + share * 18))

    def test_nothing_is_said_of_models_with_recurrent_states(self):
        hybrid = {**LARGE, "linear_num_value_heads": 32}
        assert forecast({}, H200, "0.5.9", hybrid) is None

    @pytest.mark.parametrize(
        ("version", "facts", "flags", "row"),
        [
            ("0.5.9", B200, {}, 512 + 64),  # the pool has scales, but is sized without them
            ("0.5.13", H200, {"kv-cache-dtype": "fp8_e4m3"}, 512 + 64),
            ("0.5.23", H200, {"kv-cache-dtype": "fp8_e4m3"}, 512 + 16 + 64 * 2),
            ("0.5.23", B200, {}, 512 + 64),  # trtllm keeps plain rows
        ],
    )
    def test_rows_of_sparse_attention_in_fp8(self, version, facts, flags, row):
        """Read off SGLang's own `get_cell_size_per_token` of 0.5.9 (benchmarks/cache_bytes.py)."""
        found = forecast({"tp-size": 8, **flags}, facts, version, config("glm-5"))
        assert found.kv_bytes_per_token == pytest.approx((row + 132) * 78)

    def test_tokens_are_whole_pages(self):
        found = forecast({"tp-size": 8, "page-size": 64}, H200, "0.5.9", config("qwen3-30b-a3b"))
        assert found.kv_tokens % 64 == 0

    def test_max_total_tokens_caps(self):
        found = forecast({"max-total-tokens": 20000}, H200, "0.5.9", config("llama-3.1-8b"))
        assert found.kv_tokens == found.max_total_tokens == 20000


class TestWeights:
    @pytest.mark.parametrize(
        ("model", "tp", "gib"),
        [
            ("llama-3.1-8b", 1, 16.06e9 / GIB),  # size of the published checkpoint
            ("qwen3-30b-a3b", 1, 61.07e9 / GIB),
            ("gpt-oss-120b", 1, 65.3e9 / GIB),
            ("deepseek-v3", 8, 671.0e9 / 8 / GIB),
        ],
    )
    def test_they_come_to_the_size_of_the_checkpoint(self, model, tp, gib):
        found = forecast({"tp-size": tp}, B200, "0.5.9", config(model))
        assert sum(found.weights.values()) / GIB == pytest.approx(gib, rel=0.05)

    def test_quantization_on_load(self):
        plain = forecast({}, H200, "0.5.9", config("qwen3-30b-a3b"))
        fp8 = forecast({"quantization": "fp8"}, H200, "0.5.9", config("qwen3-30b-a3b"))
        assert fp8.weights["experts"] == pytest.approx(plain.weights["experts"] / 2, rel=0.01)

    def test_redundant_experts(self):
        plain = forecast({"tp-size": 8, "ep-size": 8}, H200, "0.5.9", config("qwen3-30b-a3b"))
        more = forecast({"tp-size": 8, "ep-size": 8, "ep-num-redundant-experts": 32}, H200, "0.5.9", LARGE)
        assert more.weights["experts"] == pytest.approx(plain.weights["experts"] * (128 + 32) / 128)

    def test_symmetric_memory_is_allocated_in_advance(self):
        found = forecast({"tp-size": 8, "enable-symm-mem": True}, H200, "0.5.9", LARGE)
        assert found.workspace_bytes == 4 * GIB


class TestInterval:
    def test_weights_that_do_not_fit_are_told_as_such(self):
        found = forecast({"tp-size": 1, "mem-fraction-static": 0.9}, H200, "0.5.9", config("deepseek-v3"))
        (violation,) = memory_violations(found, {"tp-size": 1, "mem-fraction-static": 0.9})
        assert violation.rule == "memory.weights_do_not_fit"
        assert "no memory fraction can work" in violation.message
        assert violation.alternatives == ("--tp-size 2", "a quantized checkpoint")

    def test_named_fractions_only_unless_asked(self):
        found = forecast({**KIMI, **A2A}, RTX_PRO, "0.5.9", config("kimi-k2.5"))
        assert not found.fits
        assert not memory_violations(found, {**KIMI, **A2A})
        assert memory_violations(found, {**KIMI, **A2A}, named_only=False)

    @pytest.mark.parametrize(
        ("fraction", "rule"),
        [(0.3, "memory.fraction_too_low"), (0.7, None), (0.9, None), (0.998, "memory.fraction_too_high")],
    )
    def test_both_ends(self, fraction, rule):
        assignment = {"mem-fraction-static": fraction}
        found = memory_violations(forecast(assignment, H200, "0.5.9", LARGE), assignment)
        assert [v.rule for v in found] == ([rule] if rule else [])
        assert all(v.layer == "memory" for v in found)

    def test_fractions_and_tokens_are_inverse(self):
        found = forecast({}, H200, "0.5.9", LARGE)
        assert found.kv_tokens_at(found.fraction_for(100_000)) == pytest.approx(100_000, abs=1)
        assert found.kv_tokens_at(found.fraction) == found.kv_tokens
        assert found.kv_tokens_at(found.fraction_needed - 0.01) == 0

    @pytest.mark.parametrize(
        ("facts", "model"), [(UNKNOWN_NODE, LARGE), (H200, None), (H200, {"architectures": ["X"]})]
    )
    def test_without_shapes_or_memory_nothing_is_said(self, facts, model):
        found = forecast({"mem-fraction-static": 0.01}, facts, "0.5.9", model)
        assert found is None
        assert memory_violations(found, {"mem-fraction-static": 0.01}) == ()

    @settings(max_examples=150, deadline=None)
    @given(
        st.fixed_dictionaries(
            {"tp-size": st.sampled_from([1, 2, 4, 8])},
            optional={
                "mem-fraction-static": st.floats(0.1, 0.95),
                "moe-a2a-backend": st.sampled_from(["deepep", "flashinfer"]),
                "cuda-graph-max-bs": st.integers(1, 512),
                "max-running-requests": st.integers(1, 4096),
                "dp-size": st.sampled_from([1, 2, 8]),
                "enable-dp-attention": st.booleans(),
                "speculative-algorithm": st.sampled_from(["EAGLE", "NGRAM"]),
                "page-size": st.sampled_from([1, 16, 64]),
            },
        ),
        st.sampled_from(VERSIONS),
        st.sampled_from(["kimi-k2.5", "qwen3-30b-a3b", "llama-3.1-8b", "glm-5-nvfp4", "gpt-oss-120b"]),
        st.sampled_from([*NODES]),
    )
    def test_forecasts_are_consistent(self, assignment, version, model, name):
        found = forecast(assignment, NODES[name], version, config(model))
        assert 0 <= found.fraction_low <= found.fraction_needed
        assert found.fraction_high <= 1
        assert found.weights_bytes >= sum(found.weights.values()) > 0
        assert found.kv_bytes_per_token > 0
        tokens = [found.kv_tokens_at(fraction) for fraction in (0.1, 0.4, 0.7, 0.9, 0.97)]
        assert tokens == sorted(tokens)
        assert found.fraction_named == ("mem-fraction-static" in assignment)
        if found.fraction <= found.fraction_needed:
            assert found.kv_tokens == 0


class TestSizingAfterCapture:
    """SGLANG_ENABLE_POST_CAPTURE_KV_SIZING: the cache takes what graphs have left, so the engine reserves less."""

    @pytest.mark.parametrize(
        ("version", "model", "flags", "fraction"),
        [
            ("0.5.23", "qwen3-30b-a3b", {}, round((97887 - 1536 - 1024) / 97887, 3)),
            ("0.5.18", "qwen3-30b-a3b", {}, round((97887 - 1536 - 1024) / 97887, 3)),
            ("0.5.13", "qwen3-30b-a3b", {}, None),
            ("0.5.23", "deepseek-v3", {}, None),  # not for latent attention
            ("0.5.23", "qwen3-30b-a3b", {"disable-cuda-graph": True}, None),
            ("0.5.23", "qwen3-30b-a3b", {"cuda-graph-max-bs-prefill": 2048}, None),  # a chunk would run without graph
        ],
    )
    def test_the_automatic_fraction(self, version, model, flags, fraction):
        plain = forecast({"tp-size": 8, **flags}, RTX_PRO, version, config(model))
        after = forecast({"tp-size": 8, **flags, **AFTER_CAPTURE}, RTX_PRO, version, config(model))
        assert after.fraction == (fraction if fraction is not None else plain.fraction)

    def test_graphs_no_longer_bound_the_fraction(self):
        plain = forecast({"tp-size": 8}, RTX_PRO, "0.5.23", config("qwen3-30b-a3b"))
        after = forecast({"tp-size": 8, **AFTER_CAPTURE}, RTX_PRO, "0.5.23", config("qwen3-30b-a3b"))
        assert after.fraction_high > plain.fraction_high
        assert after.weights_bytes - plain.weights_bytes == after.graph_bytes
        assert after.kv_tokens > plain.kv_tokens
