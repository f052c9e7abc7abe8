"""Starting real simulated servers in tests."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import yaml

READY = "The server is fired up and ready to roll!"

#: Loads in 40 s, serves 1,000 tokens/s and more: quick to test at a time scale of 100.
QUICK = {
    "name": "quick",
    "engine_version": "0.5.9",
    "node": {
        "gpu_name": "GPU",
        "compute_capability": "9.0",
        "gpu_count": 2,
        "gpu_memory_mib": 100_000,
        "interconnect": "nvlink",
    },
    "model": {"path": "/models/m", "architecture": "M"},
    "flags": {"mem-fraction-static": 0.8, "cuda-graph-max-bs": 64, "chunked-prefill-size": 2048, "runner": "auto"},
    "memory_gib": {"free_before_weights": 100, "weights": 60, "activation": 2, "graph_base": 1},
    "kv_tokens_per_gib": 1000,
    "startup_s": {"init": 8, "load_weights": 20, "kv_pool": 2, "graph_base": 5, "graph_per_batch_size": 0, "warmup": 5},
    "throughput": {1: 100, 10: 500, 100: 1000},
    "eager_factor": {1: 1.0},
    "output_tokens": 400,
    "input_tokens": 8,
    "noise": {"cv": 0.02},
    "failures": [
        {"when": {"runner": "dies"}, "at_concurrency": 8, "phase": "serving", "class": "device_fault",
         "log": "CUDA error: an illegal memory access was encountered"},
        {"when": {"runner": "invalid"}, "phase": "validate", "class": "invalid_combo", "log": "AssertionError: no"},
        {"when": {"runner": "cold"}, "phase": "warmup", "class": "engine_bug", "log": "ValueError: cold"},
    ],
    "wrong_output": [{"when": {"runner": "broken"}}],
}  # fmt: skip


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A simulated server as a process of its own, killed at the end of the `with` block."""

    def __init__(self, folder, *flags, time_scale=100, seed="0", scenario=None, port=None, changes=None):
        path = Path(folder) / "quick.yaml"
        path.write_text(yaml.safe_dump({**QUICK, **(changes or {})}))
        self.port = port or free_port()
        own = ["--scenario", scenario or str(path), "--time-scale", str(time_scale), "--seed", seed]
        command = ["python3", "-m", "sglang.launch_server", "--model-path", "/models/m", "--tp-size", "2"]
        self.argv = [
            *(sys.executable, "-m", "servetune.simulation.server", *own, "--"),
            *(*command, "--port", str(self.port), *flags),
        ]
        self.log_path = Path(folder) / f"server-{self.port}.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(self.argv, stderr=log, stdout=log, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def log(self):
        return self.log_path.read_text()

    def wait_ready(self, timeout=30):
        until = time.monotonic() + timeout
        while READY not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < until, self.log
            time.sleep(0.02)
        return self

    def wait_end(self, timeout=30):
        return self.process.wait(timeout)

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(10)

    def cpu_s(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def event_data(body):
    """The JSON objects of a chunked stream of events, and whether it ended with [DONE]."""
    data, rest = b"", body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        data, rest = data + rest[:length], rest[length + 2 :]
    events = [event.removeprefix(b"data: ") for event in data.split(b"\n\n") if event]
    return [json.loads(event) for event in events if event != b"[DONE]"], events[-1] == b"[DONE]"
