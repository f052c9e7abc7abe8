from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from contracts.node_contract import alive, until

from servetune.nodes._ending import end
from servetune.nodes._launch import left_behind
from servetune.nodes._marks import Mark, members
from servetune.nodes._processes import ThisMachine, is_same, mark_of, read

MACHINE = ThisMachine()

THREAD_LEFT = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({exit_number}, 0)  # ends the main thread only: the process shows as a zombie that lives
"""
SYS_EXIT = {"x86_64": 60, "aarch64": 93}.get(os.uname().machine)


@pytest.fixture
def mark():
    return Mark(f"study-{uuid.uuid4().hex[:12]}", "3", "1/1/0")


@pytest.fixture
def spawn(mark):
    """Starts `sleep`s, or other words, with or without the mark; ends them."""
    with contextlib.ExitStack() as stack:

        def start(words=("sleep", "60"), marked=True, **more):
            environment = {**os.environ, **(mark.environment() if marked else {})}
            child = stack.enter_context(subprocess.Popen(words, env=environment, **{"start_new_session": True, **more}))
            stack.callback(child.kill)
            until(lambda: not marked or child.poll() is not None or mark_of(child.pid) is not None)
            return child

        yield start


def still_running(process):
    now = read(process.pid)
    return is_same(now, process) and now.running


def pids(mark):
    return [member.process.pid for member in members(MACHINE.snapshot(), lambda other: other == mark)]


def test_only_what_carries_the_mark(mark, spawn):
    ours, _ = spawn(), spawn(marked=False)
    assert pids(mark) == [ours.pid]


def test_a_child_without_the_mark_in_the_marked_session(mark, spawn):
    ours = spawn(["sh", "-c", "env -i sleep 60 & sleep 60"])
    until(lambda: len(pids(mark)) == 3)
    assert ours.pid in pids(mark)


def test_a_child_without_the_mark_in_its_own_session_while_its_parent_lives(mark, spawn):
    spawn(["sh", "-c", "env -i setsid sleep 60 & sleep 60"])
    until(lambda: len(pids(mark)) == 3)


def test_the_rest_of_a_session_whose_leader_died(mark, spawn):
    leader = spawn(["sh", "-c", "env -i sleep 61 & sleep 62 & wait"])
    until(lambda: len(pids(mark)) == 3)
    leader.kill()
    leader.wait()
    assert len(pids(mark)) == 2
    assert len(end(MACHINE, lambda other: other == mark, 1)) == 2
    assert pids(mark) == []


def test_a_marked_program_in_a_login_session_claims_nothing_else_of_it(mark, spawn):
    """Somebody tries the environment of a server by hand, in the shell from which everything else of theirs runs."""
    words = [
        "sh",
        "-c",
        "sleep 60 & SERVETUNE_STUDY=$0 SERVETUNE_TRIAL=3 SERVETUNE_STARTER=1/1/0 sleep 61 & wait",
        mark.study,
    ]
    spawn(words, marked=False)
    until(lambda: len(pids(mark)) == 1)
    time.sleep(0.1)
    assert len(pids(mark)) == 1


def test_a_child_with_another_mark_is_another_launch(mark, spawn):
    ours = spawn(["env", "SERVETUNE_TRIAL=4", "sleep", "60"], marked=True)
    until(lambda: (found := mark_of(ours.pid)) is not None and found.trial == "4")
    assert pids(mark) == []


def test_this_process_and_its_ancestors_are_never_found(mark, tmp_path):
    code = (
        "from servetune.nodes._marks import members; from servetune.nodes._processes import ThisMachine; "
        "print(len(members(ThisMachine().snapshot(), lambda mark: True)))"
    )
    environment = {**os.environ, **mark.environment()}
    words = ["sh", "-c", '"$0" -c "$1"; true', sys.executable, code.replace("True", f"mark.study == '{mark.study}'")]
    assert (
        subprocess.run(words, env=environment, capture_output=True, check=True, start_new_session=True).stdout == b"0\n"
    )


def test_a_mark_with_odd_text_is_read_back(spawn, mark):
    odd = Mark(mark.study, "3", "1/1/0", 'a=b "ü" \n')
    child = spawn(["env", f"SERVETUNE_ROLE={odd.role}", "sleep", "60"])
    until(lambda: mark_of(child.pid) == odd)


def test_mark_of_nobody():
    assert mark_of(2**22 + 1) is None
    assert mark_of(1) is None


def test_a_signal_never_reaches_a_later_process_of_the_same_pid(spawn):
    child = spawn()
    now = read(child.pid)
    earlier = dataclasses.replace(now, start_ticks=now.start_ticks - 1)
    MACHINE.send(earlier, signal.SIGKILL)
    assert not still_running(earlier)
    assert still_running(now)
    MACHINE.send(now, signal.SIGKILL)
    MACHINE.wait_for_exit([now], 10)
    assert not still_running(now)
    MACHINE.send(now, signal.SIGKILL)  # a zombie: nothing happens
    child.wait()
    MACHINE.send(now, signal.SIGKILL)  # gone: nothing happens


def test_waiting_ends_with_the_last_exit_or_the_deadline(spawn):
    found = [read(spawn(["sleep", "0.3"]).pid), read(spawn(["sleep", "0.6"]).pid)]
    started_s = time.monotonic()
    MACHINE.wait_for_exit(found, 20)
    assert 0.4 < time.monotonic() - started_s < 10
    started_s = time.monotonic()
    MACHINE.wait_for_exit([read(spawn().pid)], 0.2)
    assert 0.2 <= time.monotonic() - started_s < 5


def test_a_name_with_blanks_and_parentheses(tmp_path, spawn):
    program = tmp_path / "a) S (b c"
    program.symlink_to("/bin/sleep")
    child = spawn([str(program), "60"])
    until(lambda: b"a) S (b c" in Path(f"/proc/{child.pid}/stat").read_bytes())
    assert read(child.pid).parent == os.getpid()
    assert read(child.pid).session == child.pid


@pytest.mark.skipif(SYS_EXIT is None, reason="the number of the system call is not known here")
def test_a_zombie_with_living_threads_is_not_gone(mark, spawn):
    child = spawn([sys.executable, "-c", THREAD_LEFT.format(exit_number=SYS_EXIT)], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    until(lambda: read(child.pid).state == "Z")
    assert not alive(child.pid)
    assert still_running(read(child.pid))
    found = read(child.pid)
    MACHINE.send(found, signal.SIGKILL)
    MACHINE.wait_for_exit([found], 10)
    child.wait(10)


def test_stopped_processes_are_ended_too(mark, spawn):
    child = spawn()
    child.send_signal(signal.SIGSTOP)
    until(lambda: read(child.pid).state == "T")
    end(MACHINE, lambda other: other == mark, 0.2)
    assert child.wait(10) == -signal.SIGKILL


def test_what_a_dying_process_starts_is_ended_too(mark, spawn, tmp_path):
    code = (
        "import signal, subprocess, time\n"
        "def again(*_):\n    subprocess.Popen(['sleep', '60'], start_new_session=True); raise SystemExit\n"
        "signal.signal(signal.SIGINT, again); print('ready', flush=True); time.sleep(60)"
    )
    child = spawn([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    assert len(end(MACHINE, lambda other: other == mark, 2)) == 2
    assert pids(mark) == []


def test_left_behind():
    me = read(os.getpid())
    assert left_behind(Mark("s", "1", f"{me.pid}/{me.start_ticks}/0"))
    parent = read(os.getppid())
    assert not left_behind(Mark("s", "1", f"{parent.pid}/{parent.start_ticks}/0"))
    assert left_behind(Mark("s", "1", f"{parent.pid}/{parent.start_ticks - 1}/0"))
    assert not left_behind(Mark("s", "1", "malformed"))
    assert not left_behind(Mark("s", "1", "a/b/c"))
