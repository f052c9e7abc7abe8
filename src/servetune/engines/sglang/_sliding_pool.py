"""Models whose layers with a sliding window keep a pool of their own, with other heads if their config says so.

Sources: `configs/model_config.py` (`is_hybrid_swa_model`, `get_hybrid_layer_ids`, `get_swa_num_kv_heads`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Version = tuple[int, int, int]
_LISTED_KINDS = (
    "GptOssForCausalLM",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "LagunaForCausalLM",
    "MellumForCausalLM",
    "Step3p5ForCausalLM",
    "Step3p7ForConditionalGeneration",
)
_WINDOW_KEYS = ("sliding_window", "sliding_window_size", "attention_chunk_size")
_SINCE: Mapping[str, Version] = {
    "Llama4ForConditionalGeneration": (0, 0, 0),
    "GptOssForCausalLM": (0, 0, 0),
    "MiMoV2FlashForCausalLM": (0, 0, 0),
    "Step3p5ForCausalLM": (0, 0, 0),
    "MiMoV2ForCausalLM": (0, 5, 13),
    "Step3p7ForConditionalGeneration": (0, 5, 13),
    "Gemma4ForCausalLM": (0, 5, 13),
    "Gemma4ForConditionalGeneration": (0, 5, 13),
    "Gemma4UnifiedForConditionalGeneration": (0, 5, 13),
    "LagunaForCausalLM": (0, 5, 13),
    "MellumForCausalLM": (0, 5, 23),
}


@dataclass(frozen=True, slots=True)
class SlidingPool:
    """Number of layers with a window of `window` tokens, their KV heads, and elements per head.

    `full_kv_heads`, `full_widths`: KV heads of the other layers, and elements of key and value together. `since`: the
    first version that splits.
    """

    layers: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    full_kv_heads: int
    full_widths: int
    window: int | None
    since: Version


def sliding_pool(
    architecture: str, text: Mapping[str, Any], kv_heads: int, head_dim: int, v_head_dim: int
) -> SlidingPool | None:
    """Out of a (text) config and the sizes of the other layers; None for a model with one pool."""
    since = _SINCE.get(architecture) or ((0, 5, 13) if text.get("is_hybrid_swa") else None)
    layers = _layers(architecture, text) if since is not None else 0
    if since is None or not layers:
        return None
    other: Any = text.get("attention_other_setting") or {}
    swa_head_dim = int(text.get("swa_head_dim") or head_dim)
    return SlidingPool(
        layers=layers,
        kv_heads=int(text.get("swa_num_key_value_heads") or other.get("num_attention_groups") or kv_heads),
        head_dim=swa_head_dim,
        v_head_dim=int(text.get("swa_v_head_dim") or (swa_head_dim if text.get("swa_head_dim") else v_head_dim)),
        full_kv_heads=int(text.get("num_global_key_value_heads") or kv_heads),
        full_widths=2 * int(text["global_head_dim"]) if text.get("global_head_dim") else head_dim + v_head_dim,
        window=next((int(text[key]) for key in _WINDOW_KEYS if text.get(key)), None),
        since=since,
    )


def _layers(architecture: str, text: Mapping[str, Any]) -> int:
    count = int(text.get("num_hidden_layers") or 0)
    if architecture == "Llama4ForConditionalGeneration":
        return count - count // 4
    kinds = (text.get("layer_types") or ())[:count]
    if architecture in _LISTED_KINDS:
        return sum(1 for kind in kinds if kind == "sliding_attention")
    return sum(1 for kind in (text.get("hybrid_layer_pattern") or ())[:count] if kind == 1)
