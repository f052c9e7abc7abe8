"""Host keys, configuration and authentication, against a real OpenSSH server."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import pytest
from nodes.sshd import Sshd, keygen, needs_sshd, public, running

from servetune.core.errors import HostKeyError, NodeUnreachableError, SpecError
from servetune.nodes import ssh

pytestmark = [needs_sshd, pytest.mark.sshd]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def sshd(shared: Sshd):
    """With the known host key as at the beginning."""
    shared.know()
    return shared


@contextlib.contextmanager
def opened(sshd, monkeypatch=None, **settings):
    node = ssh.create(ssh.Settings(**{**sshd.settings(), **settings}), Path.cwd())
    try:
        yield node
    finally:
        node.close()


def reached(sshd, **settings) -> str:
    with opened(sshd, **settings) as node:
        return node.facts().host


def test_an_unknown_host_is_refused_with_its_fingerprint_and_the_command_that_accepts_it(sshd):
    sshd.known_hosts.write_text("")
    with pytest.raises(HostKeyError) as refused:
        reached(sshd)
    shown = subprocess.run(["ssh-keygen", "-lf", f"{sshd.host_key}.pub"], capture_output=True, text=True, check=True)
    assert shown.stdout.split()[1] in str(refused.value)
    command = re.search(r"accept it with: `(echo .*)`$", str(refused.value)).group(1)
    subprocess.run(["sh", "-c", command], check=True)
    assert reached(sshd)


def test_a_changed_host_key_is_never_continued(sshd, tmp_path):
    other = keygen(tmp_path / "other")
    sshd.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {public(other)}\n")
    with pytest.raises(HostKeyError, match=r"CHANGED.*Nothing was sent.*ssh-keygen -R") as refused:
        reached(sshd)
    assert str(sshd.known_hosts) in str(refused.value)


def test_a_key_of_another_type_than_the_known_one_is_a_changed_key(sshd, tmp_path):
    other = keygen(tmp_path / "other", "rsa")
    sshd.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {public(other)}\n")
    with pytest.raises(HostKeyError, match="CHANGED"):
        reached(sshd)


def test_a_revoked_host_key_is_never_continued_although_it_is_known(sshd):
    line = f"[127.0.0.1]:{sshd.port} {public(sshd.host_key)}\n"
    sshd.known_hosts.write_text(line + "@revoked " + line)
    with pytest.raises(HostKeyError, match=r"REVOKED \(.*known_hosts:2\).*Nothing was sent"):
        reached(sshd)
    sshd.known_hosts.write_text(line + "@revoked * " + public(sshd.host_key))
    with pytest.raises(HostKeyError, match="REVOKED"):
        reached(sshd)


def test_a_key_changed_between_two_connections_stops_the_second(tmp_path):
    with running(tmp_path) as sshd, opened(sshd) as node:
        assert node.facts().host
        sshd.stop()
        for name in ("host", "host.pub"):
            (sshd.folder / name).unlink()
        keygen(sshd.folder / "host")
        sshd.start()
        with pytest.raises(HostKeyError, match="CHANGED"):
            node.facts()


@pytest.mark.parametrize("way", ["hashed", "pattern", "other hosts, too", "negated elsewhere"])
def test_known_hosts_as_openssh_writes_it(sshd, way):
    place, key = f"[127.0.0.1]:{sshd.port}", public(sshd.host_key)
    lines = {
        "pattern": f"[127.0.0.?]:* {key}",
        "other hosts, too": f"# a comment\n\nnode-1,{place},10.0.0.1 {key}",
        "negated elsewhere": f"*,!{place} {key}\n{place} {key}",
        "hashed": f"{place} {key}",
    }
    sshd.known_hosts.write_text(lines[way] + "\n")
    if way == "hashed":
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", sshd.known_hosts], check=True, capture_output=True)
        assert "|1|" in sshd.known_hosts.read_text()
    assert reached(sshd)


def test_of_several_host_keys_the_known_one_is_asked_for(tmp_path):
    sshd = Sshd(tmp_path)
    rsa = keygen(tmp_path / "host_rsa", "rsa")
    sshd.options["HostKey"] = f"{sshd.host_key}\nHostKey {rsa}"
    sshd.start()
    try:
        sshd.known_hosts.write_text(f"[127.0.0.1]:{sshd.port} {public(rsa)}\n")
        assert reached(sshd)
    finally:
        sshd.stop()


def test_an_alias_of_the_configuration_file(sshd, tmp_path):
    (tmp_path / "more").write_text(f"Host gpu-*\n  User {sshd.settings()['user']}\n  Port {sshd.port}\n")
    config = tmp_path / "config"
    config.write_text(
        f"Include {tmp_path}/mor*\nHost gpu-node-1\n  HostName 127.0.0.1\n  IdentityFile {sshd.client_key}\n"
        f"  UserKnownHostsFile {sshd.known_hosts}\n  ServerAliveInterval 7\n"
    )
    settings = {"host": "gpu-node-1", "config": str(config)}
    gone = {"port": None, "user": None, "identity_file": None, "known_hosts": None}
    with opened(sshd, **settings, **gone) as node:
        assert node.facts().host
        assert node.link.target.alive_interval_s == 7


def test_a_jump(sshd, tmp_path):
    """Through the same server: what is asked of it the second time comes from itself."""
    config = tmp_path / "config"
    config.write_text(
        f"Host bastion\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile {sshd.client_key}\n"
        f"  User {sshd.settings()['user']}\n"
    )
    with opened(sshd, config=str(config), jump="bastion") as node:
        assert node.facts().host
        assert [jump.host for jump in node.link.target.jumps] == ["127.0.0.1"]
        sshd.cut()
        assert node.facts().host
    with opened(sshd, config=str(config), jump="bastion") as node:
        sshd.known_hosts.write_text("")
        with pytest.raises(HostKeyError):  # of the jump already
            node.facts()


@pytest.mark.parametrize("way", ["node.jump", "ProxyJump"])
def test_a_bastion_with_keys_of_its_own(sshd, tmp_path, way):
    """Its host key, its port and its client key are others than the node's; and it breaks on the way."""
    with running(tmp_path / "bastion") as bastion:
        known = tmp_path / "known_hosts"
        known.write_text(sshd.known_hosts.read_text() + bastion.known_hosts.read_text())
        jump = "ProxyJump bastion" if way == "ProxyJump" else ""
        (tmp_path / "config").write_text(
            f"Host bastion\n  HostName 127.0.0.1\n  Port {bastion.port}\n  IdentityFile {bastion.client_key}\n"
            f"Host node\n  HostName 127.0.0.1\n  Port {sshd.port}\n  IdentityFile {sshd.client_key}\n  {jump}\n"
            f"Host *\n  User {sshd.settings()['user']}\n  UserKnownHostsFile {known}\n  IdentityAgent none\n"
        )
        settings = {"host": "node", "config": str(tmp_path / "config"), "port": None, "identity_file": None}
        settings |= {"known_hosts": None, "user": None, "jump": "bastion" if way == "node.jump" else None}
        with opened(sshd, **settings) as node:
            assert node.facts().host
            assert [hop.port for hop in node.link.target.jumps] == [bastion.port]
            bastion.cut()
            assert node.facts().host
            assert any("answers again" in note for note in node.take_notes())
            bastion.stop()
            sshd.cut()
            node.link._patience_s = 0.0
            with pytest.raises(NodeUnreachableError):
                node.facts()


def test_jumps_in_a_circle_are_refused(tmp_path):
    (tmp_path / "config").write_text("Host a\n ProxyJump b\nHost b\n ProxyJump a\n")
    with pytest.raises(SpecError, match="circle"):
        ssh.create(ssh.Settings(host="a", config=str(tmp_path / "config")), tmp_path)


def test_a_node_that_does_not_answer(sshd, tmp_path):
    with pytest.raises(NodeUnreachableError, match=r"127\.0\.0\.1:1 cannot be reached.*node\.host"):
        reached(sshd, port=1)
    with pytest.raises(NodeUnreachableError, match=r"no-such-host\.invalid.*cannot be reached"):
        reached(sshd, host="no-such-host.invalid")
