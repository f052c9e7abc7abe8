"""Models that mix linear attention with full attention: how their recurrent states get into the radix cache."""

from __future__ import annotations

from typing import NamedTuple

from servetune.engines.sglang.rules._registry import Assign, Effects, Fill, Refuse, Stage, Version, rule
from servetune.engines.sglang.rules._state import State
from servetune.engines.sglang.rules.attention import grouped_default

OLD = "server_args.py:_handle_mamba_radix_cache"
NEW = "arg_groups/overrides.py:_mamba_radix_cache_resolution; mamba_hook.py:validate_mamba_no_buffer, _extra_buffer"
QWEN = frozenset(
    {
        "Qwen3NextForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
    }
)
NEMOTRON_H = frozenset({"NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"})
_LFM2 = ("Lfm2ForCausalLM", "Lfm2MoeForCausalLM")
_FALCON = ("FalconH1ForCausalLM", "JetNemotronForCausalLM", "JetVLMForConditionalGeneration")
_GRANITE = "GraniteMoeHybridForCausalLM"
_STRATEGY = "mamba_radix_cache_strategy"
_TRACK_INTERVAL = 256


class _States(NamedTuple):
    """How an architecture's recurrent states are cached.

    `cached`: in the radix cache, else there is none. `buffered`: an extra buffer of states is possible. `sm100`: the
    attention backend on compute capability 10 where none is named.
    """

    cached: bool = True
    buffered: bool = True
    sm100: str | None = None


_UNCACHED = _States(cached=False)
_TO_0_5_9 = {
    **dict.fromkeys(QWEN, _States(sm100="triton")),
    **dict.fromkeys((*_FALCON, _GRANITE), _States(buffered=False, sm100="triton")),
    **dict.fromkeys((*_LFM2, *NEMOTRON_H), _States(buffered=False, sm100="flashinfer")),
    **dict.fromkeys(("KimiLinearForCausalLM", "BailingMoeV2_5ForCausalLM"), _UNCACHED),
}
_TO_0_5_13 = {
    **_TO_0_5_9,
    **dict.fromkeys(_FALCON, _States(sm100="triton")),
    **dict.fromkeys((*NEMOTRON_H, _GRANITE), _States(sm100="flashinfer")),
    "MiniCPMV4_6ForConditionalGeneration": _States(sm100="triton"),
    "BailingMoeV2_5ForCausalLM": _States(),
}
_FROM_0_5_14 = {
    **_TO_0_5_13,
    **dict.fromkeys(NEMOTRON_H, _States()),  # their attention backend: architectures.py
    "KimiLinearForCausalLM": _States(),
    "MiniCPMV4_7ForConditionalGeneration": _States(sm100="triton"),
    **dict.fromkeys(("Qwen3_5MoeForCausalLM", "Qwen3_5ForCausalLM"), _States()),
    **dict.fromkeys(("BailingMoeV3ForCausalLM", "BailingMoeV3VLForConditionalGeneration"), _States()),
}
HYBRID = frozenset(_FROM_0_5_14)
#: Keep recurrent states, too; what else holds for them was not read off the engine.
_OTHERS = frozenset(
    {
        "KimiK3ForConditionalGeneration",
        "Glm5NextForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
        "InternS2MobiusForConditionalGeneration",
        "NemotronH_Omni_Reasoning_V3",
        "ZayaForCausalLM",
        "GigaChat35ForCausalLM",
        "InklingForConditionalGeneration",
    }
)
_TRITON_REFUSING: tuple[tuple[Version, frozenset[str]], ...] = (
    ((0, 5, 14), frozenset(_LFM2)),
    ((0, 0, 0), frozenset({"Lfm2ForCausalLM", *NEMOTRON_H})),
)


def _states(s: State) -> _States | None:
    """None for a model that keeps no recurrent states in this version."""
    table = _TO_0_5_9 if s.version < (0, 5, 10) else _TO_0_5_13 if s.version < (0, 5, 14) else _FROM_0_5_14
    if s.model.architecture == _GRANITE and not s.model.recurrent:
        return None
    return table.get(s.model.architecture)


def _buffered(s: State) -> bool:
    return s.mamba_radix_cache_strategy in ("extra_buffer", "extra_buffer_lazy")


@rule("hybrid.attention_sm100", Stage.MODEL, majors=(10,), architectures=HYBRID, source=f"{OLD}; qwen3_5.py of 0.5.15+")
def attention_sm100(s: State) -> Effects:
    """On compute capability 10 the radix cache of hybrid models needs backends with pages of one token."""
    states = _states(s)
    if states is None or states.sm100 is None or s.attention_backend is not None or not s.gpu.sm100:
        return
    if s.model.architecture not in QWEN:
        yield Fill("attention_backend", states.sm100)
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
    states = _states(s)
    if states is None:
        return
    if not states.cached:
        yield Assign("disable_radix_cache", True, "the states of this model do not fit into the radix cache")
        return
    if _buffered(s):
        yield from _with_buffer(s, states)
        return
    if s.disable_radix_cache:
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


def _with_buffer(s: State, states: _States) -> Effects:
    """What the extra state buffer needs, up to 0.5.13."""
    instead = ("--mamba-scheduler-strategy no_buffer",)
    if not states.buffered and s.version >= (0, 5, 9):
        yield Refuse(f"{s.model.architecture} has no extra state buffer", (_STRATEGY,), instead)
    if s.disable_radix_cache:
        if s.version >= (0, 5, 10):
            yield Refuse(
                "the extra state buffer belongs to the radix cache", (_STRATEGY, "disable_radix_cache"), instead
            )
        return
    if s.page_size == 0:
        yield Refuse("--page-size is 0: the interval of state snapshots is divided by it", ("page_size",), ("1",))
    drafted = s.speculative_num_draft_tokens
    if s.mamba_radix_cache_strategy == "extra_buffer_lazy" and drafted is not None and s.version >= (0, 5, 13):
        yield Refuse(
            "--mamba-scheduler-strategy extra_buffer_lazy does not work with speculative decoding",
            (_STRATEGY, "speculative_num_draft_tokens"),
            ("--mamba-scheduler-strategy extra_buffer",),
        )
    if s.version >= (0, 5, 9):
        yield from _whole_pages(s)


@rule("hybrid.state_cache", Stage.MODEL, since="0.5.14", architectures=HYBRID, source=NEW)
def state_cache(s: State) -> Effects:
    """An extra state buffer serves overlap and larger pages; without one, neither is possible."""
    states = _states(s)
    if states is None or s.disable_radix_cache:
        return
    possible = states.buffered and s.linear_attn_backend == "triton"
    if s.mamba_radix_cache_strategy == "auto":
        wanted = not s.disable_overlap_schedule or (s.page_size or 1) > 1
        if wanted and possible:
            yield Fill(_STRATEGY, "extra_buffer")
            yield from _whole_pages(s)
            return
        yield Fill(_STRATEGY, "no_buffer")
        if not s.disable_overlap_schedule:
            yield Assign("disable_overlap_schedule", True, "there is no extra state buffer for this linear attention")
    elif _buffered(s):
        if not possible and s.version >= (0, 5, 23):
            yield Refuse(
                "there is no extra state buffer for this linear attention",
                (_STRATEGY, "linear_attn_backend"),
                ("--mamba-radix-cache-strategy no_buffer",),
            )
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
    if not isinstance(interval, int):
        return
    if s.page_size and interval % s.page_size:
        yield Refuse(
            f"--page-size {s.page_size} does not divide {interval}, the interval of state snapshots",
            ("page_size", _STRATEGY),
        )
    drafted = s.speculative_num_draft_tokens
    if drafted is not None and interval < drafted:
        yield Refuse(
            f"--speculative-num-draft-tokens {drafted} is above {interval}, the interval of state snapshots",
            ("speculative_num_draft_tokens", "mamba_track_interval"),
        )


@rule(
    "hybrid.buffer_without_states",
    Stage.MODEL,
    since="0.5.23",
    source="arg_groups/model_hook.py:handle_mamba_radix_cache",
)
def buffer_without_states(s: State) -> Effects:
    """An extra state buffer needs recurrent states."""
    if not _buffered(s) or s.disable_radix_cache or not s.model.known:
        return
    if _states(s) is None and s.model.recurrent is None and s.model.architecture not in _OTHERS:
        yield Refuse(
            f"--mamba-radix-cache-strategy {s.mamba_radix_cache_strategy} needs recurrent states, which "
            f"{s.model.architecture} does not have",
            (_STRATEGY,),
            ("--mamba-radix-cache-strategy auto",),
        )


@rule(
    "hybrid.no_triton",
    Stage.MODEL,
    since="0.5.9",
    architectures=frozenset({*_LFM2, *NEMOTRON_H}),
    source="server_args.py:_handle_model_specific_adjustments; 0.5.20+: arg_groups/model_hook.py",
)
def no_triton(s: State) -> Effects:
    """The triton backend expects attention in the first layer."""
    refusing = next(names for since, names in _TRITON_REFUSING if s.version >= since)
    if s.attention_backend == "triton" and s.model.architecture in refusing:
        yield Refuse(
            f"{s.model.architecture} does not run on attention backend triton",
            ("attention_backend",),
            ("flashinfer", "fa3"),
        )
