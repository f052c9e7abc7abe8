"""kill -9 in every phase, then resume: nothing lost, nothing counted twice, no server left, the same study."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from servetune.core.node import STUDY_MARKER
from servetune.core.trial import TrialRecord, TrialState
from servetune.storage import StudyStore

PROGRAM = Path(__file__).parents[1] / "fakes" / "killed_tuner.py"

STUDY = """
study: {name}
engine: {{name: sglang, model: /models/kimi-k2.5-int4}}
node: {{name: simulated, scenario: kimi-k2.5-int4-8x-rtx-pro-6000, time_scale: 2000}}
load_generator: {{name: scenario, hold_s: 0.15}}
fixed: {{tp-size: 8}}
search_space:
  parameters:
    moe-runner-backend: [auto, triton, cutlass]
    mem-fraction-static: {{low: 0.75, high: 0.93, step: 0.01}}
    chunked-prefill-size: [2048, 4096, 8192]
workload: {{concurrency: [1, 10, 256]}}
timeouts: {{ready_s: 200000, stall_s: 200000, level_s: 200000}}
budget: {{trials: 7}}
confirm: {{top: 1, launches: 1}}
sampler: {{name: tpe, seed: 4, n_startup_trials: 3}}
"""

#: Where the tuner is killed, one sitting after the other; each sitting gets at least as far as the one before it.
KILLS = [
    ("StudyOpened", 0.0),
    ("sampling", 0.0),
    ("sampling", 0.02),
    ("TrialStarted", 0.0),
    ("launching", 0.0),
    ("launching", 0.05),
    ("waiting", 0.0),
    ("waiting", 0.3),
    ("PhaseReached", 0.0),
    ("probing", 0.0),
    ("measuring:1", 0.0),
    ("LevelProgress", 0.0),
    ("measuring:10", 0.05),
    ("LevelDone", 0.0),
    ("measuring:256", 0.0),
    ("stopping", 0.0),
    ("stopping", 0.05),
    ("RunEnded", 0.0),
    ("telling", 0.0),
    ("telling", 0.01),
    ("TrialEnded", 0.0),
    ("waiting", 0.5),
    ("stopping", 0.0),
    ("TrialEnded", 0.02),
]


def sit(file: Path, storage: str, name: str = "", delay_s: float = 0.0) -> int:
    command = [sys.executable, PROGRAM, file, storage, name, str(delay_s)]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


def servers_of(study: str) -> list[int]:
    """Processes that carry the study's marker."""
    marked = []
    for process in psutil.process_iter(["pid"]):
        try:
            environ = process.environ()
        except psutil.Error:
            continue
        if environ.get(STUDY_MARKER) == study and process.status() != psutil.STATUS_ZOMBIE:
            marked.append(process.pid)
    return marked


def story(trials: tuple[TrialRecord, ...]) -> list[tuple]:
    return [(t.number, t.state, dict(t.assignment), t.value, t.duplicate_of, len(t.runs)) for t in trials]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_study_killed_in_every_phase_is_the_study_without_a_kill(tmp_path):
    whole, killed = f"whole-{os.getpid()}", f"killed-{os.getpid()}"
    storage, other = (f"sqlite:///{tmp_path}/{name}/studies.db" for name in (killed, whole))
    for name in (whole, killed):
        (tmp_path / f"{name}.yaml").write_text(STUDY.format(name=name))
    assert sit(tmp_path / f"{whole}.yaml", other) == 0, "in a database of its own: it would teach the other one"
    for event, delay_s in KILLS:
        sit(tmp_path / f"{killed}.yaml", storage, event, delay_s)
    assert sit(tmp_path / f"{killed}.yaml", storage) == 0
    with StudyStore.open(other) as store:
        expected, learned = store.trials(whole), {one.key for one in store.learned()}
    with StudyStore.open(storage) as store:
        found = store.trials(killed)
        assert {one.key for one in store.learned()} == learned
        interrupted_s = store.ledger(killed).get("interrupted", 0.0)
    assert story(found) == story(expected)
    assert sum(t.state in (TrialState.COMPLETE, TrialState.PRUNED) and bool(t.runs) for t in found) == 7
    assert sum(t.state is TrialState.COMPLETE for t in found) >= 4
    assert interrupted_s > 0
    assert servers_of(killed) == []
