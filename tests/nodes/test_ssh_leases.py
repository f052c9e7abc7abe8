"""Lease files on the node: tuners that share no database meet there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from contracts.node_contract import carriers
from nodes.sshd import Sshd, needs_sshd, running

from servetune.core.errors import NodeBusyError, NodeUnusableError
from servetune.core.node import LaunchSpec
from servetune.nodes import ssh
from servetune.nodes._marks import Mark
from servetune.nodes._ssh_leases import LeaseFiles, hold
from servetune.nodes._ssh_link import Output

pytestmark = [needs_sshd, pytest.mark.sshd]

HOLDER = """
import sys, time
from pathlib import Path
from servetune.nodes import ssh
node = ssh.create(ssh.Settings(**{settings}), Path("/"))
lease = node.hold("other")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def node(sshd: Sshd, tmp_path: Path):
    made = []

    def make(**settings):
        folder = str(tmp_path / "leases")
        made.append(ssh.create(ssh.Settings(**sshd.settings(**{"lease_dir": folder, **settings})), tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.close()


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "leases").glob("*.json"))


def age(path: Path, by_s: float) -> None:
    then = time.time() - by_s
    os.utime(path, (then, then))


def test_one_study_at_a_time_and_the_other_is_named(node, tmp_path):
    with node().hold("first"):
        assert files(tmp_path) == ["machine.json"]
        with pytest.raises(NodeBusyError, match=rf"in use by study 'first' \(process {os.getpid()} on host"):
            node().hold("second")
    assert files(tmp_path) == []
    node().hold("second").release()


def test_disjoint_gpus_hold_disjoint_leases(node, tmp_path):
    with node(gpus=(0, 1)).hold("first"), node(gpus=(2, 3)).hold("second"):
        assert files(tmp_path) == ["gpu-0.json", "gpu-1.json", "gpu-2.json", "gpu-3.json"]
        with pytest.raises(NodeBusyError, match=r"gpu-1 of the node is in use by study 'first'"):
            node(gpus=(1, 4)).hold("third")
        assert "gpu-4.json" not in files(tmp_path)  # all or none
    assert set(node(gpus=(0, 1)).identities()).isdisjoint(node(gpus=(2, 3)).identities())
    assert not set(node(gpus=(0, 1)).identities()).isdisjoint(node(gpus=(1, 2)).identities())


def test_a_tuner_killed_on_this_host_is_seen_to_be_dead_at_once(node, sshd, tmp_path):
    settings = sshd.settings(lease_dir=str(tmp_path / "leases"))
    words = [sys.executable, "-c", HOLDER.format(settings=repr(settings))]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as tuner:
        assert tuner.stdout.readline() == b"held\n"
        with pytest.raises(NodeBusyError, match="'other'"):
            node().hold("mine")
        tuner.kill()
    node().hold("mine").release()


def test_a_tuner_of_another_host_is_waited_for_until_its_lease_is_over(node, tmp_path):
    with node().hold("first"):
        path = tmp_path / "leases" / "machine.json"
        path.write_text(json.dumps({"token": "x", "study": "far", "host": "laptop", "tuner": "elsewhere/1/2"}) + "\n")
        with pytest.raises(NodeBusyError, match=r"study 'far'.*on host laptop"):
            node().hold("mine")
        age(path, 119)
        with pytest.raises(NodeBusyError, match=r"renewed 1[12][0-9] s ago"):
            node().hold("mine")
        age(path, 125)
        with node().hold("mine"):
            assert json.loads(path.read_text())["study"] == "mine"


class AsNobody:
    """A link to this machine as another user: the lease files' text, run by its shell."""

    def run(self, script, **_):
        words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/bin/sh", "-s"]
        done = subprocess.run(words, input=script.encode(), capture_output=True, check=False, timeout=60)
        return Output(done.returncode, done.stdout + done.stderr)


def test_the_lease_of_another_user_is_respected_and_taken_over_when_it_is_over(node):
    if os.geteuid() != 0:
        pytest.skip("may not become another user")
    with tempfile.TemporaryDirectory() as parent:  # which that user may enter
        os.chmod(parent, 0o755)
        folder = f"{parent}/leases"
        path = Path(folder) / "machine.json"
        others = LeaseFiles(AsNobody(), folder)
        with node(lease_dir=folder).hold("mine"):
            assert others.take(["machine"], {"token": "y", "study": "theirs"})[1]["study"] == "mine"
        path.write_text(json.dumps({"token": "x", "study": "far", "tuner": "elsewhere/1/2"}) + "\n")
        assert others.take(["machine"], {"token": "y", "study": "theirs"})[1]["study"] == "far"
        age(path, 125)
        assert others.take(["machine"], {"token": "y", "study": "theirs"}) is None
        assert path.stat().st_uid == 65534
        with pytest.raises(NodeBusyError, match="theirs"):
            node(lease_dir=folder).hold("mine")
        others.give_back(["machine"], {"token": "y"})
        node(lease_dir=folder).hold("mine").release()


def test_whoever_lost_its_lease_is_told_and_does_not_take_it_back(node, tmp_path):
    one = node()
    lease = one.hold("first")
    path = tmp_path / "leases" / "machine.json"
    lease.check()
    path.unlink()  # a cleaned /tmp
    assert lease._files.renew(lease._names, lease._owner) is None
    assert json.loads(path.read_text())["study"] == "first"
    path.write_text(json.dumps({"token": "x", "study": "thief", "host": "laptop"}) + "\n")
    lease._taken_by = lease._files.renew(lease._names, lease._owner)
    assert lease.lost
    with pytest.raises(NodeBusyError, match="taken over by study 'thief'"):
        lease.check()
    lease.release()
    assert json.loads(path.read_text())["study"] == "thief"


def test_a_start_that_arrives_when_another_tuner_has_the_node_starts_nothing(node, tmp_path):
    one = node()
    path = tmp_path / "leases" / "machine.json"
    spec = LaunchSpec(argv=("sleep", "600"), port=one.free_port())
    with one.hold("late"):
        ours = path.read_text()
        path.write_text(json.dumps({"token": "x", "study": "thief", "host": "laptop"}) + "\n")
        with pytest.raises(NodeBusyError, match="taken over by study 'thief'"):
            one.start(spec, "late", 1, str(tmp_path / "1"))
        assert carriers("late") == []
        path.write_text(ours)
        one.start(spec, "late", 2, str(tmp_path / "2")).stop(0.1)
        path.unlink()  # a cleaned /tmp is no other tuner
        one.start(spec, "late", 3, str(tmp_path / "3")).stop(0.1)
    assert files(tmp_path) == []


def test_of_many_contenders_one_wins(node, tmp_path):
    node().hold("warm").release()
    nodes, won, lost = [node() for _ in range(6)], [], []

    def contend(one):
        try:
            won.append(one.hold("one of many"))
        except NodeBusyError:
            lost.append(one)

    stale = tmp_path / "leases" / "machine.json"
    stale.write_text(json.dumps({"token": "x", "study": "gone"}) + "\n")
    age(stale, 1000)
    threads = [threading.Thread(target=contend, args=(one,)) for one in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 5)
    won[0].release()


def test_studies_of_disjoint_gpus_measure_one_after_the_other(node):
    said = []
    with node(gpus=(0,)).measuring("first", lambda text: True) as mine:
        assert mine
        with node(gpus=(1,)).measuring("second", lambda text: bool(said.append(text))) as other:
            assert not other
        assert "waiting for study 'first'" in said[0]
        with node(gpus=(1,), measure_alone=False).measuring("third", lambda text: False) as told_so:
            assert told_so
    with node(gpus=(1,)).measuring("second", lambda text: False) as now:
        assert now


def test_a_lease_directory_that_cannot_be_written(node, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NodeUnusableError, match=r"no lease can be written.*node\.lease_dir"):
        node(lease_dir=str(tmp_path / "file" / "leases")).hold("mine")


def test_what_others_write_there_is_read_with_care(node, tmp_path):
    one = node()
    hold(LeaseFiles(one.link, str(tmp_path / "leases")), ["machine"], "x").release()
    (tmp_path / "leases" / "machine.json").write_text("nonsense $(touch /tmp/never) 'quoted'\n")
    with pytest.raises(NodeBusyError, match="nonsense"):
        one.hold("mine")


def test_what_this_very_process_could_not_give_back_is_taken_again(node, tmp_path):
    lease = node().hold("first")
    path = tmp_path / "leases" / "machine.json"
    text = path.read_text()
    lease.release()
    path.write_text(text)  # as if the node had not been reached
    node().hold("second").release()
    assert files(tmp_path) == []


def test_a_server_of_another_hosts_tuner_is_reclaimed_once_its_lease_is_over(node, tmp_path):
    """The laptop that began the study is gone for good; another one resumes it."""
    one = node()
    one.hold("warm").release()
    mark = Mark("mine", "3", "laptop/1/2/0")
    lease = tmp_path / "leases" / "gpu-0.json"
    lease.write_text(json.dumps({"token": "x", "study": "mine", "host": "laptop", "tuner": "laptop/1/2"}) + "\n")
    environ = {**os.environ, **mark.environment()}
    with subprocess.Popen(["sleep", "600"], env=environ, start_new_session=True) as server:
        assert list(one.reclaim("mine")) == []
        assert server.poll() is None
        age(lease, 125)
        assert "trial 3" in one.reclaim("mine")[0]
        assert server.wait(10) != 0
