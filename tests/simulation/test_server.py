"""The simulated server as a real process: starting, answering, dying, stopping."""

import asyncio
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from simulation.closed_loop_client import Loop, control
from simulation.servers import Server, event_data

from servetune.core.node import NodeFacts
from servetune.simulation.launch import planned
from servetune.simulation.scenario import load_scenario


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server"), "--mem-fraction-static", "0.9") as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def launch(server):
    told = json.loads(control(server.port, "/server_info")[1])["simulation"]
    return planned(load_scenario(told["scenario"]), told["assignment"], told["seed"])


def ask(server, **body):
    return control(server.port, "/generate", "POST", body)


def sampling(tokens, ignore_eos=True):
    return {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": ignore_eos}


# --- what it answers -----------------------------------------------------------------------------------------------


def test_the_log_begins_with_the_truth_and_reaches_readiness(server):
    log = server.log
    assert log.startswith("SIMULATED server of scenario quick")
    for text in ("TP1] Load weight end.", "Capture cuda graph end.", "max_total_num_tokens=30000"):
        assert text in log
    assert f"Uvicorn running on http://127.0.0.1:{server.port}" in log


def test_health_and_information(server):
    for path in ("/health", "/health_generate", "/model_info", "/get_model_info", "/v1/models", "/get_server_info"):
        assert control(server.port, path)[0] == 200
    info = json.loads(control(server.port, "/server_info")[1])
    assert info["simulated"] is True
    assert (info["version"], info["tp_size"], info["mem_fraction_static"]) == ("0.5.9", 2, 0.9)
    assert info["max_total_num_tokens"] == info["internal_states"][0]["memory_usage"]["token_capacity"] == 30000
    assert json.loads(control(server.port, "/v1/models")[1])["data"][0]["id"] == "/models/m"
    assert control(server.port, "/nothing")[0] == 404


def test_an_unstreamed_answer(server):
    status, body = ask(server, input_ids=[5, 6, 7], sampling_params=sampling(32))
    answer = json.loads(body)
    assert status == 200
    assert len(answer["output_ids"]) == answer["meta_info"]["completion_tokens"] == 32
    assert answer["meta_info"]["prompt_tokens"] == 3
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 32}
    assert len(set(answer["output_ids"])) > 10
    # 100 tokens/s at a concurrency of one, and the noise of this level
    assert answer["meta_info"]["e2e_latency"] == pytest.approx(0.32, rel=0.15)


def test_the_same_prompt_gets_the_same_answer_and_another_one_another(server):
    first, again, other = (
        json.loads(ask(server, text=text, sampling_params=sampling(20))[1])["text"]
        for text in ("What is a lighthouse?", "What is a lighthouse?", "What is the sea?")
    )
    assert first == again != other


def test_an_answer_may_end_by_itself(server):
    answer = json.loads(ask(server, text="Hello", sampling_params=sampling(4000, ignore_eos=False))[1])
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    assert 24 <= answer["meta_info"]["completion_tokens"] < 300


def test_a_streamed_answer_is_cumulative_and_exact(server):
    body = ask(server, text="Once", sampling_params=sampling(100), stream=True)[1]
    events, done = event_data(body)
    assert done
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert counts == sorted(set(counts))
    assert counts[-1] == 100
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in itertools.pairwise(events))
    assert [len(event["output_ids"]) for event in events] == counts
    assert [event["meta_info"]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "length"
    whole = json.loads(ask(server, text="Once", sampling_params=sampling(100))[1])
    assert whole["text"] == events[-1]["text"]


def test_completions_stream_deltas_and_usage(server):
    asked = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 40, "ignore_eos": True}
    whole = json.loads(control(server.port, "/v1/completions", "POST", asked)[1])
    asked |= {"stream": True, "stream_options": {"include_usage": True}}
    events, done = event_data(control(server.port, "/v1/completions", "POST", asked)[1])
    assert done
    text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
    assert text == whole["choices"][0]["text"]
    assert whole["usage"]["completion_tokens"] == 40
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 40
    assert events[-1]["usage"]["prompt_tokens"] == 3
    assert [event["choices"][0]["finish_reason"] for event in events if event["choices"]][-1] == "length"


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"input_ids":[]}',
        b'{"text":"x","sampling_params":{"max_new_tokens":0}}',
        b'{"text":["x"]}',
    ],
)
def test_what_cannot_be_understood_is_a_bad_request(server, body):
    async def send():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        return answer

    answer = asyncio.run(send())
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"message" in answer


def test_garbage_on_the_line_does_not_hurt(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as line:
        line.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert line.recv(1000).startswith(b"HTTP/1.1 400")
    assert control(server.port, "/health")[0] == 200


def test_requests_on_one_line_are_answered_in_turn(server):
    body = json.dumps({"text": "a", "sampling_params": sampling(5)}).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as line:
        line.sendall((head + body) * 2 + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b""
        while data := line.recv(65536):
            answer += data
    assert answer.count(b"HTTP/1.1 200 OK") == 3


def test_metrics_count_what_was_served(server):
    def counters():
        lines = control(server.port, "/metrics")[1].decode().splitlines()
        return {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    before = counters()
    ask(server, input_ids=[1, 2, 3, 4], sampling_params=sampling(17))
    after = counters()
    assert after["sglang:generation_tokens_total"] - before["sglang:generation_tokens_total"] == 17
    assert after["sglang:prompt_tokens_total"] - before["sglang:prompt_tokens_total"] == 4
    assert after["sglang:num_running_reqs"] == 0
    assert "sglang:gen_throughput" in after


# --- load ----------------------------------------------------------------------------------------------------------


def measured(server, launch, concurrency, duration, time_scale, output_tokens=400):
    """Rate over the model's, noise included: from after the first wave to shortly before the end."""
    loop = Loop(server.port, concurrency, output_tokens)
    begin = time.monotonic()
    asyncio.run(loop.hold(duration))
    rate = loop.rate(begin + duration / 2, begin + duration - 0.05) / time_scale
    assert loop.wrong == []
    assert loop.completed > 0
    return rate / (launch.level(concurrency).tokens_per_s * launch.noise(concurrency))


@pytest.mark.parametrize("concurrency", [1, 10, 100])
def test_a_closed_loop_measures_the_models_rate_on_a_compressed_clock(server, launch, concurrency):
    assert measured(server, launch, concurrency, 2.0, 100) == pytest.approx(1, abs=0.05)


def test_a_closed_loop_measures_the_models_rate_on_the_real_clock(tmp_path, launch):
    flags = ("--mem-fraction-static", "0.9")
    quick = {key: 0 for key in ("load_weights", "kv_pool", "graph_base", "graph_per_batch_size", "warmup")}
    with Server(tmp_path, *flags, time_scale=1, changes={"startup_s": {"init": 0.2, **quick}}) as real:
        real.wait_ready()
        assert measured(real, launch, 10, 4.2, 1, 100) == pytest.approx(1, abs=0.03)


def test_load_is_told_in_the_log_and_cut_requests_leave(server, launch):
    asyncio.run(Loop(server.port, 20, 100).hold(0.8))
    time.sleep(0.3)
    lines = re.findall(
        r"Decode batch, #running-req: (\d+), #token: \d+, token usage: [\d.]+, cuda graph: True,", server.log
    )
    assert max(int(running) for running in lines) > 10
    metrics = control(server.port, "/metrics")[1].decode()
    assert 'sglang:num_running_reqs{model_name="/models/m",engine_type="unified",tp_rank="0"} 0\n' in metrics


def test_what_does_not_fit_waits(tmp_path):
    with Server(tmp_path, "--max-running-requests", "4") as server:
        server.wait_ready()
        asyncio.run(Loop(server.port, 12, 100).hold(0.8))
        waiting = re.findall(r"Decode batch, #running-req: 4,.* #queue-req: (\d+),", server.log)
        assert 4 <= max(int(count) for count in waiting) <= 8


def test_flushing_is_refused_while_requests_run_and_aborting_ends_them(server):
    async def scene():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = json.dumps({"text": "x", "sampling_params": sampling(10_000_000), "stream": True}).encode()
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"data: ")
        busy = await asyncio.to_thread(control, server.port, "/flush_cache", "POST")
        await asyncio.to_thread(control, server.port, "/abort_request", "POST", {"abort_all": True})
        rest = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 10)
        writer.close()
        return busy, rest

    busy, rest = asyncio.run(scene())
    assert busy[0] == 400
    assert b'"finish_reason":{"type":"abort"' in rest
    assert b"[DONE]" in rest
    status, text = control(server.port, "/flush_cache", "POST")
    assert (status, text[:14]) == (200, b"Cache flushed.")


# --- how it ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(tmp_path, number):
    with Server(tmp_path) as server:
        server.wait_ready()
        assert server.stop(number) == 0
        assert f"{signal.Signals(number).name} received" in server.log


def test_a_signal_ends_it_while_it_loads(tmp_path):
    with Server(tmp_path, time_scale=1) as server:
        while "Load weight" not in server.log and "SIMULATED" not in server.log:
            time.sleep(0.02)
        begin = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begin < 2


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (["--cuda-graph-max-bs", "x"], 2, "launch_server.py: error: argument --cuda-graph-max-bs: invalid int value"),
        (["--runner", "invalid"], 1, "AssertionError: no"),
        (["--runner", "cold"], -9, "ValueError: cold"),
        (["--mem-fraction-static", "0.4"], -9, "Not enough memory. Please try to increase --mem-fraction-static."),
    ],
)
def test_a_start_that_fails(tmp_path, flags, code, text):
    with Server(tmp_path, *flags) as server:
        assert server.wait_end() == code
        assert text in server.log


def test_a_death_under_load_cuts_every_answer(tmp_path):
    with Server(tmp_path, "--runner", "dies") as server:
        server.wait_ready()
        fine = Loop(server.port, 7, 100)
        asyncio.run(fine.hold(0.6))
        assert fine.completed > 7
        assert server.process.poll() is None
        asyncio.run(Loop(server.port, 8, 100).hold(1.0))
        assert server.wait_end() == -9
        assert "torch.AcceleratorError: CUDA error: an illegal memory access was encountered" in server.log
        assert "SIGQUIT received." in server.log


def test_a_broken_kernel_answers_nonsense(tmp_path):
    with Server(tmp_path, "--runner", "broken") as server:
        server.wait_ready()
        answer = json.loads(ask(server, text="hello", sampling_params=sampling(32))[1])
        assert answer["text"] == "!" * 32
        assert set(answer["output_ids"]) == {0}


def test_the_port_is_bound_only_after_loading_and_a_busy_one_is_found_that_late(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with Server(tmp_path, port=other.getsockname()[1]) as server:
            assert server.wait_end() == 1
            assert "Capture cuda graph end." in server.log
            assert "[Errno 98] error while attempting to bind on address" in server.log


def test_an_api_key_is_asked_for(tmp_path):
    with Server(tmp_path, "--api-key", "hunter2") as server:
        server.wait_ready()
        assert control(server.port, "/health")[0] == 200
        assert control(server.port, "/server_info")[0] == 401
        assert ask(server, text="x")[0] == 401
        status, body = control(server.port, "/server_info", headers={"Authorization": "Bearer hunter2"})
        assert status == 200
        assert b"hunter2" not in body
        assert "hunter2" not in server.log


def test_facts_as_json():
    run = subprocess.run(
        [sys.executable, "-m", "servetune.simulation.server", "--scenario", "generated-13", "--facts"],
        capture_output=True,
        check=True,
    )
    found = NodeFacts.model_validate_json(run.stdout)
    assert found.simulated
    assert found.gpu_count == 8


def test_a_missing_scenario_and_a_wrong_time_scale_are_usage_errors():
    for words in (["--scenario", "nowhere"], ["--scenario", "generated-13", "--time-scale", "0"]):
        run = subprocess.run([sys.executable, "-m", "servetune.simulation.server", *words], capture_output=True)
        assert run.returncode == 2
        assert b"nowhere" in run.stderr or b"above 0" in run.stderr


def test_its_cpu_stays_small(server):
    """A thousand events cost well below a fifth of a second."""
    loop = Loop(server.port, 100, 100)
    before = server.cpu_s()
    asyncio.run(loop.hold(1.5))
    assert (server.cpu_s() - before) / (loop.events + loop.completed) < 0.0002
