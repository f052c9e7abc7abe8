"""The server process and virtual time tell the same story of the same command."""

import random
import re
import signal
from pathlib import Path

import pytest
from simulation.closed_loop_client import control
from simulation.servers import READY, Server

from servetune.benchmarks import scenario as answers
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock
from servetune.core.node import LaunchSpec
from servetune.nodes import virtual

LEVELS = (1, 10, 256, 1024)
SWITCHES = ("disable-custom-all-reduce", "enable-single-batch-overlap", "enable-torch-symm-mem", "enable-mscclpp")


def flags_of(seed):
    """Mostly configurations that start; some that die in each of the phases."""
    rng = random.Random(seed)
    words = [f"--{switch}" for switch in SWITCHES if rng.random() < 0.5]
    words += ["--mem-fraction-static", rng.choice(["0.85", "0.88", "0.9", "0.93", "0.99"])]
    words += ["--moe-a2a-backend", rng.choice(["none", "none", "deepep", "flashinfer", "mooncake"])]
    words += ["--moe-runner-backend", rng.choice(["auto", "triton", "flashinfer_cutlass", "cutlass"])]
    return [*words, "--cuda-graph-max-bs", str(rng.choice([8, 64, 256]))]


def plain(log):
    """A log without its first line and its times."""
    return [re.sub(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "[", line) for line in log.splitlines()[1:]]


def in_virtual_time(scenario, argv):
    node = virtual.create(virtual.Settings(scenario=scenario), Path())
    server = node.start(LaunchSpec(argv=tuple(argv), port=30000), "study", 0, "trials/0")
    log = b""
    while server.poll() is None and READY.encode() not in log:
        node.clock.sleep(node.clock.poll_s)
        log += server.read_log(len(log))
    return node, server, log.decode()


def measure(generator, url, concurrency, clock):
    level = Level(concurrency=concurrency, workload=Workload(), limit_s=600)
    return generator.run(url, level, clock, lambda progress: True, {})


@pytest.mark.parametrize("seed", [0, 2, 5, 6, 7, 8, 9, 10])
def test_a_process_and_virtual_time_agree(tmp_path, seed):
    scenario = ["generated-11", "generated-12", "generated-13", "glm-5-nvfp4-8x-rtx-pro-6000"][seed % 4]
    with Server(tmp_path, *flags_of(seed), time_scale=2000, seed="0:0", scenario=scenario) as server:
        node, twin, story = in_virtual_time(scenario, server.argv[server.argv.index("--") + 1 :])
        if twin.poll() is not None:
            assert server.wait_end() == twin.poll().code
            assert plain(server.log) == plain(story)
            return
        server.wait_ready()
        assert plain(server.log) == plain(story)
        body = control(server.port, "/generate", "POST", {"text": "x", "sampling_params": {"max_new_tokens": 9}})[1]
        assert (b'"text":"!!!!!!!!!"' in body) == twin.answers_nonsense
        for concurrency in LEVELS:
            generator = answers.create(answers.Settings())
            real = measure(generator, f"http://127.0.0.1:{server.port}", concurrency, WallClock(2000))
            with twin.endpoint() as url:
                virtually = measure(generator, url, concurrency, node.clock)
            keys = ("output_tokens_per_s", "low", "high", "valid", "requests_completed", "e2e_s")
            assert [getattr(real, key) for key in keys] == [getattr(virtually, key) for key in keys]
            if twin.poll() is not None:
                assert server.wait_end() == twin.poll().code == -9
                return
        assert server.stop(signal.SIGINT) == 0


def test_a_real_server_can_be_held_for_wall_time_and_left_at_once(tmp_path):
    with Server(tmp_path, "--mem-fraction-static", "0.9", time_scale=1000) as server:
        server.wait_ready()
        url, clock, seen = f"http://127.0.0.1:{server.port}", WallClock(1000), []
        held = answers.create(answers.Settings(hold_s=0.5))
        level = Level(concurrency=10, workload=Workload(), limit_s=600)
        assert held.run(url, level, clock, lambda progress: seen.append(progress) or True, {}).valid
        assert len(seen) >= 5
        assert held.run(url, level, clock, lambda progress: len(seen) > 1000, {}) is None
