"""The H200 studies (tests/recordings/h200/study): what validate and diagnose say of them, and what is told of them."""

import json
import lzma
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from servetune.cli import cli
from servetune.cli.diagnose import diagnose_text
from servetune.engines.sglang.logs import SglangLogReader
from servetune.storage import StudyStore
from servetune.tuner.confirm import lead, leaders, next_launch, winner
from servetune.tuner.estimate import estimated

STUDY = Path(__file__).parents[1] / "recordings" / "h200" / "study"
RECORDED = json.loads((STUDY / "launches.json").read_text())
LOGS = sorted((STUDY / "logs").glob("*/*.log"))
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "results-h200.md").read_text()
STUDIES = ("h200-moe", "h200-streaming")
#: Of what a log says, all that does not count lines that were left out.
KEPT = ("memory_gib", "graph_gib", "kv_tokens", "captured_sizes", "server_args", "ready", "phase")


def log_of(study, trial, attempt):
    return STUDY / "logs" / study / (f"trial-{trial}-launch-{attempt}.log" if attempt else f"trial-{trial}.log")


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """URL of a copy."""
    copy = tmp_path_factory.mktemp("h200") / "studies.db"
    copy.write_bytes(lzma.decompress((STUDY / "studies.db.xz").read_bytes()))
    return f"sqlite:///{copy}"


@pytest.fixture(scope="module")
def studies(database):
    """Name → settings and trials, out of the database."""
    with StudyStore.open(database, create=False) as store:
        return {study: (store.study(study).spec, store.trials(study)) for study in STUDIES}


@pytest.fixture(scope="module")
def runs(studies):
    """Study and run of each launch."""
    return [(study, run) for study, (_, trials) in studies.items() for record in trials for run in record.runs]


@pytest.fixture
def stand_ins(tmp_path):
    facts = RECORDED["facts"]
    node = tmp_path / "node.json"
    told = {"gpu_name": facts["gpu_names"][0], "gpu_count": 1, "gpu_memory_mib": facts["gpu_memory_bytes"] // 2**20}
    told |= {name: facts[name] for name in ("compute_capability", "cuda_version", "driver_version")}
    node.write_text(json.dumps({**told, "engine": {"name": "sglang", "version": facts["engine_version"]}}))
    return ["--node-facts", str(node), "--model-config", str(STUDY / "config.json")]


def test_no_command_that_served_is_refused(runs, stand_ins, tmp_path):
    commands = [list(run.launch.argv[3:]) for _, run in runs]  # behind `python3 -m sglang.launch_server`
    assert len(commands) == 20
    batch = tmp_path / "commands.jsonl"
    batch.write_text("".join(json.dumps(command) + "\n" for command in commands))
    done = CliRunner().invoke(cli, ["validate", *stand_ins, "--batch", str(batch), "--json"])
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(verdict["verdict"], verdict["violations"], verdict["memory"]["fits"]) for verdict in found] == [
        ("ok", [], True)
    ] * len(commands)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}/{log.stem}")
def test_a_server_that_served_and_was_stopped_has_no_failure(log):
    """Half of them write of crashed subprocesses while they are stopped; one of the launches was interrupted."""
    with log.open("rb") as lines:
        found = diagnose_text(lines, {})
    assert (found["class"], found["phase"], found["evidence"]) == ("none", "serving", [])
    phases = list(dict.fromkeys(step["phase"] for step in found["timeline"]))
    assert phases[-5:] == ["load", "kv_alloc", "graph_capture", "warmup", "serving"]
    twice = log.read_bytes().count(b"server_args=ServerArgs(") > 1  # a launch that was cut off, and the one after it
    assert phases[:-5] == ([] if twice else ["validate"])


def test_the_thinned_logs_say_what_the_whole_ones_said(runs):
    for study, run in runs:
        if run.finished_at is None:
            continue
        reader = SglangLogReader({})
        reader.feed(log_of(study, run.trial, run.attempt).read_bytes())
        thinned = json.loads(json.dumps(reader.facts()))
        for name in KEPT:
            assert thinned[name] == json.loads(json.dumps(run.log_facts[name])), (study, run.trial, name)


def test_every_launch_has_its_log_and_no_log_is_of_no_launch(runs):
    named = {log_of(study, run.trial, run.attempt) for study, run in runs}
    assert named | {STUDY / "logs" / "h200-streaming" / "exported-command.log"} == set(LOGS)
    assert {str(log.relative_to(STUDY / "logs").with_suffix("")) for log in named} == set(RECORDED["assignments"])


def test_what_was_measured_is_expected_where_the_space_leaves_numbers_to_the_engine(studies):
    """Null among its graph batches is 256 here, and hints leave the memory fraction to the engine."""
    spec, trials = studies["h200-streaming"]
    for number, value in estimated(trials, spec).items():
        assert value == pytest.approx(trials[number].value, rel=0.06)
    assert [t.number for t in leaders(trials, spec)] == [2]


def test_the_confirmed_lead_stands_and_the_leader_that_was_overlooked_is_confirmed_next(studies):
    spec, trials = studies["h200-streaming"]
    assert winner(trials, spec).number == 4
    assert next_launch(spec, trials).trial == 0  # in turn with the baseline


def seconds(stamp):
    return datetime.fromisoformat(stamp).timestamp()


def test_the_tuner_itself_took_less_than_two_percent(runs):
    """What is no phase of a launch, of the time from the first launch's start to the last one's end."""
    whole = [run for study, run in runs if study == "h200-streaming"]
    span = max(seconds(run.finished_at) for run in whole) - min(seconds(run.started_at) for run in whole)
    own = 1 - sum(sum(run.phase_s.values()) for run in whole) / span
    assert 0 < own < 0.02
    assert f"**{100 * own:.1f} %**" in PAGE


def test_the_page_gives_the_gain_that_the_report_states(studies):
    spec, trials = studies["h200-streaming"]
    found = lead(trials[4], trials[0], spec)
    assert winner(trials, spec).number == 4
    for text in (f"+{100 * found.gain:.1f} %", f"+{100 * found.low:.1f} to +{100 * found.high:.1f} %"):
        assert text in PAGE


@pytest.mark.parametrize(
    ("trial", "said", "of_1024"),
    [
        (4, "means over 2 fresh launches, of the baseline over 3 launches", "20323.2       12693.1  +60.1 %"),
        (2, "not confirmed in fresh launches, so expect less", "41647.7       12761.6  +226.4 %"),
        (0, "means over 3 launches, of the baseline over 3 launches", "12693.1       12693.1   +0.0 %"),
    ],
)
def test_an_export_shows_the_launches_that_count(database, trial, said, of_1024):
    """Of a confirmed trial the fresh ones, so that the table says what the verdict says."""
    done = CliRunner().invoke(cli, ["export", "h200-streaming", "--trial", str(trial), "--storage", database])
    assert done.exit_code == 0, done.output
    assert said in done.stdout
    assert of_1024 in done.stdout
