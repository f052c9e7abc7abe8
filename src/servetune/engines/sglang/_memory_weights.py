"""Bytes of weights on one GPU, part by part, from the model's shapes and the parallel layout.

Sources: `models/deepseek_v2.py`, `models/qwen3_moe.py` (which layers are sharded over what), `layers/quantization/`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from servetune.engines.sglang.model_config import ModelFacts, Quantization

#: All-to-all backends under which every rank keeps whole shared experts (`deepseek_v2.py:DeepseekV2MoE`).
REPLICATING_A2A = frozenset(
    {
        "deepep",
        "deepep_v2",
        "mooncake",
        "mori",
        "nixl",
        "ascend_fuseep",
        "flashinfer",
        "flashinfer_megamoe",
        "megamoe",
        "pplx",
    }
)
_QUANTIZED_ON_LOAD = {"fp8": 8.0, "w8a8_int8": 8.0, "w8a8_fp8": 8.0, "mxfp8": 8.25, "nvfp4_online": 4.5, "mxfp4": 4.25}
_VOCABULARY_STEP = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """How ranks share the model. `attention`: ranks per attention layer; `dense`: ranks per dense MLP."""

    tensor: int
    pipeline: int
    attention: int
    dense: int
    head: int
    replicate_shared: bool
    fused_shared: bool
    redundant_experts: int
    draft_layers: int = 0


def weight_bytes(model: ModelFacts, layout: Layout, quantization: str | None) -> dict[str, int]:
    """Part → bytes on one GPU: embeddings, rotary, attention, dense, experts, shared_experts, gates, vision, draft.

    `quantization` is the named method; the checkpoint's own wins. An unknown model gives an empty mapping.
    """
    if not model.known or not model.layers:
        return {}
    bits = _Bits(model, quantization)
    dense_layers = model.layers - model.moe_layers
    parts = {
        "embeddings": _embeddings(model, layout),
        "attention": _mixers(model, layout, bits) / layout.pipeline,
        "dense": dense_layers
        * 3
        * model.hidden
        * model.intermediate
        * bits.of("dense_mlp")
        / layout.dense
        / layout.pipeline,
        "vision": _vision(model, layout),
        "rotary": 4.0 * model.context_tokens * (model.qk_rope or model.head_dim),
    }
    if model.moe:
        parts |= _experts(model, layout, bits)
    if layout.draft_layers:
        block = parts["attention"] / model.layers + _draft_experts(parts, model)
        parts["draft"] = layout.draft_layers * (block + 2 * model.hidden * model.hidden * bits.plain)
    ratio = _checkpoint_ratio(model)
    return {part: int(size if part == "rotary" else size * ratio) for part, size in parts.items()}


@lru_cache(maxsize=32)
def _checkpoint_ratio(model: ModelFacts) -> float:
    """The checkpoint's real size over what its shapes come to, where the size is known: corrects every part alike."""
    if model.checkpoint_bytes is None:
        return 1.0
    whole = Layout(1, 1, 1, 1, 1, replicate_shared=False, fused_shared=False, redundant_experts=0)
    plain = replace(model, checkpoint_bytes=None)
    # a checkpoint holds its next-token layers, and neither rotary tables nor the absorbed copies of latent attention
    parts = weight_bytes(plain, replace(whole, draft_layers=model.nextn_layers), None)
    shapes = sum(parts.values()) - parts.get("rotary", 0) - _absorbed_bytes(plain)
    return min(4.0, max(0.25, model.checkpoint_bytes / shapes)) if shapes > 0 else 1.0


def _absorbed_bytes(model: ModelFacts) -> float:
    width = model.heads * (model.qk_nope + model.v_head_dim) if model.mla else 0
    return float(model.layers * model.kv_lora_rank * width * model.dtype_bytes)


class _Bits:
    """Bytes per weight of each part."""

    def __init__(self, model: ModelFacts, named: str | None) -> None:
        self._plain = float(model.dtype_bytes)
        self._quantization: Quantization = model.quantization
        own = self._quantization
        if own.method is None:
            self._quantized = _QUANTIZED_ON_LOAD.get(named or "", 8.0 * self._plain) / 8
        else:
            self._quantized = own.bits / 8 + (own.scale_bytes / own.group if own.group else 0.0)
        self.skips = own.skips | (
            {"attention", "dense_mlp"} if own.method == "mxfp4" or named == "mxfp4" else frozenset()
        )

    def of(self, part: str) -> float:
        """Bytes per weight; what the checkpoint leaves out of its quantization keeps the model's dtype."""
        return self._plain if part in self.skips else self._quantized

    @property
    def plain(self) -> float:
        """Bytes of a weight that is never quantized."""
        return self._plain


def _embeddings(model: ModelFacts, layout: Layout) -> float:
    """Input embedding per attention group; output head over all ranks unless told otherwise."""
    vocabulary = -(-model.vocab // _VOCABULARY_STEP) * _VOCABULARY_STEP
    table = float(vocabulary * model.hidden * model.dtype_bytes)
    head = 0.0 if model.tied_embeddings else table / layout.head
    share = table / layout.attention
    return share + head if layout.pipeline == 1 else max(share, head)


def _mixers(model: ModelFacts, layout: Layout, bits: _Bits) -> float:
    """Attention of all layers; projections of linear attention are those of its states, gate and output."""
    states = model.recurrent
    if states is None:
        return model.layers * _attention(model, layout, bits)
    linear = model.hidden * (3 * states.inner + 2 * states.groups * states.state) * bits.of("attention")
    full = states.attention_layers * _attention(model, layout, bits)
    return full + states.layers * linear / layout.attention


def _attention(model: ModelFacts, layout: Layout, bits: _Bits) -> float:
    size = bits.of("attention")
    if model.mla:
        return _latent_attention(model, layout, size, bits.plain)
    heads = model.heads / layout.attention
    kv_heads = max(1.0, model.kv_heads / layout.attention)
    return model.hidden * size * (2 * heads * model.head_dim + kv_heads * (model.head_dim + model.v_head_dim))


def _latent_attention(model: ModelFacts, layout: Layout, size: float, plain: float) -> float:
    heads = model.heads / layout.attention
    down = model.hidden * (model.q_lora_rank + model.kv_lora_rank + model.qk_rope)
    query_rank = model.q_lora_rank or model.hidden
    up_query = query_rank * heads * (model.qk_nope + model.qk_rope)
    up_kv = model.kv_lora_rank * heads * (model.qk_nope + model.v_head_dim)
    out = heads * model.v_head_dim * model.hidden
    total = (down + up_query + up_kv + out) * size
    total += up_kv * plain  # the absorbed copies w_kc and w_vc
    if model.dsa:
        index = model.q_lora_rank * model.index_heads * model.index_head_dim
        total += index * size + model.hidden * (model.index_head_dim + model.index_heads) * plain
    return total


def _experts(model: ModelFacts, layout: Layout, bits: _Bits) -> dict[str, float]:
    layers = model.moe_layers / layout.pipeline
    one = 3 * model.hidden * model.moe_intermediate
    experts = (model.experts + layout.redundant_experts) * one * bits.of("experts") / layout.tensor
    shared: float = 3 * model.hidden * model.shared_intermediate
    shared *= bits.of("experts") if layout.fused_shared else bits.of("shared_experts")
    return {
        "experts": layers * experts,
        "shared_experts": layers * shared / (1 if layout.replicate_shared else layout.tensor),
        "gates": layers * model.experts * model.hidden * bits.plain,
    }


def _draft_experts(parts: dict[str, float], model: ModelFacts) -> float:
    """One more MoE layer, as the multi-token-prediction layer of a checkpoint is."""
    names = ("experts", "shared_experts", "gates")
    return sum(parts.get(name, 0.0) for name in names) / max(1, model.moe_layers)


#: Patches that the projector merges into one token of text.
_MERGED_PATCHES = 4


def _vision(model: ModelFacts, layout: Layout) -> float:
    """Attention of the tower is sharded; its MLP and the projector (two layers on merged patches) are not."""
    layers, hidden = float(model.vision_layers or 0), float(model.vision_hidden or 0)
    if not model.multimodal or not layers:
        return 0.0
    attention = 4 * hidden * hidden / layout.attention
    merged = _MERGED_PATCHES * hidden
    projector: float = merged * (merged + model.hidden)
    return float((layers * (attention + 2 * hidden * model.vision_intermediate) + projector) * model.dtype_bytes)
