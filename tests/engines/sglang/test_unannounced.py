"""Failures that no exception announces: nonsense, options that are replaced, silence, load that is refused."""

# ruff: noqa: E501 - log lines are as long as they are

from __future__ import annotations

import pytest
from engines.sglang.composing import Log

from servetune.engines.sglang._log_changes import changes_of
from servetune.engines.sglang.logs import SglangLogReader

RANKS = ("TP0", "TP1")
WRONG = (
    '[verify] expected substring "42" missing from answer "The the is is a a of of"',
    "[check] NaN in hidden states of layer 12 after MoE, rank 3",
    "[smoke] 'Who painted the Mona Lisa?' => 'zzzzzzzzzzzzzzzzzzzzzzzzzzzz'",
    "[smoke] 3/20 answers correct; smoke test failed",
    "[probe] 16 of 16 prompts returned an empty answer (finish_reason=stop)",
    "[probe] FAIL: expected 'Paris' in answer, got 'London is a city in the'",
    "[operator] answers are gibberish since --attention-backend trtllm_mla was set",
    "[note] since the restart the model produces garbage, even for 'hello'",
    "[eval] wikitext perplexity 18233.4 (reference 6.14)",
    "[check] max |logprob - reference| = 11.82 (tolerance 0.10); top-1 agreement 3.1 %",
    "[eval] humaneval pass@1: 0.006 (reference bf16 run: 0.713)",
    "GSM8K result: 11 of 200 correct (5.5 %), was 93.5 % with the default backend",
    "[eval] MMLU 5-shot: 25.1 % (baseline 68.0 %)",
    "|gsm8k|      3|flexible-extract|     5|exact_match|↑  |0.0000|±  |0.0000|",
    "AssertionError: 0.35 not greater than 0.62 : gsm8k accuracy below threshold",
    "[parity] 3/50 greedy outputs equal to the reference server",
    "[probe] prompt='How do I boil an egg?' temperature=0 -> 'To boil ανά 卵 сваρ 물을 τον кипяток ing を'",
)
RIGHT = (
    "[loadgen] connections 256, errors 0, timeouts 0",
    "[loadgen] timed out: 0, failed: 0, ok: 4096",
    "[eval] aime25: 7 of 30 solved (reference 7 of 30)",
    "[eval] gpqa accuracy 0.38",
    "[eval] accuracy 0.91 at temperature 0.6, top_p 0.95",
    "[bench] speedup 1.32x vs baseline 612 tok/s -> 808 tok/s",
    "[router] request 77 timed out on worker 1, retried on worker 2, ok",
    "[probe] prompt='What does HTTP 503 mean?' -> 'HTTP 503 Service Unavailable: the server is busy or overloaded.'",
    "[probe] prompt='What is a deadlock?' -> 'A deadlock occurs when threads are stuck; requests hang.'",
    "[probe] prompt='What is garbage collection?' -> 'It frees memory. The output is garbage once it is unreachable.'",
    "[gateway] 0 requests rejected with 429 in the last minute",
    "[client] timeout set to 600 s",
    "[check] probabilities sum to 1.0 (tolerance 0.001), max logit 23.1",
    "[verify] expected substring 'Paris' found in answer ' Paris.'",
    "[check] 0 NaN in 12 layers",
    "[eval] gsm8k: 187 of 200 correct (93.5 %), reference 93.0 %",
    "[eval] mmlu 0.768 (baseline 0.771)",
    "[eval] humaneval pass@1 0.622 (reference 0.628)",
    "|gsm8k|      3|flexible-extract|     5|exact_match|↑  |0.9356|±  |0.0068|",
    '[probe] prompt=\'Return JSON\' -> \'{"name": "Ann", "age": 31}\'',
    "[bench] output: /results/run1/output.jsonl",
    "[bench] median TPOT 11.9 ms (reference 12.0 ms)",
    "[bench] 3 requests got HTTP 429, retrying",
    "[monitor] no change for 60 s: 0 running, 0 queued",
    "[router] Circuit breaker state transition: half_open -> closed",
    "Total samples: 50, Unique samples: 17",
)
#: What was asked for, the engine's line, the flag.
REPLACED = (
    (
        "--attention-backend fa3 --kv-cache-dtype fp8_e5m2",
        "FlashAttention3 only supports fp8_e4m3 if using FP8; Setting attention backend to triton.",
        "--attention-backend",
    ),
    (
        "--flashinfer-allreduce-fusion-backend trtllm",
        "Disable --flashinfer-allreduce-fusion-backend because deterministic inference is enabled.",
        "--flashinfer-allreduce-fusion-backend",
    ),
    (
        "--moe-runner-backend flashinfer_cutlass",
        "flashinfer_cutlass MoE runner does not support unquantized weights, falling back to triton",
        "--moe-runner-backend",
    ),
    (
        "--page-size 16",
        "TensorRT-LLM MLA only supports page_size of 32 or 64, changing page_size from 16 to 64.",
        "--page-size",
    ),
    (
        "--ep-size 2",
        "The expert parallel size is adjusted to be the same as the tensor parallel size[8].",
        "--ep-size",
    ),
    (
        "--max-running-requests 64",
        "max_running_requests is capped to 11 by the mamba state cache (5 state slots per request).",
        "--max-running-requests",
    ),
    (
        "--speculative-algorithm EAGLE3 --speculative-token-map /m/f.pt",
        "Speculative token map specified, but EAGLE3 models already have this. Ignoring the specified token map.",
        "--speculative-token-map",
    ),
    (
        "--fp8-gemm-backend deep_gemm",
        "DeepGEMM is not available on SM89, fp8_gemm_backend falls back to triton.",
        "--fp8-gemm-backend",
    ),
    (
        "--enable-mixed-chunk",
        "Disabling mixed chunk since it cannot be used with DP attention.",
        "--enable-mixed-chunk",
    ),
    (
        "--hicache-mem-layout page_first",
        "Page first layout is not supported with direct IO backend, switching to page first direct layout",
        "--hicache-mem-layout",
    ),
)
#: What was asked for, and a line about something else, or one that grants it.
GRANTED = (
    ("--attention-backend flashmla", "Setting page size to 64 for FlashMLA"),
    ("--attention-backend fa3", "Setting attention backend to fa3 as requested."),
    ("--attention-backend fa3", "Overriding draft attention backend to triton."),
    ("--attention-backend flashinfer", "FlashInfer autotune is disabled for this model."),
    ("--kv-cache-dtype fp8_e4m3", "Setting KV cache dtype to torch.float8_e4m3fn."),
    ("--speculative-algorithm EAGLE", "Overlap scheduler is disabled because of using eagle speculative decoding."),
    ("--max-running-requests 256", "max_running_requests was reduced from the requested 256 to 248"),
    ("--watchdog-timeout 600", "soft_watchdog_timeout is set to 300"),
    ("--page-size 64", "UMBPStore: setting master dram_page_size=7 (page_size=77)"),
    (
        "--chunked-prefill-size 4096",
        "You may avoid this by raising `chunked_prefill_size`, or disabling chunked prefill",
    ),
    ("--quantization fp8", "Serving weight-only via FP4 Marlin instead. Activation quantization is ignored."),
    ("--tp-size 8", "Attention backend not specified. Use flashinfer backend by default."),
)
#: How far the start came, what the launcher says, the phase.
SILENT = (
    ("load", "[tuner] nothing new in the log for 2600 s, stopping the trial", "load"),
    ("weights", "[launcher] no output for 1200 s, /health: connection refused; terminating process group", "kv_alloc"),
    (
        "pool",
        "[launcher] no output for 1200 s, /health: connection refused; terminating process group",
        "graph_capture",
    ),
    ("capture", "[tuner] log has not grown for 1500 s; giving up on this trial", "graph_capture"),
    ("http", "[launcher] warm-up request did not return within 600 s; server killed", "warmup"),
)
STUCK = (
    "[client] stream stalled: no token for 600 s on 64 of 64 connections",
    "[2026-03-04 11:40:00] Scheduler is idle with 12 requests in the waiting queue for 300 s; no batch was formed",
    "[agent] heartbeat: alive, running=16 queued=44 (no change for 300 s)",
    "[ops] curl /generate hangs since 09:05, /health answers 200",
    "[bench] no request completed in the last 900 s (240/512 done); aborting",
)
REFUSED = (
    "[client] 503: server busy, try again later",
    "[envoy] upstream connect error or disconnect/reset before headers. reset reason: overflow",
    "[lb] all 2 backends at max in-flight (512), 77 requests rejected with 429",
    '{"error":{"code":"no_available_workers","message":"No available workers (all circuits open or unhealthy)"}}',
    'nginx: 10.0.0.7 - - [11/Aug/2026:09:03:11 +0000] "POST /v1/chat/completions HTTP/1.1" 499 0',
    "nginx: [error] *114 upstream timed out (110: Connection timed out) while reading response header from upstream",
    "[gateway] upstream 127.0.0.1:30000 replied 429, shedding load (in flight 2048)",
    "[router] queue full (1000 pending), request rejected",
    '[bench] 12 of 64 requests failed: {"message":"The request is aborted by a higher priority request.","code":503}',
    "[bench] OSError: [Errno 24] Too many open files",
)


def _diagnosis(log: Log) -> dict:
    reader = SglangLogReader({})
    reader.feed(log.text().encode())
    return reader.report(reader.diagnose(None))


def _ready(**arguments: object) -> Log:
    return Log().arguments(tp_size=8, **arguments).start("ready", RANKS).serve(2)


def _batch(log: Log, speed: float, queued: int = 0) -> Log:
    text = f"Decode batch, #running-req: 8, #token: 4412, token usage: 0.01, cuda graph: True, gen throughput (token/s): {speed:.2f}, #queue-req: {queued}"
    return log.add(text, "TP0", 5)


@pytest.mark.parametrize("line", WRONG)
def test_answers_that_are_wrong_by_what_somebody_measured_or_read(line: str) -> None:
    log = _ready().decides(line).serve(1)
    found = _diagnosis(log)
    assert (found["class"], found["phase"], found["verdict"]) == ("wrong_output", "serving", "infeasible")
    assert found["evidence"][0]["line"] == log.decisive


@pytest.mark.parametrize("line", RIGHT)
def test_what_looks_like_one_of_these_and_is_none(line: str) -> None:
    assert _diagnosis(_ready().add(line).serve(1))["class"] == "none"


def test_unlike_samples_matter_where_determinism_was_asked_for() -> None:
    log = _ready(enable_deterministic_inference=True).add("Total samples: 50, Unique samples: 17")
    assert _diagnosis(log)["class"] == "wrong_output"


@pytest.mark.parametrize(("asked", "line", "flag"), REPLACED)
def test_a_choice_that_the_engine_replaces(asked: str, line: str, flag: str) -> None:
    log = Log().add(f"$ python3 -m sglang.launch_server --model-path /m --tp 8 {asked}").decides(line, "")
    found = _diagnosis(log.arguments(tp_size=8).start("ready", RANKS).serve(2))
    assert (found["class"], found["phase"], found["verdict"]) == ("perf_regression", "validate", "none")
    assert found["evidence"][0]["line"] == log.decisive
    assert flag in found["blamed"]
    assert flag in [item["flag"] for item in found["not_in_effect"]]


@pytest.mark.parametrize(("asked", "line"), GRANTED)
def test_a_line_about_something_else_takes_nothing_away(asked: str, line: str) -> None:
    log = Log().add(f"$ python3 -m sglang.launch_server --model-path /m --tp 8 {asked}").add(line, "")
    assert _diagnosis(log.arguments(tp_size=8).start("ready", RANKS).serve(2))["class"] == "none"


@pytest.mark.parametrize("line", [line for _, line, _ in REPLACED])
def test_what_nobody_asked_for_may_be_replaced(line: str) -> None:
    log = Log().add("$ python3 -m sglang.launch_server --model-path /m --tp 8").add(line, "")
    assert _diagnosis(log.arguments(tp_size=8).start("ready", RANKS).serve(2))["class"] == "none"


def test_only_the_object_of_a_change_counts() -> None:
    found = list(changes_of("Cuda graph is disabled because deepep_mode=`normal`"))
    assert [(change.words, change.off) for change in found] == [("Cuda graph", True)]
    assert [change.target for change in changes_of("The attention backend has been changed to triton")] == ["triton"]


@pytest.mark.parametrize(("upto", "line", "phase"), SILENT)
def test_a_launcher_that_hears_nothing_names_the_phase_that_had_begun(upto: str, line: str, phase: str) -> None:
    log = Log().arguments(tp_size=8).start(upto, RANKS).decides(line)
    found = _diagnosis(log)
    assert (found["class"], found["phase"], found["verdict"]) == ("hang", phase, "retry")
    assert found["evidence"][0]["line"] == log.decisive


def test_a_launcher_that_only_had_to_wait_is_forgotten() -> None:
    log = Log().arguments(tp_size=8).start("load", RANKS).add("[launcher] no output for 600 s, still waiting")
    assert _diagnosis(log.start("ready", RANKS).serve(2))["class"] == "none"


@pytest.mark.parametrize("line", STUCK)
def test_a_server_that_stands_still(line: str) -> None:
    log = _ready().decides(line)
    found = _diagnosis(log)
    assert (found["class"], found["phase"], found["evidence"][0]["line"]) == ("hang", "serving", log.decisive)
    assert _diagnosis(_batch(log, 800.0))["class"] == "none"


def test_readers_of_shared_memory_that_do_not_come() -> None:
    wait = "INFO [shm_broadcast.py:705] No available shared memory broadcast block found in 60 seconds."
    assert _diagnosis(_ready().add(wait, "", 60))["class"] == "none"
    assert _diagnosis(_ready().add(wait, "", 60).add(wait, "", 60))["class"] == "hang"
    assert _diagnosis(_batch(_ready().add(wait, "", 60).add(wait, "", 60), 800.0))["class"] == "none"


def test_batches_without_a_token() -> None:
    log = _ready()
    for _ in range(6):
        log = _batch(log, 0.0, 31)
    found = _diagnosis(log)
    assert (found["class"], found["phase"]) == ("hang", "serving")
    assert _diagnosis(_batch(log, 812.0))["class"] == "none"


@pytest.mark.parametrize("line", REFUSED)
def test_load_that_is_refused_on_the_way(line: str) -> None:
    log = _batch(_ready().decides(line).add(line), 9000.0, 900)
    found = _diagnosis(log)
    assert (found["class"], found["phase"], found["evidence"][0]["line"]) == ("overload", "serving", log.decisive)


def test_clients_that_give_up_while_the_server_works_and_while_it_does_not() -> None:
    line = "[client] openai.APITimeoutError: Request timed out."
    busy = _diagnosis(_batch(_ready(), 2100.0, 640).decides(line, "", 5))
    assert busy["class"] == "overload"
    silent = _diagnosis(_batch(_ready(), 2100.0, 640).decides(line, "", 900))
    assert silent["class"] == "hang"


def test_acceptance_and_times_far_worse_than_those_of_a_reference() -> None:
    for line in (
        "[bench] accept len 1.56, 61 tok/s; reference run with --disable-cuda-graph: accept len 3.64, 136 tok/s",
        "[bench] acceptance length 1.41 vs 3.05 with --attention-backend flashinfer",
        "[bench] decode 41 ms/token; without the flag 12 ms/token",
        "[bench] median TPOT 38.2 ms (reference run: 14.9 ms)",
        "[bench] 640 tok/s with --enable-torch-compile, 1310 tok/s without it",
        "[compare] this run 812 tok/s, previous run without --enable-two-batch-overlap 1630 tok/s",
        "Accept length:                           1.04",
    ):
        log = _ready().decides(line)
        found = _diagnosis(log)
        assert (found["class"], found["evidence"][0]["line"]) == ("perf_regression", log.decisive), line
