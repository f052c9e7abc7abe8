"""Repairs whose values follow from the numbers of the log: no value that these numbers contradict."""

# ruff: noqa: E501 - log lines are as long as they are

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engines.sglang.composing import LOADING, Log

from servetune.engines.sglang.logs import SglangLogReader

CASES = Path(__file__).parents[2] / "recordings" / "cases"


def repairs_in(raw: bytes) -> list[tuple[str, Any, str]]:
    reader = SglangLogReader({})
    reader.feed(raw)
    return [(one.flag, one.value, one.reason) for one in reader.diagnose(None).repairs]


def recorded(name: str) -> list[tuple[str, Any, str]]:
    return repairs_in((CASES / f"{name}.log").read_bytes())


def values(found: list[tuple[str, Any, str]], flag: str) -> list[Any]:
    return [value for one, value, _ in found if one == flag]


@pytest.mark.parametrize(
    ("name", "flag", "wanted"),
    [
        ("ar_symm_mem_prefill_size", "chunked-prefill-size", [4096]),
        ("oomr_fp8_mqa_logits", "max-running-requests", []),
        ("oomr_fp8_mqa_logits", "chunked-prefill-size", [4096]),
        ("a2a_deepep_token_cap", "max-running-requests", [1024]),
        ("a2a_deepep_token_cap", "chunked-prefill-size", []),
        ("kv_new_guard_minimum", "mem-fraction-static", [0.773, 0.881]),
        ("model_block_n_576", "tp-size", [8]),
    ],
)
def test_recorded_case(name: str, flag: str, wanted: list[Any]) -> None:
    assert values(recorded(name), flag) == wanted


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("oomg_deepep_ll_h20", "at least 0.12 GiB missing beside 0.85 with 1 of 10 graphs captured"),
        ("oomg_piecewise_tokens", "at least 0.37 GiB missing beside 0.92 with 1 of 58 graphs captured"),
    ],
)
def test_a_capture_that_has_just_begun_misses_more(name: str, words: str) -> None:
    found = recorded(name)
    assert words in found[-1][2]
    assert found[-1][0] == "mem-fraction-static"


def test_the_minimum_says_how_small_its_pool_is() -> None:
    (_, _, minimum), (_, _, roomy) = recorded("kv_new_guard_minimum")
    assert "a pool of about 1.5 GB, 1% of the memory" in minimum
    assert "16.5 GB beside it" in roomy


@pytest.mark.parametrize(
    ("tp", "text", "wanted"),
    [
        (
            16,
            "ValueError: Weight output_partition_size = 96 is not divisible by weight quantization block_n = 128.",
            [4],
        ),
        (
            8,
            "ValueError: Weight input_size_per_partition = 192 is not divisible by weight quantization block_k = 128.",
            [4],
        ),
        (8, "AssertionError: num_attention_heads (28) must be divisible by tp_size (8)", [4]),
        (6, "AssertionError: 64 is not divisible by 6", [2]),
    ],
)
def test_the_tensor_parallel_size_that_divides(tp: int, text: str, wanted: list[int]) -> None:
    log = Log().arguments(tp_size=tp).add("TP0", "Load weight begin. avail mem=94.50 GB")
    log.raises("TP0", (*LOADING, "models/qwen2.py:__init__> raise ValueError("), text).dies()
    assert values(repairs_in(log.text().encode()), "tp-size") == wanted


@pytest.mark.parametrize(("elements", "wanted"), [(33554432, 4096), (29360128, 4096), (3670016, 512), (8, 0)])
def test_the_chunk_that_a_buffer_holds(elements: int, wanted: int) -> None:
    """Of 8192 tokens with 7168 elements each. A buffer for less than 64 tokens: only what the flag is for helps."""
    log = Log().arguments(tp_size=8, enable_torch_symm_mem=True, chunked_prefill_size=8192)
    log.start("ready", ("TP0",), begin=139.0, after=50.0)
    frame = "distributed/device_communicators/torch_symm_mem.py:all_reduce> self.buffer[: inp.numel()].copy_("
    text = f"RuntimeError: The size of tensor a ({elements}) must match the size of tensor b ({8192 * 7168}) at non-singleton dimension 0"
    log.raises("TP0", (frame,), text).dies()
    found = values(repairs_in(log.text().encode()), "chunked-prefill-size")
    assert found == ([wanted] if elements > 64 * 7168 else [])
