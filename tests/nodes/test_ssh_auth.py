"""Who we are: keys of files, of agents, behind a jump, and passwords, against a real OpenSSH server."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from nodes.sshd import Sshd, keygen, needs_sshd, public, running

from servetune.core.errors import NodeUnreachableError, SpecError
from servetune.nodes import ssh

pytestmark = [needs_sshd, pytest.mark.sshd]
PASSPHRASE = "open sesame"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """It hangs up after two wrong keys."""
    with running(tmp_path_factory.mktemp("sshd"), MaxAuthTries="2") as server:
        yield server


@pytest.fixture
def sshd(shared: Sshd, monkeypatch, tmp_path):
    """With no agent, no key in the home directory, and the authorized keys of the beginning."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    shared.authorized.write_text(f"{public(shared.client_key)}\n")
    return shared


def reached(sshd, **settings) -> str:
    node = ssh.create(ssh.Settings(**{**sshd.settings(), **settings}), Path.cwd())
    try:
        return node.facts().host
    finally:
        node.close()


def locked(sshd, path, kind="ed25519") -> str:
    """A new key behind a passphrase, which the server takes."""
    key = keygen(path, kind, PASSPHRASE)
    with sshd.authorized.open("a") as file:
        file.write(f"{public(key)}\n")
    return str(key)


@contextlib.contextmanager
def agent_with(folder, monkeypatch, *keys):
    """An ssh-agent that holds keys, in this order."""
    ask, socket = folder / "askpass", str(folder / "agent")
    ask.write_text(f"#!/bin/sh\necho {PASSPHRASE}\n")
    ask.chmod(0o755)
    with subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL) as agent:
        try:
            environ = {**os.environ, "SSH_AUTH_SOCK": socket, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
            deadline_s = time.monotonic() + 20
            while not Path(socket).exists():
                assert time.monotonic() < deadline_s
            for key in keys:
                subprocess.run(["ssh-add", key], env=environ, capture_output=True, check=True)
            monkeypatch.setenv("SSH_AUTH_SOCK", socket)
            yield
        finally:
            agent.kill()


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_an_encrypted_key(sshd, tmp_path, monkeypatch, kind):
    key = locked(sshd, tmp_path / "locked", kind)
    with pytest.raises(SpecError, match=r"locked is encrypted.*ssh-add.*passphrase: \{from_env"):
        reached(sshd, identity_file=key)
    with pytest.raises(SpecError, match=r"NOT_SET is not set"):
        reached(sshd, identity_file=key, passphrase={"from_env": "NOT_SET"})
    monkeypatch.setenv("MY_PASSPHRASE", "wrong")
    with pytest.raises(SpecError, match=r"locked cannot be used.*does not open it"):
        reached(sshd, identity_file=key, passphrase={"from_env": "MY_PASSPHRASE"})
    monkeypatch.setenv("MY_PASSPHRASE", PASSPHRASE)
    assert reached(sshd, identity_file=key, passphrase={"from_env": "MY_PASSPHRASE"})


def test_a_passphrase_opens_the_key_of_a_jump_too(sshd, tmp_path, monkeypatch):
    """The remedy of the refusal is `passphrase:` under `node:`, and the key may be that of the bastion."""
    key = locked(sshd, tmp_path / "locked")
    user = sshd.settings()["user"]
    config = tmp_path / "config"
    config.write_text(f"Host bastion\n HostName 127.0.0.1\n Port {sshd.port}\n User {user}\n IdentityFile {key}\n")
    with pytest.raises(SpecError, match="is encrypted"):
        reached(sshd, config=str(config), jump="bastion")
    monkeypatch.setenv("MY_PASSPHRASE", PASSPHRASE)
    assert reached(sshd, config=str(config), jump="bastion", passphrase={"from_env": "MY_PASSPHRASE"})


@pytest.mark.parametrize("public_half", ["beside it", "in it only"])
def test_an_encrypted_key_that_an_agent_holds(sshd, tmp_path, monkeypatch, public_half):
    """It is found among others, whether or not its public half lies beside it."""
    key = locked(sshd, tmp_path / "locked")
    others = [keygen(tmp_path / f"other-{number}") for number in range(3)]
    if public_half == "in it only":
        Path(f"{key}.pub").unlink()
    with agent_with(tmp_path, monkeypatch, *others, key):
        assert reached(sshd, identity_file=key)


def test_a_public_half_names_a_key_of_the_agent(sshd, tmp_path, monkeypatch):
    """As for keys whose private half is on no disk."""
    key = keygen(tmp_path / "mine")
    sshd.authorized.write_text(public(key))
    others = [keygen(tmp_path / f"other-{number}") for number in range(3)]
    with agent_with(tmp_path, monkeypatch, *others, key):
        assert reached(sshd, identity_file=f"{key}.pub")
    monkeypatch.delenv("SSH_AUTH_SOCK")
    with pytest.raises(SpecError, match=r"mine\.pub is the public half of a key.*ssh-add"):
        reached(sshd, identity_file=f"{key}.pub")


def test_of_two_keys_of_an_agent_the_second_is_right(sshd, tmp_path, monkeypatch):
    stranger, mine = keygen(tmp_path / "stranger"), keygen(tmp_path / "mine")
    sshd.authorized.write_text(public(mine))
    for file in (mine, Path(f"{mine}.pub")):
        file.rename(tmp_path / f"away-{file.name}")
    with agent_with(tmp_path, monkeypatch, stranger, tmp_path / "away-mine"):
        assert reached(sshd, identity_file=None)


def test_keys_at_home_are_asked_after_those_of_the_agent(sshd, tmp_path, monkeypatch):
    """As OpenSSH does: after two wrong ones the server would hear no more."""
    (tmp_path / ".ssh").mkdir()
    for name in ("id_ed25519", "id_ecdsa"):
        keygen(tmp_path / ".ssh" / name)
    with agent_with(tmp_path, monkeypatch, sshd.client_key):
        assert reached(sshd, identity_file=None)


def test_a_server_that_hangs_up_before_the_right_key_is_told_and_the_remedy_works(sshd, tmp_path, monkeypatch):
    strangers = [keygen(tmp_path / f"stranger-{number}") for number in range(3)]
    with agent_with(tmp_path, monkeypatch, *strangers, sshd.client_key):
        with pytest.raises(NodeUnreachableError, match=r"hung up after \d wrong .*node\.identity_file: it is tried"):
            reached(sshd, identity_file=None)
        assert reached(sshd, identity_file=str(sshd.client_key))
        assert reached(sshd, identity_file=f"{sshd.client_key}.pub")


@pytest.mark.parametrize("where", ["{path}", "$MY_AGENT", "none"])
def test_the_agent_that_the_configuration_names(sshd, tmp_path, monkeypatch, where):
    config = tmp_path / "config"
    config.write_text(f"Host *\n IdentityAgent {where.format(path=tmp_path / 'agent')}\n")
    with agent_with(tmp_path, monkeypatch, sshd.client_key):
        monkeypatch.setenv("MY_AGENT", str(tmp_path / "agent"))
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "no-agent"))
        if where != "none":
            assert reached(sshd, identity_file=None, config=str(config))
            return
        with pytest.raises(NodeUnreachableError, match=r"no key to offer .*no agent"):
            reached(sshd, identity_file=None, config=str(config))


@pytest.mark.parametrize("only", ["yes", "no"])
def test_identities_only(sshd, tmp_path, monkeypatch, only):
    """The agent's other keys are not asked; that the right one is among them is said."""
    wrong = keygen(tmp_path / "wrong")
    config = tmp_path / "config"
    config.write_text(f"Host *\n IdentitiesOnly {only}\n IdentityFile {wrong}\n")
    with agent_with(tmp_path, monkeypatch, sshd.client_key):
        if only == "no":
            assert reached(sshd, identity_file=None, config=str(config))
            return
        with pytest.raises(NodeUnreachableError, match=r"does not let .* in.*offered: .*wrong"):
            reached(sshd, identity_file=None, config=str(config))
        assert reached(sshd, identity_file=str(sshd.client_key), config=str(config))


def test_a_login_by_password_only_is_told_what_to_do(tmp_path, monkeypatch):
    """With no password given, and with a wrong one. The remedies are those that the message names."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with running(tmp_path, PasswordAuthentication="yes") as sshd:
        sshd.authorized.write_text("")
        with pytest.raises(NodeUnreachableError) as refused:
            reached(sshd)
        assert re.search(
            r"does not let .* in: .*; it takes passwords: install a key with `ssh-copy-id -p", str(refused.value)
        )
        assert "`password: {from_env: NAME}` under node:" in str(refused.value)
        monkeypatch.setenv("NAME", "wrong-password-4713")
        with pytest.raises(NodeUnreachableError, match=r"neither a key nor the password \(node\.password\)") as refused:
            reached(sshd, password={"from_env": "NAME"})
        assert "4713" not in str(refused.value)
        sshd.authorized.write_text(public(sshd.client_key) + "\n")  # what ssh-copy-id does
        assert reached(sshd)


def test_who_is_not_let_in_is_told(sshd, tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    stranger = keygen(tmp_path / "stranger")
    with pytest.raises(NodeUnreachableError, match=r"does not let .* in.*node\.identity_file"):
        reached(sshd, identity_file=str(stranger))
    with pytest.raises(NodeUnreachableError, match=r"no key to offer.*missing"):
        reached(sshd, identity_file=str(tmp_path / "missing"))
