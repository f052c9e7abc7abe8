"""Launch configurations drawn for comparing the rules with the engine: broad, seeded, of one version's vocabulary.

`draw(seed, count, choices)` yields assignments. `choices(flag)` says what a version's parser takes: None when it does
not know the flag, an empty tuple for free values, else its choices.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

#: Free-valued and boolean flags with the values drawn. A choice flag draws from what the version's parser offers.
VALUES: dict[str, tuple[object, ...]] = {
    "pp-size": (1, 2, 2),
    "ep-size": (1, 2, 4, 8, 8),
    "moe-dense-tp-size": (1, 1, 2, 8),
    "enable-dp-lm-head": (True,),
    "attn-cp-size": (2, 8),
    "moe-dp-size": (2,),
    "disable-shared-experts-fusion": (True,),
    "enforce-shared-experts-fusion": (True,),
    "enable-eplb": (True,),
    "ep-num-redundant-experts": (0, 8, 16),
    "enable-two-batch-overlap": (True,),
    "enable-single-batch-overlap": (True,),
    "disable-custom-all-reduce": (True,),
    "enable-mscclpp": (True,),
    "enable-torch-symm-mem": (True,),
    "enable-symm-mem": (True,),
    "enable-nccl-nvls": (True,),
    "enable-flashinfer-allreduce-fusion": (True,),
    "enforce-disable-flashinfer-allreduce-fusion": (True,),
    "mem-fraction-static": (0.5, 0.75, 0.85, 0.92),
    "max-running-requests": (16, 64, 256, 1024),
    "max-total-tokens": (20000, 200000),
    "max-prefill-tokens": (4096, 16384, 32768),
    "chunked-prefill-size": (-1, 128, 512, 1000, 2048, 4096, 8192, 16384),
    "schedule-conservativeness": (-0.5, 0.3, 0.8, 1.0),
    "page-size": (1, 16, 32, 48, 64, 128),
    "disable-radix-cache": (True,),
    "enable-mixed-chunk": (True,),
    "disable-overlap-schedule": (True,),
    "num-continuous-decode-steps": (1, 2, 4),
    "stream-interval": (1, 8),
    "cuda-graph-max-bs": (8, 64, 128, 130, 256, 512),
    "cuda-graph-max-bs-decode": (8, 64, 128, 130, 256, 512),
    "cuda-graph-max-bs-prefill": (512, 2048, 8192),
    "disable-cuda-graph": (True,),
    "disable-cuda-graph-padding": (True,),
    "disable-prefill-cuda-graph": (True,),
    "disable-decode-cuda-graph": (True,),
    "enable-torch-compile": (True,),
    "enable-piecewise-cuda-graph": (True,),
    "disable-piecewise-cuda-graph": (True,),
    "enforce-piecewise-cuda-graph": (True,),
    "enable-hierarchical-cache": (True,),
    "enable-deterministic-inference": (True,),
    "enable-priority-scheduling": (True,),
    "enable-memory-saver": (True,),
    "context-length": (4096, 32768, 1000000),
    "cpu-offload-gb": (0, 8),
    "enable-multimodal": (True,),
    "enable-dynamic-chunking": (True,),
}
#: Flags whose values the version's own parser lists.
CHOICES = (
    "moe-a2a-backend",
    "moe-runner-backend",
    "deepep-mode",
    "deepep-v2-mode",
    "flashinfer-a2a-dispatch-type",
    "ep-dispatch-algorithm",
    "flashinfer-allreduce-fusion-backend",
    "schedule-policy",
    "attention-backend",
    "prefill-attention-backend",
    "decode-attention-backend",
    "kv-cache-dtype",
    "quantization",
    "dtype",
    "sampling-backend",
    "fp8-gemm-backend",
    "fp4-gemm-backend",
    "nsa-prefill-backend",
    "dsa-prefill-backend",
    "dsa-decode-backend",
    "cuda-graph-backend-decode",
    "cuda-graph-backend-prefill",
    "hicache-io-backend",
    "hicache-mem-layout",
    "speculative-moe-runner-backend",
    "speculative-moe-a2a-backend",
    "speculative-attention-mode",
)
#: What people try most is drawn more often than the rest of a choice list.
FAVOURITES: dict[str, tuple[str, ...]] = {
    "moe-a2a-backend": ("none", "deepep", "flashinfer"),
    "moe-runner-backend": ("auto", "triton", "flashinfer_cutlass", "flashinfer_trtllm", "deep_gemm", "cutlass"),
    "attention-backend": ("triton", "flashinfer", "fa3", "trtllm_mla", "trtllm_mha", "flashmla"),
    "quantization": ("fp8", "modelopt_fp4"),
    "kv-cache-dtype": ("fp8_e4m3", "fp8_e5m2", "auto"),
}
Known = Callable[[str], "Sequence[str] | None"]


def draw(seed: int, count: int, choices: Known) -> Iterator[dict[str, object]]:
    """`count` assignments; the same seed and vocabulary give the same assignments."""
    source = random.Random(seed)
    for _ in range(count):
        yield _one(source, choices)


def _one(source: random.Random, choices: Known) -> dict[str, object]:
    assignment: dict[str, object] = {"tp-size": source.choice((1, 2, 4, 8, 8, 8))}
    rate = source.choice((0.02, 0.04, 0.08))
    for flag, values in VALUES.items():
        if choices(flag) is not None and source.random() < rate:
            assignment[flag] = source.choice(values)
    for flag in CHOICES:
        offered = choices(flag)
        if offered and source.random() < rate * (2 if flag in FAVOURITES else 1):
            liked = [value for value in FAVOURITES.get(flag, ()) if value in offered]
            assignment[flag] = source.choice(liked if liked and source.random() < 0.6 else list(offered))
    for bundle in (_dp_attention, _all_to_all, _speculation):
        bundle(source, choices, assignment)
    return assignment


def _dp_attention(source: random.Random, choices: Known, assignment: dict[str, object]) -> None:
    if source.random() < 0.25:
        groups = source.choice((1, 2, 3, 4, 8, assignment["tp-size"], assignment["tp-size"]))
        if choices("attn-dp-size") is not None and source.random() < 0.4:
            assignment["attn-dp-size"] = groups
        else:
            assignment["dp-size"] = groups
            if source.random() < 0.8:
                assignment["enable-dp-attention"] = True


def _all_to_all(source: random.Random, choices: Known, assignment: dict[str, object]) -> None:
    if source.random() < 0.2:
        assignment["moe-a2a-backend"] = source.choice(
            [v for v in ("flashinfer", "deepep") if v in (choices("moe-a2a-backend") or ())] or ["none"]
        )
        if source.random() < 0.7:
            assignment["moe-runner-backend"] = source.choice(
                ("flashinfer_cutlass", "flashinfer_cutlass", "auto", "deep_gemm")
            )


def _speculation(source: random.Random, choices: Known, assignment: dict[str, object]) -> None:
    if source.random() < 0.12:
        assignment["speculative-algorithm"] = source.choice(
            ("EAGLE", "EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE")
        )
        if source.random() < 0.6:
            assignment["speculative-num-steps"] = source.choice((1, 3, 5))
            assignment["speculative-eagle-topk"] = source.choice((1, 1, 4))
            assignment["speculative-num-draft-tokens"] = source.choice((2, 4, 8))
        elif source.random() < 0.2:
            assignment["speculative-eagle-topk"] = source.choice((1, 4))


def argv(assignment: dict[str, object]) -> list[str]:
    """Flags of an assignment as the engine's command line takes them."""
    words: list[str] = []
    for flag, value in assignment.items():
        if value is True:
            words.append(f"--{flag}")
        elif value is not False:
            words += [f"--{flag}", str(value)]
    return words
