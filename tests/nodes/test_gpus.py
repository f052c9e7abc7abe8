from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path

import pytest

from servetune.core.errors import NodeBusyError, NodeUnusableError, SpecError
from servetune.core.node import LaunchSpec
from servetune.nodes import local
from servetune.nodes._gpus import MemoryGuard, gpu_facts
from servetune.nodes.local import run_command

TESTS = Path(__file__).parent.parent


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """A node whose nvidia-smi answers as the recorded one did; the folder with its answers."""
    folder = tmp_path / "answers"
    folder.mkdir()
    for kind in ("query", "topo", "apps", "banner"):
        shutil.copy(TESTS / "recordings" / "nvidia-smi" / f"h200-x2.{kind}.txt", folder / kind)
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "nvidia-smi"
    program.write_text(
        (TESTS / "fakes" / "servers" / "nvidia-smi").read_text().replace("/usr/bin/env python3", sys.executable)
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("NVIDIA_SMI_ANSWERS", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


def use_memory(answers, mib):
    text = (TESTS / "recordings" / "nvidia-smi" / "h200-x2.query.txt").read_text()
    (answers / "query").write_text(text.replace("143771, 0,", f"143771, {mib},", 1))


def test_facts_of_the_node(answers):
    facts = local.create(local.Settings(), Path.cwd()).facts()
    assert facts.gpu_names == ("NVIDIA H200", "NVIDIA H200")
    assert facts.gpu_memory_bytes == 143771 * 2**20
    assert (facts.compute_capability, facts.interconnect) == ("9.0", "nvlink")
    assert (facts.driver_version, facts.cuda_version) == ("580.159.04", "13.0")


def test_facts_of_the_chosen_gpus_only(answers):
    facts = local.create(local.Settings(gpus=(1,)), Path.cwd()).facts()
    assert (facts.gpu_count, facts.interconnect) == (1, None)


def test_gpus_that_do_not_exist(answers):
    with pytest.raises(SpecError, match=r"'7'.*the node has 0, 1"):
        gpu_facts(run_command, "7")


def test_a_node_without_nvidia_smi(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert gpu_facts(run_command, None) == {}


def test_a_node_without_gpus(answers):
    (answers / "fail").write_text("6 No devices were found")
    assert gpu_facts(run_command, None) == {}


def test_a_broken_driver(answers):
    (answers / "fail").write_text("9 NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    with pytest.raises(NodeUnusableError, match="couldn't communicate"):
        gpu_facts(run_command, None)


def test_a_hanging_driver(answers):
    (answers / "hang").touch()
    with pytest.raises(NodeUnusableError, match=r"nvidia-smi did not answer within 0\.5 s"):
        gpu_facts(lambda argv: run_command(argv, timeout_s=0.5), None)


def test_memory_that_comes_back_late(answers):
    use_memory(answers, 500)
    guard = MemoryGuard(run_command, None)
    use_memory(answers, 100_000)
    timer = threading.Timer(0.5, use_memory, (answers, 900))
    timer.start()
    started_s = time.monotonic()
    guard.check()
    timer.join()
    assert 0.5 <= time.monotonic() - started_s < 10


def test_memory_held_by_a_process_that_is_listed(answers):
    guard = MemoryGuard(run_command, None, wait_s=0.1)
    use_memory(answers, 61_967)
    with pytest.raises(NodeBusyError, match=r"60\.5 GiB more than before.*570, python3"):
        guard.check()


def test_memory_held_by_nobody(answers):
    guard = MemoryGuard(run_command, None, wait_s=0.1)
    use_memory(answers, 61_967)
    (answers / "apps").write_text("")
    with pytest.raises(NodeUnusableError, match="no process is listed"):
        guard.check()


def test_memory_of_other_gpus_does_not_matter(answers):
    guard = MemoryGuard(run_command, "1", wait_s=0.1)
    use_memory(answers, 61_967)
    guard.check()


def test_a_launch_is_over_only_when_its_memory_is_back(answers, tmp_path):
    node = local.create(local.Settings(), Path.cwd())
    server = node.start(LaunchSpec(argv=("sleep", "60"), port=node.free_port()), "study-gpus", 1, str(tmp_path / "log"))
    use_memory(answers, 61_967)
    timer = threading.Timer(0.7, use_memory, (answers, 0))
    timer.start()
    started_s = time.monotonic()
    server.stop(5)
    timer.join()
    assert time.monotonic() - started_s >= 0.7
