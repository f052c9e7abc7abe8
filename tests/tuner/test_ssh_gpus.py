"""Whose processes are on the node's GPUs: foreign ones are seen, left alone, and never measured beside."""

from __future__ import annotations

import re
import subprocess

import pytest
from nodes.sshd import needs_sshd, running
from tuner.ssh_lab import Happening

from servetune.core.errors import NodeBusyError, NodeUnusableError
from servetune.core.study import StudyRunState
from servetune.core.trial import TrialState
from servetune.storage import StudyStore

pytestmark = [needs_sshd, pytest.mark.sshd]

GPU = "GPU-9c4803c0-0404-da9c-4f64-8fe1700ea732"
OTHER_GPU = "GPU-05168b4e-631b-5aeb-be2b-d504333d813b"


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    with running(tmp_path_factory.mktemp("sshd"), gpus=True) as server:
        yield server


@pytest.fixture
def apps(sshd):
    """The list of processes on the GPUs."""
    yield sshd.answers / "apps"
    (sshd.answers / "apps").write_text("")


@pytest.fixture
def foreign(apps):
    """A foreign process, seen on the first GPU once `appear` is called."""
    with subprocess.Popen(["sleep", "600"]) as process:

        def appear(gpu=GPU):
            apps.write_text(f"{gpu}, {process.pid}, python train.py, 4000 MiB\n")

        process.appear = appear
        yield process
        assert process.poll() is None, "a foreign process was touched"
        process.kill()


def test_a_foreign_process_before_the_launch(lab, foreign, apps):
    foreign.appear()
    file = lab.write(lab.node(wait_for_gpus_s=0.5))
    with pytest.raises(NodeBusyError, match=rf"somebody else uses the GPUs: pid {foreign.pid} \(python train\.py"):
        lab.sit(file)
    with StudyStore.open(lab.storage) as store:
        (study,) = [one for one in store.studies() if one.name == file.stem]
    assert study.state is StudyRunState.FAILED
    assert "somebody else uses the GPUs" in study.reason
    apps.write_text("")
    lab.sit(file)
    assert [trial.state for trial in lab.trials(file)] == [TrialState.COMPLETE]


def test_a_foreign_process_on_another_gpu_is_nobodys_business(lab, foreign):
    foreign.appear(OTHER_GPU)
    file = lab.write(lab.node(gpus=[0], wait_for_gpus_s=0.5))
    lab.sit(file)
    assert [trial.state for trial in lab.trials(file)] == [TrialState.COMPLETE]


def test_a_level_during_which_somebody_came_is_measured_again(lab, foreign, apps, sshd):
    came = []

    class Coming(Happening):
        def on(self, event):
            super().on(event)
            if type(event).__name__ == "LevelProgress" and not came:
                came.append(event)
                foreign.appear()
            if came and any("others use the GPUs" in note for note in self.notes):
                apps.write_text("")

    file = lab.write()
    happening = lab.sit(file, Coming())
    told = [note for note in happening.notes if "others use the GPUs" in note]
    assert len(told) == 1
    assert re.search(rf"pid {foreign.pid} \(python train\.py", told[0])
    (trial,) = lab.trials(file)
    assert trial.state is TrialState.COMPLETE
    assert [measurement.concurrency for measurement in trial.runs[0].measurements] == [1, 10]


def test_somebody_who_stays_makes_the_measurement_invalid_not_the_configuration(lab, foreign, apps, monkeypatch):
    monkeypatch.setattr("servetune.tuner.trial_runner.QUIET_S", 0.0)
    file = lab.write(lab.node(wait_for_gpus_s=0), retries={"transient": 0})
    happening = Happening("LevelProgress", foreign.appear)
    with pytest.raises(NodeBusyError):
        lab.sit(file, happening)  # the trial is tried again, and finds somebody there
    first, *_ = lab.trials(file)
    assert first.runs[0].failure.slug == "invalid_measurement"
    assert "others use the GPUs" in first.runs[0].failure.message
    assert first.state is TrialState.FAIL


def test_how_the_node_did_is_kept_with_each_run(lab):
    file = lab.write()
    lab.sit(file)
    told = lab.trials(file)[0].runs[0].log_facts["node"]
    assert told["start"]["driver_version"] == "580.159.04"
    assert told["end"]["gpus"]["1"]["temperature_c"] == 43
    assert told["start"]["gpus"]["0"]["sm_clock_mhz"] == 1980


def test_memory_that_stays_taken_is_a_clear_end(lab, sshd):
    query = sshd.answers / "query"
    before = query.read_text()
    try:
        happening = Happening("stopping", lambda: query.write_text(before.replace("143771, 0,", "143771, 90000,", 1)))
        file = lab.write(lab.node(wait_for_memory_s=0.5))
        with pytest.raises(NodeUnusableError, match=r"GPU memory is still in use.*87\.9 GiB more than before.*reset"):
            lab.sit(file, happening)
    finally:
        query.write_text(before)
    lab.sit(file)
    assert [trial.state for trial in lab.trials(file)] == [TrialState.COMPLETE]
