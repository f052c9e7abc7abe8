from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servetune.nodes import _redact
from servetune.nodes._redact import Redactor, forms

PROGRAM = [sys.executable, "-I", "-S", str(Path(_redact.__file__))]


def redacted(secrets, chunks):
    redactor = Redactor(secrets)
    return b"".join([*(redactor.feed(chunk) for chunk in chunks), redactor.finish()])


def test_every_way_of_writing_a_secret():
    value = "p&ss wörd'/\"\\+="
    written = [value, urllib.parse.quote(value), urllib.parse.quote_plus(value), repr(value), json.dumps(value)]
    for text in written:
        shown = redacted({"TOKEN": value}, [f"key={text} end".encode()])
        assert b"<TOKEN>" in shown
        assert b"ss w" not in shown
        assert shown.endswith(b" end")


def test_the_longer_of_two_secrets_that_start_alike():
    secrets = {"A": "abc", "B": "abcdef"}
    assert redacted(secrets, [b"abcdef abc abcde"]) == b"<B> <A> <A>de"
    assert redacted(secrets, [b"abc", b"def abc"]) == b"<B> <A>"


def test_complete_lines_are_not_held_back():
    redactor = Redactor({"TOKEN": "sesame"})
    assert redactor.feed(b"all is well\n") == b"all is well\n"
    assert redactor.feed(b"all is ses") == b"all is "
    assert redactor.feed(b"t\n") == b"sest\n"


@given(
    secrets=st.dictionaries(st.sampled_from("ABC"), st.text("ab", min_size=1, max_size=6), min_size=1),
    text=st.text("ab \n", max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
@example(secrets={"A": "aab", "B": "ba"}, text="aaba", cuts=[1, 2, 3])
def test_the_cuts_make_no_difference(secrets, text, cuts):
    data = text.encode()
    edges = [0, *sorted(cuts), len(data)]
    chunks = [data[start:end] for start, end in itertools.pairwise(edges)]
    assert redacted(secrets, chunks) == redacted(secrets, [data])


@given(
    value=st.text(min_size=4, max_size=40).filter(lambda text: not text.startswith("<")), before=st.binary(max_size=20)
)
def test_no_form_of_a_secret_is_left(value, before):
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return
    for form in forms(value):
        shown = redacted({"N": value}, [before, form[:2], form[2:]])
        assert shown.endswith(b">") or form not in shown


def run_filter(data, output, **more):
    with subprocess.Popen(
        [*PROGRAM, "TOKEN"], stdin=subprocess.PIPE, stdout=output, env={"TOKEN": "sesame"}, **more
    ) as child:
        text, _ = child.communicate(data, timeout=60)
    return child.returncode, text


def test_the_program():
    assert run_filter(b"open sesame\n" * 100_000, subprocess.PIPE) == (0, b"open <TOKEN>\n" * 100_000)


def test_a_full_disk_does_not_block_the_server():
    with open("/dev/full", "wb") as full:
        assert run_filter(b"x" * 5_000_000, full)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ends_with_its_input_and_not_before(number):
    with subprocess.Popen(
        [*PROGRAM, "TOKEN"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"TOKEN": "sesame"}, bufsize=0
    ) as child:
        child.stdin.write(b"one\n")
        assert child.stdout.readline() == b"one\n"
        child.send_signal(number)
        child.stdin.write(b"two sesame\n")
        assert child.stdout.readline() == b"two <TOKEN>\n"
        child.stdin.close()
        assert child.wait(10) == 0
