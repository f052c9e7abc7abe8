"""Three layouts on two H200 (tests/recordings/h200/x2): forecast and rules first, log second."""

import json
from pathlib import Path

import pytest

from servetune.cli.diagnose import diagnose_text
from servetune.core.node import NodeFacts
from servetune.engines.sglang.logs import SglangLogReader
from servetune.engines.sglang.memory import forecast
from servetune.engines.sglang.rules import judge

FOLDER = Path(__file__).parents[2] / "recordings" / "h200" / "x2"
RECORDED = json.loads((FOLDER / "launches.json").read_text())
FACTS = NodeFacts.model_validate(RECORDED["facts"])
CONFIG = json.loads((FOLDER / "config.json").read_text())
LAUNCHES = {name: {**RECORDED["fixed"], **flags} for name, flags in RECORDED["assignments"].items()}
VERSION = "0.5.17"
launches = pytest.mark.parametrize("name", LAUNCHES)


def log_facts(name):
    reader = SglangLogReader(LAUNCHES[name])
    reader.feed((FOLDER / f"{name}.log").read_bytes())
    return reader.facts()


@launches
def test_kv_tokens_and_the_automatic_fraction_are_foretold_before_any_launch(name):
    found, told = forecast(LAUNCHES[name], FACTS, VERSION, CONFIG), log_facts(name)
    assert found.kv_tokens == pytest.approx(told["kv_tokens"], rel=0.002)
    assert found.fraction == pytest.approx(told["server_args"]["mem-fraction-static"], abs=0.0005)


@launches
def test_the_rules_refuse_nothing_that_ran_and_resolve_it_as_the_engine_did(name):
    found, told = judge(LAUNCHES[name], FACTS, VERSION, CONFIG), log_facts(name)["server_args"]
    assert found.violations == ()
    for flag in ("tp-size", "dp-size", "ep-size", "chunked-prefill-size", "mem-fraction-static"):
        assert found.effective.resolved[flag.replace("-", "_")] == told[flag], flag


@launches
def test_servers_that_served_and_were_stopped_have_no_failure(name):
    with (FOLDER / f"{name}.log").open("rb") as lines:
        found = diagnose_text(lines, {})
    assert (found["class"], found["phase"], found["evidence"]) == ("none", "serving", [])
