"""A real OpenSSH server on a loopback port of its own, with its own keys and configuration."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

TESTS = Path(__file__).parents[1]
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"

needs_sshd = pytest.mark.skipif(not Path(SSHD).exists(), reason="needs Debian's openssh-server")


class Sshd:
    """`folder` gets keys and configuration. `home`: HOME of those who log in, where a node's work directory lies."""

    def __init__(self, folder: Path, prefix: tuple[str, ...] = (), address: str = "127.0.0.1") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.address = address
        self.prefix = prefix  # a command to run sshd with, such as `ip netns exec NAME`
        self.client_key = keygen(folder / "client")
        self.host_key = keygen(folder / "host")
        self.known_hosts = folder / "known_hosts"
        self.authorized = folder / "authorized_keys"
        self.authorized.write_text((folder / "client.pub").read_text())
        self.home = folder / "home"
        self.home.mkdir(exist_ok=True)
        self.answers = folder / "answers"  # of the stand-in GPUs, once they are put
        self.options: dict[str, str] = {}
        # of those who log in; TEST_RUN for the reaper
        self.environment = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "TEST_RUN": os.environ.get("TEST_RUN", ""),
        }
        self.know()
        self._process: subprocess.Popen[bytes] | None = None

    def know(self) -> None:
        """Accept the host key."""
        self.known_hosts.write_text(f"[{self.address}]:{self.port} {public(self.host_key)}\n")

    def put_gpus(self) -> Path:
        """A stand-in for nvidia-smi and two recorded GPUs; the folder with its answers, which a test may change."""
        answers, programs = self.answers, self.folder / "programs"
        answers.mkdir()
        programs.mkdir()
        for kind in ("query", "topo", "banner"):
            shutil.copy(TESTS / "recordings" / "nvidia-smi" / f"h200-x2.{kind}.txt", answers / kind)
        (answers / "apps").write_text("")
        (answers / "conditions").write_text("0, 1980, 3201, 41, 0, 580.159.04\n1, 1980, 3201, 43, 0, 580.159.04\n")
        program = programs / "nvidia-smi"
        text = (TESTS / "fakes" / "servers" / "nvidia-smi").read_text()
        program.write_text(text.replace("/usr/bin/env python3", f"{sys.executable} -S"))
        program.chmod(0o755)
        self.environment |= {
            "PATH": f"{programs}:{self.environment['PATH']}",
            "NVIDIA_SMI_ANSWERS": str(answers),
        }
        return answers

    def start(self) -> Sshd:
        options = {
            "ListenAddress": "0.0.0.0",
            "Port": self.port,
            "HostKey": self.host_key,
            "PidFile": "none",
            "AuthorizedKeysFile": self.authorized,
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "PermitRootLogin": "yes",
            "PrintMotd": "no",
            "MaxStartups": "100",
            "SetEnv": " ".join(f"{name}={value}" for name, value in self.environment.items()),
            **self.options,
        }
        config = self.folder / "sshd_config"
        config.write_text("".join(f"{key} {value}\n" for key, value in options.items()))
        with contextlib.suppress(OSError):
            Path("/run/sshd").mkdir(exist_ok=True)
        log = self.folder / "sshd.log"
        self._process = subprocess.Popen([*self.prefix, SSHD, "-D", "-f", config, "-E", log], start_new_session=True)
        until_listens((self.address, self.port), self._process, log)
        return self

    def cut(self) -> None:
        """End every connection; the server goes on listening."""
        for session in self._sessions():
            with contextlib.suppress(psutil.Error):
                session.kill()

    def stop(self) -> None:
        """End the server and every connection. What was started detached goes on."""
        if self._process is None:
            return
        sessions = self._sessions()
        self._process.kill()
        self._process.wait()
        for session in sessions:
            with contextlib.suppress(psutil.Error):
                session.kill()
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def settings(self, **more: object) -> dict[str, object]:
        """Of `node: {name: ssh}`."""
        return {
            "host": self.address,
            "port": self.port,
            "user": getpass.getuser(),
            "identity_file": str(self.client_key),
            "known_hosts": str(self.known_hosts),
            "config": str(self.folder / "no_config"),
            "workdir": str(self.home / ".servetune"),
            "lease_dir": str(self.home / "leases"),
            **more,
        }

    def _sessions(self) -> list[psutil.Process]:
        """Of sshd, its children only: a detached server is nobody's child."""
        if self._process is None:
            return []
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self._process.pid).children(recursive=True)
            return [child for child in children if child.name().startswith("sshd")]
        return []


@contextmanager
def running(folder: Path, gpus: bool = False, **options: str) -> Iterator[Sshd]:
    """A server, ended at the end. `gpus`: with two stand-in GPUs, whose answers lie in `answers`."""
    server = Sshd(folder)
    server.options |= options
    if gpus:
        server.put_gpus()
    server.start()
    try:
        yield server
    finally:
        server.stop()


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "", "-f", path], check=True)
    return path


def public(key: Path) -> str:
    return Path(f"{key}.pub").read_text().strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until_listens(place: tuple[str, int], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + 20
    while True:
        with contextlib.suppress(OSError), socket.create_connection(place, timeout=1):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.02)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
