from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from contracts.node_contract import BAD_SERVER, alive, carriers, listening, loaded, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servetune.core.errors import SpecError
from servetune.core.node import Exit
from servetune.nodes import _redact, _shell
from servetune.nodes._ending import end
from servetune.nodes._marks import KEEPER, Mark, Process, members
from servetune.nodes._ports import free_port, listeners_in
from servetune.nodes._processes import ThisMachine
from servetune.nodes._shell import Detached

SHELLS = [words for words in (["/bin/sh"], ["bash"]) if shutil.which(words[0])]
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


class ShellMachine:
    """This machine, reached as a far one would be: by text that a shell runs."""

    def __init__(self, shell):
        self.shell = shell

    def run(self, script):
        words = [*self.shell, "-s"]
        return subprocess.run(words, input=script.encode(), capture_output=True, check=False, timeout=60)

    def snapshot(self):
        return _shell.read_snapshot(self.run(_shell.snapshot()).stdout)

    def send(self, process, number):
        assert self.run(_shell.send([process], number)).returncode == 0

    def wait_for_exit(self, processes, timeout_s):
        ThisMachine().wait_for_exit(processes, timeout_s)


@pytest.fixture(params=SHELLS, ids=lambda words: words[-1])
def machine(request):
    return ShellMachine(request.param)


@pytest.fixture
def mark():
    mark = Mark(f"shell-{uuid.uuid4().hex[:12]}", "5", "1/1/0")
    yield mark
    end(ThisMachine(), lambda other: other == mark or other.study == mark.study, 0.2)
    assert carriers(mark.study) == []


@pytest.fixture
def launch(mark, tmp_path):
    def made(*switches, **more):
        folder = tmp_path / "work dir's ünder" / "5"
        return Detached(
            [sys.executable, "-S", BAD_SERVER, *map(str, switches)],
            mark=mark,
            folder=str(folder),
            **{"environment": {}, "token": uuid.uuid4().hex[:12], **more},
        )

    return made


def status(machine, launch):
    return _shell.read_status(machine.run(_shell.status(launch.folder, launch.token, 0, 0)).stdout)[0]


def started(machine, launch):
    done = machine.run(_shell.start(launch))
    assert done.stdout.startswith(b"started "), done
    return int(done.stdout.split()[1])


def log_of(machine, launch):
    return machine.run(_shell.log(launch.folder, 0, 1 << 20)).stdout


def test_it_outlives_the_shell_that_started_it(machine, launch):
    one = launch()
    pid = started(machine, one)
    until(lambda: b"running" in log_of(machine, one))
    seen = status(machine, one)
    assert (seen.exit, seen.rebooted) == (None, False)
    assert seen.log_bytes == len(log_of(machine, one))
    assert os.getsid(pid) == pid


@pytest.mark.parametrize(("switches", "code"), [((), 0), (("--exit-code", 42), 42), (("--die-by", "SEGV"), -11)])
def test_its_exit_is_kept(machine, launch, switches, code):
    one = launch("--crash-after-s", 0.05, *switches) if switches else launch("--exit-at-once")
    started(machine, one)
    until(lambda: status(machine, one).exit is not None)
    assert status(machine, one).exit == Exit(code=code)


def test_two_launches_in_one_folder_are_told_apart(machine, launch):
    first = launch("--exit-at-once")
    started(machine, first)
    until(lambda: status(machine, first).exit is not None)
    second = launch()
    started(machine, second)
    assert status(machine, second).exit is None
    assert status(machine, first).exit == Exit(code=0)


def test_members_are_found_and_ended_and_the_exit_is_known(machine, launch, mark):
    port = free_port()
    one = launch("--ignore", "INT,TERM", "--grandchild", port)
    started(machine, one)
    until(lambda: listening(port))
    until(lambda: len(members(machine.snapshot(), lambda other: other.study == mark.study)) == 3)
    found = members(machine.snapshot(), lambda other: other.study == mark.study)
    assert sorted(member.mark.role for member in found) == ["", "", KEEPER]
    assert {member.process.key for member in found} == {
        member.process.key for member in members(ThisMachine().snapshot(), lambda other: other.study == mark.study)
    }
    end(machine, lambda other: other.study == mark.study, 0.2)
    assert carriers(mark.study) == []
    assert status(machine, one).exit == Exit(code=-signal.SIGKILL)


def test_a_killed_leader_leaves_an_unknown_exit(machine, launch):
    one = launch()
    pid = started(machine, one)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    assert status(machine, one).exit == Exit(code=None)


def test_stop_asks_first(machine, launch, mark):
    one = launch()
    started(machine, one)
    until(lambda: b"running" in log_of(machine, one))
    end(machine, lambda other: other.study == mark.study, 10)
    assert status(machine, one).exit == Exit(code=0)


def test_a_signal_only_for_the_same_process(machine, launch):
    one = launch()
    pid = started(machine, one)
    seen = machine.snapshot().processes[pid]
    machine.send(Process(pid, seen.start_ticks + 1, "", 0, 0, "S", 1), signal.SIGKILL)
    assert alive(pid)
    machine.send(seen, signal.SIGKILL)
    until(lambda: not alive(pid))
    machine.send(seen, signal.SIGKILL)


def test_secrets_reach_the_server_but_neither_log_nor_process_list(machine, launch, tmp_path):
    secret = "s3cr3t 'quoted' \"twice\""
    dump = tmp_path / "dump.json"
    filter_words = [sys.executable, "-I", "-S", str(Path(_redact.__file__)), "API_KEY"]
    one = launch(
        "--dump", dump, "--print-secret", "API_KEY",
        environment={"API_KEY": secret}, output_filter=filter_words, filter_environment={"API_KEY": secret},
    )  # fmt: skip
    started(machine, one)
    until(lambda: b"api_key=<API_KEY> end" in log_of(machine, one))
    environ = {bytes.fromhex(k).decode(): bytes.fromhex(v).decode() for k, v in loaded(dump)["environ"].items()}
    assert environ["API_KEY"] == secret
    assert "SERVETUNE_ROLE" not in environ
    shown = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if alive(int(path.parent.name))]
    assert not any(b"s3cr3t" in words for words in shown)
    files = [path for path in Path(one.folder).iterdir() if path.is_file()]
    assert not any(b"s3cr3t" in path.read_bytes() for path in files)


def test_the_exit_behind_a_log_filter(machine, launch):
    filter_words = [sys.executable, "-I", "-S", str(Path(_redact.__file__)), "API_KEY"]
    one = launch(
        "--crash-after-s", 0.1, "--exit-code", 3, output_filter=filter_words, filter_environment={"API_KEY": "sesame"}
    )
    started(machine, one)
    until(lambda: status(machine, one).exit is not None)
    assert status(machine, one).exit == Exit(code=3)
    until(lambda: log_of(machine, one).endswith(b"crashing\n"))


def test_an_environment_is_activated_first(machine, launch, tmp_path):
    (tmp_path / "activate").write_text("export ACTIVATED=yes\n")
    dump = tmp_path / "dump.json"
    started(machine, launch("--dump", dump, "--exit-at-once", activate=f". {shlex.quote(str(tmp_path / 'activate'))}"))
    assert b"ACTIVATED".hex() in loaded(dump)["environ"]


@pytest.mark.parametrize("line", ["source /nowhere/activate", "false", "if (", "exit 3"])
def test_an_environment_that_cannot_be_activated(machine, launch, line, mark):
    said = _shell.read_started(machine.run(_shell.start(launch(activate=line))).stdout.decode())
    assert said == "activate"
    assert carriers(mark.study) == []


def test_people_write_source(machine, launch, tmp_path):
    (tmp_path / "activate").write_text("export ACTIVATED=yes\n")
    dump = tmp_path / "dump.json"
    line = f"source {shlex.quote(str(tmp_path / 'activate'))}"
    started(machine, launch("--dump", dump, "--exit-at-once", activate=line))
    assert b"ACTIVATED".hex() in loaded(dump)["environ"]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(TEXT, max_size=5), values=st.lists(TEXT, max_size=3))
def test_arguments_and_environment_arrive_byte_for_byte(machine, launch, tmp_path, words, values):
    dump = tmp_path / f"{uuid.uuid4().hex}.json"
    env = {f"TEST_{number}": value for number, value in enumerate(values)}
    one = launch("--dump", dump, "--exit-at-once", "--", *words, environment=env)
    started(machine, one)
    state = loaded(dump)
    assert [bytes.fromhex(word).decode() for word in state["rest"]] == words
    environ = {bytes.fromhex(k).decode(): bytes.fromhex(v) for k, v in state["environ"].items()}
    assert {name: environ[name].decode() for name in env} == env


def test_log_by_offset(machine, launch, tmp_path):
    one = launch()
    folder = Path(one.folder)
    folder.mkdir(parents=True)
    assert machine.run(_shell.log(one.folder, 0, 10)).stdout == b""
    (folder / "server.log").write_bytes(bytes(range(256)) * 10)
    assert machine.run(_shell.log(one.folder, 250, 12)).stdout == bytes([*range(250, 256), *range(6)])
    assert machine.run(_shell.log(one.folder, 2550, 100)).stdout == bytes(range(246, 256))
    assert machine.run(_shell.log(one.folder, 5000, 100)).stdout == b""


def test_a_folder_that_cannot_be_made(machine, launch, tmp_path):
    (tmp_path / "work dir's ünder").write_text("in the way")
    done = machine.run(_shell.start(launch()))
    assert done.returncode == 1
    assert b"started" not in done.stdout


@pytest.mark.parametrize(("program", "said"), [("/nowhere/python", "missing"), ("no-such-program", "missing")])
def test_a_program_that_does_not_exist(machine, mark, tmp_path, program, said):
    one = Detached([program], {}, mark, str(tmp_path / "5"), "token")
    assert _shell.read_started(machine.run(_shell.start(one)).stdout.decode()) == said


def test_a_program_that_is_not_executable(machine, mark, tmp_path):
    (tmp_path / "plain").write_text("text")
    for program in (str(tmp_path / "plain"), str(tmp_path)):
        one = Detached([program], {}, mark, str(tmp_path / "5"), uuid.uuid4().hex)
        assert _shell.read_started(machine.run(_shell.start(one)).stdout.decode()) == "plain"


def test_a_second_start_with_the_same_token_starts_nothing(machine, launch, mark):
    one = launch()
    first = _shell.read_started(machine.run(_shell.start(one)).stdout.decode())
    assert _shell.read_started(machine.run(_shell.start(one)).stdout.decode()) == first
    until(lambda: len(carriers(mark.study)) == 2)  # the server and who waits for it


def test_a_cut_snapshot_is_refused(machine):
    text = machine.run(_shell.snapshot()).stdout
    with pytest.raises(ValueError, match="cut"):
        _shell.read_snapshot(text[: len(text) // 2])


def test_who_listens(machine):
    tables = machine.run(_shell.listening()).stdout.decode()
    assert set(listeners_in(tables)).isdisjoint({free_port()})


@pytest.mark.parametrize("name", ["", "A-B", "1A", "A B", "Ä", "A;id"])
def test_names_that_a_shell_cannot_export(name, launch):
    with pytest.raises(SpecError, match="is not a name"):
        _shell.start(launch(environment={name: "1"}))
