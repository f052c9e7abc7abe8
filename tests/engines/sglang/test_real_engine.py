"""What the product assumes of SGLang, asked of a real server (`make sglang-cpu`); findings: docs/real-engine.md."""

import itertools
import json
import os
import time
from pathlib import Path

import httpx
import psutil
import pytest
from services import require

from servetune.benchmarks import closed_loop
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock
from servetune.core.node import LaunchSpec
from servetune.nodes import local

ENVIRONMENT = Path(os.environ.get("SERVETUNE_SGLANG_CPU_DIR", "~/.cache/servetune/sglang-cpu")).expanduser() / "current"
PYTHON = ENVIRONMENT / "venv/bin/python"
READY = b"The server is fired up and ready to roll!"
FLAGS = {
    "model-path": str(ENVIRONMENT / "model"),
    "load-format": "dummy",
    "device": "cpu",
    "attention-backend": "torch_native",
    "max-total-tokens": "20000",
    "sleep-on-idle": None,
    "enable-metrics": None,
    "host": "127.0.0.1",
}
VARIABLES = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
SERVING, CRASHING = "real-engine-serving", "real-engine-crashing"
START_S = 420.0  # 27 s on two idle cores; 200 s were seen at a load of 11

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(540)]


def launch_spec(node, **changes):
    port = node.free_port()
    flags = {**FLAGS, "port": str(port), **{flag.replace("_", "-"): value for flag, value in changes.items()}}
    words = [word for flag, value in flags.items() for word in (f"--{flag}", value) if word is not None]
    return LaunchSpec(argv=(str(PYTHON), "-m", "sglang.launch_server", *words), env=VARIABLES, port=port)


def whole_log(process):
    text = b""
    while chunk := process.read_log(len(text)):
        text += chunk
    return text


def left_of(study):
    """Processes that the node started for `study`, wherever they went: it marks each one's environment."""
    return [process.pid for process in psutil.process_iter() if belongs(process, study)]


def belongs(process, study):
    try:
        running = process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return running and process.environ().get("SERVETUNE_STUDY") == study
    except psutil.Error:
        return False


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    if not PYTHON.exists():
        require("the real SGLang environment", "run `make sglang-cpu`")
    return local.create(local.Settings(engine_python=str(PYTHON)), tmp_path_factory.mktemp("node"))


def started(node, study, folder, **changes):
    return node.start(launch_spec(node, **changes), study, 0, str(folder))


def health(url):
    try:
        return httpx.get(f"{url}/health", timeout=30).status_code
    except httpx.TransportError:
        return None


def wait_until_ready(process):
    """(statuses of /health in the order of their first appearance, until after the ready line)."""
    seen, deadline = [], time.monotonic() + START_S
    with process.endpoint() as url:
        while READY not in whole_log(process):
            assert process.poll() is None, whole_log(process)[-2000:].decode()
            assert time.monotonic() < deadline
            status = health(url)
            if status not in seen:
                seen.append(status)
            time.sleep(0.2)
        return seen, health(url)


@pytest.fixture(scope="module")
def server(node, tmp_path_factory):
    process = started(node, SERVING, tmp_path_factory.mktemp("server"))
    try:
        process.health_seen = wait_until_ready(process)
        yield process
    finally:
        process.stop(20)


@pytest.fixture(scope="module")
def client(server):
    with server.endpoint() as url, httpx.Client(base_url=url, timeout=60) as client:
        yield client


def generate(client, stream, tokens=6):
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return client.post("/generate", json={"input_ids": [10, 11, 12], "sampling_params": sampling, "stream": stream})


def counter(client, name):
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"sglang:{name}{{"))


def test_facts_come_from_the_engines_own_interpreter(node):
    facts = node.facts()
    assert (facts.engine_name, facts.engine_version) == ("sglang", "0.5.23")
    assert facts.gpu_names == ()


def test_health_says_200_only_once_the_ready_line_is_near(server):
    while_starting, after = server.health_seen
    assert while_starting[0] is None  # the port is bound only when the model is loaded
    assert set(while_starting) <= {None, 503, 200}
    assert after == 200


def test_stream_events_are_cumulative(client):
    lines = [line.removeprefix("data: ") for line in generate(client, stream=True).text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts == sorted(set(counts)), "each event says more than the one before"  # a busy server joins some
    assert len(counts) > 1
    assert counts[-1] == 6
    for earlier, later in itertools.pairwise(events):
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
        assert later["text"].startswith(earlier["text"])
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    assert all(event["meta_info"]["finish_reason"] is None for event in events[:-1])
    assert events[0]["meta_info"]["prompt_tokens"] == 3


def test_whole_answer_is_the_last_event(client):
    streamed = [line for line in generate(client, stream=True).text.split("\n\n") if line][-2]
    whole = generate(client, stream=False).json()
    assert whole["output_ids"] == json.loads(streamed.removeprefix("data: "))["output_ids"]
    assert len(whole["output_ids"]) == whole["meta_info"]["completion_tokens"] == 6


def test_server_info_holds_the_effective_arguments(client):
    info = client.get("/server_info").json()
    assert info["version"] == "0.5.23"
    assert info["attention_backend"] == "torch_native"
    assert info["max_total_num_tokens"] == 20000
    assert info["max_running_requests"] is None  # the argument; what is in effect stands in the internal state
    state = info["internal_states"][0]
    assert state["effective_max_running_requests_per_dp"] == 2500
    assert state["memory_usage"]["token_capacity"] == 20000
    assert "last_gen_throughput" in state
    assert "--attention-backend torch_native" in info["launch_command"]


def test_model_info_names_the_model_folder(client):
    info = client.get("/model_info").json()
    assert Path(info["model_path"]).samefile(ENVIRONMENT / "model")
    assert (info["load_format"], info["model_type"]) == ("dummy", "qwen3_moe")


def test_flush_cache_works_when_idle_and_is_refused_under_load(client):
    assert client.post("/flush_cache").status_code == 200
    body = {"input_ids": [10, 11], "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}, "stream": True}
    with client.stream("POST", "/generate", json=body) as running:
        lines = running.iter_lines()
        next(lines)
        assert client.post("/flush_cache").status_code == 400
        assert "data: [DONE]" in list(lines)


@pytest.mark.parametrize("concurrency", [1, 10])
def test_client_counts_what_the_server_counts(server, client, concurrency):
    """Rate over the measured window against the growth of the server's own counter over nearly the same time."""
    workload = Workload(input_tokens=64, output_tokens=32, concurrency=(concurrency,))
    samples = []

    def go_on(progress):
        if progress.stage == "measure":
            samples.append((time.monotonic(), counter(client, "generation_tokens_total")))
        return True

    before = counter(client, "generation_tokens_total")
    with server.endpoint() as url:
        level = Level(concurrency=concurrency, workload=workload, limit_s=12)
        measured = closed_loop.create(closed_loop.Settings()).run(url, level, WallClock(), go_on, {})
    assert measured.valid, measured.warnings
    assert measured.requests_failed == 0
    assert measured.requests_completed > 0
    assert counter(client, "generation_tokens_total") - before >= measured.output_tokens
    (begin_s, begun), (end_s, ended) = samples[0], samples[-1]
    # The counter grows when a request ends, 32 tokens at once: one wave at each edge may be missing.
    slack = 2 * 32 * concurrency / (end_s - begin_s)
    assert (ended - begun) / (end_s - begin_s) == pytest.approx(measured.output_tokens_per_s, rel=0.1, abs=slack)


def test_stop_ends_every_process_within_seconds(server):
    """Last of the tests that share the server."""
    assert len(left_of(SERVING)) >= 4  # launcher, resource tracker, scheduler, detokenizer
    begin_s = time.monotonic()
    code = server.stop(20).code
    assert time.monotonic() - begin_s < 20  # INT is enough
    # Every process gets the signal; who notices first decides: a clean end, KeyboardInterrupt, or crash handling.
    assert code in (0, -2, -9)
    assert not left_of(SERVING)


@pytest.mark.parametrize(
    ("changes", "code", "line"),
    [
        ({"kv_cache_dtype": "fp8_e4m3"}, -9, b"ValueError: CPU FP8 KV cache requires Intel AMX support."),
        ({"no_such_flag": "1"}, 2, b"error: unrecognized arguments: --no-such-flag 1"),
    ],
)
def test_crash_ends_the_process_and_says_why(node, tmp_path, changes, code, line):
    process = started(node, CRASHING, tmp_path, **changes)
    deadline = time.monotonic() + START_S
    while (ended := process.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.3)
    assert ended.code == code
    assert line in whole_log(process)
    process.stop(5)
    assert not left_of(CRASHING)
