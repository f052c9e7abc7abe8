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


def log_facts(number):
    reader = SglangLogReader(RECORDED["assignments"][number])
    reader.feed((STUDY / "logs" / f"trial-{number}.log").read_bytes())
    return reader.facts()


@pytest.fixture(scope="module")
def launches():
    return {number: log_facts(number) for number in RECORDED["assignments"]}


def test_kv_tokens_are_foretold_within_a_thousandth_before_any_launch(launches):
    for number, facts in launches.items():
        found = forecast(RECORDED["assignments"][number], FACTS, VERSION, CONFIG)
        assert found.kv_tokens == pytest.approx(facts["kv_tokens"], rel=0.001), number


def test_one_log_makes_the_forecast_of_all_others_tighter(launches):
    first, *others = launches
    calibration = calibrate(Calibration(), RECORDED["assignments"][first], launches[first])
    for number in others:
        assignment, real = RECORDED["assignments"][number], launches[number]["kv_tokens"]
        from_shapes = forecast(assignment, FACTS, VERSION, CONFIG).kv_tokens
        from_log = forecast(assignment, FACTS, VERSION, CONFIG, calibration).kv_tokens
        assert abs(from_log - real) < abs(from_shapes - real), number


def test_the_automatic_fraction_is_the_engines(launches):
    for number, facts in launches.items():
        if "mem-fraction-static" not in RECORDED["assignments"][number]:
            found = forecast(RECORDED["assignments"][number], FACTS, VERSION, CONFIG)
            assert found.fraction == pytest.approx(facts["server_args"]["mem-fraction-static"], abs=0.0005)


def test_nothing_that_ran_is_refused(launches):
    calibration = Calibration()
    for number, facts in launches.items():
        assignment = RECORDED["assignments"][number]
        found = forecast(assignment, FACTS, VERSION, CONFIG, calibration)
        assert memory_violations(found, assignment, named_only=False) == ()
        calibration = calibrate(calibration, assignment, facts)
