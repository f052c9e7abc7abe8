"""SGLang's command line read back."""

import pytest

from servetune.simulation.command import CommandError, read_command
from servetune.simulation.scenario import load_scenario

JOURNEY = load_scenario("kimi-k2.5-int4-8x-rtx-pro-6000")
PROGRAM = ["/opt/env/bin/python3", "-m", "sglang.launch_server"]


def read(*words, environ=None, program=PROGRAM):
    return read_command([*program, *words], environ or {}, JOURNEY)


def test_flags_have_the_scenarios_types():
    command = read(
        *("--model-path", "/models/k", "--tp", "8", "--host", "0.0.0.0", "--port=31000"),
        *("--mem-fraction-static", "0.9", "--cuda-graph-max-bs", "64", "--moe-a2a-backend=deepep"),
        *(
            "--enable-mscclpp",
            "--trust-remote-code",
            "--schedule-conservativeness",
            "0.3",
            "--decode-log-interval",
            "20",
        ),
    )
    assert (command.model_path, command.tp_size, command.host, command.port) == ("/models/k", 8, "0.0.0.0", 31000)
    assert command.served_model_name == "/models/k"
    assert command.assignment == {
        "model-path": "/models/k",
        "tp-size": 8,
        "host": "0.0.0.0",
        "port": 31000,
        "mem-fraction-static": 0.9,
        "cuda-graph-max-bs": 64,
        "moe-a2a-backend": "deepep",
        "enable-mscclpp": True,
        "trust-remote-code": True,
        "schedule-conservativeness": 0.3,
        "decode-log-interval": 20,
    }


def test_the_newer_entry_point_and_several_values():
    command = read("--model", "m", "--cuda-graph-bs", "1", "2", "4", program=["sglang", "serve"])
    assert command.assignment["cuda-graph-bs"] == "1 2 4"
    assert command.model_path == "m"


def test_negative_numbers_are_values():
    assert read("--model-path", "m", "--chunked-prefill-size", "-1").assignment["chunked-prefill-size"] == -1


def test_of_the_environment_only_what_the_scenario_names():
    environ = {"NCCL_ALGO": "Tree", "HOME": "/root", "NCCL_DEBUG": "INFO"}
    assert read("--model-path", "m", environ=environ).assignment == {"model-path": "m", "env.NCCL_ALGO": "Tree"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: --model-path"),
        (["--model-path"], "argument --model-path: expected one argument"),
        (["--model-path", "m", "--cuda-graph-max-bs", "many"], "invalid int value: 'many'"),
        (["--model-path", "m", "--mem-fraction-static", "x"], "invalid float value: 'x'"),
        (["--model-path", "m", "--port", "x"], "argument --port: invalid int value: 'x'"),
        (["--model-path", "m", "--mem-fraction-static"], "argument --mem-fraction-static: expected one argument"),
        (["--model-path", "m", "--enable-mscclpp", "true"], "unrecognized arguments: true"),
    ],
)
def test_what_argparse_refuses(words, message):
    with pytest.raises(CommandError, match=message):
        read(*words)


def test_another_program_is_refused():
    with pytest.raises(CommandError, match=r"serves SGLang only.*vllm"):
        read("--model-path", "m", program=["python3", "-m", "vllm.entrypoints.openai.api_server"])
