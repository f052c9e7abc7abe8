"""What launches taught about memory outlives the tuner: the next sitting's engine knows it before its first launch."""

from pathlib import Path

import pytest

from servetune.cli._virtual_study import virtual_spec
from servetune.core.study import Budget, Confirmation, NamedChoice
from servetune.nodes.virtual import VirtualNode, probe
from servetune.simulation.scenario import load_scenario
from servetune.storage import MemoryStore
from servetune.tuner.launches import Launches
from servetune.tuner.opening import known_facts, open_engine
from servetune.tuner.session import run_study
from servetune.tuner.stopping import StopRequest

SCENARIO = "kimi-k2.5-int4-8x-rtx-pro-6000"
BASE = {"tp-size": 8, "cuda-graph-max-bs": 128}
PARALLEL = {**BASE, "moe-a2a-backend": "flashinfer", "moe-runner-backend": "flashinfer_cutlass"}


class Quiet:
    def on(self, event):
        pass


@pytest.fixture(scope="module")
def sitting():
    """A study of two launches in virtual time, ended: (spec, store, node)."""
    scenario = load_scenario(SCENARIO)
    settings = {"sampler": NamedChoice(name="random"), "seed": 0, "node_hours": 24.0}
    spec = virtual_spec(scenario, SCENARIO, **settings, confirm=Confirmation(top=0, launches=0))
    spec = spec.model_copy(update={"budget": Budget(trials=2, node_hours=24), "baseline": {**spec.baseline, **BASE}})
    store = MemoryStore()
    store.create_study(spec, "")
    run_study(spec, store, Quiet(), StopRequest(), probe=probe, open_node=lambda _: VirtualNode(scenario))
    return spec, store, VirtualNode(scenario)


def resumed(spec, store, node):
    """The engine of the next sitting, as far as `tuner.session` has come before anything is launched."""
    engine, facts = open_engine(spec), known_facts(spec, node)
    before = engine.memory(PARALLEL, facts)
    Launches(spec, store, node, engine, None, facts, Path(), Quiet())
    return before, engine.memory(PARALLEL, facts), engine.memory(BASE, facts), facts


def test_the_next_sitting_knows_what_the_logs_of_the_last_one_said(sitting):
    from_shapes, parallel, base, _ = resumed(*sitting)
    spec, store, _ = sitting
    log = store.runs(spec.study, 0)[0].log_facts["memory_gib"]
    assert from_shapes.known_from == "shapes"
    assert base.known_from == "class"
    left_gib = (base.before_load_bytes - base.weights_bytes) / 2**30
    assert left_gib == pytest.approx(log["after_load_gib"], abs=0.01)
    assert parallel.known_from == "node", "another class of the same node is corrected by the same error"
    width = parallel.fraction_high - parallel.fraction_low
    assert width < from_shapes.fraction_high - from_shapes.fraction_low


def test_it_is_the_same_as_having_seen_them(sitting):
    spec, store, node = sitting
    engine, facts = open_engine(spec), known_facts(spec, node)
    for record in store.trials(spec.study):
        for run in record.runs:
            engine.learn(record.assignment, run.log_facts)
    _, parallel, base, _ = resumed(*sitting)
    assert (engine.memory(PARALLEL, facts), engine.memory(BASE, facts)) == (parallel, base)
