"""Virtual time against the stated model, written a second time from its text (`specification`)."""

import random
from pathlib import Path

import pytest
import yaml
from simulation.specification import Node

from servetune.cli._virtual_study import run_virtual, simulated_space
from servetune.core.study import NamedChoice
from servetune.core.trial import RunPurpose
from servetune.search._grid import Grid
from servetune.simulation import scenario as shipped
from servetune.simulation.model import outcome
from servetune.simulation.scenario import load_scenario

SHIPPED = sorted((Path(shipped.__file__).parent / "scenarios").glob("*.yaml"))
FILES = [path for path in SHIPPED if path.stem != "moe4b-bf16-1x-h200"]  # in which nothing fails


@pytest.fixture
def quiet(tmp_path):
    """A shipped scenario without chance: no noise, and each failure strikes every time. The document and its file."""

    def made(path):
        document = yaml.safe_load(path.read_text()) | {"noise": {"cv": 0.0, "outlier_probability": 0.0}}
        document["failures"] = [{k: v for k, v in e.items() if k != "probability"} for e in document["failures"]]
        file = tmp_path / path.name
        file.write_text(yaml.safe_dump(document))
        return document, str(file)

    return made


def slug_of(fault):
    return None if fault is None else fault.slug


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_any_launch_costs_fails_and_yields_what_the_text_says(path, quiet):
    document, file = quiet(path)
    made = load_scenario(file)
    space, source = simulated_space(), random.Random(0)
    grid, failed = Grid(space), set()
    for _ in range(400):
        point = {axis.name: source.choice(axis.values) for axis in grid.axes}
        launched = space.expand(point)
        seconds, phase, slug, rates = Node(document, launched).launch(made.levels)
        got = outcome(made, launched, made.levels, random.Random(0))
        assert slug_of(got.fault) == slug, launched
        assert got.seconds == pytest.approx(seconds, rel=1e-9), launched
        if phase not in (None, "probe"):
            assert str(got.fault.phase) == phase, launched
        assert [one.tokens_per_s for one in got.levels if one.fault is None] == pytest.approx(rates, rel=1e-9)
        failed.add(slug)
    assert len(failed) > 2


def test_a_study_in_virtual_time_is_charged_what_the_text_says(quiet):
    """Through the whole loop: start, probe, levels in two windows, stop; no noise, levels in full."""
    document, file = quiet(next(path for path in FILES if path.stem == "generated-11"))
    keys = {"sampler": NamedChoice(name="random"), "seed": 3, "node_hours": 2.0, "level_sd": 0.0}
    spec, store, _, _ = run_virtual(file, keys)
    runs = [(t, run) for t in store.trials(spec.study) for run in t.runs if run.purpose is RunPurpose.SEARCH]
    assert {run.failure is None for _, run in runs} == {True, False}
    for trial, run in runs:
        seconds, _, slug, rates = Node(document, dict(trial.assignment)).launch(spec.workload.concurrency)
        assert (run.failure and run.failure.slug) == slug, trial.assignment
        assert run.node_s == pytest.approx(seconds, abs=0.01), trial.assignment
        told = [m.output_tokens_per_s for m in run.measurements]
        assert told == pytest.approx(rates, rel=1e-6)
