"""Recurrent states of models that mix linear attention with full attention: in which layers, and bytes per request.

Sources: `configs/mamba_utils.py` (`Mamba2StateShape`, `KimiLinearStateShape`, `mamba_cache_per_req`) and the configs'
own `mamba2_cache_params` (`qwen3_next.py`, `kimi_linear.py`, `nemotron_h.py`, `falcon_h1.py`, `granitemoehybrid.py`,
`lfm2.py`, `bailing_hybrid.py`), the same arithmetic in 0.5.9, 0.5.13 and 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CONV_BYTES = 2  # bfloat16, unless SGLANG_MAMBA_CONV_DTYPE says otherwise
_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class RecurrentStates:
    """Shapes of the states, in elements.

    `layers` keep a state per request; `attention_layers` keep a KV cache per token. `inner`: channels of the short
    convolution beside those of its `groups`, each twice `state` wide; `kernel`: its width. `dtype`: of the state, as
    the config names it.
    """

    layers: int
    attention_layers: int
    heads: int
    head_dim: int
    state: int
    kernel: int
    inner: int
    groups: int
    dtype: str | None = None

    def bytes_per_request(self, ranks: int, state_dtype: str | None = None) -> int:
        """On one of `ranks` that share an attention layer, over all layers. `state_dtype` wins over the config's."""
        groups = self.groups if self.groups % ranks == 0 else ranks
        conv = (self.inner + 2 * groups * self.state) // ranks * (self.kernel - 1)
        state = self.heads // ranks * self.head_dim * self.state
        return (conv * _CONV_BYTES + state * _STATE_BYTES.get(state_dtype or self.dtype or "", 4)) * self.layers


#: Of a model whose config does not say their shapes.
SHAPELESS = RecurrentStates(0, 0, 0, 0, 0, 1, 0, 0)


def recurrent_states(architecture: str, text: Mapping[str, Any]) -> RecurrentStates | None:
    """Out of a (text) config; None for a model without, or of a kind that is not known."""
    try:
        return _states(architecture, text)
    except KeyError:
        return SHAPELESS


def _states(architecture: str, text: Mapping[str, Any]) -> RecurrentStates | None:
    if "linear_num_value_heads" in text:
        return _gated_delta(text)
    if isinstance(text.get("linear_attn_config"), Mapping):
        return _kimi(text, text["linear_attn_config"])
    if "mamba_num_heads" in text and ("hybrid_override_pattern" in text or "layers_block_type" in text):
        return _nemotron(text)
    if "mamba_n_heads" in text:
        return _mamba(text, architecture)
    return _short_convolution(text) if "conv_L_cache" in text else None


def _gated_delta(text: Mapping[str, Any]) -> RecurrentStates:
    layers, interval = int(text["num_hidden_layers"]), text.get("full_attention_interval")
    kinds = text.get("layer_types") or ()
    full = layers // int(interval) if interval else sum(kind == "full_attention" for kind in kinds)
    return RecurrentStates(
        layers=layers - full,
        attention_layers=full,
        heads=int(text["linear_num_value_heads"]),
        head_dim=int(text["linear_value_head_dim"]),
        state=int(text["linear_key_head_dim"]),
        kernel=int(text["linear_conv_kernel_dim"]),
        inner=int(text["linear_value_head_dim"]) * int(text["linear_num_value_heads"]),
        groups=int(text["linear_num_key_heads"]),
        dtype=text.get("mamba_ssm_dtype"),
    )


def _kimi(text: Mapping[str, Any], linear: Mapping[str, Any]) -> RecurrentStates:
    heads, head_dim, layers = int(linear["num_heads"]), int(linear["head_dim"]), len(linear.get("kda_layers") or ())
    return RecurrentStates(
        layers=layers,
        attention_layers=int(text["num_hidden_layers"]) - layers,
        heads=heads,
        head_dim=head_dim,
        state=head_dim,
        kernel=int(linear["short_conv_kernel_size"]),
        inner=heads * head_dim,
        groups=heads,
    )


def _nemotron(text: Mapping[str, Any]) -> RecurrentStates:
    kinds = text.get("layers_block_type") or ["mamba" if c == "M" else c for c in text["hybrid_override_pattern"]]
    heads, head_dim = int(text["mamba_num_heads"]), int(text["mamba_head_dim"])
    return RecurrentStates(
        layers=sum(kind == "mamba" for kind in kinds),
        attention_layers=sum(kind in ("attention", "*") for kind in kinds),
        heads=heads,
        head_dim=head_dim,
        state=int(text["ssm_state_size"]),
        kernel=int(text["conv_kernel"]),
        inner=heads * head_dim,
        groups=int(text["n_groups"]),
        dtype=text.get("mamba_ssm_dtype"),
    )


def _mamba(text: Mapping[str, Any], architecture: str) -> RecurrentStates | None:
    layers, kinds = int(text["num_hidden_layers"]), text.get("layer_types") or ()
    both = architecture == "FalconH1ForCausalLM"
    recurrent = layers if both else sum(kind == "mamba" for kind in kinds)
    if not recurrent:
        return None
    inner = int(text.get("mamba_d_ssm") or text.get("mamba_expand", 2) * text["hidden_size"])
    heads = int(text["mamba_n_heads"])
    return RecurrentStates(
        layers=recurrent,
        attention_layers=layers if both else layers - recurrent,
        heads=heads,
        head_dim=inner // heads,
        state=int(text["mamba_d_state"]),
        kernel=int(text["mamba_d_conv"]),
        inner=inner,
        groups=int(text.get("mamba_n_groups", 1)),
        dtype=text.get("mamba_ssm_dtype") if both else None,
    )


def _short_convolution(text: Mapping[str, Any]) -> RecurrentStates | None:
    layers, kinds = int(text["num_hidden_layers"]), text.get("layer_types") or ()
    full = sum(kind == "full_attention" for kind in kinds) or len(text.get("full_attn_idxs") or ())
    if not full:
        return None
    return RecurrentStates(
        layers=layers - full,
        attention_layers=full,
        heads=0,
        head_dim=0,
        state=0,
        kernel=int(text["conv_L_cache"]),
        inner=int(text["hidden_size"]),
        groups=1,
    )
