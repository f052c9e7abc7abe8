"""What launches teach: classes of configurations, merging, and forecasts that rest on them."""

import pytest
from engines.sglang.rule_cases import GIB, H200, RTX_PRO, config

from servetune.engines.sglang.memory import Calibration, calibrate, class_key, forecast, memory_violations

BASE = {"tp-size": 8}
LOADED = {"memory_gib": {"before_load_gib": 94.0, "after_load_gib": 21.7}}


def seen(before, after, graphs=None, sizes=0, prefill=None):
    facts = {"memory_gib": {"before_load_gib": before, "after_load_gib": after}, "graph_gib": {}, "captured_sizes": {}}
    if graphs is not None:
        facts["graph_gib"]["target decode"] = graphs
        facts["captured_sizes"]["target decode"] = list(range(sizes))
    if prefill is not None:
        facts["graph_gib"]["target prefill"] = prefill
    return facts


class TestClasses:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({}, {"mem-fraction-static": 0.9}),
            ({}, {"cuda-graph-max-bs": 64, "chunked-prefill-size": 4096}),
            ({}, {"tp-size": 1}),
            ({"tp": 8}, {"tensor-parallel-size": 8}),
            ({"tp-size": 8, "moe-a2a-backend": "deepep"}, {"tp-size": 8, "moe-a2a-backend": "deepep", "ep-size": 8}),
            ({"tp-size": 8, "dp-size": 4, "enable-dp-attention": True}, {"tp-size": 8, "attn-dp-size": 4}),
        ],
    )
    def test_the_same(self, one, other):
        assert class_key(one) == class_key(other)

    @pytest.mark.parametrize(
        "other",
        [
            {"tp-size": 4},
            {"tp-size": 8, "moe-a2a-backend": "deepep"},
            {"tp-size": 8, "ep-size": 8},
            {"tp-size": 8, "quantization": "fp8"},
            {"tp-size": 8, "speculative-algorithm": "EAGLE"},
            {"tp-size": 8, "dp-size": 8, "enable-dp-attention": True},
        ],
    )
    def test_different(self, other):
        assert class_key({"tp-size": 8}) != class_key(other)


class TestLearning:
    def test_a_log_without_memory_teaches_nothing(self):
        empty = Calibration()
        assert calibrate(empty, BASE, {}) is empty
        assert calibrate(empty, BASE, {"memory_gib": {}}) is empty

    def test_a_launch_that_died_while_loading_teaches_what_was_free(self):
        found = calibrate(Calibration(), BASE, {"memory_gib": {"before_load_gib": 90.0}})
        (known,) = found.classes.values()
        assert known.before_load_bytes == 90 * GIB
        assert known.weights_bytes is None
        forecasted = forecast(BASE, RTX_PRO, "0.5.9", config("kimi-k2.5"), found)
        assert forecasted.known_from == "shapes"

    def test_the_original_stays(self):
        first = Calibration()
        calibrate(first, BASE, LOADED)
        assert first == Calibration()

    def test_later_launches_of_a_class_add_what_they_know_better(self):
        found = calibrate(Calibration(), BASE, seen(94.0, 21.7))
        found = calibrate(found, BASE | {"mem-fraction-static": 0.9}, seen(93.9, 21.5, graphs=2.0, sizes=20))
        found = calibrate(found, BASE | {"cuda-graph-max-bs": 8}, seen(94.0, 21.7, graphs=0.5, sizes=4))
        (known,) = found.classes.values()
        assert known.launches == 3
        assert known.before_load_bytes == int(93.9 * GIB)
        assert known.weights_bytes == pytest.approx(72.4 * GIB)
        assert (known.decode_graph_bytes, known.decode_graph_sizes) == (2 * GIB, 20)  # of the launch with more graphs

    def test_json(self):
        found = calibrate(Calibration(), BASE, seen(94.0, 21.7, graphs=1.0, sizes=10, prefill=0.5))
        assert Calibration.model_validate_json(found.model_dump_json()) == found


class TestForecasts:
    def test_the_class_itself_is_taken_as_seen(self):
        found = forecast(BASE, RTX_PRO, "0.5.9", config("kimi-k2.5"), calibrate(Calibration(), BASE, LOADED))
        assert found.known_from == "class"
        assert found.before_load_bytes == 94 * GIB
        assert found.weights_bytes == int((94.0 - 21.7) * GIB)
        assert found.fraction_high - found.fraction_low < 0.25

    def test_another_class_is_corrected_by_the_error_of_the_shapes(self):
        plain = forecast(BASE, RTX_PRO, "0.5.9", config("kimi-k2.5"))
        heavier = seen(94.0, 94.0 - plain.weights_bytes / GIB * 1.02)
        other = BASE | {"moe-a2a-backend": "deepep"}
        known = forecast(other, RTX_PRO, "0.5.9", config("kimi-k2.5"), calibrate(Calibration(), BASE, heavier))
        shapes = forecast(other, RTX_PRO, "0.5.9", config("kimi-k2.5"))
        assert known.known_from == "node"
        assert known.weights_bytes / shapes.weights_bytes == pytest.approx(1.02, abs=0.001)

    def test_a_fraction_that_passed_by_shapes_is_refused_by_what_was_seen(self):
        assignment = BASE | {"mem-fraction-static": 0.76}
        model = config("kimi-k2.5")
        assert not memory_violations(forecast(assignment, RTX_PRO, "0.5.9", model), assignment)
        calibration = calibrate(Calibration(), BASE, LOADED)
        (violation,) = memory_violations(forecast(assignment, RTX_PRO, "0.5.9", model, calibration), assignment)
        assert violation.rule == "memory.fraction_too_low"
        assert "1 - 21.7/94.0 = 0.769" in violation.message

    def test_graphs_scale_with_the_sizes_captured(self):
        calibration = calibrate(Calibration(), {}, seen(139.0, 80.0, graphs=0.5, sizes=10))
        flags = {"max-running-requests": 4096}
        few = forecast({**flags, "cuda-graph-max-bs": 8}, H200, "0.5.9", config("qwen3-30b-a3b"), calibration)
        many = forecast({**flags, "cuda-graph-max-bs": 256}, H200, "0.5.9", config("qwen3-30b-a3b"), calibration)
        assert few.graph_bytes == pytest.approx(0.5 * GIB * 4 / 10, abs=1)
        assert many.graph_bytes > 8 * few.graph_bytes

    def test_another_process_on_the_gpu_does_not_pass_for_graphs(self):
        calibration = calibrate(Calibration(), {}, seen(139.0, 82.0, graphs=60.0, sizes=36))
        found = forecast({"mem-fraction-static": 0.9}, H200, "0.5.9", config("qwen3-30b-a3b"), calibration)
        assert found.fits
