"""A whole study over a real sshd: the same as on the node itself, and nothing left behind."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from contracts.node_contract import carriers
from nodes.sshd import needs_sshd, running

from servetune.storage import StudyStore

pytestmark = [needs_sshd, pytest.mark.sshd]

QUICKSTART = Path(__file__).parents[2] / "studies" / "quickstart.yaml"
SIMULATED = {"scenario": "kimi-k2.5-int4-8x-rtx-pro-6000", "time_scale": 2000}


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


def quickstart(servetune, name, node, **changes):
    """The quickstart's study file with another node; numbers out of the model, so that they are the same twice."""
    study = yaml.safe_load(QUICKSTART.read_text())
    patient = {key: 200_000 for key in ("stall_s", "ready_s", "level_s")}
    study |= {"study": name, "node": node, "timeouts": patient, "load_generator": {"name": "scenario"}, **changes}
    file = servetune.folder / f"{name}.yaml"
    file.write_text(json.dumps(study))
    return file


def story(servetune, name):
    with StudyStore.open(f"sqlite:///{servetune.folder}/studies/studies.db") as store:
        return [
            (t.number, t.state, dict(t.assignment), t.value, [r.failure and r.failure.slug for r in t.runs])
            for t in store.trials(name)
        ]


@pytest.mark.slow
def test_the_quickstart_over_ssh_is_the_quickstart(servetune, sshd):
    budget = {"trials": 3}
    node = {"name": "ssh", **sshd.settings(rehearse=SIMULATED, python=sys.executable)}
    here = quickstart(servetune, "here", {"name": "simulated", **SIMULATED}, budget=budget, confirm={"launches": 0})
    there = quickstart(servetune, "there", node, budget=budget, confirm={"launches": 0})
    servetune("start", here)
    servetune("start", there)
    assert story(servetune, "there") == story(servetune, "here")
    assert [trial[1].value for trial in story(servetune, "there")].count("complete") >= 2
    assert carriers("there") == []
    report = servetune("report", "there").stdout
    assert "SIMULATED" in report
    assert "tunnel" not in report


def test_the_load_is_generated_on_the_node(servetune, sshd):
    node = {"name": "ssh", **sshd.settings(rehearse={**SIMULATED, "time_scale": 200}, python=sys.executable)}
    file = quickstart(
        servetune, "load", node, budget={"trials": 1}, load_generator={"name": "closed_loop"},
        workload={"concurrency": [4], "output_tokens": 64}, confirm={"launches": 0},
    )  # fmt: skip
    servetune("start", file)
    assert "tunnel" not in servetune("report", "load").stdout
    assert story(servetune, "load")[0][3] > 0


def test_where_the_node_cannot_run_the_load_generator_a_tunnel_does_and_the_report_says_so(servetune, sshd, tmp_path):
    """A Python for the simulated server, but none for the load generator: it may not import numpy."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *_far*) echo "no module named numpy" >&2; exit 1;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    node = {"name": "ssh", **sshd.settings(rehearse={**SIMULATED, "time_scale": 200}, python=str(python))}
    file = quickstart(
        servetune, "tunnel", node, budget={"trials": 1}, load_generator={"name": "closed_loop"},
        workload={"concurrency": [4], "output_tokens": 64}, confirm={"launches": 0},
    )  # fmt: skip
    shown = servetune("start", file).stdout
    assert re.search(r"SSH tunnel.*no module named numpy.*node\.python", shown)
    assert re.search(r"SSH tunnel.*no module named numpy", servetune("report", "tunnel").stdout)
    assert story(servetune, "tunnel")[0][3] > 0
