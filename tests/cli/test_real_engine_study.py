"""A real study of a real SGLang server: three launches, one crashes; the exported command starts it by hand."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from services import require

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "studies" / "sglang-cpu-ci.yaml"
PYTHON = Path("~/.cache/servetune/sglang-cpu/current/venv/bin/python").expanduser()


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_of_the_real_engine_exports_a_command_that_starts_it(servetune):
    if not PYTHON.exists():
        require("the real engine", "run `make sglang-cpu`")
    done = servetune("start", STUDY, timeout_s=800)
    trials = json.loads(servetune("status", "sglang-cpu-ci", "--json").stdout)["trials"]
    assert [trial["state"] for trial in trials] == ["complete", "pruned", "complete"], done.stdout
    assert trials[1]["class"] == "arch_unsupported"
    assert trials[1]["phase"] == "kv_alloc"
    assert "SIMULATED" not in servetune("report", "sglang-cpu-ci").stdout
    servetune("export", "sglang-cpu-ci", "-o", "launch.sh")
    port = json.loads(servetune("export", "sglang-cpu-ci", "--format", "json").stdout)["port"]
    answer_of(servetune.folder / "launch.sh", port)


def answer_of(script: Path, port: int) -> None:
    """Run the exported script as a person would, ask it once, end it with Ctrl-C."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SERVETUNE")}
    with (script.parent / "by-hand.log").open("wb") as log:
        server = subprocess.Popen([script], stdout=log, stderr=log, env=environ, start_new_session=True)
    try:
        body = {"input_ids": list(range(100, 120)), "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}}
        for _ in range(300):
            assert server.poll() is None, (script.parent / "by-hand.log").read_text()[-3000:]
            try:
                answer = httpx.post(f"http://127.0.0.1:{port}/generate", json=body, timeout=60)
                assert answer.json()["meta_info"]["completion_tokens"] == 8
                return
            except httpx.TransportError:
                time.sleep(1)
        pytest.fail("the exported command never answered")
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
