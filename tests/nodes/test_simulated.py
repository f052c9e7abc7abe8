from __future__ import annotations

import importlib.util
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest
from contracts.node_contract import carriers, get, log_of, until

from servetune.core.errors import SpecError
from servetune.core.node import LaunchSpec
from servetune.nodes import simulated
from servetune.simulation.scenario import shipped_names

needs_server = pytest.mark.skipif(
    importlib.util.find_spec("servetune.simulation.server") is None, reason="the simulated server is not there yet"
)
SCENARIO = "kimi-k2.5-int4-8x-rtx-pro-6000"


@pytest.fixture
def study():
    name = f"simulated-{uuid.uuid4().hex[:12]}"
    yield name
    assert carriers(name) == []


def node(**settings):
    return simulated.create(simulated.Settings(**{"scenario": SCENARIO, "time_scale": 600, **settings}), Path.cwd())


def spec(port, *words):
    argv = ("python3", "-m", "sglang.launch_server", "--model-path", "/models/kimi-k2.5-int4", "--tp-size", "8", *words)
    return LaunchSpec(argv=(*argv, "--host", "127.0.0.1", "--port", str(port)), port=port)


def answers(url):
    try:
        return get(url) == 200
    except (urllib.error.URLError, OSError):
        return False


def test_facts_are_labelled_as_simulated():
    facts = node().facts()
    assert facts.simulated
    assert facts.gpu_count == 8
    assert facts.interconnect == "pcie"


def test_a_scenario_file_is_found_from_the_base_directory(tmp_path):
    text = (Path(simulated.__file__).parents[1] / "simulation" / "scenarios" / f"{SCENARIO}.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text)
    made = simulated.create(simulated.Settings(scenario="mine.yaml"), tmp_path)
    assert made.facts().simulated


def test_a_scenario_that_does_not_exist():
    with pytest.raises(SpecError, match="did you mean"):
        node(scenario=SCENARIO[:-1])
    assert SCENARIO in shipped_names()


def test_two_tuners_do_not_exclude_each_other_and_one_stays_the_same():
    assert node().identity() == node().identity()
    assert node().identity().startswith("simulated/")


def test_the_clock_is_compressed():
    clock = node(time_scale=1000).clock
    before_s = clock.now_s()
    time.sleep(0.02)
    assert clock.now_s() - before_s >= 20


@needs_server
def test_a_simulated_server_starts_serves_and_stops(study, tmp_path):
    made = node()
    port = made.free_port()
    server = made.start(spec(port), study, 1, str(tmp_path / "log"))
    try:
        with server.endpoint() as url:
            until(lambda: server.poll() is not None or answers(url + "/health"), 60)
        assert server.poll() is None, log_of(server)[-2000:]
        assert len(log_of(server).splitlines()) > 3
    finally:
        server.stop(20)
    assert server.poll() is not None


@needs_server
def test_a_simulated_failure_ends_by_itself_with_its_lines(study, tmp_path):
    made = node()
    port = made.free_port()
    server = made.start(spec(port, "--mem-fraction-static", "0.1"), study, 2, str(tmp_path / "log"))
    try:
        until(lambda: server.poll() is not None, 60)
        assert b"Traceback" in log_of(server)
    finally:
        server.stop(20)
