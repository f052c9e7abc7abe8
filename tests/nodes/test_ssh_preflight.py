"""The engine's own checks on a node that is reached over SSH."""

import json
from pathlib import Path

import engine_package
import pytest
import yaml
from click.testing import CliRunner
from nodes.sshd import needs_sshd, running

from servetune.cli import cli
from servetune.core.engine import EngineChoice
from servetune.core.errors import ProgramEndedError
from servetune.core.node import NodeFacts
from servetune.core.preflight import OffersConversation
from servetune.engines import sglang
from servetune.nodes import ssh

pytestmark = [needs_sshd, pytest.mark.sshd]
NO_GPU = NodeFacts(node="ssh", engine_version="0.5.9")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with running(tmp_path_factory.mktemp("sshd")) as sshd:
        node = ssh.create(ssh.Settings(**sshd.settings()), Path.cwd())
        yield node
        node.close()


def started(node, python):
    choice = EngineChoice(model="/m", python=python, version="0.5.9", env={"FAKE_LEFT_BEHIND": "it's the study's"})
    return sglang.create(choice, {}).preflight(node.converse, NO_GPU)


def test_the_same_verdicts_as_at_home(node, tmp_path):
    assert isinstance(node, OffersConversation)
    preflight = started(node, engine_package.python(tmp_path))
    accepted = preflight.ask({"tp-size": 8})
    assert accepted.ok
    assert accepted.resolved["left_behind"] == "it's the study's"
    refused = preflight.ask({"tp-size": 8, "ep-size": 3})
    assert refused.message == "The expert parallel size must be 1 or the same as the tensor parallel size"
    preflight.close()


@pytest.mark.parametrize("trouble", ["cannot be imported", "dies while importing"])
def test_checks_that_never_come_up(node, tmp_path, trouble):
    preflight = started(node, engine_package.python(tmp_path, trouble))
    with pytest.raises(ProgramEndedError):
        preflight.ask({})
    preflight.close()


def test_no_such_python(node, tmp_path):
    with pytest.raises(ProgramEndedError):
        started(node, str(tmp_path / "none")).ask({})


def test_a_studys_space_is_asked_about_over_the_nodes_own_connection(tmp_path):
    with running(tmp_path / "sshd") as sshd:
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in sshd.settings().items()}
        study = {
            "study": "s",
            "engine": {"name": "sglang", "model": "/m", "version": "0.5.9", "python": engine_package.python(tmp_path)},
            "node": {"name": "ssh", **settings},
            "fixed": {"chunked-prefill-size": 9600},
            "search_space": {"parameters": {"page-size": [16, 48]}},
        }
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(study))
        done = CliRunner().invoke(cli, ["validate", str(tmp_path / "s.yaml"), "--preflight", "--json", "--sample", "9"])
        study["engine"]["python"] = "/nowhere/python3"
        (tmp_path / "without.yaml").write_text(yaml.safe_dump(study))
        without = CliRunner().invoke(cli, ["validate", str(tmp_path / "without.yaml"), "--json", "--sample", "9"])
    assert "engine.python '/nowhere/python3' cannot be run" in json.loads(without.stdout)["warnings"][0]
    found = json.loads(done.stdout)
    assert found["layers"]["preflight"] == found["refused"] > 0
    assert list(found["rejected"]) == ["preflight preflight.check: page_size 48 is good for nothing"]
    assert "node ssh has no GPU" in found["warnings"][0]
