"""Which flags the SGLang that lies on a node takes: its source, its parser, its plug-ins; at home and over SSH."""

import json
import os
import sys
import textwrap
import time
from pathlib import Path

import pytest
from nodes.sshd import SSHD, running

from servetune.core.engine import EngineChoice
from servetune.core.errors import FlagsError
from servetune.core.node import NodeFacts
from servetune.core.preflight import ReadsInstallation
from servetune.core.space import SearchSpace
from servetune.engines import sglang
from servetune.nodes import local, ssh

FACTS = NodeFacts(node="here", engine_name="sglang", engine_version="0.5.9")
SERVER_ARGS = """
    import sys
    print("chatter on standard output")
    MODES = ("Fast", "Slow")

    class ServerArgs:
        @staticmethod
        def add_cli_args(parser):
            parser.add_argument("--model-path", "--model", type=str, required=True)
            parser.add_argument("--tp-size", type=int, default=1)
            parser.add_argument("--mode", choices=[mode.lower() for mode in MODES])
            parser.add_argument("--eager", action="store_true")
"""
PLUGINS = """
    from sglang.srt import server_args

    def load_plugins():
        plain = server_args.ServerArgs.add_cli_args

        def add_cli_args(parser):
            plain(parser)
            parser.add_argument("--from-a-plugin", choices=["x", "y"])

        server_args.ServerArgs.add_cli_args = staticmethod(add_cli_args)
"""


class Installed:
    """An interpreter that has a small SGLang; `imports` counts how often its parser was imported."""

    def __init__(self, folder: Path) -> None:
        self.site, self.python, self._imports = folder / "site", folder / "python", folder / "imports"
        self.put("version.py", '__version__ = "0.5.9"\n')
        self.put("srt/server_args.py", SERVER_ARGS + f"\n    open({str(self._imports)!r}, 'a').write('x')\n")
        script = f"#!/bin/sh\nPYTHONPATH='{self.site}' exec '{sys.executable}' \"$@\"\n"
        self.python.write_text(script)
        self.python.chmod(0o755)

    def put(self, name: str, text: str) -> None:
        path = self.site / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(textwrap.dedent(text))

    def put_plugin(self) -> None:
        self.put("srt/plugins.py", PLUGINS)
        folder = self.site / "more-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: more\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text("[sglang.srt.plugins]\nmore = more:register\n")

    @property
    def imports(self) -> int:
        return len(self._imports.read_text()) if self._imports.exists() else 0

    def engine(self) -> ReadsInstallation:
        return sglang.create(EngineChoice(model="/m", python=str(self.python)), {})


@pytest.fixture
def installed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Installed(tmp_path)


@pytest.fixture(scope="module", params=["local", pytest.param("ssh", marks=pytest.mark.sshd)])
def node(request, tmp_path_factory):
    if request.param == "local":
        yield local.create(local.Settings(), Path.cwd())
        return
    if not Path(SSHD).exists():
        pytest.skip("needs Debian's openssh-server")
    with running(tmp_path_factory.mktemp("sshd")) as sshd:
        node = ssh.create(ssh.Settings(**sshd.settings()), Path.cwd())
        yield node
        node.close()


def known(engine):
    return engine.capabilities(FACTS).flags


def test_the_source_is_read_without_importing_it(node, installed):
    engine = installed.engine()
    assert engine.read_installation(node.converse, FACTS, ["tp-size"]) == ()
    assert sorted(known(engine)) == ["eager", "mode", "model-path", "tp-size"]
    assert known(engine)["mode"].choices is None, "computed while it runs"
    assert installed.imports == 0


def test_a_flag_that_the_source_does_not_tell_is_looked_for_in_the_parser_once(node, installed):
    for _ in range(2):
        engine = installed.engine()
        engine.read_installation(node.converse, FACTS, ["no-such-flag"])
        assert known(engine)["mode"].choices == ("fast", "slow")
        with pytest.raises(FlagsError, match=r"0\.5\.9 has no flag --no-such-flag"):
            engine.resolve_space(SearchSpace(name="s", fixed={"no-such-flag": 1}), FACTS)
    assert installed.imports == 1


def test_plugins_add_flags(node, installed):
    installed.put_plugin()
    engine = installed.engine()
    (note,) = engine.read_installation(node.converse, FACTS, [])
    assert "plug-ins (more=more:register)" in note
    assert known(engine)["from-a-plugin"].choices == ("x", "y")
    assert [v.rule for v in engine.check({"from-a-plugin": "z"}, FACTS)] == ["unknown-choice"]
    assert not engine.check({"from-a-plugin": "x", "tp-size": 2, "eager": True}, FACTS)


def test_another_content_is_read_again(node, installed):
    installed.engine().read_installation(node.converse, FACTS, [])
    installed.put("srt/server_args.py", SERVER_ARGS.replace("--eager", "--lazy"))
    engine = installed.engine()
    engine.read_installation(node.converse, FACTS, [])
    assert "lazy" in known(engine)
    assert "eager" not in known(engine)


@pytest.mark.parametrize(
    "text",
    ["class ServerArgs:\n    pass\n", "this is no Python\n", "raise ImportError('libcudart.so.12')\n"],
    ids=["an unknown shape", "no Python", "cannot be imported"],
)
def test_what_cannot_be_read_leaves_the_shipped_tables(node, installed, text):
    installed.put("srt/server_args.py", text)
    engine = installed.engine()
    (note,) = engine.read_installation(node.converse, FACTS, [])
    assert "the shipped tables answer" in note
    assert engine.capabilities(FACTS).table == "0.5.9"


def test_a_source_of_an_unknown_shape_is_told_by_the_parser(node, installed):
    installed.put(
        "srt/server_args.py", SERVER_ARGS.replace("class ServerArgs", "class Real") + "\n    ServerArgs = Real\n"
    )
    engine = installed.engine()
    assert engine.read_installation(node.converse, FACTS, []) == ()
    assert known(engine)["mode"].choices == ("fast", "slow")


def test_another_version_is_not_read(node, installed):
    other = FACTS.model_copy(update={"engine_version": "0.5.13"})
    engine = installed.engine()
    assert engine.read_installation(node.converse, other, []) == ()
    assert engine.capabilities(other).table == "0.5.13"


@pytest.mark.parametrize("script", [None, "#!/bin/sh\necho hello\n"], ids=["none", "something else"])
def test_an_interpreter_that_does_not_answer(node, installed, script):
    installed.python.unlink()
    if script is not None:
        installed.python.write_text(script)
        installed.python.chmod(0o755)
    (note,) = installed.engine().read_installation(node.converse, FACTS, [])
    assert "own flags cannot be read" in note


def test_what_is_kept_answers_in_little_time(installed):
    here = local.create(local.Settings(), Path.cwd())
    installed.engine().read_installation(here.converse, FACTS, [])
    (kept,) = Path(os.environ["XDG_CACHE_HOME"], "servetune/sglang-flags").iterdir()
    told = json.loads(kept.read_text())
    told["flags"]["kept"] = {"name": "kept", "kind": "switch"}
    kept.write_text(json.dumps(told))
    engine, begin_s = installed.engine(), time.monotonic()
    engine.read_installation(here.converse, FACTS, [])
    assert "kept" in known(engine)
    assert time.monotonic() - begin_s < 10
