"""What every node must do, with real processes. A test class inherits `NodeContract` and gives the two fixtures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servetune.core.errors import NodeError, NodeUnusableError, SpecError
from servetune.core.node import EnvRef, Exit, LaunchSpec, Node, ServerProcess

BAD_SERVER = str(Path(__file__).parent.parent / "fakes" / "servers" / "bad_server.py")
SECRET = "s3cr3t/with+odd 'chars' and \"quotes\""

STARTER = """
import sys, time
from pathlib import Path
from servetune.core.node import LaunchSpec
{node_source}
spec = LaunchSpec.model_validate_json(sys.argv[1])
node.start(spec, sys.argv[2], 7, sys.argv[3])
print("started", flush=True)
time.sleep(600)
"""


def until(true: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait for it; fails the test after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def carriers(study: str) -> list[int]:
    """Every running process that carries the study's marker."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("SERVETUNE_STUDY") == study and alive(process.pid):
                found.append(process.pid)
    return found


def listening(port: int) -> bool:
    return any(c.laddr.port == port and c.status == psutil.CONN_LISTEN for c in psutil.net_connections("tcp"))


def log_of(process: ServerProcess) -> bytes:
    text = b""
    while chunk := process.read_log(len(text)):
        text += chunk
    return text


def get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return int(answer.status)


class Bench:
    """A node and a study of its own; starts bad servers and ends them whatever happens."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node = node
        self.study = f"contract-{uuid.uuid4().hex[:12]}"
        self.folder = folder
        self.log_dir = str(folder / "trials" / "7")
        self.started: list[ServerProcess] = []

    def spec(self, *switches: object, port: int | None = None, env: dict[str, object] | None = None) -> LaunchSpec:
        port = port or self.node.free_port()
        words = (sys.executable, "-S", BAD_SERVER, *(w if isinstance(w, EnvRef) else str(w) for w in switches))
        return LaunchSpec(argv=words, env=env or {}, port=port)

    def start(self, *switches: object, **more: object) -> ServerProcess:
        return self.launch(self.spec(*switches, **more))

    def launch(self, spec: LaunchSpec) -> ServerProcess:
        process = self.node.start(spec, self.study, 7, self.log_dir)
        self.started.append(process)
        return process

    def dump(self) -> Path:
        return self.folder / f"dump-{uuid.uuid4().hex}.json"

    def cleanup(self) -> None:
        for process in self.started:
            process.stop(0.5)
        left = carriers(self.study)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, "the test left processes behind"


def loaded(path: Path) -> dict[str, object]:
    until(path.exists)
    return json.loads(path.read_text())


SHARER = """
import os, sys, time
from multiprocessing import resource_tracker, shared_memory
kept = [open(path) for path in sys.argv[3:]]
made = shared_memory.SharedMemory(name=sys.argv[1], create=True, size=1 << 20)
resource_tracker.unregister(made._name, "shared_memory")
print("running", flush=True)
time.sleep(float(sys.argv[2]))
os.kill(os.getpid(), 9)
"""


class NodeContract:
    """Inherit, and give `node` (a fresh node) and `node_source` (Python source that binds the same kind to `node`)."""

    @pytest.fixture
    def node(self) -> Node:
        raise NotImplementedError

    @pytest.fixture
    def node_source(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def bench(self, node: Node, tmp_path: Path) -> Iterator[Bench]:
        bench = Bench(node, tmp_path)
        yield bench
        bench.cleanup()

    def test_starts_marked_and_in_a_group_of_its_own(self, bench: Bench) -> None:
        dump = bench.dump()
        process = bench.start("--dump", dump)
        state = loaded(dump)
        environ = {bytes.fromhex(k).decode(): bytes.fromhex(v).decode() for k, v in state["environ"].items()}
        assert (environ["SERVETUNE_STUDY"], environ["SERVETUNE_TRIAL"]) == (bench.study, "7")
        assert state["group"] != os.getpgid(0)
        assert state["session"] != os.getsid(0)
        assert process.poll() is None

    def test_serves_at_its_endpoint_until_stopped(self, bench: Bench) -> None:
        port = bench.node.free_port()
        process = bench.start("--port", port, port=port)
        with process.endpoint() as url:
            until(lambda: b"serving on" in log_of(process))
            assert get(url + "/health") == 200
        process.stop(5)
        assert not listening(port)
        assert carriers(bench.study) == []

    def test_log_grows_and_is_read_by_offset(self, bench: Bench, tmp_path: Path) -> None:
        lines = [f"line {number} ünïcode\n".encode() for number in range(60)]
        (tmp_path / "given.log").write_bytes(b"".join(lines))
        process = bench.start("--log", tmp_path / "given.log", "--line-delay-s", 0.05)
        until(lambda: lines[3] in log_of(process))
        early = log_of(process)  # three seconds in all: a slow look at a far node still comes before the end
        assert lines[-1] not in early
        until(lambda: lines[-1] in log_of(process))
        whole = log_of(process)
        assert whole.startswith(early)
        assert process.read_log(len(whole)) == b""
        assert process.read_log(len(whole) + 1000) == b""

    def test_a_second_launch_reads_only_its_own_log(self, bench: Bench) -> None:
        first = bench.start("--exit-at-once")
        until(first.poll)
        first.stop(1)
        second = bench.start("--exit-at-once")
        until(second.poll)
        assert log_of(second).count(b"starting") == 1
        assert log_of(first).startswith(b"pid ")

    @pytest.mark.parametrize("code", [0, 1, 42])
    def test_exit_code(self, bench: Bench, code: int) -> None:
        process = bench.start("--crash-after-s", 0.05, "--exit-code", code)
        until(lambda: process.poll() is not None)
        assert process.poll() == Exit(code=code)
        assert process.stop(1) == Exit(code=code)

    @pytest.mark.parametrize("name", ["SEGV", "KILL", "ABRT"])
    def test_death_by_signal(self, bench: Bench, name: str) -> None:
        process = bench.start("--crash-after-s", 0.05, "--die-by", name)
        until(lambda: process.poll() is not None)
        assert process.poll() == Exit(code=-signal.Signals[f"SIG{name}"])

    def test_stop_asks_first(self, bench: Bench) -> None:
        process = bench.start()
        until(lambda: b"running" in log_of(process))
        assert process.stop(10) == Exit(code=0)

    def test_ignored_signals_lead_to_kill(self, bench: Bench) -> None:
        process = bench.start("--ignore", "INT,TERM,HUP")
        until(lambda: b"starting" in log_of(process))
        started_s = time.monotonic()
        assert process.stop(0.3) == Exit(code=-signal.SIGKILL)
        assert time.monotonic() - started_s < 10

    def test_stop_is_idempotent(self, bench: Bench) -> None:
        process = bench.start()
        first = process.stop(5)
        assert process.stop(5) == first
        assert process.poll() == first

    @pytest.mark.parametrize("ignored", ["", "INT,TERM"])
    def test_grandchild_in_its_own_session_holding_the_port_is_gone_after_stop(
        self, bench: Bench, ignored: str
    ) -> None:
        port = bench.node.free_port()
        process = bench.start("--grandchild", port, "--ignore", ignored, port=port)
        until(lambda: listening(port))
        process.stop(0.5)
        assert carriers(bench.study) == []
        assert not listening(port)

    def test_grandchild_that_survived_a_crash_is_gone_after_stop(self, bench: Bench) -> None:
        port = bench.node.free_port()
        process = bench.start("--grandchild", port, "--crash-after-s", 0.1, port=port)
        until(lambda: process.poll() is not None)
        until(lambda: listening(port))
        assert process.stop(1) == Exit(code=1)
        assert carriers(bench.study) == []

    @pytest.mark.parametrize("by", ["stop", "reclaim"])
    def test_a_child_without_environment_that_survived_a_crash_is_gone(
        self, bench: Bench, node: Node, tmp_path: Path, by: str
    ) -> None:
        process = bench.start("--wiped-child", "--crash-after-s", 0.2, "--die-by", "KILL")
        other = node.start(bench.spec("--wiped-child"), bench.study + "-other", 7, str(tmp_path / "other"))
        until(lambda: b"child" in log_of(process) and b"child" in log_of(other))
        until(process.poll)
        child, others = (int(log_of(one).partition(b"child ")[2].split()[0]) for one in (process, other))
        assert alive(child)
        process.stop(1) if by == "stop" else bench.node.reclaim(bench.study)
        assert not alive(child)
        assert alive(others), "of another study"
        other.stop(1)
        assert not alive(others)

    def test_a_zombie_counts_as_exited(self, bench: Bench) -> None:
        dump = bench.dump()
        process = bench.start("--dump", dump, "--exit-at-once")
        pid = loaded(dump)["pid"]
        until(lambda: not alive(pid))  # not reaped by anyone yet, where the node is its parent
        until(process.poll, 5)  # elsewhere whoever reaps it needs a moment to write it down
        assert process.poll() == Exit(code=0)

    def test_a_zombie_child_does_not_hold_up_stop(self, bench: Bench) -> None:
        process = bench.start("--zombie")
        until(lambda: b"starting" in log_of(process))
        started_s = time.monotonic()
        process.stop(5)
        assert time.monotonic() - started_s < 4

    def test_reclaim_ends_what_a_killed_tuner_left(self, bench: Bench, node_source: str) -> None:
        port = bench.node.free_port()
        spec = bench.spec("--grandchild", port, "--ignore", "INT", port=port)
        words = [sys.executable, "-c", STARTER.format(node_source=node_source)]
        with subprocess.Popen(
            [*words, spec.model_dump_json(), bench.study, bench.log_dir], stdout=subprocess.PIPE
        ) as tuner:
            assert tuner.stdout.readline() == b"started\n"
            until(lambda: listening(port))
            tuner.kill()
        assert carriers(bench.study)
        sentences = bench.node.reclaim(bench.study)
        assert len(sentences) == 1
        assert "trial 7" in sentences[0]
        assert carriers(bench.study) == []
        assert not listening(port)
        assert bench.node.reclaim(bench.study) == []

    @pytest.mark.parametrize("way", ["killed", "crashed", "reclaimed"])
    def test_shared_memory_of_ours_is_removed_and_nothing_foreign(self, bench: Bench, way: str) -> None:
        """A person may keep the model there: a file of before the launch, or in a folder, is no segment."""
        name = f"servetune-test-{os.getpid()}-{way}"
        segment, foreign, model = (Path(f"/dev/shm/{name}{end}") for end in ("", "-foreign", "-model"))
        model.mkdir()
        weights = [Path(f"{segment}.gguf"), model / "model.safetensors"]
        for file in (foreign, *weights):
            file.write_text("somebody else's")
        os.utime(weights[0], (time.time() - 60,) * 2)
        try:
            seconds = "4" if way == "crashed" else "600"
            argv = (sys.executable, "-c", SHARER, name, seconds, *map(str, weights))
            server = bench.launch(LaunchSpec(argv=argv, port=bench.node.free_port()))
            until(segment.exists)
            if way == "crashed":
                until(lambda: server.poll() is not None)
            if way == "reclaimed":
                assert bench.node.reclaim(bench.study)
            else:
                server.stop(0.2)
            assert not segment.exists()
            assert all(file.exists() for file in (foreign, *weights))
        finally:
            for file in (segment, foreign, *weights):
                file.unlink(missing_ok=True)
            model.rmdir()

    def test_reclaim_of_nothing(self, bench: Bench) -> None:
        assert list(bench.node.reclaim(bench.study)) == []

    def test_foreign_processes_are_untouched(self, bench: Bench, node: Node, tmp_path: Path) -> None:
        process = bench.start("--ignore", "INT")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SERVETUNE_")}
        alike = {**clean, "SERVETUNE_STUDY": bench.study + "-2", "SERVETUNE_TRIAL": "7", "SERVETUNE_STARTER": "1/1/0"}
        half_marked = {**clean, "SERVETUNE_STUDY": bench.study}
        words = [sys.executable, "-S", BAD_SERVER, "--ignore", "INT"]
        with contextlib.ExitStack() as stack:
            foreign = [
                stack.enter_context(subprocess.Popen(words, env=environment, start_new_session=True))
                for environment in (clean, alike, half_marked)
            ]
            stack.callback(lambda: [one.kill() for one in foreign])
            other = node.start(bench.spec(), bench.study + "-3", 7, str(tmp_path / "other"))
            process.stop(0.3)
            node.reclaim(bench.study)
            assert [one.poll() for one in foreign] == [None, None, None]
            assert other.poll() is None
            other.stop(5)

    def test_a_server_whose_tuner_lives_is_not_reclaimed_by_another(self, bench: Bench, node_source: str) -> None:
        words = [sys.executable, "-c", STARTER.format(node_source=node_source)]
        spec = bench.spec().model_dump_json()
        with subprocess.Popen([*words, spec, bench.study, bench.log_dir], stdout=subprocess.PIPE) as tuner:
            assert tuner.stdout.readline() == b"started\n"
            assert list(bench.node.reclaim(bench.study)) == []
            assert carriers(bench.study)
            tuner.kill()
        assert len(bench.node.reclaim(bench.study)) == 1

    # inherited by each kind of node on purpose
    @settings(
        max_examples=20,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(
        words=st.lists(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30), max_size=6
        ),
        values=st.lists(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30), max_size=3
        ),
    )
    def test_arguments_and_environment_arrive_byte_for_byte(
        self, bench: Bench, words: list[str], values: list[str]
    ) -> None:
        dump = bench.dump()
        env = {f"TEST_{number}": value for number, value in enumerate(values)}
        process = bench.start("--dump", dump, "--exit-at-once", "--", *words, env=env)
        state = loaded(dump)
        process.stop(5)
        assert [bytes.fromhex(word).decode() for word in state["rest"]] == words
        environ = {bytes.fromhex(k).decode(): bytes.fromhex(v) for k, v in state["environ"].items()}
        assert {name: environ[name].decode() for name in env} == env

    def test_awkward_arguments(self, bench: Bench) -> None:
        words = ["", " ", "'", '"', "$HOME", "`id`", "a\nb", "\\", "*", "ü→😀", "--", "-", "~", "!1", "#x", "\t", "%s"]
        dump = bench.dump()
        process = bench.start("--dump", dump, "--exit-at-once", "--", *words)
        assert [bytes.fromhex(word).decode() for word in loaded(dump)["rest"]] == words
        process.stop(5)

    def test_a_flooded_log_does_not_grow_memory(self, bench: Bench) -> None:
        size_bytes = 200_000_000
        process = bench.start("--flood-bytes", size_bytes)
        before = psutil.Process().memory_info().rss
        offset, most, tail = 0, 0, b""
        while b"flood over" not in tail:
            chunk = process.read_log(offset)
            offset += len(chunk)
            tail = (tail + chunk)[-100:]
            most = max(most, psutil.Process().memory_info().rss - before)
            assert len(chunk) <= 1 << 20
            if not chunk:
                assert process.poll() is None
                time.sleep(0.02)
        assert offset > size_bytes
        assert most < 30_000_000
        process.stop(5)

    def test_missing_program(self, bench: Bench) -> None:
        spec = LaunchSpec(argv=("/nowhere/python3", "-m", "sglang.launch_server"), port=bench.node.free_port())
        with pytest.raises(SpecError, match="/nowhere/python3"):
            bench.launch(spec)
        with pytest.raises(SpecError, match="no-such-program"):
            bench.launch(spec.model_copy(update={"argv": ("no-such-program",)}))
        assert carriers(bench.study) == []

    def test_program_that_is_not_executable(self, bench: Bench, tmp_path: Path) -> None:
        (tmp_path / "plain.txt").write_text("not a program")
        with pytest.raises(SpecError, match=r"plain\.txt"):
            bench.launch(LaunchSpec(argv=(str(tmp_path / "plain.txt"),), port=bench.node.free_port()))

    def test_unset_secret_is_named(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NOT_SET_HERE", raising=False)
        with pytest.raises(SpecError, match="NOT_SET_HERE"):
            bench.start(env={"HF_TOKEN": EnvRef(from_env="NOT_SET_HERE")})

    @pytest.mark.parametrize("pieces", [1, 2, 7, 1000])
    def test_secrets_arrive_and_stay_out_of_the_log(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, pieces: int
    ) -> None:
        monkeypatch.setenv("CONTRACT_SECRET", SECRET)
        secret = EnvRef(from_env="CONTRACT_SECRET")
        dump = bench.dump()
        switches = ("--dump", dump, "--print-secret", "API_KEY", "--pieces", pieces, "--", secret)
        process = bench.start(*switches, env={"API_KEY": secret})
        until(lambda: b"api_key=<CONTRACT_SECRET> end" in log_of(process))
        assert bytes.fromhex(loaded(dump)["rest"][0]).decode() == SECRET
        process.stop(5)
        written = [path for path in Path(bench.log_dir).rglob("*") if path.is_file()]
        assert all(SECRET.encode() not in path.read_bytes() for path in written)

    def test_log_lines_of_a_server_with_secrets_come_promptly_and_the_last_ones_too(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CONTRACT_SECRET", SECRET)
        process = bench.start("--crash-after-s", 0.5, env={"API_KEY": EnvRef(from_env="CONTRACT_SECRET")})
        until(lambda: b"starting\n" in log_of(process), 5)
        assert process.poll() is None
        until(lambda: process.poll() is not None)
        process.stop(1)
        assert log_of(process).endswith(b"crashing\n")

    def test_log_directory_that_cannot_be_made(self, bench: Bench, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        bench.log_dir = str(tmp_path / "file" / "7")
        with pytest.raises(NodeUnusableError, match=r"file.*(free space|correct its owner)"):
            bench.start()
        assert carriers(bench.study) == []

    def test_full_log_directory(self, bench: Bench, tmp_path: Path) -> None:
        disk = tmp_path / "small"
        disk.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, check=False
        )
        if mounted.returncode != 0:
            pytest.skip("may not mount a tmpfs")
        try:
            with contextlib.suppress(OSError):
                (disk / "filler").write_bytes(b"x" * 1_000_000)
            bench.log_dir = str(disk)
            with pytest.raises(NodeError, match="No space left"):
                bench.start()
            assert carriers(bench.study) == []
        finally:
            subprocess.run(["umount", str(disk)], check=True)

    def test_free_ports_differ_and_are_free(self, node: Node) -> None:
        ports = {node.free_port() for _ in range(5)}
        assert len(ports) > 1
        assert all(30000 <= port < 40000 and not listening(port) for port in ports)

    def test_facts_and_identity(self, node: Node) -> None:
        facts = node.facts()
        assert facts.host
        assert facts.node == node.name
        assert not facts.simulated
        assert node.identity() == node.identity()
