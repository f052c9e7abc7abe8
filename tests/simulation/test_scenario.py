"""Reading scenario files: what is shipped parses, what is wrong is named with file, line, key, value and choices."""

from pathlib import Path

import pytest

from servetune.core.errors import SpecError
from servetune.core.space import Condition
from servetune.simulation.scenario import Scenario, facts, load_optimum, load_scenario, shipped_names

SHIPPED = Path(__file__).parents[2] / "src/servetune/simulation/scenarios"
JOURNEY = (SHIPPED / "kimi-k2.5-int4-8x-rtx-pro-6000.yaml").read_text()


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_scenario_is_read_by_name_and_by_path(name, tmp_path):
    copy = tmp_path / "copy.yaml"
    copy.write_text((SHIPPED / f"{name}.yaml").read_text())
    by_name = load_scenario(name)
    assert by_name == load_scenario("copy.yaml", tmp_path) == load_scenario(str(copy))
    assert by_name.levels == (1, 10, 256, 1024)
    assert by_name.name == name


def test_the_optimum_is_not_part_of_a_scenario():
    assert load_optimum("generated-11").score == 699.6
    assert load_optimum("kimi-k2.5-int4-8x-rtx-pro-6000") is None
    assert "optimum" not in Scenario.model_fields
    assert not hasattr(load_scenario("generated-11"), "optimum")


def test_yaml_anchors_are_followed():
    scenario = load_scenario("generated-12")
    tree = next(rule for rule in scenario.failures if "env.NCCL_ALGO" in rule.when.any_of)
    assert tree.when == Condition(any_of={"env.NCCL_ALGO": ("Tree",)})


def test_facts_are_marked_as_simulated():
    found = facts(load_scenario("kimi-k2.5-int4-8x-rtx-pro-6000"))
    assert found.simulated
    assert found.gpu_count == 8
    assert found.gpu_memory_bytes == 97887 * 2**20
    assert found.compute_capability == "12.0"
    assert (found.engine_name, found.engine_version) == ("sglang", "0.5.9")


@pytest.mark.parametrize(
    ("right", "wrong", "parts"),
    [
        ("phase: load,", "phase: laod,", ["line 29", "failures[2].phase", "'laod'", "'kv_alloc'", "'serving'"]),
        ("kv_tokens_per_gib", "kv_tokens_per_gb", ["line 13", "unknown key", "did you mean 'kv_tokens_per_gib'"]),
        ("kv_tokens_per_gib: 15000\n", "", ["kv_tokens_per_gib", "this key is missing"]),
        ("weights: 72.3", "weights: many", ["line 11", "memory_gib.weights", "'many'", "number"]),
        ("weights: 72.3", "weights: .nan", ["line 11", "memory_gib.weights", "finite"]),
        ("{1: 1.03, 10", "{1: -1.03, 10", ["line 18", "effects[1].factor[1]", "-1.03", "greater than 0"]),
        ("noise: {cv", "noise: {cvv", ["line 25", "noise.cvv", "allowed: cv, outlier_probability"]),
        ("mem-fraction-static: 0.779, ", "", ["line 8", "flags", "'mem-fraction-static'"]),
        ("throughput: {1: 82", "throughput: {one: 82", ["line 15", "throughput.one", "'one'", "integer"]),
        ("name: kimi", "name: [kimi", ["line 4", "not valid YAML"]),
        ("output_tokens: 256", "output_tokens: 256\noutput_tokens: 128", ["line 24", "'output_tokens' stands twice"]),
        ("class: comm_init", "klass: comm_init", ["line 32", "klass", "did you mean 'class'"]),
        (JOURNEY, "", ["line 1", "a scenario is a mapping"]),
        (JOURNEY, "- 1", ["line 1", "a scenario is a mapping", "list"]),
    ],
)
def test_a_wrong_file_is_named_with_its_place(tmp_path, right, wrong, parts):
    path = tmp_path / "broken.yaml"
    path.write_text(JOURNEY.replace(right, wrong, 1))
    with pytest.raises(SpecError) as caught:
        load_scenario(str(path))
    for part in [str(path), *parts]:
        assert part in str(caught.value)


def test_an_unknown_name_lists_the_shipped_ones_and_the_nearest():
    with pytest.raises(SpecError, match="did you mean 'generated-11'") as caught:
        load_scenario("generated11")
    assert "glm-5-nvfp4-8x-rtx-pro-6000" in str(caught.value)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="UTF-8"):
        load_scenario(str(path))
