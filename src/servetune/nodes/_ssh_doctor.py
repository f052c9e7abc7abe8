"""The doctor's rows of a node that is reached over SSH."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from servetune.core.doctor import Finding, Purpose
from servetune.core.errors import HostKeyError, ServetuneError
from servetune.nodes._checkup import SHARED_MEMORY, Checkup, Row, each, trouble
from servetune.nodes._ssh_leases import LeaseFiles
from servetune.nodes._ssh_link import Link
from servetune.nodes._ssh_machine import far_free_port

CLOCK_S = 2.0


def connection(link: Link, place: Callable[[], object]) -> Finding:
    """Reachability, host key and authentication at once: each refusal says which."""
    began_s = time.monotonic()
    try:
        place()
    except HostKeyError as error:
        return Finding(row="connection", state="error", found="host key refused", remedy=str(error))
    except ServetuneError as error:
        return trouble("connection", error)
    found = f"{link.target}, host key known, {1000 * (time.monotonic() - began_s):.0f} ms to connect"
    return Finding(row="connection", state="ok", found=found)


def clock(link: Link) -> Finding:
    """Difference of the clocks: times in the node's log are compared with those of the study."""
    before_s = time.time()
    said = link.run("date +%s.%N").text.strip()
    after_s = time.time()
    try:
        there_s = float(said)
    except ValueError:
        return Finding(
            row="clock", state="warning", found=f"`date +%s.%N` says {said[-100:]!r}", remedy="install coreutils there"
        )
    off_s = there_s - (before_s + after_s) / 2
    if abs(off_s) <= CLOCK_S + (after_s - before_s):
        return Finding(row="clock", state="ok", found=f"{off_s:+.1f} s")
    return Finding(
        row="clock",
        state="warning",
        found=f"the node's clock is {off_s:+.0f} s off this machine's",
        remedy="on the machine whose clock is wrong (a container's host): `timedatectl set-ntp true` as root; until "
        "then times in the node's logs are off by as much",
    )


def ports(link: Link) -> Finding:
    """A port to serve on."""
    return Finding(row="ports", state="ok", found=f"30000–39999, such as {far_free_port(link)}")


def lease(files: LeaseFiles, names: Sequence[str], study: str) -> Finding:
    """Whether another tuner uses these GPUs now."""
    others = {name: owner for name, owner in files.owners() if name in names and owner.get("study") != study}
    if not others:
        return Finding(row="lease", state="ok", found=f"free: {', '.join(names)}")
    shown = ", ".join(
        f"{name} by study {owner.get('study')!r} of {owner.get('host')}" for name, owner in others.items()
    )
    return Finding(
        row="lease", state="error", found=f"in use: {shown}", remedy="wait for it, stop it, or choose other node.gpus"
    )


def rows(
    checkup: Checkup, purpose: Purpose, rehearsed: Callable[[], Finding] | None, of_link: Iterable[Row]
) -> Iterator[Finding]:
    """Everything after the connection; what a rehearsal does not need is passed over."""
    of_engine: list[Row] = [
        ("engine", checkup.engine),
        ("gpus", lambda: checkup.of_gpus(purpose)),
        (SHARED_MEMORY, lambda: checkup.shared_memory(purpose)),
    ]
    of_model: list[Row] = [("model", lambda: checkup.model(purpose))]
    if rehearsed is not None:
        of_engine, of_model = [("engine", rehearsed)], []
    yield from each([("tools", checkup.tools), *of_engine, ("disk", checkup.disk), *of_model, *of_link])
