"""What may pass is launched again, after cleaning and a pause; a node that keeps failing ends the study with a word."""

import contextlib
from itertools import pairwise

import pytest
from replays import KIMI, changed, replay, spec_of

from servetune.core.errors import NodeUnusableError
from servetune.core.study import Retries, StudyRunState
from servetune.core.trial import RunPurpose, TrialState
from servetune.nodes.virtual import VirtualNode, VirtualServer
from servetune.storage import MemoryStore
from servetune.tuner.launches import PAUSE_S

OCCUPIED = {
    "phase": "load",
    "class": "host_env",
    "log": "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.",
}
#: The baseline's chunk is 8192.
CHUNKS = (2048, 4096, 16384)


def study(tmp_path, failing, **retries):
    """A study whose first trials after the baseline have these chunks; those in `failing` meet an occupied GPU."""
    rule = {**OCCUPIED, "when": {"chunked-prefill-size": list(failing)}}
    place = changed(tmp_path, KIMI, engine_rules=False, failures=[rule])
    hints = [{"chunked-prefill-size": chunk} for chunk in CHUNKS]
    spec = spec_of(place, "random", node_hours=3, hints=hints, retries=Retries(**retries))
    store = MemoryStore()
    store.create_study(spec, "")
    return spec, store


def test_three_faults_of_the_node_in_a_row_stop_the_study_with_a_word(tmp_path):
    spec, store = study(tmp_path, CHUNKS, transient=0, node_faults=3)
    with pytest.raises(NodeUnusableError, match=r"3 launches in a row failed with host_env .*servetune resume"):
        replay(spec, store)
    launched = [trial for trial in store.trials(spec.study) if trial.runs]
    assert [trial.state for trial in launched] == [TrialState.COMPLETE, *[TrialState.FAIL] * 3]
    stopped = store.study(spec.study)
    assert stopped.state is StudyRunState.FAILED
    assert "mend it, then run `servetune resume" in stopped.reason
    assert not store.learned(), "a fault of the node teaches nothing"


def test_a_success_between_two_faults_lets_the_study_go_on(tmp_path):
    spec, store = study(tmp_path, (2048, 16384), transient=0, node_faults=2)
    with contextlib.suppress(NodeUnusableError):  # later: the failed ones are enqueued again, one after the other
        replay(spec, store)
    second, third, fourth = store.trials(spec.study)[1:4]
    assert (second.state, third.state, fourth.state) == (TrialState.FAIL, TrialState.COMPLETE, TrialState.FAIL)


@pytest.mark.parametrize(("transient", "launches", "state"), [(1, 2, "complete"), (0, 1, "pruned")])
def test_a_baseline_that_crashed_without_a_certain_reason_is_launched_once_more(tmp_path, transient, launches, state):
    """In this study its first launch meets a crash that half of all launches meet."""
    rule = {"when": {}, "probability": 0.5, "phase": "serving", "class": "engine_bug", "log": "RuntimeError: x"}
    place = changed(tmp_path, KIMI, engine_rules=False, failures=[rule])
    spec = spec_of(place, "random", node_hours=0.5, retries=Retries(transient=transient))
    store, _ = replay(spec)
    baseline = store.trials(spec.study)[0]
    assert (len(baseline.runs), baseline.state.value) == (launches, state)
    assert baseline.runs[0].failure.confidence < 0.8


def test_between_two_tries_the_node_is_cleaned_and_left_alone(tmp_path, monkeypatch):
    spec, store = study(tmp_path, (2048,), transient=2, node_faults=1)
    events = []
    for owner, name in ((VirtualNode, "start"), (VirtualNode, "reclaim"), (VirtualServer, "stop")):
        monkeypatch.setattr(owner, name, recorded(events, name, getattr(owner, name)))
    with pytest.raises(NodeUnusableError):
        replay(spec, store)
    runs = store.trials(spec.study)[1].runs
    assert [(run.attempt, run.purpose) for run in runs] == [(attempt, RunPurpose.SEARCH) for attempt in range(3)]
    names = [name for name, _ in events]
    starts = [index for index, name in enumerate(names) if name == "start"][1:]
    assert len(starts) == 3
    for one, next_one in pairwise(starts):
        between = events[one + 1 : next_one]
        stopped_s = max(at_s for name, at_s in between if name == "stop")
        assert events[next_one][1] - stopped_s >= PAUSE_S
        assert "reclaim" in [name for name, at_s in between if at_s >= stopped_s]


def recorded(events, name, real):
    """The method itself, which also notes its name and the node's time at its end."""

    def method(self, *arguments, **keys):
        done = real(self, *arguments, **keys)
        clock = self.clock if hasattr(self, "clock") else self._launch.clock
        events.append((name, clock.now_s()))
        return done

    return method
