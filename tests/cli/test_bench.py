"""`servetune bench` as a user runs it: a process, a server, its output."""

import json
import signal
import subprocess
import sys
import time

import click
import pytest
from fakes.streaming.process import exact_rate_server

from servetune.cli.bench import command, remarks
from servetune.core.benchmark import Measurement
from servetune.core.errors import SpecError


@pytest.fixture(scope="module")
def server():
    with exact_rate_server("--itl-s", 0.005, "--ttft-s", 0.02) as running:
        yield running


def bench(*arguments):
    command = [sys.executable, "-m", "servetune", "bench", *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


SHORT = ("--output-tokens", 20, "--input-tokens", 16, "--requests", 24, "--limit-s", 10)


def test_json_has_every_level_in_the_documented_shape(server):
    done = bench(server.url, "--concurrency", "2,8", *SHORT, "--json")
    told = json.loads(done.stdout)
    assert set(told) == {"levels", "client"}
    assert told["client"]["cpu_s"] > 0
    assert [level["concurrency"] for level in told["levels"]] == [2, 8]
    for level in told["levels"]:
        assert {"output_tokens_per_s", "ttft_s", "tpot_s", "itl_s", "e2e_s", "valid", "warnings"} <= set(level)
        rate = level["output_tokens_per_s"]
        assert 0 < rate["low"] <= rate["value"] <= rate["high"]
        assert set(level["ttft_s"]) == {"mean", "p50", "p90", "p95", "p99"}
    assert done.returncode == (0 if all(level["valid"] for level in told["levels"]) else 1)
    assert done.stderr == ""


def test_a_pipe_gets_one_plain_line_per_level(server):
    done = bench(server.url, "--concurrency", "2,4", *SHORT, "--api", "openai")
    lines = [line for line in done.stdout.splitlines() if not line.startswith("  ")]
    assert [line.split()[:2] for line in lines] == [["concurrency", "2"], ["concurrency", "4"]]
    assert "\x1b" not in done.stdout + done.stderr
    assert "tokens/s" in lines[0]


def test_open_loop_with_goodput(server):
    options = ("--rate", "poisson:40", "--goodput", "ttft_s=1,e2e_s=5", "--concurrency", 64, "--json")
    done = bench(server.url, *options, *SHORT)
    level = json.loads(done.stdout)["levels"][0]
    assert level["details"]["goodput_share"] == pytest.approx(1.0, abs=0.2)
    assert level["details"]["concurrency_held"] < 32


def test_a_trace_gives_the_lengths(server, tmp_path):
    trace = tmp_path / "traffic.jsonl"
    trace.write_text('{"input": 8, "output": 5}\n{"input": 16, "output": 15}\n')
    done = bench(server.url, "--concurrency", 4, *SHORT, "--trace", trace, "--json")
    level = json.loads(done.stdout)["levels"][0]
    assert level["output_tokens"] / level["requests_completed"] == pytest.approx(10, rel=0.25)


def test_lengths_between_two_bounds(server):
    done = bench(server.url, "--concurrency", 4, *SHORT, "--output-tokens", "5-15", "--input-tokens", "8-16", "--json")
    level = json.loads(done.stdout)["levels"][0]
    assert level["output_tokens"] / level["requests_completed"] == pytest.approx(10, rel=0.3)


def test_goodput_is_shown_where_limits_were_given(server):
    done = bench(server.url, "--concurrency", 2, *SHORT, "--goodput", "ttft_s=10")
    assert "goodput 100%, " in done.stdout
    assert "goodput" not in bench(server.url, "--concurrency", 2, *SHORT).stdout


def test_ctrl_c_keeps_the_levels_that_were_finished(server):
    own = server.behaving()
    options = ["--concurrency", "2,4", "--input-tokens", "16", "--output-tokens", "20", "--limit-s", "4", "--json"]
    command = [sys.executable, "-m", "servetune", "bench", own.url, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 50
        while own.counts()["flushed"] < 2 and time.monotonic() < deadline:  # once at the beginning of each level
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    told = json.loads(out)
    assert (process.returncode, err) == (130, "interrupted\n")
    assert told["interrupted"] is True
    assert [level["concurrency"] for level in told["levels"]] == [2]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_server_that_is_not_there_is_said_once_before_the_first_level(more):
    done = bench("127.0.0.1:1", "--concurrency", "2,4", *SHORT, *more)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: nothing answers at 127.0.0.1:1: Connection refused; ")


def test_what_makes_a_level_invalid_is_told_apart_and_first():
    level = Measurement.empty(4, ("a remark", "the reason")).model_copy(update={"warnings": ("a", "the reason", "b")})
    assert remarks(level) == ["not valid because: the reason", "warning: a", "warning: b"]


def test_a_server_that_refuses_each_request_is_the_reason(server):
    own = server.behaving("--refuse-after", 0)
    done = bench(own.url, "--concurrency", 2, *SHORT, "--json")
    level = json.loads(done.stdout)["levels"][0]
    assert not level["valid"]
    assert set(level["invalid_because"]) <= set(level["warnings"])
    assert any("requests failed" in text for text in level["invalid_because"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ftp://host",), "'ftp://host'; expected http://host:port"),
        (("foo", "--concurrency", "1"), "'foo'; expected http://host:port"),
        (("127.0.0.1:1", "--concurrency", "1,x"), "'1,x': write numbers from 1 on"),
        (("127.0.0.1:1", "--input-tokens", "64-"), "'64-': write a number of tokens from 1 on"),
        (("127.0.0.1:1", "--output-tokens", "64-32"), "'64-32': write a number of tokens from 1 on"),
        (("127.0.0.1:1", "--output-tokens", "0"), "'0': write a number of tokens from 1 on"),
        (("127.0.0.1:1", "--input-tokens", "8-9", "--trace", "x"), "either 'uniform' or 'trace'"),
        (("127.0.0.1:1", "--rate", "steady:3"), "'steady:3'; write poisson:20"),
        (("127.0.0.1:1", "--rate", "trace"), "add --trace FILE"),
        (("127.0.0.1:1", "--trace", "/no/such/file"), "/no/such/file cannot be read"),
        (("127.0.0.1:1", "--header", "nonsense"), "write it as 'Name: value'"),
        (("127.0.0.1:1", "--goodput", "ttft_s"), "write limits such as"),
        (("127.0.0.1:1", "--goodput", "x=1"), "--goodput is 'x=1': x is no limit; allowed: ttft_s, tpot_s, e2e_s"),
        (("127.0.0.1:1", "--goodput", "ttft_s=-1"), "ttft_s must be above 0"),
    ],
)
def test_bad_input_is_one_clear_error(arguments, words):
    with pytest.raises((SpecError, click.UsageError)) as raised:
        command.main(list(arguments), standalone_mode=False)
    assert words in str(raised.value)
