"""What `nvidia-smi` prints, read by pure functions. Recorded outputs are in tests/recordings/nvidia-smi/."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_MIB = 1024 * 1024

GPU_QUERY = (
    "--query-gpu=index,uuid,name,memory.total,memory.used,compute_cap,driver_version",
    "--format=csv,noheader,nounits",
)
PROCESS_QUERY = ("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader")
CONDITION_QUERY = (
    "--query-gpu=index,clocks.sm,clocks.mem,temperature.gpu,ecc.errors.uncorrected.volatile.total,driver_version",
    "--format=csv,noheader,nounits",
)
TOPOLOGY_QUERY = ("topo", "-m")
NO_GPU = re.compile(r"No devices were found", re.IGNORECASE)

_CUDA = re.compile(r"CUDA(?: UMD)? Version\s*:\s*([\d.]+)")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One line of GPU_QUERY. Memory in bytes; fields that the driver does not know (`[N/A]`) are None."""

    index: int
    uuid: str
    name: str
    memory_bytes: int | None
    used_bytes: int | None
    compute_capability: str | None
    driver_version: str | None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One line of PROCESS_QUERY: a process that holds memory of a GPU. `pid` as the driver sees it."""

    uuid: str
    pid: int
    name: str
    memory: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}, {self.memory} on {self.uuid})"


def processes(text: str) -> tuple[GpuProcess, ...]:
    """Output of PROCESS_QUERY; other lines are passed over. A name may hold commas."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) >= 4 and fields[0].startswith("GPU-") and fields[1].isdigit():
            found.append(GpuProcess(fields[0], int(fields[1]), ",".join(fields[2:-1]), fields[-1]))
    return tuple(found)


def conditions(text: str) -> dict[str, dict[str, int | str]]:
    """Output of CONDITION_QUERY: GPU index → clocks in MHz, temperature in °C, uncorrected ECC errors, where told."""
    names = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "ecc_uncorrected")
    found: dict[str, dict[str, int | str]] = {}
    for line in text.splitlines():
        index, *fields = [field.strip() for field in line.split(",")]
        if index.isdigit() and len(fields) == 5:
            numbers = dict(zip(names, fields[:4], strict=True))
            found[index] = {name: int(value) for name, value in numbers.items() if value.isdigit()}
            found[index] |= {"driver_version": fields[4]}
    return found


def gpus(text: str) -> tuple[Gpu, ...]:
    """Output of GPU_QUERY, one GPU a line; other lines (warnings) are passed over."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 7 and fields[0].isdigit():
            index, uuid, name, total, used, capability, driver = fields
            found.append(Gpu(int(index), uuid, name, _bytes(total), _bytes(used), _known(capability), _known(driver)))
    return tuple(found)


def chosen(found: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs that `visible` (as in CUDA_VISIBLE_DEVICES: indices or UUID prefixes) leaves; None leaves all.

    As CUDA does, everything from the first unknown entry on is invisible.
    """
    if visible is None:
        return tuple(found)
    left = []
    for word in (part.strip() for part in visible.split(",")):
        match = [gpu for gpu in found if (word.isdigit() and int(word) == gpu.index) or _is_uuid(word, gpu)]
        if len(match) != 1:
            break
        left += match
    return tuple(left)


def cuda_version(text: str) -> str | None:
    """Highest CUDA version that the driver serves, out of the banner of a plain `nvidia-smi`."""
    match = _CUDA.search(text)
    return match.group(1) if match else None


def interconnect(text: str, indices: Sequence[int]) -> str | None:
    """`nvlink` when every pair of the GPUs is joined by NVLink (NV#) in `topo -m`, `pcie` when not; None for one GPU.

    One pair without NVLink is enough for `pcie`: collective operations go at the speed of the slowest link.
    """
    rows = _topology(text)
    pairs = [(a, b) for a in indices for b in indices if a != b]
    links = [rows[a][b] for a, b in pairs if a in rows and b in rows[a]]
    if not links:
        return None
    return "nvlink" if all(re.fullmatch(r"NV\d+", link) for link in links) else "pcie"


def links(text: str, indices: Sequence[int]) -> dict[str, int]:
    """How many pairs of the GPUs are joined by each kind of link (NV18, PIX, PXB, PHB, NODE, SYS)."""
    rows = _topology(text)
    found: dict[str, int] = {}
    for a in indices:
        for b in indices:
            if a < b and a in rows and b in rows[a]:
                found[rows[a][b]] = found.get(rows[a][b], 0) + 1
    return found


def _topology(text: str) -> dict[int, dict[int, str]]:
    """Row GPU → column GPU → link (X, NV18, PIX, PXB, PHB, NODE, SYS)."""
    lines = [_ANSI.sub("", line).split() for line in text.splitlines()]
    header = next((words for words in lines if words and all(word.startswith("GPU") for word in words[:1])), [])
    columns = [int(word[3:]) for word in header if re.fullmatch(r"GPU\d+", word)]
    rows = {}
    for words in lines:
        if words and words is not header and re.fullmatch(r"GPU\d+", words[0]) and len(words) > len(columns):
            rows[int(words[0][3:])] = dict(zip(columns, words[1:], strict=False))
    return rows


def _is_uuid(word: str, gpu: Gpu) -> bool:
    return word.startswith("GPU-") and gpu.uuid.startswith(word)


def _bytes(mib: str) -> int | None:
    return int(mib) * _MIB if mib.isdigit() else None


def _known(field: str) -> str | None:
    return None if field.startswith("[") or not field else field
