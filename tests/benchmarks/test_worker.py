"""A load shared by processes is one load; a process never outlives its parent."""

import subprocess
import sys
import time

import psutil
import pytest
from fakes.streaming.process import exact_rate_server

from servetune.benchmarks import closed_loop
from servetune.benchmarks._worker import ThreadWorker, process_count, workers_for
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock
from servetune.core.errors import ServetuneError

FAST = ("--itl-s", 0.01, "--ttft-s", 0.02)


@pytest.fixture(scope="module")
def server():
    with exact_rate_server(*FAST) as running:
        yield running


def level(**workload):
    load = Workload(input_tokens=16, output_tokens=20, requests_per_level=80, warmup=9, **workload)
    return Level(concurrency=9, workload=load, limit_s=60)


def test_two_processes_hold_one_concurrency(server):
    own = server.behaving(*FAST)
    generator = closed_loop.create(closed_loop.Settings(processes=2))
    told = []
    found = generator.run(own.url, level(), WallClock(), lambda progress: told.append(progress) is None, {})
    assert found.requests_completed >= 60
    assert found.requests_failed == 0
    assert own.counts()["peak"] == 9
    assert found.details["concurrency_held"] == pytest.approx(9, rel=0.1)
    assert told[-1].completed > 0


def test_processes_end_at_a_no(server):
    generator = closed_loop.create(closed_loop.Settings(processes=2))
    begin = time.monotonic()
    calls = []
    answer = generator.run(server.url, level(), WallClock(), lambda p: calls.append(p) is None and len(calls) < 8, {})
    assert answer is None
    assert time.monotonic() - begin < 15
    assert not [child for child in psutil.Process().children() if "hold" in " ".join(child.cmdline())]


def test_a_process_that_is_killed_is_an_error_and_not_a_low_number(server):
    generator = closed_loop.create(closed_loop.Settings(processes=2))

    def kill_one(progress):
        if progress.stage == "measure":
            spawned = [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]
            for child in spawned[:1]:
                child.kill()
        return True

    with pytest.raises(ServetuneError, match="ended by itself"):
        generator.run(server.url, level(), WallClock(), kill_one, {})


PARENT = """
import sys
from servetune.benchmarks import closed_loop
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock

def main():
    generator = closed_loop.create(closed_loop.Settings(processes=2))
    level = Level(concurrency=8, workload=Workload(output_tokens=5000), limit_s=60)
    generator.run(sys.argv[1], level, WallClock(), lambda progress: print("on", flush=True) is None, {})

if __name__ == "__main__":
    main()
"""


def test_killing_the_parent_ends_the_processes(server, tmp_path):
    program = tmp_path / "parent.py"
    program.write_text(PARENT)
    with subprocess.Popen([sys.executable, str(program), server.url], stdout=subprocess.PIPE, text=True) as parent:
        deadline = time.monotonic() + 30
        while len(children := psutil.Process(parent.pid).children()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1.0)
        children = psutil.Process(parent.pid).children()
        parent.kill()
        parent.stdout.close()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert children
    assert not alive


def test_how_many_processes():
    assert process_count(1024, cores=2) == 1
    assert process_count(1024, cores=64) == 4
    assert process_count(16, cores=64) == 1
    assert process_count(100_000, cores=256) == 8
    assert isinstance(workers_for(4, 1)[0], ThreadWorker)
    assert len(workers_for(2, 8)) == 2
