"""`servetune simulate`: whole studies in virtual time, in the words that a judge reads."""

import importlib
import itertools
import json
from pathlib import Path

import click
import pytest
import yaml

from servetune.cli import COMMANDS
from servetune.cli._virtual_study import simulate
from servetune.core.study import NamedChoice
from servetune.simulation import scenario as scenarios

SHIPPED = Path(scenarios.__file__).parent / "scenarios"


def test_json_has_every_trial_and_every_recommendation(servetune, tmp_path):
    file = tmp_path / "studies.json"
    words = ["simulate", "generated-12", "--strategy", "adaptive", "--seeds", "0,1", "--node-hours", "2"]
    done = servetune(*words, "--json", "-o", file)
    assert done.stdout == ""
    studies = json.loads(file.read_text())
    assert [(s["scenario"], s["strategy"], s["seed"]) for s in studies] == [
        ("generated-12", "adaptive", 0),
        ("generated-12", "adaptive", 1),
    ]
    for study in studies:
        assert set(study) == {"scenario", "strategy", "seed", "trajectory", "recommended"}
        for entry in study["trajectory"]:
            assert set(entry) == {"node_hours", "trial", "flags", "outcome", "phase", "class", "value"}
            assert entry["flags"]["enable-mscclpp"] in (True, False)
            assert entry["flags"]["env.NCCL_ALGO"] in ("Ring", "Tree")
        hours = [entry["node_hours"] for entry in study["trajectory"]]
        assert hours == sorted(hours)
        assert hours[-1] <= 2.5
        flags = [r["flags"] for r in study["recommended"]]
        assert all(left != right for left, right in itertools.pairwise(flags))
    first = studies[0]["trajectory"][0]
    assert first["outcome"] == "complete"
    assert first["flags"]["disable-custom-all-reduce"] is True


def test_a_person_reads_a_line_for_each_study_that_says_that_it_is_simulated(servetune):
    out = servetune("simulate", "generated-12", "--strategy", "random", "--node-hours", "2").stdout
    assert out.startswith("SIMULATED")
    assert "generated-12, seed 0, random:" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["no-such-scenario"], "no-such-scenario"),
        (["generated-12", "--strategy", "clever"], "clever"),
        (["generated-12", "--seeds", "one"], "whole numbers"),
        (["generated-12", "--node-hours", "0"], "node-hours"),
        (["generated-12", "--space", "no-such-space"], "no-such-space"),
    ],
)
def test_wrong_words_are_told_apart(servetune, words, told):
    assert told in servetune("simulate", *words, status=2).stderr


def test_a_study_file_is_no_scenario_and_said_so_in_one_sentence(servetune):
    told = servetune("simulate", SHIPPED.parents[3] / "studies" / "quickstart.yaml", status=2).stderr
    assert told.count("\n") == 1
    assert "quickstart.yaml is a study file, not a scenario; " in told
    assert "add --space " in told


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_description(name):
    options = importlib.import_module(f"servetune.cli.{name}").command.params
    assert all(option.help for option in options if isinstance(option, click.Option))


def test_no_strategy_knows_what_nobody_has_launched(tmp_path):
    """Two scenarios that differ in effect, failure and stated optimum of one backend: the same until it is launched."""
    document = yaml.safe_load((SHIPPED / "generated-12.yaml").read_text())
    document["effects"].append({"when": {"moe-a2a-backend": "mooncake"}, "factor": 0.2})
    when = {"moe-runner-backend": "deep_gemm"}
    document["failures"].append({"when": when, "phase": "load", "class": "comm_init", "log": "RuntimeError: x"})
    document.pop("optimum")
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(document))
    for strategy in ("adaptive", "tpe"):
        keys = {"sampler": NamedChoice(name=strategy), "seed": 5, "node_hours": 1.5}
        left, right = (simulate(str(place), keys)["trajectory"] for place in ("generated-12", other))
        same = 0
        for one, two in zip(left, right, strict=False):
            assert one["flags"] == two["flags"]
            flags = one["flags"]
            if flags["moe-a2a-backend"] == "mooncake" or flags["moe-runner-backend"] == "deep_gemm":
                break
            same += 1
        assert same >= 1


def test_a_table_of_a_finished_study_is_replayed(finished):
    """Exported by one command, replayed by the other; numbers of a simulated node stay called so."""
    finished("export", "done", "--format", "table", "-o", "done.jsonl")
    rows = [json.loads(line) for line in (finished.folder / "done.jsonl").read_text().splitlines()]
    assert all(row["simulated"] and row["study"] == "done" for row in rows)
    told = finished("simulate", "done.jsonl", "--strategy", "random").stdout
    assert told.startswith("REPLAYED, SIMULATED")
    assert "the table's best is" in told
    study = json.loads(finished("simulate", "done.jsonl", "--json").stdout)[0]
    assert set(study) == {"scenario", "strategy", "seed", "trajectory", "recommended", "optimum", "replayed"}
    measured = {level["output_tokens_per_s"] for row in rows for level in row["levels"]}
    assert measured
    assert study["optimum"]["score"] > 0


@pytest.mark.parametrize("study", ["h200-moe", "h200-streaming"])
def test_a_measured_table_says_where_it_was_measured(servetune, study):
    table = SHIPPED.parents[3] / "tests" / "recordings" / "h200" / "study" / f"{study}.jsonl"
    out = servetune("simulate", table, Path("generated-12"), "--strategy", "random", "--node-hours", "2").stdout
    assert out.startswith(f"REPLAYED: every number was measured in study {study} on NVIDIA H200")
    assert "\nSIMULATED" in out


def test_a_format_that_holds_every_launch_takes_no_trial(finished):
    assert "--trial" in finished("export", "done", "--format", "table", "--trial", "0", status=2).stderr


@pytest.mark.parametrize(
    ("study", "said"),
    [
        ("h200-moe", {"disable-overlap-schedule": {True, False}, "moe-runner-backend": {"auto", "triton_kernel"}}),
        ("h200-streaming", {"stream-interval": {4, 8, 16, None}, "tokenizer-worker-num": {4, None}}),
    ],
)
def test_a_study_runs_over_the_space_of_a_study_file(study, said):
    """The fitted scenario speaks of flags that the usual space does not have."""
    space = SHIPPED.parents[3] / "studies" / f"{study}.yaml"
    keys = {"sampler": NamedChoice(name="random"), "seed": 0, "node_hours": 2.0, "space": str(space)}
    trials = simulate("moe4b-bf16-1x-h200", keys)["trajectory"]
    assert {flag: {trial["flags"].get(flag) for trial in trials} for flag in said} == said
