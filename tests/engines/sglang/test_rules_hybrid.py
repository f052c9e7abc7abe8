"""Models that mix linear and full attention: answers of SGLang's own resolution, asked with `tools/sglang_oracle`."""

import pytest
from engines.sglang.rule_cases import B200, H200, refused, resolved

MODEL = "qwen3-next-80b-a3b"
ASKED = ("attention_backend", "page_size", "disable_overlap_schedule", "disable_radix_cache")


@pytest.mark.parametrize(
    ("flags", "answers"),
    [
        (
            {},
            {
                "0.5.9": ("triton", 1, True, False),
                "0.5.13": ("triton", 1, True, False),
                "0.5.15": ("triton", 1, False, False),
                "0.5.23": ("triton", 1, False, False),
            },
        ),
        (
            {"disable_radix_cache": True},
            {
                "0.5.9": ("triton", 1, False, True),
                "0.5.13": ("trtllm_mha", 64, False, True),
                "0.5.23": ("trtllm_mha", 64, False, True),
            },
        ),
        (
            {"page_size": 64},
            {
                "0.5.9": ("triton", 64, True, False),
                "0.5.13": ("triton", 1, True, False),
                "0.5.23": ("triton", 1, False, False),
            },
        ),
        (
            {"disable_overlap_schedule": True},
            {"0.5.12": ("triton", 1, True, False), "0.5.18": ("triton", 1, True, False)},
        ),
        ({"speculative_algorithm": "NEXTN"}, {"0.5.9": ("triton", 1, True, True)}),
    ],
)
def test_on_compute_capability_10(flags, answers):
    for version, answer in answers.items():
        found = resolved(version, B200, MODEL, tp_size=4, **flags)
        assert tuple(found[name] for name in ASKED) == answer, version


def test_speculation_needs_an_extra_buffer():
    flags = {"tp_size": 4, "speculative_algorithm": "NEXTN"}
    assert "hybrid.without_buffer" in refused("0.5.13", B200, MODEL, **flags)
    assert not refused("0.5.23", B200, MODEL, **flags)


def test_the_extra_buffer_belongs_to_the_radix_cache():
    flags = {"tp_size": 4, "mamba_scheduler_strategy": "extra_buffer", "disable_radix_cache": True}
    assert "hybrid.without_buffer" in refused("0.5.13", H200, MODEL, **flags)


@pytest.mark.parametrize(
    ("flags", "wrong"),
    [
        ({"mamba_radix_cache_strategy": "no_buffer"}, True),
        ({"mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True}, False),
        ({"mamba_radix_cache_strategy": "no_buffer", "disable_overlap_schedule": True, "page_size": 64}, True),
        ({"mamba_radix_cache_strategy": "extra_buffer", "page_size": 64}, False),
        ({"mamba_radix_cache_strategy": "extra_buffer", "page_size": 48}, True),
        ({"page_size": 48}, True),
    ],
)
def test_what_a_state_cache_needs(flags, wrong):
    assert ("hybrid.state_cache" in refused("0.5.23", H200, MODEL, tp_size=4, **flags)) is wrong
