"""Programs on the node that are talked with: however the user's shell is, and however the connection ends."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from pathlib import Path

import paramiko
import pytest
from contracts.node_contract import carriers, until
from nodes.slow_link import SlowLink
from nodes.sshd import needs_sshd, running

from servetune.engines.sglang._sent_program import SentProgram, argv_of
from servetune.nodes import ssh
from servetune.nodes._marks import Mark
from servetune.nodes._ssh_load import HELPERS, helper
from servetune.nodes._starter import this_tuner

pytestmark = [needs_sshd, pytest.mark.sshd]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    with running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def make(sshd):
    made = []

    def node(**settings):
        made.append(ssh.create(ssh.Settings(**{**sshd.settings(), **settings}), Path.cwd()))
        return made[-1]

    yield node
    for one in made:
        one.close()


def test_a_helper_ends_when_its_tuner_is_silent_and_lives_while_it_is_not(make, sshd, tmp_path):
    """A machine that dies, or whose cable is pulled, closes nothing: sshd would hold the connection for hours."""
    far = SlowLink(sshd.port)
    known = tmp_path / "known_hosts"
    known.write_text(sshd.known_hosts.read_text().replace(f":{sshd.port} ", f":{far.port} "))
    link = make(port=far.port, known_hosts=str(known)).link
    program = SentProgram(
        helper(link, Mark(HELPERS, "0", f"{this_tuner()}/7"), argv_of(sys.executable), {}, "", within_s=3.0),
        {"backwards": "def main(heard):\n for line in heard: print(line.decode()[::-1], flush=True)"},
        "it",
    )
    try:
        time.sleep(5)
        program.say({"a": 1})
        assert program._line(20) == ""
        assert program._line(20) == '}1 :"a"{'
        far.frozen = True
        began_s = time.monotonic()
        until(lambda: not carriers(HELPERS))
        assert time.monotonic() - began_s > 1
    finally:
        far.close()
        program.close()


@pytest.mark.parametrize("shell", [name for name in ("bash", "dash", "tcsh", "fish", "zsh") if shutil.which(name)])
def test_a_conversation_whatever_the_login_shell_is_and_prints(make, sshd, monkeypatch, tmp_path, shell):
    """sshd gives the command to the user's own shell; here to a program in its place, which prints and then runs it."""
    begun = paramiko.Channel.exec_command

    def by_login_shell(channel, command):
        said = "printf 'Welcome!\\nno line break at the end'; (sleep 0.3; echo late >&2) & echo early >&2"
        begun(channel, f"{said}; exec {shell} -c {shlex.quote(command)}")

    monkeypatch.setattr(paramiko.Channel, "exec_command", by_login_shell)
    text = 'it\'s "so" \\n !!\n$HOME'
    program = "import os, sys\nfor line in sys.stdin: print(os.environ['TOLD'] == sys.argv[1], flush=True)"
    activate = f"read -r NOTHING; . {tmp_path / 'env'}"
    (tmp_path / "env").write_text("echo activated\n")
    node = make(activate=activate)
    for _ in range(8):
        assert node.link.run("sleep 0.1; echo told").text == "told\n"
    talk = node.converse([sys.executable, "-u", "-c", program, text], {"TOLD": text})
    talk.send("x")
    assert talk.receive(20) == ["True"]
    talk.close()


def test_a_helper_that_says_much_on_standard_error_is_not_stopped_by_it(make):
    program = "import sys\nfor line in sys.stdin: sys.stderr.write('x' * 1_000_000 + chr(10)); print(line, flush=True)"
    talk = make().converse([sys.executable, "-u", "-c", program], {})
    for number in range(5):
        talk.send(str(number))
        assert str(number) in talk.receive(20)
    talk.close()
