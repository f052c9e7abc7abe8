"""Remedies of the doctor and of refusals, followed word by word: what stands in backquotes is run, and all is well."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from nodes.sshd import Sshd, keygen, needs_sshd, public, running

from servetune.core.doctor import Finding, Purpose
from servetune.core.errors import HostKeyError
from servetune.nodes import ssh

pytestmark = [needs_sshd, pytest.mark.sshd]

TESTS = Path(__file__).parents[1]
DEBIAN_PYTHON = Path("/usr/bin/python3")


@pytest.fixture
def sshd(tmp_path):
    """A node whose GPUs, packages and clock a test may spoil."""
    server = Sshd(tmp_path / "sshd")
    server.put_gpus()
    programs = server.folder / "programs"
    server.environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels(tmp_path)), "PROGRAMS": str(programs)}
    server.start()
    yield server
    server.stop()


def wheels(folder: Path) -> Path:
    """A package index that has one small engine."""
    place = folder / "wheels"
    place.mkdir()
    with zipfile.ZipFile(place / "small_engine-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("small_engine/__init__.py", "")
        info = "small_engine-1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: small-engine\nVersion: 1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return place


@pytest.fixture
def row(sshd, tmp_path):
    nodes = []

    def asked(name, gpus_needed=2, **settings) -> Finding:
        engine = {"engine_python": sys.executable, "engine_package": "small-engine"}
        node = ssh.create(ssh.Settings(**sshd.settings(**{**engine, **settings})), tmp_path)
        nodes.append(node)
        purpose = Purpose(study="mine", model="/nowhere", gpus_needed=gpus_needed, thorough=False)
        return next(finding for finding in node.examine(purpose) if finding.row == name)

    yield asked
    for node in nodes:
        node.close()


def follow(sshd: Sshd, remedy: str, commands: int = 1) -> None:
    """Type the first commands of a remedy into a shell on the node."""
    found = re.findall("`(.+?)`", remedy)[:commands]
    assert len(found) == commands, remedy
    for command in found:
        done = subprocess.run(
            ["bash", "-c", command], env=sshd.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)


def test_a_package_for_an_environment_without_pip(row, tmp_path):
    """As `uv venv` makes them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "my env"], check=True)
    python = str(tmp_path / "my env" / "bin" / "python")
    found = row("engine", engine_python=python)
    assert found.state == "error"
    install = f"'{python}' -m ensurepip && '{python}' -m pip install small-engine"
    if shutil.which("uv"):
        install = f"{shutil.which('uv')} pip install --python '{python}' small-engine"
    assert found.remedy == f"`{install}` on the node, or name another engine.python"


@pytest.mark.skipif(not DEBIAN_PYTHON.exists(), reason="needs a Python that belongs to the system")
def test_a_package_for_the_systems_own_python(sshd, row):
    """It takes nothing by pip; the remedy names an environment that does."""
    found = row("engine", engine_python=str(DEBIAN_PYTHON))
    assert found.state == "error"
    follow(sshd, found.remedy)
    python = re.search(r"name (\S+) as engine\.python", found.remedy).group(1)
    assert python == str(sshd.home / "servetune-env" / "bin" / "python")
    assert row("engine", engine_python=python).state == "ok"


def test_an_environment_that_is_activated(sshd, row, tmp_path):
    """The remedy is for a shell that has not activated it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    found = row("engine", engine_python="python", activate=f"source {tmp_path}/env/bin/activate")
    assert str(tmp_path / "env" / "bin" / "python") in found.remedy


@pytest.mark.parametrize("rehearse", [None, {"scenario": "kimi-k2.5-int4-8x-rtx-pro-6000"}])
def test_packages_of_the_load_generator_and_the_simulated_server_are_named(row, tmp_path, rehearse):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = str(tmp_path / "env" / "bin" / "python")
    found = row("engine" if rehearse else "load generator", python=python, rehearse=rehearse)
    assert found.state == ("error" if rehearse else "warning")
    assert "No module named" in found.found
    words = "numpy pydantic httpx uvloop" + (" PyYAML httptools" if rehearse else "")
    assert f"{python} -m pip install {words}`" in found.remedy
    assert "node.python" in found.remedy
    assert row("engine" if rehearse else "load generator", python=sys.executable, rehearse=rehearse).state != "warning"


def test_a_python_that_is_too_old_is_not_told_to_install_packages(row, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'servetune needs Python 3.11 or newer on the node, found 3.8.10' >&2; exit 1\n")
    python.chmod(0o755)
    found = row("load generator", python=str(python))
    assert found.remedy.startswith("name a Python 3.11 or newer with numpy, pydantic, httpx, uvloop as node.python")


def test_a_work_directory_that_cannot_be_written_is_not_blamed_on_python(row, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for name, rehearse in (("engine", {"scenario": "kimi-k2.5-int4-8x-rtx-pro-6000"}), ("load generator", None)):
        found = row(name, workdir=str(tmp_path / "file" / "x"), rehearse=rehearse, python=sys.executable)
        assert "cannot be written on the node" in found.found
        assert "name another node.workdir" in found.remedy
        assert "pip" not in found.remedy


def test_a_clock(sshd, row):
    programs = sshd.folder / "programs"
    texts = {
        "date": "/bin/date -d '-1 hour' \"$@\"",
        "timedatectl": '[ "$*" = "set-ntp true" ] && rm "$PROGRAMS/date"',
    }
    for name, text in texts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    found = row("clock")
    assert (found.state, "-3600 s off" in found.found) == ("warning", True)
    follow(sshd, found.remedy)
    assert row("clock").state == "ok"


def test_a_date_that_knows_no_fractions(sshd, row):
    """As that of busybox: the row says so, and nothing ends."""
    (sshd.folder / "programs" / "date").write_text("#!/bin/sh\necho 1764477133.%N\n")
    (sshd.folder / "programs" / "date").chmod(0o755)
    assert (row("clock").state, "%N" in row("clock").found) == ("warning", True)


def test_memory_that_nobody_holds(sshd, row):
    query = sshd.answers / "query"
    query.write_text(query.read_text().replace("143771, 0,", "143771, 90000,"))
    found = row("gpu users")
    assert found.state == "error"
    assert "gpus: [" not in found.remedy, "there are no others"
    follow(sshd, found.remedy.partition("the driver does")[2])
    assert row("gpu users").state == "ok"


def test_a_process_on_a_gpu(sshd, row):
    with subprocess.Popen(["sleep", "600"]) as somebody:
        line = (TESTS / "recordings" / "nvidia-smi" / "h200-x2.apps.txt").read_text()
        (sshd.answers / "apps").write_text(line.replace("570", str(somebody.pid)))
        (sshd.answers / "live").touch()
        found = row("gpu users", gpus_needed=1)
        assert found.state == "error"
        others = re.search(r"`gpus: \[(\d)\]` under node:", found.remedy).group(1)
        assert row("gpu users", gpus_needed=1, gpus=[int(others)]).state == "ok"
        assert "gpus: [" not in row("gpu users", gpus_needed=2).remedy, "two are needed"
        follow(sshd, found.remedy)
        assert somebody.wait(10) < 0
        assert row("gpu users", gpus_needed=1).state == "ok"


def test_a_lease_directory_on_a_read_only_disk(sshd, row, tmp_path):
    """`start` would end with the same words."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], check=False).returncode != 0:
        pytest.skip("may not mount a tmpfs")
    try:
        assert row("lease", lease_dir=str(disk / "leases")).state == "ok"
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        found = row("lease", lease_dir=str(disk / "leases"))
        assert found.state == "error"
        assert "no lease can be written" in found.found
        assert "node.lease_dir" in found.remedy
    finally:
        subprocess.run(["umount", disk], check=True)
    assert row("lease", lease_dir=str(tmp_path / "another")).state == "ok"


def told(sshd: Sshd, **settings) -> str:
    """How the host key is refused; empty when it is not."""
    node = ssh.create(ssh.Settings(**{**sshd.settings(), **settings}), Path.cwd())
    try:
        node.facts()
    except HostKeyError as error:
        return str(error)
    finally:
        node.close()
    return ""


def accept(refusal: str) -> None:
    subprocess.run(["sh", "-c", re.search("accept it with: `(.*)`$", refusal).group(1)], check=True)


@pytest.mark.parametrize("file", ["in no folder yet", "without a line break at its end", "thrown away"])
def test_the_command_that_accepts_a_host_key(tmp_path, monkeypatch, file):
    """Whatever known_hosts is like: what was in it before stays, and the key is known afterwards."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with running(tmp_path / "sshd") as sshd:
        known, settings = tmp_path / ".ssh" / "known_hosts", {"known_hosts": None}
        if file == "without a line break at its end":
            known.parent.mkdir()
            known.write_text(f"elsewhere {public(sshd.host_key)}\n# the end")
        if file == "thrown away":
            (tmp_path / "config").write_text("Host *\n UserKnownHostsFile /dev/null\n")
            settings["config"] = str(tmp_path / "config")
        accept(told(sshd, **settings))
        assert told(sshd, **settings) == ""
        assert "/dev/null" not in sshd.settings()["known_hosts"]
        if file == "without a line break at its end":
            assert known.read_text().splitlines()[:2] == [f"elsewhere {public(sshd.host_key)}", "# the end"]


@pytest.mark.parametrize("line", ["{place}", "[127.0.0.?]:*", "gpu-node-1,{place},10.0.0.1", "hashed", "@revoked"])
def test_a_changed_and_a_revoked_host_key_are_removed_and_the_new_one_accepted(tmp_path, line):
    """The command of the refusal, then the one of the next refusal."""
    with running(tmp_path / "sshd") as sshd:
        place = f"[127.0.0.1]:{sshd.port}"
        old = public(keygen(tmp_path / "old"))
        if line == "@revoked":
            old = public(sshd.host_key)
            sshd.known_hosts.write_text(f"{place} {old}\n@revoked {place} {old}\n")
            assert "REVOKED" in told(sshd)
            for name in ("host", "host.pub"):  # "give the node a new key"
                (sshd.folder / name).unlink()
            keygen(sshd.folder / "host")
            sshd.restart()
        else:
            pattern = "{place}" if line == "hashed" else line
            sshd.known_hosts.write_text(f"{pattern.format(place=place)} {old}\nelsewhere {old}\n")
        if line == "hashed":
            subprocess.run(["ssh-keygen", "-q", "-H", "-f", sshd.known_hosts], check=True, capture_output=True)
        changed = told(sshd)
        assert "CHANGED" in changed
        follow(sshd, changed)
        accept(told(sshd))
        assert told(sshd) == ""
        if line not in ("hashed", "@revoked"):
            assert f"elsewhere {old}" in sshd.known_hosts.read_text(), "nothing else was removed"
