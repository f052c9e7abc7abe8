"""The second confirmation on one H200 (tests/recordings/h200/confirmation), on another machine than the first."""

import json
import lzma
from pathlib import Path

import pytest
from click.testing import CliRunner

from servetune.cli import cli
from servetune.cli.diagnose import diagnose_text
from servetune.engines.sglang.logs import SglangLogReader
from servetune.storage import StudyStore
from servetune.tuner.confirm import compared, lead, next_launch, winner

FOLDER = Path(__file__).parents[1] / "recordings" / "h200" / "confirmation"
LOGS = sorted((FOLDER / "logs").glob("*.log"))
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "results-h200.md").read_text()
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """URL of a copy."""
    copy = tmp_path_factory.mktemp("h200") / "studies.db"
    copy.write_bytes(lzma.decompress((FOLDER / "studies.db.xz").read_bytes()))
    return f"sqlite:///{copy}"


@pytest.fixture(scope="module")
def study(database):
    with StudyStore.open(database, create=False) as store:
        return store.study("h200-streaming").spec, store.trials("h200-streaming")


def test_the_leader_is_compared_with_the_launches_of_its_own_machine(study):
    spec, trials = study
    ours, turns = compared(trials[2], trials[0], spec)
    assert [run.attempt for run in ours] == [2, 4]
    assert [run.attempt for run in turns.beside] == [6, 8]
    assert [run.attempt for run in turns.before] == [0, 2, 4]


def test_it_is_proved_and_nothing_more_is_launched(study):
    spec, trials = study
    assert lead(trials[2], trials[0], spec).proved
    assert winner(trials, spec).number == 2
    assert next_launch(spec, trials) is None


def test_the_earlier_winner_is_compared_with_the_launches_of_the_first_machine(study):
    spec, trials = study
    _, turns = compared(trials[4], trials[0], spec)
    assert [run.attempt for run in turns.beside] == [0, 2, 4]
    assert lead(trials[4], trials[0], spec).gain == pytest.approx(0.2204, abs=0.0001)


def test_the_page_and_the_readme_give_the_gain_that_the_report_states(study):
    spec, trials = study
    found = lead(trials[2], trials[0], spec)
    interval = f"+{100 * found.low:.1f} to +{100 * found.high:.1f} %"
    assert f"+{100 * found.gain:.1f} %" in PAGE
    assert f"{100 * found.gain:.0f} % ahead" in " ".join(README.split())
    assert interval in PAGE
    assert interval in " ".join(README.split())


def test_the_export_shows_the_launches_that_count(database):
    done = CliRunner().invoke(cli, ["export", "h200-streaming", "--storage", database])
    assert done.exit_code == 0, done.output
    assert "means over 2 fresh launches, of the baseline over 2 fresh launches" in done.stdout
    assert "31451.5        9192.6  +242.1 %" in done.stdout
    assert "--cuda-graph-max-bs-decode 1024" in done.stdout


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_server_that_served_and_was_stopped_has_no_failure(log, study):
    with log.open("rb") as lines:
        found = diagnose_text(lines, {})
    assert (found["class"], found["phase"], found["evidence"]) == ("none", "serving", [])
    reader = SglangLogReader({})
    reader.feed(log.read_bytes())
    _, number, _, attempt = log.stem.split("-")
    run = next(run for run in study[1][int(number)].runs if run.attempt == int(attempt))
    thinned = json.loads(json.dumps(reader.facts()))
    for name in ("memory_gib", "kv_tokens", "captured_sizes", "server_args", "ready", "phase"):
        assert thinned[name] == json.loads(json.dumps(run.log_facts[name])), name
