"""The engine's own checks before launches: what they refuse costs nothing, and their own troubles refuse nothing."""

import engine_package
import pytest

from servetune.cli._virtual_study import virtual_spec
from servetune.core.engine import EngineChoice
from servetune.core.errors import ConnectionLostError
from servetune.core.events import Note
from servetune.core.space import CategoricalDomain, Parameter, SearchSpace
from servetune.core.study import Budget, Confirmation, NamedChoice
from servetune.core.trial import TrialState
from servetune.nodes import local
from servetune.nodes.virtual import VirtualNode, probe
from servetune.simulation.scenario import load_scenario
from servetune.storage import MemoryStore
from servetune.tuner.session import run_study
from servetune.tuner.stopping import StopRequest

SCENARIO = "kimi-k2.5-int4-8x-rtx-pro-6000"
#: A page of 48 tokens is refused by the stand-in engine alone: no rule of ours knows of it.
SPACE = SearchSpace(
    name="pages",
    fixed={"tp-size": 8},
    parameters=(Parameter(name="page-size", domain=CategoricalDomain(choices=(1, 16, 48))),),
    hints=({"page-size": 48}, {"page-size": 16}),
)


class TalkingNode(VirtualNode):
    """Servers in virtual time, and a real helper process on this machine."""

    def __init__(self, scenario, here, lines_until_cut=0):
        super().__init__(scenario)
        self._here, self.talks, self._until_cut = here, [], lines_until_cut
        self.talks_at_launch = []

    def facts(self):
        return super().facts().model_copy(update={"simulated": False, "engine_rules": False})

    def start(self, spec, study, trial, log_dir):
        self.talks_at_launch.append(len(self.talks))
        return super().start(spec, study, trial, log_dir)

    def converse(self, argv, env):
        self.talks.append(self._here.converse(argv, env))
        if len(self.talks) == 2 and self._until_cut:
            return CutOff(self.talks[-1], self._until_cut)
        return self.talks[-1]


class CutOff:
    """A conversation whose connection breaks under a line."""

    def __init__(self, talk, lines):
        self._talk, self._left = talk, lines
        self.receive, self.close = talk.receive, talk.close

    def send(self, line):
        self._left -= 1
        if not self._left:
            raise ConnectionLostError("the connection broke")
        self._talk.send(line)


class Listener:
    def __init__(self):
        self.warnings = []

    def on(self, event):
        if isinstance(event, Note) and event.warning:
            self.warnings.append(event.text)


@pytest.fixture
def study(tmp_path):
    """Runs a study of three page sizes: (trials by page size, warnings, conversations, store)."""

    def ran(trouble="", lines_until_cut=0):
        python = engine_package.python(tmp_path, trouble)
        scenario = load_scenario(SCENARIO)
        settings = {"sampler": NamedChoice(name="random"), "seed": 0, "node_hours": 24.0}
        spec = virtual_spec(scenario, SCENARIO, **settings, confirm=Confirmation(top=0, launches=0)).model_copy(
            update={
                "space": SPACE,
                "baseline": {"disable-custom-all-reduce": True},
                "budget": Budget(trials=3, node_hours=24),
                "engine": EngineChoice(model="/m", python=python, version="0.5.9"),
            }
        )
        store = MemoryStore()
        store.create_study(spec, "")
        node = TalkingNode(scenario, local.create(local.Settings(engine_python=python), tmp_path), lines_until_cut)
        listener = Listener()
        run_study(spec, store, listener, StopRequest(), probe=probe, open_node=lambda _: node)
        trials = {}
        for record in store.trials(spec.study):
            trials.setdefault(record.assignment.get("page-size"), record)
        assert all(talk._process.poll() is not None for talk in node.talks)
        assert node.talks_at_launch[0] == 2, "they become warm while the baseline is launched"
        return trials, listener.warnings, node.talks, store

    return ran


def test_what_the_engine_refuses_is_never_launched_and_its_word_is_kept(study):
    trials, warnings, talks, store = study()
    refused = trials[48]
    assert refused.state is TrialState.REJECTED
    assert not refused.runs
    assert [v.layer for v in refused.rejected] == ["preflight"]
    assert refused.rejected[0].message == "page_size 48 is good for nothing"
    assert trials[16].state is TrialState.COMPLETE
    assert len(talks) == 2, "one reads the installation, one judges"
    assert warnings == []
    told = {
        t.user_attrs["assignment"].get("page-size"): t.user_attrs.get("preflight")
        for t in store.optuna_storage.get_all_trials(
            store.optuna_storage.get_study_id_from_name(f"simulate-{SCENARIO}")
        )
        if t.number < 3
    }
    assert told[48]["message"] == "page_size 48 is good for nothing"
    assert told[48]["stage"] == "check"
    assert told[16]["resolved"]["page_size"] == 16


def test_a_connection_that_breaks_under_a_question_is_followed_by_the_same_question(study):
    """Line 1 is the program, 2 the GPUs, 3 the baseline: the fourth is the first trial's."""
    trials, warnings, talks, _ = study(lines_until_cut=4)
    assert trials[48].state is TrialState.REJECTED
    assert warnings == []
    assert len(talks) == 3


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("cannot be imported", "ImportError: libcudart.so.12"),
        ("dies while importing", "ended"),
        ("misses a file", "No such file or directory"),
        ("dies", "the process died: 7"),
        ("refuses everything", "they refuse the baseline: nothing is good enough"),
    ],
)
def test_checks_that_break_refuse_nothing_and_say_so_once(study, trouble, said):
    trials, warnings, talks, _ = study(trouble)
    assert [record.state for record in trials.values()].count(TrialState.COMPLETE) == 3
    assert len(warnings) == 1
    assert "the engine's own checks are not asked before launches: " in warnings[0]
    assert said in warnings[0]
    assert len(talks) == 2, "one reads the installation, one judges"
