"""What may happen between tuner and node: after each, the study is the one without it, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from contracts.node_contract import carriers
from nodes.sshd import needs_sshd, running
from tuner.ssh_lab import Happening, Lab

from servetune.core.errors import NodeBusyError, NodeUnreachableError, NodeUnusableError
from servetune.core.trial import TrialState

pytestmark = [needs_sshd, pytest.mark.sshd]

KILLED = Path(__file__).parents[1] / "fakes" / "killed_tuner.py"


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="module")
def undisturbed(sshd, tmp_path_factory):
    lab = Lab(sshd, tmp_path_factory.mktemp("undisturbed"))
    file = lab.write()
    lab.sit(file)
    assert {trial.state for trial in lab.trials(file)} == {TrialState.COMPLETE}
    return lab.story(file)


MOMENTS = [
    ("launching", 0.03),  # in the middle of the start
    ("waiting", 0.2),
    ("LevelProgress", 0.1),
    ("stopping", 0.0),
    ("stopping", 0.1),
    ("RunEnded", 0.0),
]


@pytest.mark.parametrize(("moment", "delay_s"), MOMENTS)
def test_the_connection_is_cut(lab, sshd, undisturbed, moment, delay_s):
    file = lab.write()
    lab.sit(file, Happening(moment, sshd.cut, delay_s))
    assert lab.story(file) == undisturbed


@pytest.mark.parametrize("moment", ["LevelProgress"])
def test_sshd_is_restarted_and_the_person_told(lab, sshd, undisturbed, moment):
    file = lab.write()
    happening = lab.sit(file, Happening(moment, sshd.restart))
    assert lab.story(file) == undisturbed
    told = "\n".join(happening.notes)
    assert re.search(r"connection to 127\.0\.0\.1 broke.*trying again", told)
    assert re.search(r"answers again after \d+ s", told)


def killed(lab: Lab, file: Path, moment: str, delay_s: float) -> None:
    words = [sys.executable, str(KILLED), str(file), lab.storage, moment, str(delay_s)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def servers(study: str) -> list[int]:
    """Pids of the servers, without what belongs to the node itself."""
    found = [psutil.Process(pid) for pid in carriers(study)]
    return [one.pid for one in found if "SERVETUNE_ROLE" not in one.environ()]


@pytest.mark.parametrize(("moment", "delay_s"), [("waiting", 0.5), ("LevelProgress", 0.1), ("LevelDone", 0.0)])
def test_the_tuner_is_killed_and_the_server_taken_up(lab, undisturbed, moment, delay_s):
    file = lab.write()
    killed(lab, file, moment, delay_s)
    (server,) = servers(file.stem)
    seen: list[int] = []
    happening = lab.sit(file, Happening("probing", lambda: seen.extend(servers(file.stem))))
    assert seen == [server]
    assert any("taken up again" in note for note in happening.notes)
    assert lab.story(file) == undisturbed
    assert "launching" not in happening.steps


@pytest.mark.parametrize(("moment", "delay_s"), [("launching", 0.1), ("stopping", 0.05)])
def test_the_tuner_is_killed_while_it_starts_or_stops_a_server(lab, undisturbed, moment, delay_s):
    file = lab.write()
    killed(lab, file, moment, delay_s)
    lab.sit(file)
    assert lab.story(file) == undisturbed


def test_a_server_of_another_spec_is_ended_and_not_taken_up(lab, undisturbed):
    file = lab.write()
    killed(lab, file, "waiting", 0.5)
    (server,) = servers(file.stem)
    study = json.loads(file.read_text())
    study["engine"]["env"] = {"NCCL_DEBUG": "WARN"}
    file.write_text(json.dumps(study))
    happening = lab.sit(file)
    assert not psutil.pid_exists(server)
    assert not any("taken up" in note for note in happening.notes)
    assert lab.story(file) == undisturbed


def test_a_server_that_is_taken_up_and_fails_is_launched_anew(lab, undisturbed):
    file = lab.write()
    killed(lab, file, "waiting", 0.5)
    (server,) = servers(file.stem)
    happening = lab.sit(file, Happening("waiting", lambda: os.kill(server, signal.SIGKILL)))
    assert any("launched anew" in note for note in happening.notes)
    assert lab.story(file) == undisturbed


def test_a_server_taken_up_is_ended_when_the_sitting_ends_before_its_run(lab):
    """Such as by a driver that is another one since the reboot."""
    file = lab.write()
    killed(lab, file, "waiting", 0.5)
    (server,) = servers(file.stem)

    def refuse():
        raise NodeUnusableError("the GPU driver changed")

    with pytest.raises(NodeUnusableError):
        lab.sit(file, Happening("TrialStarted", refuse))
    assert not psutil.pid_exists(server)
    assert lab.left() == []


def test_who_has_lost_the_node_to_another_tuner_takes_its_server_along(lab, sshd, monkeypatch):
    """A laptop that slept: its lease was over, and another study has taken the GPUs."""
    monkeypatch.setattr("servetune.nodes._ssh_leases._RENEWALS", 600)
    lease = sshd.home / "leases" / "machine.json"

    def lose():
        lease.write_text(json.dumps({"token": "x", "study": "thief", "host": "laptop"}) + "\n")

    file = lab.write(workload={"concurrency": [1, 10, 20, 30]})
    with pytest.raises(NodeBusyError, match="taken over by study 'thief'"):
        lab.sit(file, Happening("LevelProgress", lose))
    assert lab.left() == []
    assert json.loads(lease.read_text())["study"] == "thief"
    lease.unlink()
    lab.sit(file)
    assert {trial.state for trial in lab.trials(file)} == {TrialState.COMPLETE}


def test_the_node_stays_away_and_the_study_goes_on_when_it_is_back(lab, sshd, undisturbed):
    file = lab.write(lab.node(reconnect_s=1))
    with pytest.raises(NodeUnreachableError, match=r"did not answer again within \d+ s.*resume"):
        lab.sit(file, Happening("LevelProgress", sshd.stop))
    assert servers(file.stem)
    sshd.start()
    happening = lab.sit(file)
    assert any("taken up again" in note for note in happening.notes)
    assert lab.story(file) == undisturbed


def test_the_node_is_rebooted(lab, sshd, undisturbed):
    """Every process gone at once, the work directory kept."""

    def reboot():
        sshd.stop()
        for pid in carriers(file.stem):
            os.kill(pid, signal.SIGKILL)
        now = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        for kept in sshd.home.rglob("*.pid"):  # what was written before is of another run of the kernel
            kept.write_text(kept.read_text().replace(now, "00000000-0000-0000-0000-000000000000"))
        sshd.start()

    file = lab.write()
    lab.sit(file, Happening("LevelProgress", reboot))
    first, *_ = lab.trials(file)
    failure = first.runs[0].failure
    assert (failure.slug, failure.verdict) == ("host_env", "retry")
    assert "the node was restarted while the server ran" in failure.message
    assert [outcome[:3] for outcome in lab.story(file)] == [outcome[:3] for outcome in undisturbed]
