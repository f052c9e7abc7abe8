"""The doctor from the command line: a node that is not ready stops a start, a named row is overridden."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import engine_package
import pytest
from click.testing import CliRunner
from nodes.sshd import Sshd, needs_sshd
from rich.console import Console

from servetune.cli import cli
from servetune.cli._examination import purpose_of, show
from servetune.core.doctor import Finding
from servetune.core.errors import UsageError
from servetune.settings import load_study
from servetune.storage import StudyStore

REHEARSAL = {"scenario": "kimi-k2.5-int4-8x-rtx-pro-6000", "time_scale": 2000}
STUDY = {
    "engine": {"name": "sglang", "model": "/models/kimi-k2.5-int4", "version": "0.5.9"},
    "load_generator": {"name": "scenario", "hold_s": 0.05},
    "fixed": {"tp-size": 8},
    "search_space": {"parameters": {"chunked-prefill-size": [2048, 4096]}},
    "workload": {"concurrency": [1]},
    "timeouts": {"ready_s": 200_000, "stall_s": 200_000, "level_s": 200_000},
    "budget": {"trials": 1},
    "confirm": {"launches": 0},
}


def write(folder: Path, name: str, **changes: object) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps({"study": name, **STUDY, **changes}))
    return file


@pytest.fixture
def full_disk(tmp_path):
    """A node whose disk for logs is as good as full, says its `df`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "df").write_text("#!/bin/sh\necho '/dev/x 1000000000 990000000 10000000 99% /'\n")
    (programs / "df").chmod(0o755)
    sshd = Sshd(tmp_path / "sshd")
    sshd.environment["PATH"] = f"{programs}:{sshd.environment['PATH']}"
    sshd.start()
    yield sshd
    sshd.stop()


@pytest.fixture
def line(tmp_path, monkeypatch):
    """The command line in this process, a second quicker: what it printed, and the error that it ended with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")

    def invoke(*words):
        done = CliRunner().invoke(cli, list(map(str, words)))
        return done.output, done.exception

    return invoke


@needs_sshd
@pytest.mark.sshd
def test_a_node_that_is_not_ready_stops_the_start_unless_its_row_is_named(line, servetune, full_disk, tmp_path):
    node = {"name": "ssh", **full_disk.settings(rehearse=REHEARSAL, python=sys.executable)}
    file = write(tmp_path, "mine", node=node)
    refused = servetune("start", file, status=1)
    assert "name another node.workdir" in " ".join(refused.stdout.split())
    words = shlex.split(refused.stderr.partition("the node is not ready: disk")[2].partition("Start all the same: ")[2])
    assert words == ["--force", "disk"]
    with StudyStore.open(f"sqlite:///{tmp_path}/studies/studies.db") as store:
        assert not store.studies(), "nothing is half written"
    _, error = line("start", file, "--force", "dsik")
    assert isinstance(error, UsageError)
    assert "'dsik' is no row of the doctor; rows: clock, " in str(error)
    _, error = line("start", file, "--force", "clock")
    assert "the node is not ready: disk" in str(error)
    out, error = line("start", file, *words)
    assert error is None
    assert "'mine' is finished" in out


def without_gpus(folder: Path) -> str:
    """A PATH on which the driver sees no GPU, whatever machine this is."""
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    (folder / "nvidia-smi").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_this_machine_without_the_gpus_that_the_study_needs(line, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", without_gpus(tmp_path))
    engine = {"name": "sglang", "model": str(tmp_path), "python": engine_package.python(tmp_path), "version": "0.5.9"}
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_moe"}')
    local = {"node": {"name": "local"}, "engine": engine, "load_generator": {"name": "closed_loop"}}
    file = write(tmp_path, "here", **local)
    out, error = line("start", file)
    assert "the study needs 8" in out
    assert str(error).startswith("the node is not ready: gpus")
    rows = {row["row"]: row for row in json.loads(line("doctor", file, "--json")[0])}
    assert [name for name, row in rows.items() if row["state"] == "error"] == ["gpus"]
    assert {"engine", "/dev/shm", "disk", "model", "ports", "load generator"} <= rows.keys()


def test_a_simulated_node_is_not_examined_and_needs_nothing(line, tmp_path):
    file = write(tmp_path, "simulated", node={"name": "simulated", **REHEARSAL})
    assert "nodes of name ssh and local" in str(line("doctor", file)[1])
    assert "a node of name simulated has no doctor" in str(line("start", file, "--force", "gpus")[1])
    assert line("start", file)[1] is None


@pytest.mark.parametrize(
    ("fixed", "baseline", "needed"),
    [
        ({}, {}, 1),
        ({"tp-size": 8}, {}, 8),
        ({"tp-size": 4}, {"pp-size": 2}, 8),
        ({}, {"tp-size": 2, "dp-size": 2}, 4),
        ({"enable-dp-attention": True}, {"tp-size": 2, "dp-size": 2}, 2),
        ({"device": "cpu"}, {"tp-size": 2}, 0),
    ],
)
def test_how_many_gpus_a_study_needs(tmp_path, fixed, baseline, needed):
    file = write(tmp_path, "counted", fixed=fixed, baseline=baseline)
    assert purpose_of(load_study(file)).gpus_needed == needed


def test_commands_of_remedies_are_on_lines_of_their_own_whole(capsys):
    """What a column of the table has broken cannot be typed."""
    command = f"echo '[10.0.0.1]:2222 ssh-ed25519 {'A' * 68}' >> /home/somebody/.ssh/known_hosts"
    remedy = f"compare it; accept it with: `{command}`, or write `gpus: [1, 2]` under node: (not `~`)"
    finding = Finding(row="connection", state="error", found="host key refused", remedy=remedy)
    show([finding, finding.model_copy(update={"row": "again"})], Console(width=60))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines.count(command) == 1
    assert lines[-1] == command
