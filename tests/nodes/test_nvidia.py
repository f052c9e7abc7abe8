from __future__ import annotations

from pathlib import Path

import pytest

from servetune.nodes import _nvidia

RECORDINGS = Path(__file__).parent.parent / "recordings" / "nvidia-smi"


def recorded(name: str) -> str:
    return (RECORDINGS / f"{name}.txt").read_text()


def test_gpus_of_a_recorded_node():
    first, second = _nvidia.gpus(recorded("h200-x2.query"))
    assert (first.index, first.name, first.memory_bytes) == (0, "NVIDIA H200", 143771 * 2**20)
    assert (second.compute_capability, second.driver_version, second.used_bytes) == ("9.0", "580.159.04", 0)


def test_unknown_fields_are_none():
    (gpu,) = _nvidia.gpus("0, GPU-1, NVIDIA GB10, [N/A], [N/A], 12.1, [N/A]\n")
    assert (gpu.memory_bytes, gpu.used_bytes, gpu.driver_version, gpu.compute_capability) == (None, None, None, "12.1")


def test_lines_that_are_no_gpu_are_passed_over():
    text = "Warning: infoROM is corrupted at gpu 0000:00:06.0, see the manual\n" + recorded("h200-x2.query")
    assert len(_nvidia.gpus(text)) == 2


def test_cuda_version():
    assert _nvidia.cuda_version(recorded("h200-x2.banner")) == "13.0"
    assert _nvidia.cuda_version("nothing of the kind") is None


@pytest.mark.parametrize(
    ("name", "indices", "expected"),
    [
        ("h200-x2", [0, 1], "nvlink"),
        ("h200-x2", [1], None),
        ("constructed-x8-pcie", range(8), "pcie"),
        ("constructed-x8-pcie", [0, 1], "pcie"),
        ("constructed-x4-bridged-pairs", range(4), "pcie"),
        ("constructed-x4-bridged-pairs", [2, 3], "nvlink"),
        ("constructed-x4-bridged-pairs", [1, 2], "pcie"),
    ],
)
def test_interconnect(name, indices, expected):
    assert _nvidia.interconnect(recorded(f"{name}.topo"), list(indices)) == expected


@pytest.mark.parametrize("text", ["", "No devices were found\n", "Failed to run topology matrix"])
def test_no_topology_is_no_interconnect(text):
    assert _nvidia.interconnect(text, [0, 1]) is None


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1]),
        ("0,1", [0, 1]),
        ("1", [1]),
        ("1, 0", [1, 0]),
        ("GPU-05168b4e", [1]),
        ("0,7,1", [0]),
        ("", []),
        ("-1", []),
        ("GPU-", []),
    ],
)
def test_chosen_gpus(visible, indices):
    found = _nvidia.gpus(recorded("h200-x2.query"))
    assert [gpu.index for gpu in _nvidia.chosen(found, visible)] == indices
