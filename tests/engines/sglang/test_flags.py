"""Assignment → command line → assignment."""

import shlex

import pytest
from engines.sglang.commands import RELEASES, assignments
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.core.node import EnvRef
from servetune.core.space import same_value
from servetune.engines.sglang.capabilities import capabilities_of, violations
from servetune.engines.sglang.flags import launch_spec, parse_argv

HEAD = ("python3", "-m", "sglang.launch_server", "--model-path", "/m", "--host", "127.0.0.1", "--port", "30001")


def launched(assignment, secrets=None, env=None, version="0.5.9"):
    capabilities = capabilities_of(version) if version else None
    return launch_spec(assignment, secrets or {}, env or {}, "python3", "/m", 30001, capabilities)


def words(assignment, **more):
    argv = launched(assignment, **more).argv
    assert argv[: len(HEAD)] == HEAD
    return list(argv[len(HEAD) :])


def test_flags_stand_in_the_order_of_their_names():
    flags = {"tp-size": 8, "enable-mscclpp": True, "mem-fraction-static": 0.9, "disable-cuda-graph": False}
    wanted = ["--enable-mscclpp", "--mem-fraction-static", "0.9", "--tp-size", "8"]
    assert words(flags) == wanted
    assert words(dict(reversed(flags.items()))) == wanted


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({"cuda-graph-bs": "1 2  4"}, ["--cuda-graph-bs", "1", "2", "4"]),
        ({"chunked-prefill-size": -1}, ["--chunked-prefill-size", "-1"]),
        ({"chunked-prefill-size": 8192.0}, ["--chunked-prefill-size", "8192"]),
        ({"served-model-name": "-x y"}, ["--served-model-name=-x y"]),
        ({"json-model-override-args": '{"a": 1}'}, ["--json-model-override-args", '{"a": 1}']),
        ({"schedule-conservativeness": 1e-05}, ["--schedule-conservativeness", "1e-05"]),
        ({"no-such-flag": "x", "nor-this": True}, ["--no-such-flag", "x", "--nor-this"]),
    ],
)
def test_values_as_words(flags, wanted):
    assert words(flags) == wanted


def test_a_switch_with_a_twin_is_written_either_way():
    assert words({"pre-warm-nccl": True}, version="0.5.23") == ["--pre-warm-nccl"]
    assert words({"enable-tf32-matmul": True}, version=None) == ["--enable-tf32-matmul"]
    twin = next(flag for flag in capabilities_of("0.5.23").flags.values() if flag.kind == "on_off")
    assert words({twin.name: False}, version="0.5.23") == [f"--no-{twin.name}"]


def test_variables_go_to_the_environment():
    spec = launched({"env.NCCL_ALGO": "Tree", "env.SWITCH": True, "env.OFF": False, "env.N": 3}, env={"A": "b"})
    assert spec.argv == HEAD
    assert spec.env == {"A": "b", "N": "3", "NCCL_ALGO": "Tree", "OFF": "0", "SWITCH": "1"}
    assert launched({"env.A": "c"}, env={"A": "b"}).env == {"A": "c"}


def test_secrets_stay_references():
    secret = EnvRef(from_env="MY_KEY")
    spec = launched({"tp-size": 8}, secrets={"api-key": secret, "env.TOKEN_FILE": secret})
    assert spec.argv[len(HEAD) :] == ("--api-key", secret, "--tp-size", "8")
    assert spec.env == {"TOKEN_FILE": secret}
    assert spec.secrets() == {"MY_KEY"}
    assert '--api-key "${MY_KEY}" --tp-size 8' in spec.shown()


@given(st.sampled_from(RELEASES).flatmap(lambda version: st.tuples(st.just(version), assignments(version))))
@settings(max_examples=100, deadline=None)
def test_what_is_launched_is_read_back_as_the_same(drawn):
    version, assignment = drawn
    capabilities = capabilities_of(version)
    spec = launched(assignment, version=version)
    line = spec.shown()
    found, problems = parse_argv(shlex.split(line), capabilities)
    assert problems == []
    for name, value in [("model-path", "/m"), ("host", "127.0.0.1"), ("port", 30001)]:
        assert found.pop(name) == value
    on_off = {flag.name for flag in capabilities.flags.values() if flag.kind == "on_off"}
    wanted = {name: value for name, value in assignment.items() if value is not False or name in on_off}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert same_value(found[name], value), name
    assert launched(found, version=version).argv == spec.argv
    assert violations(found, capabilities) == []


def parsed(line, version="0.5.9"):
    return parse_argv(shlex.split(line), capabilities_of(version))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("--tp-size 8", {"tp-size": 8}),
        ("--tp-size=8", {"tp-size": 8}),
        ("--tp 8", {"tp-size": 8}),
        ("--tensor-parallel-size 8", {"tp-size": 8}),
        ("--ep 8", {"ep-size": 8}),
        ("--tp-size 4 --tp-size 8", {"tp-size": 8}),
        ("--mem-fraction-static 1", {"mem-fraction-static": 1.0}),
        ("--chunked-prefill-size -1", {"chunked-prefill-size": -1}),
        ("--trust-remote-code --tp-size 8", {"trust-remote-code": True, "tp-size": 8}),
        ("--cuda-graph-bs 1 2 4 --tp-size 8", {"cuda-graph-bs": "1 2 4", "tp-size": 8}),
        ("--tp-size eight", {"tp-size": "eight"}),
        ("--served-model-name=", {"served-model-name": ""}),
        ("NCCL_ALGO=Tree python3 -m sglang.launch_server --tp-size 8", {"env.NCCL_ALGO": "Tree", "tp-size": 8}),
        ("/opt/v/bin/sglang serve --model-path /m", {"model-path": "/m"}),
        ("", {}),
        ("--no-such-flag x --tp-size 8", {"no-such-flag": "x", "tp-size": 8}),
        ("--no-such-switch --tp-size 8", {"no-such-switch": True, "tp-size": 8}),
    ],
)
def test_reading_a_command(line, wanted):
    found, problems = parsed(line)
    assert found == wanted
    assert problems == []
    assert list(map(type, found.values())) == list(map(type, wanted.values()))


@pytest.mark.parametrize(
    ("line", "rule", "flag"),
    [
        ("--trust-remote-code yes", "stray-word", "yes"),
        ("8", "stray-word", "8"),
        ("-x", "stray-word", "-x"),
        ("--enable 1", "ambiguous-flag", "enable"),
    ],
)
def test_what_cannot_be_read(line, rule, flag):
    _, problems = parsed(line)
    assert [(problem.rule, problem.flags) for problem in problems] == [(rule, (flag,))]


@pytest.mark.parametrize(
    ("line", "version", "rules"),
    [
        ("--tp-size", "0.5.9", ["wrong-type"]),
        ("--trust-remote-code=yes", "0.5.9", ["wrong-type"]),
        ("--cuda-graph-max-bs 128", "0.5.23", ["unknown-flag"]),
        ("--moe-a2a-backend flashinfer", "0.5.6", ["unknown-choice"]),
    ],
)
def test_what_is_read_is_judged_as_written(line, version, rules):
    found, problems = parsed(line, version)
    judged = [*problems, *violations(found, capabilities_of(version))]
    assert [violation.rule for violation in judged] == rules


def test_a_flag_of_another_release_is_named_with_its_translation():
    """argparse of 0.5.20 and later calls it ambiguous: it could mean the decode or the prefill flag."""
    found, problems = parsed("--cuda-graph-max-bs 128", "0.5.23")
    assert (found, problems) == ({"cuda-graph-max-bs": "128"}, [])
    (violation,) = violations(found, capabilities_of("0.5.23"))
    assert violation.alternatives == ("--cuda-graph-max-bs-decode 128",)
