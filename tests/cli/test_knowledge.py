"""What a study learned, seen from the command line: report, diagnose of a trial, export and import."""

import json

import pytest

from servetune.cli._provenance import how_it_failed
from servetune.core.knowledge import Clause, LearnedConstraint
from servetune.storage import StudyStore

SAYS = "moe-a2a-backend deepep with tp-size 8 cannot work"


def test_it_is_told_while_it_happens_and_in_the_report(taught):
    assert f"learned from trial 1: {SAYS}" in taught.out
    shown = taught("report", "first").stdout
    assert f"{SAYS} (comm_init, trial 1, confidence 90%" in shown
    (one,) = json.loads(taught("report", "first", "--json").stdout)["learned"]
    assert (one["says"], one["withdrawn"], one["rejections"] > 0) == (SAYS, "", True)


def test_a_covered_hint_is_turned_down_with_the_trial_that_taught_it(taught):
    trial = json.loads(taught("status", "first", "--json").stdout)["trials"][2]
    assert trial["state"] == "rejected"
    error = taught("diagnose", "first", "--trial", 2, status=2).stderr
    assert "was never launched: it was rejected before any launch: " in error
    assert "learned from trial 1 of study first" in error


def test_a_trial_is_diagnosed_by_its_number(taught):
    dead = json.loads(taught("diagnose", "first", "--trial", 1, "--json").stdout)
    assert (dead["class"], dead["phase"], dead["blamed"]) == ("comm_init", "load", ["--moe-a2a-backend"])
    assert dead["timeline"]
    assert dead["simulated"] is True
    shown = taught("diagnose", "first", "--trial", 1).stdout
    assert shown.startswith("SIMULATED: every number below was invented")
    assert "Timeline (seconds between the log's stamps; " in shown
    assert "no failure (class none)" in taught("diagnose", "first", "--trial", 0).stdout
    assert "no trial 99" in taught("diagnose", "first", "--trial", 99, status=2).stderr
    log = taught.folder / "studies" / "first" / "trials" / "1" / "server.log"
    log.rename(log.with_name("elsewhere"))
    gone = taught("diagnose", "first", "--trial", 1)
    assert "comm_init in phase load" in gone.stdout
    assert "the log is not here" in gone.stderr
    log.with_name("elsewhere").rename(log)


def test_the_export_of_a_failed_trial_warns_in_the_script_and_once_beside_it(taught):
    done = taught("export", "first", "--trial", 1)
    (warning,) = [line for line in done.stdout.splitlines() if "WARNING" in line]
    assert warning.startswith("# WARNING: this command failed: comm_init in load: ")
    assert done.stderr == f"warning: {warning.removeprefix('# WARNING: ')}\n"
    whole = taught("export", "first", "--trial", 0)
    assert "WARNING" not in whole.stdout
    assert whole.stderr == ""


def test_a_message_with_line_breaks_stays_in_the_comment(taught):
    with StudyStore.open(f"sqlite:///{taught.folder}/studies/studies.db") as store:
        record = store.trials("first")[1]
    failure = record.failure.model_copy(update={"message": "one\nrm x\r\u2028two\x85three"})
    run = record.runs[-1].model_copy(update={"failure": failure})
    told = how_it_failed(record.model_copy(update={"runs": (run,)}))
    assert told == "comm_init in load: one rm x two three"


@pytest.mark.parametrize("name", ["export", "import"])
def test_each_part_has_an_example_and_a_whole_summary(servetune, name):
    assert f"servetune knowledge {name} kimi.json" in servetune("knowledge", name, "--help").stdout
    assert "..." not in servetune("knowledge", "--help").stdout.partition("Commands:")[2].partition("Example")[0]


def test_knowledge_is_passed_on_and_spares_the_next_study_the_crash(taught):
    file = taught.folder / "first.json"
    assert "1 learned constraint written" in taught("knowledge", "export", file, "--study", "first").stdout
    other = f"sqlite:///{taught.folder}/other/studies.db"
    imported = taught("knowledge", "import", file, "--storage", other).stdout
    assert imported == f"1 learned constraint read from {file}, 1 of them new\n"
    again = taught("knowledge", "import", file, "--storage", other).stdout
    assert "1 learned constraint read" in again
    assert "0 of them new; lessons and confidence of those known already are merged" in again
    assert taught("status", "--storage", other).stdout.startswith("no studies yet in ")
    assert taught("status", "--storage", other, "--json").stdout == "[]\n"
    assert taught("knowledge", "export", "--storage", other).stdout.strip() == file.read_text().strip()
    taught.write_crashing_study("second", f"storage: {other}\n")
    out = taught("start", taught.folder / "second.yaml").stdout
    assert "1 learned constraint of earlier studies holds here" in out
    assert "comm_init" not in out.replace("(comm_init", "").replace(": comm_init in load", "")
    trials = json.loads(taught("status", "second", "--json", "--storage", other).stdout)["trials"]
    assert [trial["state"] for trial in trials[1:3]] == ["rejected", "rejected"]


def test_an_export_of_nothing_says_why(servetune):
    database = f"sqlite:///{servetune.folder}/studies.db"
    with StudyStore.open(database) as store:
        empty = servetune("knowledge", "export", "--storage", database)
        assert json.loads(empty.stdout)["constraints"] == []
        assert empty.stderr.startswith("note: this database learned nothing: ")
        wrong = LearnedConstraint(slug="oom", forbids=(Clause(flag="x", any_of=(1,)),), confidence=1)
        store.learn(wrong)
        store.withdraw_constraint(wrong.key, "it worked")
    told = servetune("knowledge", "export", "--storage", database).stderr
    assert told.startswith("note: all that this database learned turned out wrong; `--withdrawn` exports it")
    assert servetune("knowledge", "export", "--withdrawn", "--storage", database).stderr == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no json", "is no JSON"),
        ("{}", "format: servetune-knowledge"),
        ('{"format": "servetune-knowledge", "version": 9}', "version 9"),
        ('{"format": "servetune-knowledge", "version": 1, "constraints": [{"slug": "x"}]}', "constraints[0].forbids"),
    ],
)
def test_a_wrong_file_is_one_clear_error_and_nothing_is_made(servetune, text, told):
    file = servetune.folder / "wrong.json"
    file.write_text(text)
    assert told in servetune("knowledge", "import", file, status=2).stderr
    assert not (servetune.folder / "studies").exists()
