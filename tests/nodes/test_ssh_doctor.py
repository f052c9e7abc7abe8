"""The doctor on a node with each defect: it is seen in its row, and the remedy works when it is followed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nodes.sshd import Sshd, keygen, needs_sshd, public, running

from servetune.core.doctor import Finding, Purpose
from servetune.nodes import ssh

pytestmark = [needs_sshd, pytest.mark.sshd]

TESTS = Path(__file__).parents[1]
IN_OWN_MOUNTS = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A node with two GPUs, an engine and a model, on which all is well."""
    with running(tmp_path_factory.mktemp("sshd"), gpus=True) as server:
        yield server


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3_moe"}')
    return folder


@pytest.fixture
def examine(shared, model, tmp_path):
    """Rows of the doctor; up to a wanted one, since the last takes seconds."""
    nodes = []

    def rows(upto="lease", sshd=shared, purpose=None, **settings):
        engine = {"engine_python": sys.executable, "engine_package": "pydantic", "lease_dir": str(tmp_path / "leases")}
        node = ssh.create(ssh.Settings(**sshd.settings(**{**engine, **settings})), tmp_path)
        nodes.append(node)
        found = {}
        asked = {"study": "mine", "model": str(model), "gpus_needed": 2, "thorough": False, **(purpose or {})}
        for finding in node.examine(Purpose(**asked)):
            found[finding.row] = finding
            if finding.row == upto:
                break
        return found

    yield rows
    for node in nodes:
        node.close()


def seen(finding: Finding, state: str, found: str, remedy: str) -> None:
    assert finding.state == state, finding
    assert re.search(found, finding.found), finding
    assert re.search(remedy, finding.remedy), finding


def test_a_healthy_node(examine):
    rows = examine("load generator")
    assert {row: finding.remedy for row, finding in rows.items()} == dict.fromkeys(rows, ""), rows
    assert list(rows) == [
        "connection", "tools", "engine", "gpus", "driver", "interconnect", "gpu users", "/dev/shm", "disk", "model",
        "ports", "clock", "lease", "load generator",
    ]  # fmt: skip
    assert re.search(r"2 × NVIDIA H200, 140 GiB, compute capability 9\.0", rows["gpus"].found)
    assert rows["driver"].found == "driver 580.159.04, CUDA up to 13.0"
    assert rows["interconnect"].found == "nvlink (1 × NV18)"


def test_how_fast_the_load_generator_is(examine):
    finding = examine("load generator", purpose={"thorough": True, "concurrency": 4, "load_processes": 2})[
        "load generator"
    ]
    assert re.search(r"reads [\d,]+ tokens/s at concurrency 4 with 2 processes", finding.found)


def test_a_host_key_that_is_not_known(examine, shared):
    shared.known_hosts.write_text("")
    rows = examine()
    assert list(rows) == ["connection"]
    seen(rows["connection"], "error", "host key refused", "SHA256:.*accept it with: `echo")
    subprocess.run(["sh", "-c", re.search("accept it with: `(.*)`", rows["connection"].remedy).group(1)], check=True)
    assert examine("connection")["connection"].state == "ok"


def test_a_node_that_does_not_answer_and_one_that_lets_nobody_in(examine, tmp_path, monkeypatch):
    seen(examine(port=1)["connection"], "error", "cannot be reached", r"node\.port")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    stranger = str(keygen(tmp_path / "stranger"))
    seen(examine(identity_file=stranger)["connection"], "error", "does not let", r"node\.identity_file")


def test_an_engine_that_is_not_there(examine, tmp_path):
    seen(examine("engine", engine_python="/nowhere/python")["engine"], "error", "cannot be run", r"engine\.python")
    seen(examine("engine", engine_python="~/env/python")["engine"], "error", "cannot be run", "write its `~` out")
    rows = examine("engine", engine_package="sglang-not-here")
    seen(rows["engine"], "error", "without sglang-not-here", "pip install sglang-not-here")
    (tmp_path / "my-env").write_text(f'my_python() {{ {sys.executable} "$@"; }}\n')
    activate = f"source {tmp_path}/my-env"
    assert examine("engine", engine_python="my_python", activate=activate)["engine"].state == "ok"
    seen(examine("engine", activate="source /nowhere")["engine"], "error", "No such file", r"node\.activate")
    seen(examine("engine", activate="if (")["engine"], "error", "cannot be run", r"node\.activate")


def test_too_few_gpus(examine):
    seen(examine("gpus", purpose={"gpus_needed": 8})["gpus"], "error", "2 GPUs, and the study needs 8", "tp-size")
    assert examine("load generator", gpus=[7])["load generator"].state == "ok"
    seen(examine("gpus", gpus=[7])["gpus"], "error", "no GPU is left by '7'", "the node has 0, 1")
    assert examine("gpus", gpus=[1], purpose={"gpus_needed": 1})["gpus"].state == "ok"


def test_a_driver_that_fails(examine, shared):
    failing = shared.answers / "fail"
    failing.write_text("9 Failed to initialize NVML: Driver/library version mismatch")
    rows = examine("load generator")
    seen(rows["gpus"], "error", "Driver/library version mismatch", "reboot the node")
    seen(rows["lease"], "error", "Driver/library version mismatch", "mend the driver")
    assert rows["load generator"].state == "ok", "the other rows follow"
    failing.write_text("15 Unable to determine the device handle for GPU0000:01:00.0: Unknown Error")
    seen(examine("gpus")["gpus"], "error", "Unable to determine", "mend the driver")
    failing.unlink()
    assert examine("gpus")["gpus"].state == "ok"


def test_somebody_on_the_gpus(examine, shared):
    apps = shared.answers / "apps"
    shutil.copy(TESTS / "recordings" / "nvidia-smi" / "h200-x2.apps.txt", apps)
    seen(examine("gpu users")["gpu users"], "error", r"pid 570 \(python3, 61958 MiB", r"`kill 570` on the node")
    assert examine("gpu users", gpus=[1], purpose={"gpus_needed": 1})["gpu users"].state == "ok"
    apps.write_text("")
    query = (shared.answers / "query").read_text()
    (shared.answers / "query").write_text(query.replace("143771, 0,", "143771, 90000,", 1))
    seen(examine("gpu users")["gpu users"], "error", r"no process that is shown: GPU 0: 87\.9 GiB", "reset")
    (shared.answers / "query").write_text(query)  # the GPU was reset
    assert examine("gpu users")["gpu users"].state == "ok"


def test_slow_links_between_gpus(examine, shared):
    topology = (shared.answers / "topo").read_text()
    (shared.answers / "topo").write_text(topology.replace("NV18", "SYS "))
    seen(examine("interconnect")["interconnect"], "warning", r"pcie \(1 × SYS\).*NUMA", r"node\.gpus")
    assert examine("interconnect", gpus=[0], purpose={"gpus_needed": 1})["interconnect"].state == "ok"
    (shared.answers / "topo").write_text(topology)


def test_a_small_dev_shm(examine, tmp_path):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("may not make a mount namespace")
    small = Sshd(tmp_path / "small", prefix=("unshare", "-m", "sh", "-c", IN_OWN_MOUNTS, "sh"))
    small.start()
    try:
        row = examine("/dev/shm", sshd=small)["/dev/shm"]
        seen(row, "error", r"0\.1 of 0\.1 GiB", "mount -o remount,size=32G /dev/shm")
        assert examine("/dev/shm", sshd=small, purpose={"gpus_needed": 1})["/dev/shm"].state == "ok"
        node = ssh.create(ssh.Settings(**small.settings()), tmp_path)
        assert node.link.run(re.search("`(.*?)`", row.remedy).group(1)).code == 0
        node.close()
        assert examine("/dev/shm", sshd=small)["/dev/shm"].state == "ok"
    finally:
        small.stop()


def test_no_room_for_logs(examine, tmp_path):
    (tmp_path / "file").write_text("in the way")
    seen(examine("disk", workdir=str(tmp_path / "file" / "x"))["disk"], "error", "cannot be written", r"node\.workdir")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False).returncode != 0:
        pytest.skip("may not mount a tmpfs")
    try:
        seen(examine("disk", workdir=str(disk / "work"))["disk"], "error", r"0\.0 of 0\.0 GiB free", r"node\.workdir")
    finally:
        subprocess.run(["umount", disk], check=True)
    rows = examine("disk", workdir=str(tmp_path / "another"))
    assert rows["disk"].state == "ok"
    assert list((tmp_path / "another").iterdir()) == [], "the probe is taken away"


def test_a_model_that_is_not_there(examine, model):
    seen(
        examine("model", purpose={"model": "/nowhere"})["model"],
        "error",
        "no config.json.*No such file",
        r"engine\.model",
    )
    seen(examine("model", purpose={"model": "~/m"})["model"], "error", "no config.json", "write its `~` out")
    seen(examine("model", purpose={"model": "org/name"})["model"], "warning", "name on a hub", "folder on the node")
    (model / "config.json").write_text("{")
    seen(examine("model")["model"], "error", "no JSON object", "copy the model")
    (model / "config.json").write_text('{"model_type": "qwen3_moe"}')
    assert examine("model")["model"].state == "ok"


def programs_of(sshd: Sshd, folder: Path, **texts: str) -> Sshd:
    """Programs that stand before all others on the node."""
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    sshd.environment["PATH"] = f"{folder}:{sshd.environment['PATH']}"
    return sshd


def test_a_clock_that_is_wrong_and_a_missing_tool(examine, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    wrong = programs_of(Sshd(tmp_path / "wrong"), folder, date="/bin/date -d '+1 hour' \"$@\"")
    wrong.start()
    try:
        seen(
            examine("clock", sshd=wrong, purpose={"gpus_needed": 0})["clock"], "warning", r"\+3600 s off", "timedatectl"
        )
        (folder / "date").unlink()  # the clock was set
        assert examine("clock", sshd=wrong, purpose={"gpus_needed": 0})["clock"].state == "ok"
    finally:
        wrong.stop()
    for name in (
        "sh",
        "uname",
        "cat",
        "nproc",
        "setsid",
        "timeout",
        "base64",
        "stat",
        "tail",
        "head",
        "grep",
        "getconf",
    ):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(shutil.which(name))
    bare = Sshd(tmp_path / "bare")
    bare.environment["PATH"] = str(folder)
    bare.start()
    try:
        seen(examine("tools", sshd=bare)["tools"], "error", "missing: flock", "install.*util-linux")
        (folder / "flock").symlink_to(shutil.which("flock"))
        assert examine("tools", sshd=bare)["tools"].state == "ok"
    finally:
        bare.stop()


LISTENER = "{:4d}: 00000000:{:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 {} 1 0 100 0 0 10 0"


def test_no_port_is_free(examine, tmp_path):
    folder, tables = tmp_path / "bin", tmp_path / "tables"
    folder.mkdir()
    tables.write_text("\n".join(LISTENER.format(port, port, 1000 + port) for port in range(30000, 40000)))
    full = programs_of(
        Sshd(tmp_path / "full"),
        folder,
        cat=f'case "$*" in *net/tcp*) exec /bin/cat {tables};; esac; exec /bin/cat "$@"',
    )
    full.start()
    try:
        row = examine("ports", sshd=full, purpose={"gpus_needed": 0})["ports"]
        seen(row, "error", "no free TCP port found in 30000–39999 of the node", r"see `ss -tlnp`")
        tables.write_text("")  # whoever listened was ended
        assert examine("ports", sshd=full, purpose={"gpus_needed": 0})["ports"].state == "ok"
    finally:
        full.stop()


def test_a_login_by_password_only(examine, tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with running(tmp_path / "passwords", PasswordAuthentication="yes") as sshd:
        sshd.authorized.write_text("")
        row = examine("connection", sshd=sshd)["connection"]
        seen(row, "error", "does not let .* in", r"ssh-copy-id -p .*`password: \{from_env: NAME\}`")
        sshd.authorized.write_text(public(sshd.client_key) + "\n")  # what ssh-copy-id does
        assert examine("connection", sshd=sshd)["connection"].state == "ok"


def test_another_tuner_on_the_node(examine, tmp_path):
    rows = examine()
    assert rows["lease"].state == "ok"
    name = rows["lease"].found.split(", ")[-1]
    lease = tmp_path / "leases" / f"{name}.json"
    lease.write_text(json.dumps({"token": "x", "study": "other", "host": "laptop"}) + "\n")
    seen(examine()["lease"], "error", r"by study 'other' of laptop", r"node\.gpus")
    assert examine(gpus=[0], purpose={"gpus_needed": 1})["lease"].state == "ok"


def test_a_python_that_cannot_run_the_load_generator(examine, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named numpy'; exit 1\n")
    python.chmod(0o755)
    row = examine("load generator", python=str(python))["load generator"]
    seen(
        row,
        "warning",
        "cannot run it: No module named numpy",
        r"pip install numpy pydantic httpx uvloop`.*node\.python",
    )
    assert examine("load generator", python=sys.executable)["load generator"].state == "ok"


def test_the_known_key_file_is_not_written_by_looking(examine, shared):
    before = shared.known_hosts.read_text()
    examine("tools")
    assert shared.known_hosts.read_text() == before == f"[127.0.0.1]:{shared.port} {public(shared.host_key)}\n"
