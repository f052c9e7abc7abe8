"""A small study on the simulated node, and the command line as a person uses it: in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STUDY = """
study: {name}
engine: {{name: sglang, model: /models/kimi-k2.5-int4}}
node: {{name: simulated, scenario: kimi-k2.5-int4-8x-rtx-pro-6000, time_scale: 2000}}
load_generator: {{name: scenario, hold_s: {hold_s}}}
fixed: {{tp-size: 8}}
baseline: {{disable-custom-all-reduce: true}}
search_space:
  parameters:
    mem-fraction-static: {{low: 0.75, high: 0.93, step: 0.01}}
    chunked-prefill-size: [2048, 4096, 8192]
workload: {{concurrency: [1, 10, 256]}}
timeouts: {{ready_s: 200000, stall_s: 200000, level_s: 200000}}
budget: {{trials: {trials}}}
confirm: {{top: 1, launches: 1}}
"""
#: Both hints die of the same cause.
CRASHING = """
study: {name}
engine: {{name: sglang, model: /models/kimi-k2.5-int4}}
node: {{name: simulated, scenario: kimi-k2.5-int4-8x-rtx-pro-6000, time_scale: 2000}}
load_generator: {{name: scenario, hold_s: 0.05}}
fixed: {{tp-size: 8, mem-fraction-static: 0.85}}
baseline: {{disable-custom-all-reduce: true}}
search_space:
  parameters:
    moe-a2a-backend: [none, deepep]
    chunked-prefill-size: [2048, 4096]
  hints:
    - {{moe-a2a-backend: deepep, chunked-prefill-size: 2048}}
    - {{moe-a2a-backend: deepep, chunked-prefill-size: 4096}}
workload: {{concurrency: [1]}}
timeouts: {{ready_s: 200000, stall_s: 200000, level_s: 200000}}
budget: {{trials: 3}}
retries: {{repairs: 0}}
confirm: {{top: 0, launches: 0}}
sampler: {{name: random}}
"""


class CommandLine:
    """Runs `python -m servetune` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = ""

    def write_study(self, name: str, trials: int = 2, hold_s: float = 0.05, more: str = "") -> Path:
        file = self.folder / f"{name}.yaml"
        file.write_text(STUDY.format(name=name, trials=trials, hold_s=hold_s) + more)
        return file

    def write_crashing_study(self, name: str, more: str = "") -> Path:
        file = self.folder / f"{name}.yaml"
        file.write_text(CRASHING.format(name=name) + more)
        return file

    def popen(self, *words: object, **environ: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "servetune", *map(str, words)]
        env = {**os.environ, "PYTHONUNBUFFERED": "1", **environ}
        return subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )

    def __call__(self, *words: object, status: int = 0, timeout_s: float = 100, **environ: str):
        with self.popen(*words, **environ) as process:
            out, err = process.communicate(timeout=timeout_s)
        assert process.returncode == status, f"{words}: status {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(words, process.returncode, out, err)


@pytest.fixture
def servetune(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A folder with a finished study `done` of three trials."""
    line = CommandLine(tmp_path_factory.mktemp("finished"))
    line("start", line.write_study("done", trials=3))
    return line


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A folder in which the study `first` has learned that DeepEP is not there; what it said is in `out`."""
    line = CommandLine(tmp_path_factory.mktemp("taught"))
    line.out = line("start", line.write_crashing_study("first")).stdout
    return line
