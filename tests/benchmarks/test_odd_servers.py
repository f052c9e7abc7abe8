"""Servers with odd manners, and servers that are none: each is counted exactly or refused with one clear reason."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes.streaming.odd_server import RIGHT

from servetune.benchmarks import closed_loop
from servetune.benchmarks._api import parse_target
from servetune.core.benchmark import Level, Workload
from servetune.core.clock import WallClock
from servetune.core.errors import SpecError

PROGRAM = Path(__file__).parents[1] / "fakes" / "streaming" / "odd_server.py"
KEY = "open-sesame"


@contextmanager
def odd_server(*options):
    command = [sys.executable, str(PROGRAM), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def base_url():
    with odd_server() as port:
        yield f"http://127.0.0.1:{port}"


def run(url, api="sglang", headers=None, limit_s=20.0):
    workload = Workload(input_tokens=16, output_tokens=20, requests_per_level=6, warmup=2, api=api)
    level = Level(concurrency=2, workload=workload, limit_s=limit_s)
    begin = time.monotonic()
    generator = closed_loop.create(closed_loop.Settings())
    found = generator.run(url, level, WallClock(), lambda progress: True, headers or {})
    assert time.monotonic() - begin < 30, "hung"
    assert found is not None
    return found


@pytest.mark.parametrize("api", ["sglang", "openai"])
@pytest.mark.parametrize("manner", RIGHT)
def test_odd_manners_are_counted_exactly(base_url, manner, api):
    found = run(f"{base_url}/{manner}", api)
    # an answer of which one token was missed or counted twice would have failed
    assert found.requests_failed == 0, found.warnings
    assert not [warning for warning in found.warnings if "failed" in warning]
    assert found.requests_completed >= 5
    assert found.details["tokens_in_all"] >= 20 * found.requests_completed


NO_MODEL = [
    ("404", 'HTTP 404 for /404/generate: {"detail":"Not Found"}'),
    ("html", "the answer is no event stream but text/html: <html><body>It works!"),
    ("redirect", "HTTP 307: redirects are not followed; give the address that it names: http://127.0.0.1:9/elsewhere"),
    ("greeting", "the answer begins with b'SSH-2.0-OpenSSH_9.6"),
    ("hangup", "connection closed before the end of the answer"),
    ("half-head", "connection closed before the end of the answer"),
    ("endless-head", "answer headers of more than 65536 bytes"),
    ("429", 'HTTP 429, Retry-After 7: {"error":"slow down"}'),
    ("500", 'HTTP 500: {"error":"CUDA error"}'),
    ("json", "the answer is no event stream but application/json"),
    ("json-error", 'application/json: {"error":{"message":"no such model"}}'),
    ("empty", "an answer without a token"),
    ("not-utf8", "malformed answer: an event is not JSON"),
    ("cut-done", "10 of 20 tokens, finish reason none"),
    ("secret", 'HTTP 401: {"error":"no key"}'),
]


@pytest.mark.parametrize(("manner", "reason"), NO_MODEL)
def test_what_cannot_be_measured_says_why(base_url, manner, reason):
    found = run(f"{base_url}/{manner}", limit_s=1.0)
    assert (found.valid, found.requests_completed) == (False, 0)
    assert any(reason in warning for warning in found.warnings), found.warnings


def test_answers_without_any_count_are_refused_unless_each_event_is_a_token(base_url):
    found = run(f"{base_url}/untold", "openai", limit_s=1.0)
    assert not found.valid
    assert "1 events with text for 20 tokens, and the server does not count its tokens (usage)" in str(found.warnings)


def test_a_silent_server_costs_the_limit_and_says_so(base_url):
    found = run(f"{base_url}/silent", limit_s=1.0)
    assert not found.valid
    assert any(warning.startswith("2 requests had not been answered after ") for warning in found.warnings)


def test_a_key_is_sent_and_never_shown(base_url):
    assert run(f"{base_url}/secret", headers={"Authorization": f"Bearer {KEY}"}).requests_failed == 0
    told = parse_target(base_url, {"Authorization": f"Bearer {KEY}"}).hide(f"wrong key {KEY} in 'Bearer {KEY}'")
    assert told == "wrong key … in '…'"


def test_the_key_of_the_command_line_comes_out_of_the_environment(base_url):
    options = ["--concurrency", "1", "--requests", "3", "--output-tokens", "20", "--key-env", "THE_KEY"]
    command = [sys.executable, "-m", "servetune", "bench", f"{base_url}/secret", *options]
    for key, failed in ((KEY, False), ("wrong-key", True)):
        environment = {**os.environ, "THE_KEY": key}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
        assert ("failed" in done.stdout) is failed, done.stdout
        assert key not in done.stdout + done.stderr
    environment.pop("THE_KEY")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--key-env names THE_KEY, which is not set" in done.stderr


def test_the_v1_of_openai_clients_is_the_apis_own(base_url):
    assert run(f"{base_url}/plain/v1", "openai").requests_failed == 0
    assert parse_target("http://host:8000/v1/", {}).prefix == ""


def test_ipv6():
    with odd_server("--host", "::1") as port:
        assert run(f"http://[::1]:{port}/plain").requests_failed == 0


def test_a_certificate_that_is_not_trusted_is_refused(tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-days", "2", "-nodes", "-newkey", "rsa:2048"]
    command = ["openssl", "req", "-x509", *subject, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    with odd_server("--tls", str(certificate), str(key)) as port:
        found = run(f"https://127.0.0.1:{port}/plain", limit_s=1.0)
    assert "certificate verify failed" in str(found.warnings)


@pytest.mark.parametrize(
    ("url", "headers", "words"),
    [
        ("http://127.0.0.1:99999", {}, "'http://127.0.0.1:99999': Port out of range"),
        ("http://host:port", {}, "'http://host:port': Port could not be cast"),
        ("http://name:word@127.0.0.1", {}, "holds a name or password"),
        ("http://127.0.0.1/?model=a", {}, "expected http://host:port"),
        ("http://[::1", {}, "'http://[::1': "),
        ("http://host/v1/completions", {}, "leave out /v1/completions, which --api chooses"),
        ("http://host/a/generate/", {}, "leave out /generate, which --api chooses"),
        ("http://host/v1/chat/completions", {}, "chat completions are not measured: prompts are token ids"),
        ("http://127.0.0.1", {"X-Name": "ü"}, "'X-Name' has a character"),
        ("http://127.0.0.1", {"X-Name": "a\r\nX-Other: b"}, "'X-Name' has a character"),
    ],
)
def test_addresses_and_headers_that_cannot_be(url, headers, words):
    with pytest.raises(SpecError) as raised:
        parse_target(url, headers)
    assert words in str(raised.value)
    assert "word@" not in str(raised.value)
