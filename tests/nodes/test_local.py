from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from contracts.node_contract import BAD_SERVER, Bench, NodeContract, carriers, listening, loaded, log_of, until

from servetune.core.errors import SpecError
from servetune.core.node import EnvRef, LaunchSpec, Node
from servetune.nodes import local


class TestLocalNode(NodeContract):
    @pytest.fixture
    def node(self) -> Node:
        return local.create(local.Settings(), Path.cwd())

    @pytest.fixture
    def node_source(self) -> str:
        return "from servetune.nodes import local; node = local.create(local.Settings(), Path('/'))"


@pytest.fixture
def make(tmp_path):
    """Benches with settings of the test's own."""
    made = []

    def bench(**settings):
        made.append(Bench(local.create(local.Settings(**settings), tmp_path), tmp_path))
        return made[-1]

    yield bench
    for one in made:
        one.cleanup()


def environ_of(bench, *switches, **more):
    dump = bench.dump()
    process = bench.start("--dump", dump, "--exit-at-once", *switches, **more)
    state = loaded(dump)
    process.stop(5)
    return {bytes.fromhex(k).decode(): bytes.fromhex(v).decode() for k, v in state["environ"].items()}, state


def test_gpus_limit_what_the_server_sees_and_name_the_node(make, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    environ, _ = environ_of(make(gpus=(2, 5)))
    assert environ["CUDA_VISIBLE_DEVICES"] == "2,5"
    assert make(gpus=(2, 5)).node.environment() == {"CUDA_VISIBLE_DEVICES": "2,5"}
    environ, _ = environ_of(make(gpus=(2, 5)), env={"CUDA_VISIBLE_DEVICES": "5"})
    assert environ["CUDA_VISIBLE_DEVICES"] == "5"


def test_identity_is_machine_and_gpus(make, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    whole = make().node.identity()
    assert whole == make().node.identity()
    assert whole != make(gpus=(0,)).node.identity()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert make().node.identity() == make(gpus=(0,)).node.identity()


def test_the_server_runs_in_its_log_directory_or_where_the_settings_say(make, tmp_path):
    assert environ_of(make())[1]["cwd"] == str(tmp_path / "trials" / "7")
    (tmp_path / "elsewhere").mkdir()
    assert environ_of(make(cwd="elsewhere"))[1]["cwd"] == str(tmp_path / "elsewhere")
    with pytest.raises(SpecError, match=r"missing.*No such file"):
        environ_of(make(cwd="missing"))


def test_a_relative_program_needs_a_directory(make, tmp_path):
    (tmp_path / "python").symlink_to(sys.executable)
    spec = LaunchSpec(argv=("./python", "-S", BAD_SERVER, "--exit-at-once"), port=make().node.free_port())
    with pytest.raises(SpecError, match=r"'\./python' is a relative path.*absolute"):
        make().launch(spec)
    process = make(cwd=".").launch(spec)
    until(lambda: process.poll() is not None)
    assert process.poll().code == 0


def test_a_script_without_an_interpreter(make, tmp_path):
    script = tmp_path / "engine"
    script.write_text("#!/nowhere/python\n")
    script.chmod(0o755)
    with pytest.raises(SpecError, match="engine' cannot be started"):
        make().launch(LaunchSpec(argv=(str(script),), port=make().node.free_port()))


def test_a_command_that_is_too_long(make):
    with pytest.raises(SpecError, match="too long"):
        make().start("x" * 200_000)


def test_when_the_server_cannot_be_started_the_log_filter_is_gone_too(make, monkeypatch, tmp_path):
    monkeypatch.setenv("MY_SECRET", "sesame-open")
    bench = make(cwd="missing")
    with pytest.raises(SpecError):
        bench.start(env={"API_KEY": EnvRef(from_env="MY_SECRET")})
    assert bench.node.reclaim(bench.study) == []


def test_state_file(make):
    bench = make()
    process = bench.start(env={"A": "1"})
    state = json.loads((Path(bench.log_dir) / "server.json").read_text())
    assert (state["study"], state["trial"], state["pid"]) == (bench.study, 7, process.pid)
    assert LaunchSpec.model_validate(state["launch"]).env == {"A": "1"}


def test_start_from_another_thread(make):
    bench = make()
    thread = threading.Thread(target=bench.start)
    thread.start()
    thread.join()
    assert bench.started[0].stop(5).code is not None


def test_a_tuner_that_ignores_interrupts_does_not_make_its_servers_ignore_them(make):
    bench = make()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = bench.start()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    until(lambda: b"running" in log_of(process))
    assert process.stop(20).code == 0


def test_facts_of_the_engine(make):
    facts = make(engine_python=sys.executable, engine_package="pytest").node.facts()
    assert (facts.engine_name, facts.engine_version) == ("pytest", pytest.__version__)
    assert facts.python_version == ".".join(str(part) for part in sys.version_info[:3])
    assert facts.cpu_count == len(os.sched_getaffinity(0))


def test_an_engine_that_is_not_installed(make):
    facts = make(engine_python=sys.executable, engine_package="no-such-engine").node.facts()
    assert (facts.engine_name, facts.engine_version) == (None, None)
    assert facts.python_version


@pytest.mark.parametrize(("python", "why"), [("/nowhere/python", "no such program"), ("/bin/false", "status 1")])
def test_an_engine_interpreter_that_cannot_be_run(make, python, why):
    with pytest.raises(SpecError, match=f"{python}.*{why}"):
        make(engine_python=python).node.facts()


STARTERS = """
import os, sys, time
from pathlib import Path
from servetune.core.node import LaunchSpec
from servetune.nodes import local
node = local.create(local.Settings(), Path("/"))
for line in sys.stdin:
    tuner = os.fork()
    if tuner == 0:
        node.start(LaunchSpec.model_validate_json(sys.argv[1]), sys.argv[2], 7, sys.argv[3])
        time.sleep(600)
    print(tuner, flush=True)
    time.sleep(float(line))
    os.kill(tuner, 9)
    os.waitpid(tuner, 0)
    print("killed", flush=True)
"""


def test_a_tuner_killed_at_any_moment_of_a_start_leaves_nothing_after_reclaim(make, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "sesame-open")
    bench = make()
    port = bench.node.free_port()
    spec = bench.spec("--grandchild", port, port=port, env={"API_KEY": EnvRef(from_env="MY_SECRET")})
    words = [sys.executable, "-c", STARTERS, spec.model_dump_json(), bench.study, bench.log_dir]
    reclaimed = 0
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as starter:
        for step in range(12):
            starter.stdin.write(f"{step * step * 0.002}\n".encode())
            assert [starter.stdout.readline() for _ in range(2)][1] == b"killed\n"
            time.sleep(0.05)
            reclaimed += len(bench.node.reclaim(bench.study))
            assert carriers(bench.study) == []
            assert not listening(port)
        starter.stdin.close()
    assert reclaimed >= 4
    assert carriers(bench.study) == []
