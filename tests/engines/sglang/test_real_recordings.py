"""Logs of the real engine on a CPU, each with the answer that the log reader must give (`cases.json` beside them)."""

import json
from pathlib import Path

import pytest

from servetune.core.node import Exit
from servetune.engines.sglang.logs import SglangLogReader

FOLDER = Path(__file__).parents[2] / "recordings" / "sglang-cpu"
CASES = json.loads((FOLDER / "cases.json").read_text())
LAUNCHED_WITH = {"attention-backend": "torch_native", "max-total-tokens": 20000, "load-format": "dummy"}


def assignment_of(case):
    flags = {flag.lstrip("-"): True if value == "" else value for flag, value in case["flags"].items()}
    return {flag: value for flag, value in {**LAUNCHED_WITH, **flags}.items() if value is not None}


@pytest.mark.parametrize("name", CASES)
def test_log_is_read_as_what_it_was(name):
    case, expected = CASES[name], CASES[name]["expected"]
    reader = SglangLogReader(assignment_of(case))
    log = (FOLDER / f"{name}.log").read_bytes()
    for begin in range(0, len(log), 777):  # as it grows, cut anywhere
        reader.feed(log[begin : begin + 777])
    failure = reader.diagnose(Exit(code=case.get("exit_code")))
    assert reader.ready == ("ready_s" in case)
    said = (failure.slug, failure.verdict.value)
    assert said == (expected["class"], expected["verdict"])
    if expected["phase"] is not None:
        assert failure.phase.value == expected["phase"]
        assert set(expected["blamed"]) <= set(failure.blamed) or expected["class"] == "host_env"


def test_recordings_tell_nothing_about_the_machine_they_were_made_on():
    for path in FOLDER.iterdir():
        text = path.read_text()
        assert not [place for place in ("/root/", "/home/", ".cache/", ".pyenv") if place in text]


def test_every_recording_has_its_answer():
    assert {path.stem for path in FOLDER.glob("*.log")} == set(CASES)
