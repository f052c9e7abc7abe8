"""The model against numbers computed by hand from the table and the formulas of its specification."""

import math
import random

import pytest
import yaml

from servetune.core.failure import Phase
from servetune.simulation.configuration import configure, memory, overlay
from servetune.simulation.model import (
    Fault,
    noise_free_score,
    outcome,
    strikes,
)
from servetune.simulation.rates import level_s, measured, noise, running, throughput
from servetune.simulation.scenario import load_optimum, load_scenario

BASE = {
    "name": "plain",
    "engine_version": "0.5.9",
    "node": {
        "gpu_name": "GPU",
        "compute_capability": "9.0",
        "gpu_count": 8,
        "gpu_memory_mib": 100_000,
        "interconnect": "nvlink",
    },
    "model": {"path": "/models/m", "architecture": "M"},
    "flags": {
        "mem-fraction-static": 0.8,
        "cuda-graph-max-bs": 100,
        "chunked-prefill-size": 2048,
        "moe-a2a-backend": "none",
        "disable-custom-all-reduce": True,
    },
    "memory_gib": {
        "free_before_weights": 100,
        "weights": 60,
        "activation": 2,
        "activation_per_1k_chunk": 0.5,
        "graph_base": 1,
        "graph_per_batch_size": 0.01,
    },
    "kv_tokens_per_gib": 1000,
    "startup_s": {
        "init": 25,
        "load_weights": 400,
        "kv_pool": 7,
        "graph_base": 15,
        "graph_per_batch_size": 0.5,
        "warmup": 20,
    },
    "throughput": {2: 100, 32: 1600},
    "eager_factor": {1: 0.5, 16: 0.9},
    "output_tokens": 60,
    "input_tokens": 40,
}


@pytest.fixture
def scenario_of(tmp_path):
    def build(**changes):
        path = tmp_path / "scenario.yaml"
        path.write_text(yaml.safe_dump({**BASE, **changes}))
        return load_scenario(str(path))

    return build


def run(scenario, assignment=None, levels=(2, 32), seed=0):
    return outcome(scenario, assignment or {}, levels, random.Random(seed))


def rate(scenario, assignment, level):
    configuration, _ = configure(scenario, assignment)
    return throughput(scenario, configuration, level)


# --- configuration -------------------------------------------------------------------------------------------------


def test_an_absent_valued_flag_has_the_scenarios_value_and_an_absent_switch_is_false(scenario_of):
    scenario = scenario_of()
    assert overlay(scenario, {"cuda-graph-max-bs": 8, "env.X": "1"}) == {
        "mem-fraction-static": 0.8,
        "cuda-graph-max-bs": 8,
        "chunked-prefill-size": 2048,
        "moe-a2a-backend": "none",
        "disable-custom-all-reduce": False,
        "env.X": "1",
    }


def test_what_has_no_effect_goes_back_to_the_scenarios_default_and_is_warned_about(scenario_of):
    scenario = scenario_of(
        no_effect=[
            {"when": {"disable-custom-all-reduce": False}, "log": "custom falls back"},
            {"when": {"unheard-of": True, "moe-a2a-backend": ["deepep", "none"]}, "log": "ignored"},
        ]
    )
    configuration, warnings = configure(scenario, {"unheard-of": True, "moe-a2a-backend": "deepep"})
    assert configuration["disable-custom-all-reduce"] is True
    assert configuration["moe-a2a-backend"] == "none"
    assert "unheard-of" not in configuration
    assert warnings == ("custom falls back", "ignored")


def test_a_false_clause_holds_of_an_absent_switch_and_a_true_one_does_not(scenario_of):
    effects = [{"when": {"enable-x": False}, "factor": 2.0}, {"when": {"enable-y": True}, "factor": 5.0}]
    scenario = scenario_of(effects=effects)
    assert rate(scenario, {}, 2) == pytest.approx(200)
    assert rate(scenario, {"enable-x": True, "enable-y": True}, 2) == pytest.approx(500)


def test_true_and_one_are_not_the_same_value(scenario_of):
    scenario = scenario_of(effects=[{"when": {"cuda-graph-max-bs": 1}, "factor": 2.0}])
    assert rate(scenario, {"cuda-graph-max-bs": True}, 1) == pytest.approx(50)


# --- memory --------------------------------------------------------------------------------------------------------


def test_memory_arithmetic(scenario_of):
    sheet = {
        **BASE["memory_gib"],
        "extra": [{"when": {"moe-a2a-backend": "deepep"}, "add": 5}, {"when": {}, "add": -1}],
    }
    scenario = scenario_of(memory_gib=sheet)
    room = memory(scenario, configure(scenario, {"moe-a2a-backend": "deepep", "mem-fraction-static": 0.75})[0])
    assert room.weights == pytest.approx(64)
    assert room.avail == pytest.approx(36)
    assert room.headroom == pytest.approx(25)
    assert room.kv_gib == pytest.approx(11)
    assert room.graph == pytest.approx(1 + 0.01 * 100)
    assert room.needed == pytest.approx(2 + 2 + 0.5 * 2)


def test_without_graphs_none_are_counted(scenario_of):
    scenario = scenario_of()
    assert memory(scenario, configure(scenario, {"disable-cuda-graph": True})[0]).graph == 0


# --- phases: seconds and failures ----------------------------------------------------------------------------------

ENDS = {"parse": 5, "validate": 25, "load": 425, "kv_alloc": 432, "graph_capture": 432 + 15 + 0.5 * 13}
ENDS["warmup"] = ENDS["graph_capture"] + 20


@pytest.mark.parametrize(("phase", "seconds"), ENDS.items())
def test_a_stated_failure_strikes_at_the_end_of_its_phase(scenario_of, phase, seconds):
    rule = {"when": {"moe-a2a-backend": "none"}, "phase": phase, "class": "engine_bug", "log": "boom"}
    got = run(scenario_of(failures=[rule]))
    assert got.fault == Fault(Phase(phase), "engine_bug", "boom")
    assert got.startup.seconds == pytest.approx(seconds)
    assert got.seconds == pytest.approx(seconds + 15)


def test_a_launch_that_works_costs_start_probe_levels_and_stop(scenario_of):
    got = run(scenario_of())
    assert [(str(end.phase), end.end_s) for end in got.startup.ends] == list(ENDS.items())
    # 4 * 2 * 60 / 100 = 4.8 s is below the least; 4 * 32 * 60 / 1600 = 4.8 s as well
    assert got.seconds == pytest.approx(ENDS["warmup"] + 20 + 30 + 30 + 15)


def test_without_graphs_nothing_is_captured_and_no_time_spent(scenario_of):
    rule = {"when": {}, "phase": "graph_capture", "class": "graph_capture", "log": "boom"}
    got = run(scenario_of(failures=[rule]), {"disable-cuda-graph": True}, levels=())
    assert got.fault is None
    assert got.startup.seconds == pytest.approx(432 + 20)


@pytest.mark.parametrize(("load", "seconds"), [(3, 30), (2_000, 60), (100_000, 180)])
def test_level_seconds_lie_between_30_and_180(scenario_of, load, seconds):
    # 4 * L * output_tokens / throughput with output_tokens 60: 3 → 7.2; 2000 → 60 at 8000/s; 100000 → 3000
    assert level_s(scenario_of(), load, 8000 if load == 2000 else 100.0) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("assignment", "weights", "slug", "phase"),
    [
        ({}, 100.5, "oom_weights", "load"),
        ({"mem-fraction-static": 0.6}, 60, "kv_budget", "kv_alloc"),  # avail 40, headroom 40: exactly nothing left
        ({"mem-fraction-static": 0.59}, 60, "kv_budget", "kv_alloc"),
        ({"mem-fraction-static": 0.985}, 60, "oom_graph", "graph_capture"),  # headroom 1.5, graph 2.0
        ({"mem-fraction-static": 0.96}, 60, "oom_runtime", "serving"),  # headroom 4, needed 5
        ({"mem-fraction-static": 0.96, "cuda-graph-max-bs": 8}, 60, "oom_runtime", "serving"),  # needed 4.08
        ({"mem-fraction-static": 0.96, "disable-cuda-graph": True}, 60, None, None),  # needed 3.0
        ({"mem-fraction-static": 0.96, "cuda-graph-max-bs": 8, "chunked-prefill-size": 1024}, 60, None, None),  # 3.58
        ({"mem-fraction-static": 0.95}, 60, None, None),  # headroom 5 (rounded up in binary), needed 5
    ],
)
def test_memory_failures(scenario_of, assignment, weights, slug, phase):
    got = run(scenario_of(memory_gib={**BASE["memory_gib"], "weights": weights}), assignment)
    assert (got.fault and (got.fault.slug, str(got.fault.phase))) == (slug and (slug, phase))


def test_runtime_memory_does_not_matter_below_ten_requests(scenario_of):
    got = run(scenario_of(), {"mem-fraction-static": 0.96}, levels=(1, 9, 10, 32))
    assert [(level.level, level.seconds, level.fault and level.fault.slug) for level in got.levels] == [
        (1, 30, None),
        (9, 30, None),
        (10, 20, "oom_runtime"),
    ]


def test_a_stated_failure_of_load_comes_before_memory_and_of_capture_after_it(scenario_of):
    load = {"when": {}, "phase": "load", "class": "comm_init", "log": "first"}
    heavy = {**BASE["memory_gib"], "weights": 101}
    assert run(scenario_of(failures=[load], memory_gib=heavy)).fault.slug == "comm_init"
    capture = {"when": {}, "phase": "graph_capture", "class": "graph_capture", "log": "second"}
    assert run(scenario_of(failures=[capture]), {"mem-fraction-static": 0.985}).fault.slug == "oom_graph"
    pool = {"when": {}, "phase": "kv_alloc", "class": "engine_bug", "log": "third"}
    assert run(scenario_of(failures=[pool]), {"mem-fraction-static": 0.5}).fault.slug == "kv_budget"


def test_the_first_failure_of_a_phase_that_holds_decides(scenario_of):
    rules = [
        {"when": {"moe-a2a-backend": "deepep"}, "phase": "load", "class": "a", "log": ""},
        {"when": {"moe-a2a-backend": ["none", "x"]}, "phase": "load", "class": "b", "log": ""},
        {"when": {}, "phase": "load", "class": "c", "log": ""},
        {"when": {}, "phase": "validate", "at_concurrency": 2, "class": "never", "log": ""},
    ]
    assert run(scenario_of(failures=rules)).fault.slug == "b"


def test_a_failure_under_load_strikes_from_its_concurrency_on_after_twenty_seconds(scenario_of):
    rules = [
        {"when": {}, "phase": "serving", "at_concurrency": 32, "class": "device_fault", "log": "late"},
    ]
    got = run(scenario_of(failures=rules), levels=(31, 32, 2))
    assert [(level.level, level.seconds) for level in got.levels] == [(31, 30), (32, 20)]
    assert got.fault == Fault(Phase.SERVING, "device_fault", "late")
    assert got.seconds == pytest.approx(ENDS["warmup"] + 20 + 30 + 20 + 15)


def test_a_serving_failure_without_concurrency_strikes_at_the_first_level(scenario_of):
    got = run(
        scenario_of(failures=[{"when": {}, "phase": "serving", "class": "device_fault", "log": "x"}]), levels=(1,)
    )
    assert [level.fault is None for level in got.levels] == [False]


def test_wrong_output_is_found_by_the_probe(scenario_of):
    got = run(scenario_of(wrong_output=[{"when": {"moe-a2a-backend": "none"}}]))
    assert got.fault.slug == "wrong_output"
    assert got.levels == ()
    assert got.seconds == pytest.approx(ENDS["warmup"] + 20 + 15)


def test_a_failure_that_is_not_certain_strikes_its_share_of_the_launches(scenario_of):
    rules = [
        {"when": {}, "phase": "load", "class": "flaky", "log": "", "probability": 0.3},
        {"when": {}, "phase": "warmup", "class": "certain", "log": ""},
    ]
    scenario = scenario_of(failures=rules)
    rng = random.Random(1)
    slugs = [outcome(scenario, {}, (), rng).fault.slug for _ in range(2000)]
    assert slugs.count("flaky") / 2000 == pytest.approx(0.3, abs=0.04)
    assert set(slugs) == {"flaky", "certain"}
    assert noise_free_score(scenario, {}) is None
    assert noise_free_score(scenario_of(failures=rules[:1]), {}) is not None


def test_one_draw_for_each_rule_that_is_not_certain(scenario_of):
    rules = [
        {"when": {"moe-a2a-backend": "x"}, "phase": "load", "class": "a", "log": "", "probability": p}
        for p in (1.0, 0.5, 0.0)
    ]
    rng, twin = random.Random(3), random.Random(3)
    assert strikes(scenario_of(failures=rules), rng) == (True, twin.random() < 0.5, False)
    twin.random()
    assert rng.random() == twin.random()


# --- throughput ----------------------------------------------------------------------------------------------------


def test_base_is_proportional_below_log_log_inside_and_constant_above(scenario_of):
    scenario = scenario_of()
    assert rate(scenario, {}, 1) == pytest.approx(50)
    assert rate(scenario, {}, 2) == pytest.approx(100)
    assert rate(scenario, {}, 8) == pytest.approx(400)  # halfway in log: sqrt(100 * 1600)
    assert rate(scenario, {}, 32) == pytest.approx(1600)
    assert rate(scenario, {}, 90) == pytest.approx(1600)


def test_the_kv_pool_limits_the_concurrency(scenario_of):
    # kv 40 - 39 = 1 GiB, 1000 tokens, 100 tokens for each request: 10 requests at once
    scenario = scenario_of()
    tight = {"mem-fraction-static": 0.61}
    configuration, _ = configure(scenario, tight)
    assert running(scenario, configuration, 32) == pytest.approx(10)
    assert running(scenario, configuration, 4) == 4
    assert rate(scenario, tight, 32) == pytest.approx(100 * 16 ** (math.log(5) / math.log(16)))


def test_max_running_requests_limits_the_concurrency(scenario_of):
    assert rate(scenario_of(), {"max-running-requests": 8}, 32) == pytest.approx(400)


def test_effects_multiply_and_are_read_at_the_level_not_at_the_running_requests(scenario_of):
    effects = [
        {"when": {"enable-x": True}, "factor": {2: 0.5, 32: 1.5}},
        {"when": {"enable-x": True, "moe-a2a-backend": ["none"]}, "factor": 2.0},
        {"when": {"enable-x": True, "moe-a2a-backend": "deepep"}, "factor": 100.0},
    ]
    scenario = scenario_of(effects=effects)
    x = {"enable-x": True}
    assert rate(scenario, x, 1) == pytest.approx(50 * 0.5 * 2)  # constant below
    assert rate(scenario, x, 2) == pytest.approx(100 * 0.5 * 2)
    assert rate(scenario, x, 8) == pytest.approx(400 * 1.0 * 2)  # linear in log concurrency: halfway
    assert rate(scenario, x, 64) == pytest.approx(1600 * 1.5 * 2)  # constant above
    assert rate(scenario, {**x, "max-running-requests": 2}, 32) == pytest.approx(100 * 1.5 * 2)


@pytest.mark.parametrize(
    ("value", "factor"), [(2048, 1.0), (4096, 0.9), (1024, 0.9), (8192, 0.8), (2048 * 2**7, 0.3), (2048 * 2**30, 0.3)]
)
def test_curves(scenario_of, value, factor):
    scenario = scenario_of(curves=[{"flag": "chunk", "optimum": 2048, "penalty": 0.1}])
    assert rate(scenario, {"chunk": value}, 2) == pytest.approx(100 * factor)


def test_a_curve_of_an_absent_flag_is_flat_and_of_a_switched_off_one_at_its_floor(scenario_of):
    scenario = scenario_of(curves=[{"flag": "chunk", "optimum": 2048, "penalty": 0.1}])
    assert rate(scenario, {}, 2) == pytest.approx(100)
    assert rate(scenario, {"chunk": -1}, 2) == pytest.approx(30)


def test_decode_beyond_the_captured_sizes_is_eager(scenario_of):
    scenario = scenario_of()
    assert rate(scenario, {"cuda-graph-max-bs": 8}, 8) == pytest.approx(400)
    assert rate(scenario, {"cuda-graph-max-bs": 7}, 8) == pytest.approx(400 * (0.5 + 0.4 * 0.75))  # log 8 / log 16
    assert rate(scenario, {"cuda-graph-max-bs": 8}, 32) == pytest.approx(1600 * 0.9)
    assert rate(scenario, {"cuda-graph-max-bs": 8, "max-running-requests": 8}, 32) == pytest.approx(400)


def test_without_graphs_every_decode_is_eager(scenario_of):
    assert rate(scenario_of(), {"disable-cuda-graph": True}, 1) == pytest.approx(50 * 0.5)


def test_noise_has_the_stated_spread_and_outliers(scenario_of):
    scenario = scenario_of(noise={"cv": 0.02, "outlier_probability": 0.1, "outlier_factor": 0.5})
    rng = random.Random(5)
    factors = [noise(scenario, rng) for _ in range(20_000)]
    usual = [factor for factor in factors if factor > 0.75]
    assert 1 - len(usual) / len(factors) == pytest.approx(0.1, abs=0.01)
    mean = sum(usual) / len(usual)
    spread = math.sqrt(sum((factor - mean) ** 2 for factor in usual) / len(usual))
    assert (mean, spread) == (pytest.approx(1, abs=0.001), pytest.approx(0.02, rel=0.03))


def test_a_shorter_measurement_is_less_precise_by_the_square_root(scenario_of):
    scenario = scenario_of(noise={"cv": 0.02})
    full, quarter = noise(scenario, random.Random(7)), noise(scenario, random.Random(7), precision=0.25)
    assert quarter - 1 == pytest.approx(2 * (full - 1))
    assert measured(scenario, configure(scenario, {})[0], 2, random.Random(7)) == pytest.approx(100 * full)


# --- judging -------------------------------------------------------------------------------------------------------

ALLREDUCE = {"nccl": {"disable-custom-all-reduce": True}}


@pytest.mark.parametrize("name", ["generated-11", "generated-12", "generated-13"])
def test_the_stated_optimum_scores_what_is_stated(name):
    best = load_optimum(name)
    assignment = dict(best.config)
    assignment.update(ALLREDUCE[assignment.pop("allreduce")])
    assert noise_free_score(load_scenario(name), assignment) == pytest.approx(best.score, abs=0.051)


def test_a_configuration_that_fails_anywhere_has_no_score():
    journey = load_scenario("glm-5-nvfp4-8x-rtx-pro-6000")
    plain = {"disable-custom-all-reduce": True}
    # KV pool 36.2 - 94.2 * 0.15 = 22.07 GiB for 775.9 requests at once; 128 captured: eager above; chunk one octave off
    at_1024 = math.exp(math.log(1650) + math.log(775.9 / 256) / math.log(4) * math.log(2300 / 1650))
    score = (36 * 240 * 1650 * at_1024 * 0.75 * 0.9 * 0.97**4) ** 0.25
    assert noise_free_score(journey, plain) == pytest.approx(score, rel=1e-5)
    assert noise_free_score(journey, {**plain, "moe-a2a-backend": "flashinfer"}) is None  # dies at 256
    assert noise_free_score(journey, {**plain, "moe-runner-backend": "auto"}) is None  # wrong output
    assert noise_free_score(journey, {**plain, "mem-fraction-static": 0.3}) is None


def test_the_first_journeys_arithmetic():
    """Expert parallelism at the automatic fraction fails in the KV pool; the smallest that passes is 1 - 16.3/94."""
    journey = load_scenario("kimi-k2.5-int4-8x-rtx-pro-6000")
    ep = {
        "disable-custom-all-reduce": True,
        "moe-a2a-backend": "flashinfer",
        "moe-runner-backend": "flashinfer_cutlass",
    }
    assert outcome(journey, ep, (1,), random.Random(0)).fault.slug == "kv_budget"
    just = outcome(journey, {**ep, "mem-fraction-static": 0.828}, (1,), random.Random(0))
    assert (just.fault.slug, just.fault.phase) == ("invalid_combo", Phase.WARMUP)
