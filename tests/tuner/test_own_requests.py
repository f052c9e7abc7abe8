"""A request that servetune itself cannot make says nothing about a configuration."""

import pytest

from servetune.benchmarks import scenario as scenario_generator
from servetune.cli._virtual_study import virtual_spec
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock
from servetune.core.errors import NodeUnusableError
from servetune.core.events import RunEnded, Silent
from servetune.core.study import Confirmation, NamedChoice
from servetune.simulation.scenario import load_scenario
from servetune.storage import MemoryStore
from servetune.tuner.session import run_study
from servetune.tuner.stopping import StopRequest

SCENARIO = "kimi-k2.5-int4-8x-rtx-pro-6000"


class Ends(Silent):
    """Keeps how launches ended."""

    def __init__(self) -> None:
        self.failures = []

    def on(self, event) -> None:
        if isinstance(event, RunEnded):
            self.failures.append(event.failure)


def test_an_address_of_no_protocol_ends_the_study_and_judges_nothing():
    spec = virtual_spec(
        load_scenario(SCENARIO),
        SCENARIO,
        sampler=NamedChoice(name="random"),
        seed=0,
        node_hours=24,
        confirm=Confirmation(top=0, launches=0),
    )
    store, ends = MemoryStore(), Ends()
    store.create_study(spec, "")
    with pytest.raises(NodeUnusableError, match=r"cannot ask 'virtual://.*UnsupportedProtocol"):
        run_study(spec, store, ends, StopRequest())
    assert ends.failures == []
    assert [record.failure for record in store.trials(spec.study)] == [None]


def test_a_load_that_cannot_be_sent_is_no_measurement():
    level = Level(concurrency=1, workload=Workload(), limit_s=10)
    generator = scenario_generator.create(scenario_generator.Settings())
    with pytest.raises(NodeUnusableError, match="is no address of a server"):
        generator.run("gopher://node", level, WallClock(), lambda progress: True, {})
