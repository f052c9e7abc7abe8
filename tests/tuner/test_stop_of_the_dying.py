"""From the line that decides to the verdict and the server's end: under two seconds, though it hangs in its death."""

import sys
import time
from pathlib import Path

import pytest

from servetune.core.engine import EngineChoice, ProbeResult
from servetune.core.events import Silent
from servetune.core.node import LaunchSpec
from servetune.core.space import SearchSpace
from servetune.core.study import NamedChoice, StudySpec
from servetune.engines import sglang
from servetune.nodes import local
from servetune.tuner.stopping import StopRequest
from servetune.tuner.trial_runner import Job, TrialRunner

TESTS = Path(__file__).parents[1]
BAD_SERVER = TESTS / "fakes" / "servers" / "bad_server.py"
CASES = TESTS / "recordings" / "cases"


class Forgets:
    """Keeps nothing of a run."""

    def phase(self, name, duration_s):
        pass

    def measurement(self, measurement):
        pass

    def progress(self, node_s):
        pass


@pytest.mark.parametrize(
    ("log", "slug"), [("kv_new_guard_minimum", "kv_budget"), ("graph_pcg_tensor_match", "graph_capture")]
)
def test_a_dying_server_that_hangs_is_gone_at_once(tmp_path, log, slug):
    choice = EngineChoice(model="/models/m", version="0.5.9")
    spec = StudySpec(
        study="dying", engine=choice, space=SearchSpace(name="x"), load_generator=NamedChoice(name="closed_loop")
    )
    node = local.create(local.Settings(), tmp_path)
    runner = TrialRunner(
        spec,
        node,
        sglang.create(choice, {}),
        None,
        lambda *_: ProbeResult(ok=True, message=""),
        Silent(),
        StopRequest(),
        {},
    )
    words = ("--log", str(CASES / f"{log}.log"), "--ignore", "INT,TERM", "--hang")
    launch = LaunchSpec(argv=(sys.executable, str(BAD_SERVER), *words), port=node.free_port())
    result = runner.run(Job(0, launch, {}, str(tmp_path / "trial"), Forgets(), lambda measurement: True))
    ended_s = time.time()
    assert result.failure.slug == slug
    written = (tmp_path / "trial" / "server.log").stat().st_mtime
    assert ended_s - written < 2.0
    assert not node.reclaim("dying")
