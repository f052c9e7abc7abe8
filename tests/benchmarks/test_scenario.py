"""The load generator that answers from a scenario's model keeps the contract of load generators."""

from pathlib import Path

import pytest
from contracts.load_generator_contract import LoadGeneratorContract

from servetune.benchmarks import scenario
from servetune.core.benchmark import Level, Workload
from servetune.core.node import LaunchSpec
from servetune.nodes import virtual


class TestInVirtualTime(LoadGeneratorContract):
    @pytest.fixture
    def node(self):
        return virtual.create(virtual.Settings(scenario="generated-13"), Path())

    @pytest.fixture
    def clock(self, node):
        return node.clock

    @pytest.fixture
    def base_url(self, node):
        argv = ("python3", "-m", "sglang.launch_server", "--model-path", "m", "--mem-fraction-static", "0.85")
        server = node.start(LaunchSpec(argv=argv, port=30000), "study", 0, "trials/0")
        node.clock.advance(1000)
        with server.endpoint() as url:
            yield url

    @pytest.fixture
    def generator(self):
        return scenario.create(scenario.Settings())

    @pytest.fixture
    def level(self):
        return Level(concurrency=10, workload=Workload(), limit_s=60)
