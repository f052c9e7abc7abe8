"""The node in virtual time, and the load generator that answers from its model: both say what the model says."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune import plugins
from servetune.benchmarks import scenario as answers
from servetune.core.benchmark import Level, Workload
from servetune.core.errors import SpecError
from servetune.core.node import EnvRef, Exit, LaunchSpec
from servetune.nodes import virtual
from servetune.simulation.model import outcome
from servetune.simulation.rates import throughput
from servetune.simulation.scenario import load_scenario, shipped_names
from servetune.simulation.story import READY

LEVELS = (1, 10, 256, 1024)
CODES = {"parse": 2, "validate": 1}
KIMI = "kimi-k2.5-int4-8x-rtx-pro-6000"
GLM = "glm-5-nvfp4-8x-rtx-pro-6000"

ALLREDUCE = {
    "nccl": {"disable-custom-all-reduce": True},
    "custom": {"disable-custom-all-reduce": False},
    "nvls": {"disable-custom-all-reduce": True, "enable-nccl-nvls": True},
    "mscclpp": {"disable-custom-all-reduce": True, "enable-mscclpp": True},
    "torch-symm-mem": {"disable-custom-all-reduce": True, "enable-torch-symm-mem": True},
    "flashinfer-fusion": {"disable-custom-all-reduce": True, "enable-flashinfer-allreduce-fusion": True},
    "nccl-tree": {"disable-custom-all-reduce": True, "env.NCCL_ALGO": "Tree"},
}
ASSIGNMENTS = st.builds(
    lambda allreduce, **flags: {**ALLREDUCE[allreduce], **{name.replace("_", "-"): flags[name] for name in flags}},
    allreduce=st.sampled_from(list(ALLREDUCE)),
    moe_a2a_backend=st.sampled_from(["none", "deepep", "flashinfer", "mooncake"]),
    moe_runner_backend=st.sampled_from(
        ["auto", "triton", "flashinfer_cutlass", "flashinfer_trtllm", "deep_gemm", "cutlass"]
    ),
    enable_single_batch_overlap=st.booleans(),
    enable_piecewise_cuda_graph=st.sampled_from([False, False, False, True]),
    disable_cuda_graph=st.sampled_from([False, False, False, True]),
    chunked_prefill_size=st.sampled_from([2048, 4096, 8192, 16384]),
    cuda_graph_max_bs=st.integers(1, 512),
    mem_fraction_static=st.floats(0.70, 0.97).map(lambda share: round(share, 3)),
    max_running_requests=st.sampled_from([1, 64, 2048]),
)


def command(assignment):
    words = ["python3", "-m", "sglang.launch_server", "--model-path", "/models/m", "--tp-size", "2"]
    for flag, value in assignment.items():
        if flag.startswith("env.") or value is False:
            continue
        words += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
    environ = {flag.removeprefix("env."): str(value) for flag, value in assignment.items() if flag.startswith("env.")}
    return LaunchSpec(argv=tuple(words), env=environ, port=30000)


def node_of(scenario, seed=0):
    return virtual.create(virtual.Settings(scenario=scenario, seed=seed), Path())


def start(node, assignment, log_dir="trials/0"):
    return node.start(command(assignment), "study", 0, log_dir)


def wait(node, server):
    """As a tuner waits: look, sleep, look. The log, when it is ready or has ended."""
    log = b""
    while True:
        exit = server.poll()
        log += server.read_log(len(log))
        if exit is not None or READY.encode() in log:
            return log
        node.clock.sleep(node.clock.poll_s)


def hold(node, server, concurrency, settings=None, limit_s=600.0, go_on=lambda progress: True):
    generator = answers.create(settings or answers.Settings())
    level = Level(concurrency=concurrency, workload=Workload(), limit_s=limit_s)
    with server.endpoint() as url:
        return generator.run(url, level, node.clock, go_on, {})


@settings(deadline=None, max_examples=80)
@given(scenario=st.sampled_from(shipped_names()), assignment=ASSIGNMENTS)
def test_a_launch_in_virtual_time_is_the_models_to_the_digit(scenario, assignment):
    node = node_of(scenario)
    told = outcome(node.scenario, assignment, LEVELS, random.Random(0))
    server = start(node, assignment)
    log = wait(node, server)
    assert log.startswith(b"SIMULATED")
    assert node.clock.now_s() == pytest.approx(told.startup.seconds, abs=1e-6)
    if told.startup.fault:
        assert server.poll() == Exit(code=CODES.get(told.startup.fault.phase, -9))
        assert told.startup.fault.log.encode() in log
    else:
        assert server.poll() is None
        assert virtual.probe(server, {}, False).ok == (told.probe is None) == (not server.answers_nonsense)
        for level in told.levels:
            before_s = node.clock.now_s()
            measured = hold(node, server, level.level)
            assert node.clock.now_s() - before_s == pytest.approx(level.seconds, abs=1e-6)
            assert measured.details.get("model_output_tokens_per_s", 0.0) == pytest.approx(level.tokens_per_s)
            assert (server.poll() == Exit(code=-9)) == (level.fault is not None)
    server.stop(20)
    assert node.clock.now_s() == pytest.approx(told.seconds, abs=1e-6)


def test_the_log_grows_with_the_clock():
    node = node_of(KIMI)
    server = start(node, {"disable-custom-all-reduce": True})
    node.clock.advance(10)
    assert server.read_log(0).count(b"\n") == 1
    node.clock.advance(20)
    so_far = server.read_log(0)
    assert b"Load weight begin. avail mem=94.00 GB" in so_far
    assert b"Load weight end" not in so_far
    node.clock.advance(1000)
    assert server.read_log(0).startswith(so_far)
    assert server.read_log(len(server.read_log(0))) == b""


def test_a_server_dies_in_a_level_twenty_seconds_after_it_began():
    node = node_of(GLM)
    server = start(node, {"disable-custom-all-reduce": True, "moe-a2a-backend": "flashinfer"})
    log = wait(node, server)
    assert hold(node, server, 10).valid
    before_s = node.clock.now_s()
    seen = []
    measured = hold(node, server, 256, go_on=lambda progress: seen.append(server.poll()) or True)
    assert (measured.requests_completed, measured.requests_failed, measured.valid) == (0, 256, False)
    assert node.clock.now_s() - before_s == pytest.approx(20)
    assert seen[:-1] == [None] * (len(seen) - 1)
    assert seen[-1] == server.poll() == Exit(code=-9)
    assert b"tactic profiling failed" in server.read_log(len(log))
    assert not hold(node, server, 1).valid
    assert server.stop(20) == Exit(code=-9)
    assert node.clock.now_s() - before_s == pytest.approx(35)


def test_stopping_costs_fifteen_seconds_once_and_ends_the_log():
    node = node_of(KIMI)
    server = start(node, {})
    node.clock.advance(100)
    assert server.stop(20) == Exit(code=0)
    assert server.stop(20) == server.poll() == Exit(code=0)
    assert node.clock.now_s() == 115
    log = server.read_log(0)
    node.clock.advance(1000)
    assert server.read_log(0) == log


def test_a_level_ends_at_once_when_the_tuner_says_so():
    node = node_of(KIMI)
    server = start(node, {"disable-custom-all-reduce": True})
    wait(node, server)
    before_s = node.clock.now_s()
    assert hold(node, server, 1, go_on=lambda progress: False) is None
    assert 0 < node.clock.now_s() - before_s < 30


def test_a_shorter_level_is_less_precise():
    node = node_of(KIMI)
    server = start(node, {"disable-custom-all-reduce": True})
    wait(node, server)
    full, quarter = hold(node, server, 1), hold(node, server, 1, limit_s=7.5)
    assert (full.duration_s, quarter.duration_s) == (30, 7.5)
    assert quarter.high - quarter.low == pytest.approx(2 * (full.high - full.low), rel=0.1)
    rate = throughput(node.scenario, server._launch.launch.configuration, 1)
    assert quarter.output_tokens_per_s / rate - 1 == pytest.approx(2 * (full.output_tokens_per_s / rate - 1), rel=1e-6)


def measure(node, assignment, log_dir="trials/0", levels=LEVELS, settings=None):
    server = start(node, {"disable-custom-all-reduce": True, **assignment}, log_dir)
    wait(node, server)
    return {level: hold(node, server, level, settings).output_tokens_per_s for level in levels}


def test_numbers_depend_on_seed_assignment_level_and_attempt_and_on_nothing_else():
    plain, other = {}, {"cuda-graph-max-bs": 64}
    node = node_of(KIMI)
    first = measure(node, plain)
    measure(node, other)
    assert measure(node, plain, levels=LEVELS[::-1]) == first  # order, and what came between
    assert measure(node_of(KIMI), plain, log_dir="elsewhere/99") == first
    again = measure(node, plain, log_dir="trials/0/launch-1")
    for different in (
        again,
        measure(node_of(KIMI, seed=1), plain),
        measure(node, plain, settings=answers.Settings(seed=1)),
    ):
        assert all(different[level] != first[level] for level in LEVELS)


def test_latencies_follow_from_the_rate():
    node = node_of(KIMI)
    server = start(node, {"disable-custom-all-reduce": True, "mem-fraction-static": 0.9, "max-running-requests": 5})
    wait(node, server)
    measured = hold(node, server, 10)
    rate = measured.details["model_output_tokens_per_s"]
    assert measured.e2e_s.p99 == pytest.approx(10 * 256 / rate)  # ten present
    assert measured.ttft_s.mean > 5 * 256 / rate  # five of them wait
    assert measured.ttft_s.mean + 255 * measured.tpot_s.mean == pytest.approx(measured.e2e_s.mean)


def test_a_server_that_is_gone_answers_nothing():
    generator = answers.create(answers.Settings())
    level = Level(concurrency=3, workload=Workload(), limit_s=60)
    for url in ("virtual://nobody/1", "http://127.0.0.1:9"):
        measured = generator.run(url, level, node_of(KIMI).clock, lambda progress: True, {})
        assert (measured.requests_failed, measured.valid) == (3, False)
        assert measured.warnings


def test_facts_and_identity():
    node, other = node_of(KIMI), node_of(KIMI)
    assert node.facts().simulated
    assert node.facts().node == node.name == "virtual"
    assert node.identity() != other.identity()
    assert node.reclaim("study") == ()
    assert node.environment() == {}


def test_it_is_servetunes_own_choice(tmp_path):
    assert "virtual" not in plugins.names("nodes")
    assert plugins.load("nodes", "virtual") is virtual
    with pytest.raises(SpecError, match="the node 'virtual' is what `servetune simulate` uses inside"):
        plugins.for_study_file("nodes", "virtual")
    assert "scenario" in plugins.names("benchmarks")
    with pytest.raises(SpecError, match="no scenario 'nowhere'"):
        virtual.create(virtual.Settings(scenario="nowhere"), tmp_path)
    (tmp_path / "mine.yaml").write_text(
        (Path(virtual.__file__).parents[1] / f"simulation/scenarios/{KIMI}.yaml").read_text()
    )
    assert virtual.create(virtual.Settings(scenario="mine.yaml"), tmp_path).scenario == load_scenario(KIMI)


def test_secrets_are_not_needed_in_virtual_time():
    node = node_of(KIMI)
    spec = command({})
    secret = EnvRef(from_env="NOWHERE_SET")
    spec = spec.model_copy(update={"argv": (*spec.argv, "--api-key", secret), "env": {"TOKEN": secret}})
    server = node.start(spec, "study", 0, "trials/0")
    assert READY.encode() in wait(node, server)


def test_the_probe_belongs_to_this_node():
    with pytest.raises(TypeError, match="not a server in virtual time"):
        virtual.probe(object(), {}, False)
