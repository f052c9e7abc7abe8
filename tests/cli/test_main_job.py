"""Start, stop, resume, status, report and export, as a person or a script meets them."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from servetune.core.node import STUDY_MARKER
from servetune.core.trial import RunPurpose
from servetune.storage import StudyStore

CONTROL = "\x1b"


def wait_for(process, text: str) -> None:
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"{text!r} never came: {process.stderr.read()}")


def servers_of(study: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(STUDY_MARKER) == study and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_a_finished_study_is_reported_and_exported(finished):
    status = json.loads(finished("status", "done", "--json").stdout)
    assert status["study"] == "done"
    assert status["state"] == "finished"
    assert [trial["number"] for trial in status["trials"]] == [0, 1, 2]
    assert {trial["state"] for trial in status["trials"]} <= {"complete", "pruned"}
    assert status["trials"][0].keys() >= {"number", "state", "value", "phase", "class"}
    assert isinstance(status["best"]["value"], float)
    report = finished("report", "done").stdout
    assert "SIMULATED" in report
    assert "(baseline)" in report
    assert "Verdict:" in report


def test_the_export_is_the_stored_launch(finished):
    with StudyStore.open(f"sqlite:///{finished.folder}/studies/studies.db") as store:
        launch = store.runs("done", 1)[0].launch
    words = shlex.split(finished("export", "done", "--trial", 1).stdout, comments=True)
    assert words[-len(launch.argv) :] == list(launch.argv)
    document = json.loads(finished("export", "done", "--trial", "1", "--format", "json").stdout)
    assert document["argv"] == list(launch.argv)
    assert any("SIMULATED" in line for line in document["about"])


def test_an_export_to_a_file_is_whole_and_runnable(finished):
    finished("export", "done", "-o", "launch.sh")
    script = finished.folder / "launch.sh"
    assert os.access(script, os.X_OK)
    assert script.read_text() == finished("export", "done").stdout or "exported" in script.read_text()
    finished("export", "done", "-o", "missing/launch.sh", status=2)
    assert sorted(p.name for p in finished.folder.glob(".launch*")) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("export", "nothing"), "nothing"),
        (("export", "done", "--trial", "99"), "it has 0 to"),
        (("export", "done", "--format", "shel"), "did you mean 'shell'"),
        (("status", "don"), "done"),
        (("resume", "don"), "done"),
        (("start", "missing.yaml"), "missing.yaml"),
        (("report",), "STUDY"),
        (("strat", "x.yaml"), "strat"),
    ],
)
def test_bad_input_is_one_clear_error_and_status_2(finished, words, said):
    done = finished(*words, status=2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_start_on_an_existing_study_names_resume_and_new_name(finished):
    done = finished("start", "done.yaml", status=2)
    assert "servetune resume done" in done.stderr
    assert "--new-name" in done.stderr
    assert "finished" in finished("start", "--or-resume", "done.yaml").stdout


def test_nothing_is_coloured_in_a_pipe(finished):
    for words in (("status",), ("status", "done"), ("report", "done"), ("export", "done"), ("--help",)):
        assert CONTROL not in finished(*words).stdout
    assert CONTROL not in finished("status", "done", FORCE_COLOR="", NO_COLOR="1").stdout


@pytest.mark.parametrize("words", [("report", "done"), ("status", "done", "--json"), ("export", "done")])
def test_a_reader_that_goes_away_is_no_failure_of_the_job(finished, words):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "servetune", *words]
    done = subprocess.run(command, cwd=finished.folder, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def on_a_terminal(finished, *words: str, **environ: str) -> bytes:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "servetune", *words]
    env = {**os.environ, "TERM": "xterm-256color", **environ}
    subprocess.run(command, cwd=finished.folder, stdin=theirs, stdout=theirs, env=env, check=True)
    os.close(theirs)
    shown = os.read(ours, 1 << 16)
    os.close(ours)
    return shown


def test_no_color_leaves_no_escape_code_on_a_terminal(finished):
    assert b"\x1b" in on_a_terminal(finished, "status", "done", NO_COLOR="")
    shown = on_a_terminal(finished, "status", "done", NO_COLOR="1")
    assert b"study done" in shown
    assert b"\x1b" not in shown


def test_every_command_has_help_with_an_example():
    from click.testing import CliRunner

    from servetune.cli import COMMANDS, cli

    for name in COMMANDS:
        text = CliRunner().invoke(cli, [name, "--help"]).output
        assert f"servetune {name}" in text, text


def test_ctrl_c_once_stops_cleanly_and_resume_goes_on(servetune):
    name = f"ctrl-c-{os.getpid()}"
    file = servetune.write_study(name, trials=2, hold_s=1.0)
    with servetune.popen("start", file) as process:
        wait_for(process, "concurrency 1:")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"servetune resume {name}" in err
    assert "Traceback" not in err
    assert servers_of(name) == []
    status = json.loads(servetune("status", name, "--json").stdout)
    assert status["state"] == "stopped"
    assert status["trials"][0]["state"] == "waiting"
    assert "trial 0 was in hand and is run again" in err
    assert "in a launch that has not ended" in servetune("status", name).stdout
    listed = next(line for line in servetune("status").stdout.splitlines() if line.startswith(name))
    assert "waiting" in listed
    assert "running" not in listed
    assert "Verdict: nothing has been measured to the end yet" in servetune("report", name).stdout
    servetune("resume", name)
    status = json.loads(servetune("status", name, "--json").stdout)
    assert [trial["state"] for trial in status["trials"]] == ["complete", "complete"]


def test_ctrl_c_twice_stops_at_once(servetune):
    name = f"twice-{os.getpid()}"
    file = servetune.write_study(name, hold_s=30.0)
    with servetune.popen("start", file) as process:
        wait_for(process, "trial 0 search")
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 130
    assert servers_of(name) == []


def test_a_second_tuner_on_the_same_study_is_refused(servetune):
    name = f"second-{os.getpid()}"
    file = servetune.write_study(name, hold_s=1.0)
    with servetune.popen("start", file) as process:
        wait_for(process, "trial 0 search")
        refused = servetune("resume", name, status=1)
        assert str(process.pid) in refused.stderr
        assert "Traceback" not in refused.stderr
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_a_changed_space_is_refused_with_the_choice_of_a_seeded_study(finished, tmp_path: Path):
    changed = finished.folder / "changed.yaml"
    changed.write_text((finished.folder / "done.yaml").read_text().replace("0.93", "0.91"))
    refused = finished("resume", "done", "--file", changed, status=2)
    assert "--seed-from done" in refused.stderr
    finished("start", changed, "--new-name", "seeded", "--seed-from", "done")
    old = json.loads(finished("status", "done", "--json").stdout)
    new = json.loads(finished("status", "seeded", "--json").stdout)
    best = max((t for t in old["trials"] if not t["baseline"] and t["value"]), key=lambda t: t["value"])
    again = [{flag: v for flag, v in t["assignment"].items() if v is not False} for t in new["trials"]]
    assert best["assignment"] in again


def test_a_larger_budget_goes_on_where_the_study_ended(servetune):
    name = f"more-{os.getpid()}"
    file = servetune.write_study(name, trials=1)
    assert "1 trial was launched: the budget of 1 is spent" in servetune("start", file).stdout
    file.write_text(file.read_text().replace("trials: 1", "trials: 2"))
    servetune("resume", name)
    assert len(json.loads(servetune("status", name, "--json").stdout)["trials"]) == 2
    file.rename(file.with_name("moved.yaml"))
    again = servetune("resume", name)
    assert f"{file} is gone" in again.stderr
    assert "the budget of 2 is spent" in again.stdout, "what a study goes on with is stored"


def test_a_longer_confirmation_goes_on_where_the_study_ended(servetune):
    name = f"surer-{os.getpid()}"
    file = servetune.write_study(name, trials=2)
    chunks = "    chunked-prefill-size: [2048, 4096, 8192]\n"
    file.write_text(file.read_text().replace(chunks, f"{chunks}  hints:\n    - {{mem-fraction-static: 0.9}}\n"))
    servetune("start", file)
    assert "raise `budget` or `confirm`" in servetune("resume", name).stdout
    before = confirmed(servetune.folder, name)
    file.write_text(file.read_text().replace("launches: 1}", "launches: 2, most: 2}"))
    servetune("resume", name)
    assert before, "no configuration was ahead of the baseline"
    assert confirmed(servetune.folder, name) == {trial: 2 for trial in before}
    assert "raise `budget` or `confirm`" in servetune("resume", name).stdout


def confirmed(folder: Path, study: str) -> dict[int, int]:
    """Trial → launches that confirmed it."""
    with StudyStore.open(f"sqlite:///{folder}/studies/studies.db") as store:
        runs = [run for record in store.trials(study) for run in record.runs if run.purpose is RunPurpose.CONFIRM]
    return dict(Counter(run.trial for run in runs))


def test_an_unchanged_file_is_never_taken_for_a_changed_one(servetune):
    """What came back from the database holds lists where the file gave pairs."""
    name = f"pairs-{os.getpid()}"
    file = servetune.write_study(name, trials=1)
    lengths = "load_generator: {name: closed_loop, lengths: {uniform: {input: [64, 128], output: [32, 64]}}}\n"
    kept = [line for line in file.read_text().splitlines(keepends=True) if not line.startswith("load_generator")]
    file.write_text("".join(kept) + lengths)
    with servetune.popen("start", file) as process:
        wait_for(process, "trial 0 search")
        process.kill()
        process.communicate(timeout=60)
    told_alike_of_a_dead_tuner(servetune, name)
    servetune("resume", name)
    assert "finished" in servetune("status", name).stdout


def told_alike_of_a_dead_tuner(servetune, name: str) -> None:
    died = f"stopped (its tuner died; `servetune resume {name}` goes on)"
    status = servetune("status", name).stdout
    assert f"study {name}: {died}, " in status
    report = servetune("report", name).stdout
    assert f"study {name}: {died}\n" in report
    assert ("unfinished" in report) == ("in a launch that has not ended" in status)
    found = json.loads(servetune("report", name, "--json").stdout)
    assert (found["state"], found["reason"]) == ("stopped", died.removeprefix("stopped (").removesuffix(")"))
    assert f"it is {died}" in servetune("export", name, status=2).stderr
    rows = [json.loads(line) for line in servetune("export", name, "--format", "table").stdout.splitlines()]
    assert {row["trial_state"] for row in rows} <= {"waiting"}


def test_a_secret_appears_nowhere(servetune):
    name = f"secret-{os.getpid()}"
    secret = "sk-very-secret-value-4711"
    file = servetune.write_study(name, trials=1)
    text = file.read_text().replace("fixed: {tp-size: 8}", "fixed: {tp-size: 8, api-key: {from_env: MY_KEY}}")
    file.write_text(text.replace("int4}", "int4, env: {HF_TOKEN: {from_env: MY_KEY}}}", 1))
    done = servetune("start", file, MY_KEY=secret)
    script = servetune("export", name).stdout
    assert "MY_KEY" in script
    everything = [done.stdout, done.stderr, script, servetune("report", name).stdout]
    everything += [path.read_bytes().decode(errors="replace") for path in servetune.folder.rglob("*") if path.is_file()]
    assert not any(secret in text for text in everything)
    refused = servetune("resume", name, "--file", file, status=0)
    assert "finished" in refused.stdout


def test_a_missing_secret_is_named_before_anything_starts(servetune):
    name = f"missing-{os.getpid()}"
    file = servetune.write_study(name)
    file.write_text(file.read_text().replace("{tp-size: 8}", "{tp-size: 8, api-key: {from_env: NOT_SET_ANYWHERE}}"))
    refused = servetune("start", file, status=2)
    assert "NOT_SET_ANYWHERE" in refused.stderr
