"""Models that mix linear attention with full attention: how their recurrent states get into the radix cache."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Fill, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State
from servetune.engines.sglang.rules.attention import grouped_default

OLD = "server_args.py:_handle_mamba_radix_cache"
NEW = "arg_groups/overrides.py:_mamba_radix_cache_resolution; mamba_hook.py:validate_mamba_no_buffer, _extra_buffer"
HYBRID = frozenset({"Qwen3NextForCausalLM", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration"})
_STRATEGY = "mamba_radix_cache_strategy"
_TRACK_INTERVAL = 256


def _buffered(s: State) -> bool:
    return s.mamba_radix_cache_strategy in ("extra_buffer", "extra_buffer_lazy")


@rule("hybrid.attention_sm100", Stage.MODEL, majors=(10,), architectures=HYBRID, source=f"{OLD}; qwen3_5.py of 0.5.15+")
def attention_sm100(s: State) -> Effects:
    """On compute capability 10 the radix cache of hybrid models needs triton, with pages of one token."""
    if s.attention_backend is not None or not s.gpu.sm100:
        return
    free = _buffered(s) or s.disable_radix_cache or s.speculative_algorithm is not None
    backend = "trtllm_mha" if s.version >= (0, 5, 10) and free and grouped_default(s) == "trtllm_mha" else "triton"
    yield Fill("attention_backend", backend)
    if s.version >= (0, 5, 14):
        pages = 64 if backend == "trtllm_mha" else 1
        if s.page_size not in (None, pages):
            yield Assign("page_size", pages, f"hybrid models on {backend}")
        yield Fill("page_size", pages)


@rule("hybrid.without_buffer", Stage.MODEL, until="0.5.13", architectures=HYBRID, source=OLD)
def without_buffer(s: State) -> Effects:
    """Hybrid models with a radix cache and no extra state buffer run without the overlap scheduler."""
    if s.disable_radix_cache:
        if _buffered(s) and s.version >= (0, 5, 10):
            yield Refuse(
                "the extra state buffer belongs to the radix cache",
                (_STRATEGY, "disable_radix_cache"),
                ("--mamba-scheduler-strategy no_buffer",),
            )
        return
    if _buffered(s):
        if s.page_size == 0:
            yield Refuse("--page-size is 0: the interval of state snapshots is divided by it", ("page_size",), ("1",))
        if s.version >= (0, 5, 9):
            yield from _whole_pages(s)
        return
    if s.version >= (0, 5, 11) and s.page_size not in (None, 1):
        yield Assign("page_size", 1, "the state cache without an extra buffer works on pages of one token")
    if s.speculative_algorithm is not None:
        if s.version <= (0, 5, 9):
            yield Assign("disable_radix_cache", True, "speculative decoding of hybrid models has no radix cache")
            return
        yield Refuse(
            "speculative decoding of a hybrid model with the radix cache needs --mamba-scheduler-strategy extra_buffer",
            ("speculative_algorithm", "disable_radix_cache", _STRATEGY),
            ("--mamba-scheduler-strategy extra_buffer", "--disable-radix-cache"),
        )
    elif s.attention_backend == "trtllm_mha":
        reason = "trtllm_mha has no pages of one token, which the state cache needs"
        yield Assign("disable_radix_cache", True, reason)
        yield Assign("disable_overlap_schedule", False, reason)
    else:
        reason = "the state cache without an extra buffer is incompatible with the overlap scheduler"
        yield Assign("disable_overlap_schedule", True, reason)


@rule("hybrid.state_cache", Stage.MODEL, since="0.5.14", architectures=HYBRID, source=NEW)
def state_cache(s: State) -> Effects:
    """An extra state buffer serves overlap and larger pages; without one, neither is possible."""
    if s.disable_radix_cache:
        return
    if s.mamba_radix_cache_strategy == "auto":
        wanted = not s.disable_overlap_schedule or (s.page_size or 1) > 1
        if wanted and s.linear_attn_backend == "triton":
            yield Fill(_STRATEGY, "extra_buffer")
            yield from _whole_pages(s)
            return
        yield Fill(_STRATEGY, "no_buffer")
        if not s.disable_overlap_schedule:
            yield Assign("disable_overlap_schedule", True, "there is no extra state buffer for this linear attention")
    elif _buffered(s):
        yield from _whole_pages(s)
        return
    for wrong, what, flag in (
        (s.page_size not in (None, 1), "pages of one token", "page_size"),
        (not s.disable_overlap_schedule, "--disable-overlap-schedule", "disable_overlap_schedule"),
        (s.attention_backend == "trtllm_mha", "another attention backend than trtllm_mha", "attention_backend"),
    ):
        if wrong:
            yield Refuse(
                f"a hybrid model's state cache without extra buffer needs {what}",
                (flag, _STRATEGY),
                ("--mamba-radix-cache-strategy extra_buffer", "--disable-radix-cache"),
            )


def _whole_pages(s: State) -> Effects:
    interval = s.user.get("mamba_track_interval", _TRACK_INTERVAL)
    if s.page_size and isinstance(interval, int) and interval % s.page_size:
        yield Refuse(
            f"--page-size {s.page_size} does not divide {interval}, the interval of state snapshots",
            ("page_size", _STRATEGY),
        )
