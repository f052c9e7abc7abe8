from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from contracts.node_contract import BAD_SERVER, listening, until

from servetune.core.errors import NodeUnusableError
from servetune.nodes import _ports
from servetune.nodes._ports import PortGuard, free_port, listening_inodes, listening_pids


@pytest.fixture
def port():
    return free_port()


@contextlib.contextmanager
def listener(port, address="127.0.0.1", family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_STREAM) as held:
        held.bind((address, port))
        held.listen()
        yield


def test_free_ports_are_not_handed_out_by_the_kernel():
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert free_port() < min(first_ephemeral, 32768)


@pytest.mark.parametrize("offset", [0, 1, 6, 233])
def test_a_port_is_not_free_when_it_or_a_neighbour_is_taken(port, offset, monkeypatch):
    monkeypatch.setattr(_ports, "PREFERRED", [port] * 100)
    monkeypatch.setattr(_ports, "SECOND_CHOICE", [port] * 100)
    assert free_port() == port
    with listener(port + offset), pytest.raises(NodeUnusableError, match="no free TCP port"):
        free_port()


@pytest.mark.parametrize(
    ("address", "family"), [("127.0.0.1", socket.AF_INET), ("0.0.0.0", socket.AF_INET), ("::1", socket.AF_INET6)]
)
def test_who_listens(port, address, family):
    assert listening_inodes(port) == set()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(listener(port, address, family))
        except OSError:
            pytest.skip("no IPv6 here")
        assert len(listening_inodes(port)) == 1
        assert listening_pids(port) == {os.getpid()}
    assert listening_pids(port) == set()


def test_a_port_that_was_free_and_is_held_after(port, monkeypatch):
    monkeypatch.setattr(_ports, "_PORT_FREE_S", 0.1)
    guard = PortGuard(port)
    guard.check()
    with listener(port), pytest.raises(NodeUnusableError, match=rf"port {port} .*pid {os.getpid()} .*left alone"):
        guard.check()


def test_a_port_that_was_held_before_is_nobodys_fault(port):
    with listener(port):
        PortGuard(port).check()


def test_a_port_that_another_launch_took(port, monkeypatch):
    monkeypatch.setattr(_ports, "_PORT_FREE_S", 0.1)
    guard = PortGuard(port)
    marked = {**os.environ, "SERVETUNE_STUDY": "another", "SERVETUNE_TRIAL": "1", "SERVETUNE_STARTER": "1/1/0"}
    words = [sys.executable, "-S", BAD_SERVER, "--port", str(port)]
    with subprocess.Popen(words, env=marked, stderr=subprocess.DEVNULL) as other:
        until(lambda: listening(port))
        guard.check()
        other.kill()
