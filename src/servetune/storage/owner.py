"""Which process holds a lease, and whether it is provably dead."""

from __future__ import annotations

import os
import socket
import uuid
from functools import cache
from pathlib import Path

import psutil

from servetune.core.space import Frozen


class Owner(Frozen):
    """A process, so named that no other one, now or after a reboot, has the same name."""

    host: str
    machine: str  # tells hosts of one name apart
    boot: str  # empty where the system does not say
    pid_namespace: str  # a pid means nothing in another one
    pid: int
    started: str  # start time as the kernel counts it; immune to changes of the clock

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"


def this_process() -> Owner:
    """The calling process."""
    return Owner(
        host=socket.gethostname(),
        machine=_machine(),
        boot=_text("/proc/sys/kernel/random/boot_id"),
        pid_namespace=_pid_namespace(),
        pid=os.getpid(),
        started=_started(os.getpid()) or "",
    )


def provably_dead(owner: Owner) -> bool:
    """Whether `owner` was a process of this host that cannot be alive. False also means: cannot tell from here."""
    here = this_process()
    if (owner.host, owner.machine) != (here.host, here.machine):
        return False
    if owner.boot != here.boot:  # another boot of this machine, if it is this machine
        return bool(owner.machine and owner.boot and here.boot)
    if owner.pid_namespace != here.pid_namespace:
        return False
    if not psutil.pid_exists(owner.pid):
        return True
    started = _started(owner.pid)  # None: it exists, but its entry is hidden or it has just gone
    return started is not None and started != owner.started


def _started(pid: int) -> str | None:
    """Start time of a running process; `zombie` for one that has ended but was not reaped; None when not known."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return "zombie"
        # on Linux psutil adds the boot time, which moves with the clock: take the kernel's own count of ticks
        stat = _text(f"/proc/{pid}/stat")
        return stat.rpartition(")")[2].split()[19] if stat else f"{process.create_time():.2f}"
    except psutil.Error:
        return None


@cache
def _machine() -> str:
    return machine_name(_text("/etc/machine-id"), uuid.getnode())


def machine_name(machine_id: str, node: int) -> str:
    """The machine's id, else its MAC address (`node`, 48 bits), else nothing: then only boot ids tell machines apart.

    Without a network card `uuid.getnode` makes an address up, another one in each process, and says so in the
    multicast bit (RFC 9562, 6.10).
    """
    return machine_id or ("" if node >> 40 & 1 else f"{node:012x}")


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
