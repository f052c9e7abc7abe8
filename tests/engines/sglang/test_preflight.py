"""The engine's own checks in a warm process: verdicts, exact messages, isolation, and every way in which they break."""

import time

import engine_package
import pytest
from engines.sglang.rule_cases import RTX_PRO

from servetune.core.engine import EngineChoice
from servetune.core.errors import ProgramEndedError
from servetune.core.node import EnvRef, NodeFacts
from servetune.engines import sglang
from servetune.nodes import local

NO_GPU = NodeFacts(node="local", engine_version="0.5.9")


@pytest.fixture
def start(tmp_path):
    """The checks of a stand-in engine on this machine."""
    opened = []

    def started(trouble="", facts=NO_GPU, secrets=None, env=None, described=False):
        python = engine_package.python(tmp_path, trouble)
        engine = sglang.create(EngineChoice(model="/m", python=python, version="0.5.9", env=env or {}), secrets or {})
        node = local.create(local.Settings(engine_python=python), tmp_path)
        opened.append(engine.preflight(node.converse, facts, described))
        return opened[-1]

    yield started
    for preflight in opened:
        preflight.close()


class TestVerdicts:
    def test_accepted_with_what_the_engine_makes_of_it(self, start):
        verdict = start().ask({"tp-size": 8, "mem-fraction-static": 0.9})
        assert verdict.ok
        assert verdict.resolved["tp_size"] == 8
        assert verdict.resolved["mem_fraction_static"] == 0.9

    @pytest.mark.parametrize(
        ("flags", "stage", "message", "blamed"),
        [
            ({"no-such-flag": 3, "tp-size": 8}, "parse", "python: error: unrecognized", ("no-such-flag",)),
            ({"page-size": "x"}, "parse", "argument --page-size: invalid int value: 'x'", ("page-size",)),
            ({"tp-size": 8, "ep-size": 3}, "resolve", "The expert parallel size must be 1", ("tp-size", "ep-size")),
            ({"tp-size": 8, "page-size": 48}, "check", "page_size 48 is good for nothing", ("page-size",)),
        ],
    )
    def test_refused_with_the_exact_message(self, start, flags, stage, message, blamed):
        preflight = start()
        verdict = preflight.ask(flags)
        assert (verdict.ok, verdict.decided, verdict.stage) == (False, True, stage)
        assert message.removeprefix("python: ") in verdict.message
        violation = preflight.violation(flags, verdict)
        assert violation.layer == "preflight"
        assert violation.rule == f"preflight.{stage}"
        assert set(violation.flags) == set(blamed) or stage == "resolve"
        assert violation.message == verdict.message
        if stage != "parse":
            assert violation.source.startswith("sglang/srt/server_args.py:")

    def test_one_question_leaves_nothing_behind_for_the_next(self, start):
        preflight = start()
        assert preflight.ask({"tp-size": 8, "ep-size": 8}).resolved["left_behind"] == "1"
        assert preflight.ask({"tp-size": 8}).resolved["left_behind"] is None
        assert preflight.ask({"tp-size": 8, "env.FAKE_LEFT_BEHIND": "2"}).resolved["left_behind"] == "2"
        assert preflight.ask({"tp-size": 8}).resolved["left_behind"] is None

    def test_variables_of_the_study_hold_and_secrets_stay_here(self, start, monkeypatch):
        monkeypatch.setenv("MY_KEY", "sesame")
        preflight = start(secrets={"api-key": EnvRef(from_env="MY_KEY")}, env={"FAKE_LEFT_BEHIND": "study"})
        verdict = preflight.ask({"tp-size": 8})
        assert verdict.resolved["left_behind"] == "study"
        assert verdict.resolved["api_key"] == "hidden"

    def test_chosen_gpus_are_presented(self, start):
        assert start(facts=RTX_PRO, described=True).ask({}).resolved["capability"] == [12, 0]
        assert start(facts=RTX_PRO).ask({}).resolved["capability"] == [12, 0]
        assert start().ask({}).resolved["capability"] is None

    def test_what_the_engine_prints_is_no_answer(self, start):
        assert start("prints").ask({"tp-size": 2}).resolved["tp_size"] == 2

    def test_many_questions_are_quick(self, start):
        preflight = start()
        preflight.ask({})
        begin = time.monotonic()
        for size in range(1, 21):
            assert preflight.ask({"tp-size": size}).resolved["tp_size"] == size
        assert (time.monotonic() - begin) / 20 < 0.2


class TestTrouble:
    @pytest.mark.parametrize(
        ("trouble", "said"),
        [
            ("cannot be imported", "ImportError: libcudart.so.12: cannot open shared object file"),
            ("dies while importing", "it (has )?ended"),
        ],
    )
    def test_checks_that_never_come_up(self, start, trouble, said):
        preflight = start(trouble)
        for _ in range(2):
            with pytest.raises(ProgramEndedError, match=said):
                preflight.ask({})

    @pytest.mark.parametrize("trouble", ["misses a file", "dies"])
    def test_what_is_no_judgement_on_arguments_decides_nothing(self, start, trouble):
        verdict = start(trouble).ask({})
        assert not verdict.ok
        assert not verdict.decided

    def test_no_such_python(self, tmp_path):
        engine = sglang.create(EngineChoice(model="/m", python=str(tmp_path / "none"), version="0.5.9"), {})
        node = local.create(local.Settings(), tmp_path)
        with pytest.raises(ProgramEndedError, match="none' cannot be started"):
            engine.preflight(node.converse, NO_GPU)

    def test_another_program_answers_something_else(self, tmp_path):
        program = tmp_path / "python"
        program.write_text("#!/bin/sh\nread a; read b; echo Python 2; cat >/dev/null\n")
        program.chmod(0o755)
        engine = sglang.create(EngineChoice(model="/m", python=str(program), version="0.5.9"), {})
        preflight = engine.preflight(local.create(local.Settings(), tmp_path).converse, NO_GPU)
        with pytest.raises(ProgramEndedError, match="answered 'Python 2'"):
            preflight.ask({})
        preflight.close()
        preflight.close()


class TestConversation:
    def converse(self, tmp_path, script):
        return local.create(local.Settings(), tmp_path).converse(["sh", "-c", script], {})

    def test_a_silent_process_is_ended_when_it_is_let_go_of(self, tmp_path):
        talk = self.converse(tmp_path, "sleep 100")
        assert talk.receive(0.1) == []
        talk.close()
        for speak in (lambda: talk.send("x"), lambda: talk.receive(1)):
            with pytest.raises(ProgramEndedError, match="has ended"):
                speak()

    def test_long_lines_and_several_at_once(self, tmp_path):
        talk = self.converse(tmp_path, "cat")
        talk.send("one\ntwo")
        heard = []
        while len(heard) < 2:
            heard += talk.receive(5)
        assert heard == ["one", "two"]
        talk.close()
        slow = self.converse(tmp_path, "sleep 0.3; wc -c")
        slow.send("x" * 300_000)
        slow._in.close()
        assert int(slow.receive(5)[0]) == 300_001
        slow.close()
