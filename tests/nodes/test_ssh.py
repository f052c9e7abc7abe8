from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import paramiko
import pytest
from contracts.node_contract import NodeContract, carriers, until
from nodes.sshd import Sshd, needs_sshd, running

from servetune.core.errors import ProgramEndedError
from servetune.core.node import EnvRef, LaunchSpec, Node
from servetune.nodes import ssh
from servetune.nodes._marks import Mark
from servetune.nodes._processes import read
from servetune.nodes._ssh_load import HELPERS, FarProgram
from servetune.nodes._starter import this_host

pytestmark = [needs_sshd, pytest.mark.sshd]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


class TestSshNode(NodeContract):
    @pytest.fixture
    def node(self, sshd: Sshd) -> Node:
        node = ssh.create(ssh.Settings(**sshd.settings()), Path.cwd())
        yield node
        node.close()

    @pytest.fixture
    def node_source(self, sshd: Sshd) -> str:
        settings = repr(sshd.settings())
        return f"from servetune.nodes import ssh; node = ssh.create(ssh.Settings(**{settings}), Path('/'))"


@pytest.fixture
def make(sshd: Sshd, tmp_path: Path):
    made = []

    def node(**settings):
        made.append(ssh.create(ssh.Settings(**sshd.settings(**settings)), tmp_path))
        return made[-1]

    yield node
    for one in made:
        one.close()


def test_a_helper_process_on_the_node(make):
    program = "import os, sys\nfor line in sys.stdin: print(line.strip()[::-1], os.environ['TOLD'], flush=True)"
    talk = make().converse(
        [sys.executable, "-u", "-c", program], {"TOLD": "it's so", "KEY": EnvRef(from_env="NOT_SET")}
    )
    talk.send("abc")
    assert talk.receive(20) == ["cba it's so"]
    assert carriers(HELPERS)
    assert talk.receive(0.1) == []
    talk.close()
    until(lambda: not carriers(HELPERS))
    ended = make().converse([sys.executable, "-c", "import no_such_module"], {})
    with pytest.raises(ProgramEndedError, match="no_such_module"):
        ended.receive(20)


def test_a_conversation_begun_while_the_connection_breaks_is_begun_on_the_next(make, sshd, monkeypatch):
    """What the library raises then, an EOFError or its own, is nobody's outside."""
    node = make()
    node.facts()
    begun = paramiko.Channel.exec_command

    def breaking(channel, command):
        if "read -r" in command:
            monkeypatch.undo()
            sshd.cut()
        begun(channel, command)

    monkeypatch.setattr(paramiko.Channel, "exec_command", breaking)
    talk = node.converse([sys.executable, "-u", "-c", "import sys\nfor line in sys.stdin: print(line)"], {})
    talk.send("abc")
    assert "abc" in talk.receive(20)
    talk.close()
    assert any("answers again" in note for note in node.take_notes())


def test_a_load_generator_that_is_cut_off_before_it_is_ready_is_started_again(make, sshd, monkeypatch, tmp_path):
    node = make(python=sys.executable)
    server = node.start(LaunchSpec(argv=("sleep", "600"), port=node.free_port()), "load", 1, str(tmp_path / "log"))
    ready = FarProgram.await_ready

    def cut_off(program):
        monkeypatch.undo()
        sshd.cut()
        ready(program)

    monkeypatch.setattr(FarProgram, "await_ready", cut_off)
    try:
        assert server.load_program() is server.load_program()
        assert any("answers again" in note for note in node.take_notes())
    finally:
        server.stop(0.2)
    assert carriers("load") == []


def test_a_helper_of_a_dead_tuner_is_ended_by_reclaim(make):
    node = make()
    gone = f"{this_host()}/1/999"
    mark = Mark(HELPERS, "0", f"{gone}/0")
    environ = {**os.environ, **mark.environment()}
    with subprocess.Popen(["sleep", "600"], env=environ, start_new_session=True) as helper:
        node.reclaim("any study")
        assert helper.wait(10) != 0


def test_the_models_config_is_read_on_the_node(make, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_moe", "num_hidden_layers": 4}')
    assert make(engine_model=str(tmp_path)).facts().config_json["num_hidden_layers"] == 4
    assert make(engine_model="/nowhere").facts().config_json == {}
    assert make().facts().config_json == {}


def test_a_process_that_got_a_pid_of_before_the_reboot_is_foreign(make, tmp_path):
    """Even one that also started at the same tick: the boot id decides."""
    node, log_dir = make(), str(tmp_path / "log")
    spec = LaunchSpec(argv=("sleep", "600"), port=node.free_port())
    server = node.start(spec, "rebooted", 1, log_dir)
    pid_file = next(Path(server.folder).glob("*.pid"))
    words = pid_file.read_text().split()
    for pid in carriers("rebooted"):
        os.kill(pid, signal.SIGKILL)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as foreign:
        ticks = read(foreign.pid).start_ticks
        reused = [str(foreign.pid), str(ticks), words[2], "00000000-0000-0000-0000-000000000000", *words[4:]]
        pid_file.write_text(" ".join(reused) + "\n")
        assert server.poll() is not None
        assert server.rebooted
        assert node.adopt(spec, "rebooted", 1, log_dir) is None
        server.stop(0.2)
        assert node.reclaim("rebooted") == []
        assert foreign.poll() is None
        foreign.kill()
