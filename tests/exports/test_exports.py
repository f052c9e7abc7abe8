"""The exported command is the measured one, byte for byte."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servetune.core.node import EnvRef, LaunchSpec
from servetune.exports import json as json_export
from servetune.exports import shell

text = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1, max_size=30)
name = st.from_regex(r"\A[A-Z_][A-Z0-9_]{0,8}\Z")
launches = st.builds(
    LaunchSpec,
    argv=st.lists(text, min_size=1, max_size=8).map(tuple),
    env=st.dictionaries(name, text, max_size=3),
    port=st.just(30000),
)


def without_carriage_returns(launch: LaunchSpec) -> bool:
    return not any("\r" in str(word) for word in (*launch.argv, *launch.env.values()))


@given(launch=launches.filter(without_carriage_returns), header=st.lists(text, max_size=3))
@settings(max_examples=300, deadline=None)
def test_splitting_the_script_gives_the_argv_and_the_environment(launch, header):
    words = shlex.split(shell.render(launch, header), comments=True)
    assert words[-len(launch.argv) :] == list(launch.argv)
    assert words[-len(launch.argv) - 1] == "exec"
    found = dict(word.split("=", 1) for word in words[: -len(launch.argv) - 1] if "=" in word)
    assert found == dict(launch.env)


@given(launch=launches)
@settings(max_examples=100, deadline=None)
def test_the_json_export_is_the_spec(launch):
    document = json.loads(json_export.render(launch, ["from a test"]))
    assert document["argv"] == list(launch.argv)
    assert document["env"] == dict(launch.env)


@pytest.mark.parametrize(
    "odd", ["it's", "a b", "$HOME `id` \\", "line\nbreak", "-n", "ünïcode ☃", '"', "*", "#no comment"]
)
def test_running_the_script_passes_every_byte(odd, tmp_path: Path):
    show = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['ODD']]))"
    launch = LaunchSpec(argv=(sys.executable, "-c", show, odd, "--flag", odd), env={"ODD": odd}, port=1)
    script = tmp_path / "launch.sh"
    script.write_text(shell.render(launch, ["header\nwith 'quotes'"]))
    done = subprocess.run(["bash", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[odd, "--flag", odd], odd]


def test_a_secret_is_a_reference_that_must_be_set(tmp_path: Path):
    show = "import os, sys; print(sys.argv[1], os.environ['HF_TOKEN'])"
    launch = LaunchSpec(
        argv=(sys.executable, "-c", show, EnvRef(from_env="MY_KEY")), env={"HF_TOKEN": EnvRef(from_env="HF")}, port=1
    )
    script = tmp_path / "launch.sh"
    script.write_text(shell.render(launch, []))
    environ = {**os.environ, "MY_KEY": "s3 cret", "HF": "t'oken"}
    done = subprocess.run(["bash", script], capture_output=True, text=True, env=environ, check=True)
    assert done.stdout == "s3 cret t'oken\n"
    missing = subprocess.run(
        ["bash", script], capture_output=True, text=True, env={"PATH": os.environ["PATH"]}, check=False
    )
    assert missing.returncode != 0
    assert "set HF first" in missing.stderr
