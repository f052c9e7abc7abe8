"""The memory model against launches on a real H200 (tests/recordings/h200/study): forecast first, log second."""

import json
from pathlib import Path

import pytest

from servetune.core.node import NodeFacts
from servetune.engines.sglang.logs import SglangLogReader
from servetune.engines.sglang.memory import Calibration, calibrate, forecast, memory_violations

STUDY = Path(__file__).parents[2] / "recordings" / "h200" / "study"
RECORDED = json.loads((STUDY / "launches.json").read_text())
FACTS = NodeFacts.model_validate(RECORDED["facts"])
CONFIG = json.loads((STUDY / "config.json").read_text())
VERSION = "0.5.17"


def log_facts(name):
    reader = SglangLogReader(RECORDED["assignments"][name])
    reader.feed((STUDY / "logs" / f"{name}.log").read_bytes())
    return reader.facts()


@pytest.fixture(scope="module")
def launches():
    return {name: log_facts(name) for name in RECORDED["assignments"]}


def test_there_is_a_log_of_every_launch_of_both_studies(launches):
    assert {name.split("/")[0] for name in launches} == {"h200-moe", "h200-streaming"}
    assert len(launches) == 20


def test_kv_tokens_are_foretold_within_a_thousandth_before_any_launch(launches):
    for name, facts in launches.items():
        found = forecast(RECORDED["assignments"][name], FACTS, VERSION, CONFIG)
        assert found.kv_tokens == pytest.approx(facts["kv_tokens"], rel=0.001), name


def test_one_log_makes_the_forecast_of_all_others_tighter(launches):
    first, *others = launches
    calibration = calibrate(Calibration(), RECORDED["assignments"][first], launches[first])
    for name in others:
        assignment, real = RECORDED["assignments"][name], launches[name]["kv_tokens"]
        from_shapes = forecast(assignment, FACTS, VERSION, CONFIG).kv_tokens
        from_log = forecast(assignment, FACTS, VERSION, CONFIG, calibration).kv_tokens
        assert abs(from_log - real) < abs(from_shapes - real), name


def test_the_automatic_fraction_is_the_engines(launches):
    for name, facts in launches.items():
        if "mem-fraction-static" not in RECORDED["assignments"][name]:
            found = forecast(RECORDED["assignments"][name], FACTS, VERSION, CONFIG)
            assert found.fraction == pytest.approx(facts["server_args"]["mem-fraction-static"], abs=0.0005)


def test_the_interval_of_the_fraction_holds_what_ran_and_begins_where_the_log_says(launches):
    """The smallest fraction that can be is the share of the memory that the weights took."""
    for name, facts in launches.items():
        found = forecast(RECORDED["assignments"][name], FACTS, VERSION, CONFIG)
        told = facts["memory_gib"]
        smallest = 1 - told["after_load_gib"] / told["before_load_gib"]
        assert found.fraction_low < smallest < found.fraction_high, name
        assert found.fraction_needed == pytest.approx(smallest, abs=0.0005), name
        assert found.fraction_low < facts["server_args"]["mem-fraction-static"] < found.fraction_high, name


def test_nothing_that_ran_is_refused(launches):
    calibration = Calibration()
    for name, facts in launches.items():
        assignment = RECORDED["assignments"][name]
        found = forecast(assignment, FACTS, VERSION, CONFIG, calibration)
        assert memory_violations(found, assignment, named_only=False) == ()
        calibration = calibrate(calibration, assignment, facts)
