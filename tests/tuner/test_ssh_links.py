"""Links that are slow, freeze, or carry a flood; servers that hang, and disks that are full, on the far side."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from contracts.node_contract import BAD_SERVER, Bench, carriers, listening, until
from nodes.slow_link import SlowLink
from nodes.sshd import Sshd, needs_sshd, running
from tuner.ssh_lab import Happening, Lab

from servetune import plugins
from servetune.cli import cli
from servetune.core.errors import NodeUnreachableError, NodeUnusableError
from servetune.core.trial import TrialState
from servetune.nodes import ssh

pytestmark = [needs_sshd, pytest.mark.sshd]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def link(sshd, tmp_path):
    """A way to the node that can be slow; the settings that go it."""
    link = SlowLink(sshd.port)
    known = tmp_path / "known_hosts"
    known.write_text(sshd.known_hosts.read_text().replace(f":{sshd.port} ", f":{link.port} "))
    config = tmp_path / "config"
    config.write_text("Host *\n ServerAliveInterval 1\n ServerAliveCountMax 3\n")
    link.settings = {"port": link.port, "known_hosts": str(known), "config": str(config)}
    yield link
    link.close()


def test_a_slow_link(lab, link):
    """200 ms there and back; only the tuner's own time grows."""
    plain, slow = lab.write(), lab.write(lab.node(**link.settings))
    lab.sit(plain)
    link.delay_s = 0.1
    lab.sit(slow)
    assert lab.story(slow) == lab.story(plain)
    assert {trial.state for trial in lab.trials(slow)} == {TrialState.COMPLETE}


@pytest.mark.parametrize("moment", ["waiting", "LevelProgress"])
def test_a_link_that_freezes_is_given_up_and_another_one_made(lab, link, moment):
    """As a cut cable: nothing is closed, nothing comes. The frozen connection never comes back."""
    file = lab.write(lab.node(**link.settings))

    def freeze():
        link.frozen = True
        threading.Timer(4.5, thaw).start()

    def thaw():
        link.cut()
        link.frozen = False

    happening = lab.sit(file, Happening(moment, freeze))
    assert {trial.state for trial in lab.trials(file)} == {TrialState.COMPLETE}
    assert any("answers again" in note for note in happening.notes)


class Cable:
    """To a node in a network namespace of its own: what is pulled out carries nothing and closes nothing."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.near = name, f"{name[-8:]}-near"
        net = f"10.231.{os.getpid() % 250}"
        self.do(f"ip link add {self.near} type veth peer name far netns {name}")
        for command in (f"addr add {net}.1/30 dev {self.near}", f"link set {self.near} up"):
            self.do(f"ip {command}")
        for command in (f"addr add {net}.2/30 dev far", "link set far up", "link set lo up"):
            self.do(f"ip -n {name} {command}")
        self.node = Sshd(folder, prefix=("ip", "netns", "exec", name), address=f"{net}.2")
        self.node.start()

    def do(self, command: str) -> None:
        subprocess.run(command.split(), check=True)

    def pull(self, for_s: float) -> None:
        self.do(f"ip link set {self.near} down")
        threading.Timer(for_s, self.do, [f"ip link set {self.near} up"]).start()


@pytest.fixture
def cable(tmp_path):
    name = f"servetune-{os.getpid()}"
    allowed = shutil.which("ip") and subprocess.run(["ip", "netns", "add", name], check=False).returncode == 0
    if not allowed:
        pytest.skip("may not make a network namespace (ip netns add)")
    with contextlib.ExitStack() as undo:
        undo.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
        cable = Cable(name, tmp_path / "far")
        undo.callback(cable.node.stop)
        yield cable


def test_a_cable_that_is_pulled_out_and_put_back(tmp_path, cable):
    """The kernel's own silence, which the proxy above imitates."""
    lab = Lab(cable.node, tmp_path)
    config = tmp_path / "config"
    config.write_text("Host *\n ServerAliveInterval 1\n ServerAliveCountMax 2\n")
    file = lab.write(lab.node(config=str(config)))
    happening = lab.sit(file, Happening("LevelProgress", lambda: cable.pull(5.0)))
    assert {trial.state for trial in lab.trials(file)} == {TrialState.COMPLETE}
    assert any("answers again" in note for note in happening.notes)
    assert lab.left() == []


def test_the_alive_interval_of_the_configuration_decides_when_a_silent_link_is_given_up(sshd, link, tmp_path):
    """Three seconds instead of 45: one a second, three times."""
    node = ssh.create(ssh.Settings(**{**sshd.settings(**link.settings), "reconnect_s": 0}), tmp_path)
    node.facts()
    link.frozen = True
    began_s = time.monotonic()
    with pytest.raises(NodeUnreachableError, match="did not answer again"):
        node.facts()
    assert 2 < time.monotonic() - began_s < 20
    node.close()


@pytest.fixture
def bench(sshd, tmp_path):
    node = ssh.create(ssh.Settings(**sshd.settings()), tmp_path)
    bench = Bench(node, tmp_path)
    yield bench
    bench.cleanup()
    node.close()


def test_a_port_that_somebody_takes_is_left_alone(bench):
    port = bench.node.free_port()
    with subprocess.Popen([sys.executable, "-S", BAD_SERVER, "--port", str(port)]) as foreign:
        until(lambda: listening(port))
        server = bench.start("--port", port, port=port)
        until(lambda: server.poll() is not None)
        server.stop(1)
        assert foreign.poll() is None
        foreign.kill()


def test_an_unmarked_rest_on_the_port_is_named_and_left_alone(bench):
    """It appeared while our server ran and shares nothing with it: it may be anybody's."""
    port = bench.node.free_port()
    server = bench.start(port=port)
    clean = {"PATH": "/usr/bin:/bin"}
    words = [sys.executable, "-S", BAD_SERVER, "--port", str(port)]
    with subprocess.Popen(words, env=clean, start_new_session=True) as foreign:
        until(lambda: listening(port))
        with pytest.raises(
            NodeUnusableError, match=rf"port {port} of the node is still listened on.*pid {foreign.pid}"
        ):
            server.stop(1)
        assert foreign.poll() is None
        assert carriers(bench.study) == []
        foreign.kill()
    server.stop(1)


@pytest.fixture
def disk(tmp_path):
    """4 MiB of the node's disk; `fill` takes what is left, `free` gives it back."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=False).returncode != 0:
        pytest.skip("may not mount a tmpfs")
    yield Disk(folder)
    subprocess.run(["umount", "-l", folder], check=True)


class Disk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        with contextlib.suppress(OSError), (self.folder / "filler").open("wb") as filler:
            while True:
                filler.write(b"x" * 10_000)
                filler.flush()

    def free(self) -> None:
        (self.folder / "filler").unlink()


def test_the_disk_of_the_node_is_full_before_the_start(lab, disk):
    """What a server cannot log nobody can read; the reason is the disk, not the configuration."""
    file = lab.write(lab.node(workdir=str(disk.folder)), retries={"transient": 0})
    with pytest.raises(NodeUnusableError, match=r"(No space left|free space)"):
        lab.sit(file, Happening("TrialStarted", disk.fill))
    assert carriers(file.stem) == []
    disk.free()
    lab.sit(file)
    assert [trial.state for trial in lab.trials(file)] == [TrialState.COMPLETE]


@pytest.mark.parametrize("moment", ["waiting", "LevelProgress"])
def test_the_disk_of_the_node_fills_while_a_server_runs(lab, disk, moment):
    """A server that says no more than it can write is judged by what it does; the next one is not even started."""
    space = {"parameters": {"chunked-prefill-size": [2048, 4096]}, "hints": [{"chunked-prefill-size": 4096}]}
    file = lab.write(
        lab.node(workdir=str(disk.folder)), budget={"trials": 2}, search_space=space, retries={"transient": 0},
        timeouts={"ready_s": 40_000, "stall_s": 20_000, "level_s": 200_000},
    )  # fmt: skip
    with pytest.raises(NodeUnusableError, match=r"(No space left|free space)"):
        lab.sit(file, Happening(moment, disk.fill))
    assert carriers(file.stem) == []
    assert TrialState.PRUNED not in {trial.state for trial in lab.trials(file)}, "the disk taught something"
    disk.free()
    lab.sit(file)
    assert carriers(file.stem) == []
    assert [trial.state for trial in lab.trials(file)].count(TrialState.COMPLETE) == 2


def test_secrets_are_in_no_file_and_no_process_list(lab, sshd, monkeypatch, tmp_path):
    from nodes.sshd import keygen, public

    key = keygen(tmp_path / "locked", passphrase="pass-phrase-4711")
    sshd.authorized.write_text(f"{public(sshd.client_key)}\n{public(key)}\n")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("MY_PASSPHRASE", "pass-phrase-4711")
    monkeypatch.setenv("MY_API_KEY", "sk-secret-4712")
    node = lab.node(identity_file=str(key), passphrase={"from_env": "MY_PASSPHRASE"})
    file = lab.write(node, fixed={"tp-size": 8, "api-key": {"from_env": "MY_API_KEY"}})
    seen: list[bytes] = []

    def look():
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                seen.append(path.read_bytes())

    lab.sit(file, Happening("LevelProgress", look))
    assert {trial.state for trial in lab.trials(file)} == {TrialState.COMPLETE}
    for name in plugins.names("exports"):
        words = [
            "export",
            file.stem,
            "--format",
            name,
            "--storage",
            lab.storage,
            "-o",
            str(tmp_path / f"export.{name}"),
        ]
        assert CliRunner().invoke(cli, words).exit_code == 0
    assert len(list(tmp_path.glob("export.*"))) >= 3
    written = [path.read_bytes() for path in [*tmp_path.rglob("*"), *sshd.folder.rglob("*")] if path.is_file()]
    private = key.read_bytes().split(b"\n")[2]
    for text in [*written, json.dumps([str(one) for one in lab.trials(file)]).encode()]:
        assert b"pass-phrase-4711" not in text
        assert b"sk-secret-4712" not in text
        assert private not in text or text == key.read_bytes()
    servers = [words for words in seen if b"sk-secret-4712" in words]
    assert all(b"launch_server" in words for words in servers)  # SGLang takes its key as an argument, and only it


def test_a_flood_is_followed_and_does_not_stop_the_watching(bench):
    """A gigabyte was read by hand: 66 looks, the tuner grew from 70 to 74 MB. The contract measures a small one."""
    server = bench.start("--flood-bytes", 60_000_000)
    offset, began_s = 0, time.monotonic()
    while offset < 60_000_000:
        assert server.poll() is None
        while chunk := server.read_log(offset):
            offset += len(chunk)
            assert len(chunk) <= 1 << 20
        assert time.monotonic() - began_s < 60


HANGING = """#!/bin/sh
case "$1" in
-c) echo '["3.11.0", null]';;
-u) exit 1;;
*) P=$(echo "$*" | sed 's/.*--port \\([0-9]*\\).*/\\1/')
   exec {python} -S {server} --hang --ignore INT,TERM --grandchild "$P" --zombie -- "$@";;
esac
"""


def test_a_server_that_hangs_ignores_signals_and_leaves_a_grandchild_on_the_port(lab, sshd, tmp_path):
    python = tmp_path / "python"
    python.write_text(HANGING.format(python=sys.executable, server=BAD_SERVER))
    python.chmod(0o755)
    engine = {"name": "sglang", "model": "/nowhere", "python": str(python)}
    file = lab.write(
        {"name": "ssh", **sshd.settings()}, engine=engine, retries={"transient": 0},
        timeouts={"stall_s": 3, "ready_s": 60, "stop_s": 1},
    )  # fmt: skip
    lab.sit(file)
    first, *_ = lab.trials(file)
    (run,) = first.runs
    assert run.failure.slug == "hang", run.failure
    assert not listening(run.launch.port)
    assert carriers(file.stem) == []
