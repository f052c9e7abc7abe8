"""The simulated log: SGLang's words for each version family, with the scenario's numbers, in the order of time."""

import itertools
import re
from pathlib import Path

import pytest
import yaml

from servetune.core.failure import Phase
from servetune.simulation.launch import exit_code, plan
from servetune.simulation.scenario import load_scenario
from servetune.simulation.story import READY, Line, banner, captured_sizes, death, render, start_story

JOURNEY = load_scenario("kimi-k2.5-int4-8x-rtx-pro-6000")
GLM = load_scenario("glm-5-nvfp4-8x-rtx-pro-6000")
SHIPPED = Path(__file__).parents[2] / "src/servetune/simulation/scenarios"
PROGRAM = "python3 -m sglang.launch_server --model-path /models/k --tp-size 2 --port 31000 --disable-custom-all-reduce"


def launch_of(scenario, flags="", environ=None):
    return plan(scenario, f"{PROGRAM} {flags}".split(), environ or {}, "0")


def text_of(lines):
    return "".join(render(line, lambda at_s: f"{at_s:.0f}") for line in lines)


def log_of(scenario, flags="", environ=None):
    return text_of(start_story(launch_of(scenario, flags, environ)))


@pytest.fixture
def version_of(tmp_path):
    def build(version, **changes):
        path = tmp_path / "scenario.yaml"
        data = yaml.safe_load((SHIPPED / f"{JOURNEY.name}.yaml").read_text())
        path.write_text(yaml.safe_dump({**data, "engine_version": version, **changes}))
        return load_scenario(str(path))

    return build


def test_a_start_that_works_passes_every_phase_in_order():
    log = log_of(JOURNEY)
    order = [
        r"\[15\] server_args=ServerArgs\(model_path='/models/k', .*mem_fraction_static=0\.779",
        r"\[15 TP0\] Init torch distributed begin\.",
        r"\[25 TP1\] Init torch distributed ends\. elapsed=[\d.]+ s, mem usage=",
        r"\[25 TP0\] Load weight begin\. avail mem=94\.00 GB",
        r"\[445 TP1\] Load weight end\. elapsed=420\.00 s, type=KimiK25ForConditionalGeneration, "
        r"dtype=torch\.bfloat16, avail mem=21\.70 GB, mem usage=72\.30 GB\.",
        r"\[450 TP0\] KV Cache is allocated\. #tokens: 13890, KV size: 0\.93 GB",
        r"\[450 TP1\] Memory pool end\. avail mem=20\.77 GB",
        r"\[450 TP0\] Capture cuda graph begin\. This can take up to several minutes\. avail mem=20\.77 GB",
        r"\[518 TP0\] Capture cuda graph end\. Time elapsed: 68\.00 s\. mem usage=2\.14 GB\. avail mem=18\.64 GB\.",
        r"\[518 TP0\] max_total_num_tokens=13890, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        r"max_running_requests=4096, context_len=\d+, available_gpu_mem=18\.64 GB",
        r"INFO:     Uvicorn running on http://127\.0\.0\.1:31000 ",
        rf"\[543\] {re.escape(READY)}",
    ]
    places = [re.search(pattern, log).start() for pattern in order]
    assert places == sorted(places)
    times = [line.at_s for line in start_story(launch_of(JOURNEY))]
    assert times == sorted(times)
    assert times[-1] == 543


def test_no_silence_is_longer_than_a_quarter_of_a_phase():
    times = [line.at_s for line in start_story(launch_of(load_scenario("generated-11")))]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 150


def test_without_graphs_there_is_no_capture_in_the_log():
    log = log_of(JOURNEY, "--disable-cuda-graph")
    assert "Capture" not in log
    assert "max_total_num_tokens=" in log
    assert READY in log


def test_ignored_options_are_warned_about():
    assert "TorchSymmMemCommunicator: Device capability 12 not supported" in log_of(JOURNEY, "--enable-torch-symm-mem")


def test_secrets_stay_out_of_the_log():
    assert "hunter2" not in log_of(JOURNEY, "--api-key hunter2")


@pytest.mark.parametrize(
    ("version", "present", "absent"),
    [
        ("0.5.6", ["Load weight end. type=", "dtype=torch.bfloat16"], ["elapsed=420"]),
        ("0.5.12", ["quant=compressed-tensors, bits=None", "Capture cuda graph begin. This"], ["dtype=torch.bf"]),
        ("0.5.15", ["KV Cache is allocated. dtype: torch.bfloat16, #tokens", "Capture target decode CUDA graph begin. "
                    "backend=full", "Capture target decode CUDA graph end. elapsed=68.00 s, mem usage=2.14 GB"], []),
        ("0.5.20", ["server_args={'model_path': '/models/k'"], ["ServerArgs("]),
    ],
)  # fmt: skip
def test_lines_of_other_versions(version_of, version, present, absent):
    log = log_of(version_of(version))
    for text in present:
        assert text in log
    for text in absent:
        assert text not in log


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("0.5.2", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"),
        ("0.5.9", "--mem-fraction-static. Current value: self.server_args.mem_fraction_static=0.779\n"),
        ("0.5.12", "--mem-fraction-static. Current value: mem_fraction_static=0.779\n"),
        (
            "0.5.15",
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.779. "
            "Raise --mem-fraction-static above 0.837 (minimum viable = 1 - available/pre = 0.827)\n",
        ),
    ],
)
def test_no_room_for_the_kv_pool(version_of, version, text):
    scenario = version_of(version, failures=[])
    log = log_of(scenario, "--moe-a2a-backend flashinfer --moe-runner-backend flashinfer_cutlass")
    assert "[445 TP0] Load weight end." in log
    assert "avail mem=16.30 GB" in log
    assert text in log
    assert "KV Cache is allocated" not in log
    assert "Received sigquit from a child process. It usually means the child failed." in log


def test_out_of_memory_in_graph_capture_is_wrapped_with_hints():
    log = log_of(JOURNEY, "--mem-fraction-static 0.985")
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate" in log
    assert "Exception: Capture cuda graph failed: CUDA out of memory." in log
    assert "1. set --mem-fraction-static to a smaller value" in log
    assert "Capture cuda graph end" not in log


def test_another_failure_of_graph_capture_is_wrapped_once():
    log = log_of(JOURNEY, environ={"NCCL_ALGO": "Tree"})
    assert log.count("Exception: Capture cuda graph failed: operation not permitted when stream is capturing") == 1
    assert "Capture cuda graph failed: Capture" not in log
    log = log_of(GLM, "--enable-piecewise-cuda-graph")
    assert "Exception: Piecewise CUDA Graph failed with error: torch._dynamo.exc.Unsupported" in log


@pytest.mark.parametrize(
    ("scenario", "flags", "phase", "code", "text"),
    [
        (JOURNEY, "--cuda-graph-max-bs x", Phase.PARSE, 2, "py: error: argument --cuda-graph-max-bs: invalid int"),
        (GLM, "--moe-a2a-backend flashinfer --moe-runner-backend triton", Phase.VALIDATE, 1,
         "AssertionError: Flashinfer MoE A2A is only supported with flashinfer_cutlass moe runner backend"),
        (JOURNEY, "--moe-a2a-backend deepep", Phase.LOAD, -9, "ImportError: DeepEP is not available"),
        (GLM, "--moe-runner-backend cutlass", Phase.LOAD, -9,
         "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"),
        (JOURNEY, "--moe-a2a-backend flashinfer --moe-runner-backend flashinfer_cutlass --mem-fraction-static 0.9",
         Phase.WARMUP, -9, "\nAssertionError\n"),
    ],
)  # fmt: skip
def test_how_launches_die(scenario, flags, phase, code, text):
    launch = launch_of(scenario, flags)
    log = text_of(start_story(launch))
    assert launch.startup.fault.phase is phase
    assert exit_code(launch.startup.fault) == code
    assert text in log
    assert READY not in log
    assert ("Scheduler hit an exception: Traceback (most recent call last):" in log) == (code == -9)
    assert ("server_args=" in log) == (code == -9)


def test_a_death_under_load():
    launch = launch_of(GLM, "--moe-a2a-backend flashinfer")
    fault = launch.level(256).fault
    log = text_of(death(launch, fault, 7.0))
    assert log.startswith("[7 TP0] Scheduler hit an exception: Traceback")
    assert "RuntimeError: [Autotuner]: tactic profiling failed; NCCL error: unhandled cuda error" in log
    assert "[7] SIGQUIT received. signum=None, frame=None. It usually means one child failed." in log


def test_every_log_says_that_it_is_simulated():
    assert banner(JOURNEY, 60.0).startswith("SIMULATED")
    assert "60 times" in banner(JOURNEY, 60.0)
    assert "virtual time" in banner(JOURNEY, None)


def test_captured_sizes_end_with_the_largest():
    assert captured_sizes(1) == [1]
    assert captured_sizes(20) == [1, 2, 4, 8, 12, 16, 20]
    assert captured_sizes(512)[-4:] == [464, 480, 496, 512]
    assert captured_sizes(0) == []


def test_lines_are_prefixed_as_sglang_does():
    assert render(Line(1.0, 3, "x"), lambda at_s: "now") == "[now TP3] x\n"
    assert render(Line(1.0, -1, "x"), lambda at_s: "now") == "[now] x\n"
    assert render(Line(1.0, None, "x"), lambda at_s: "now") == "x\n"
