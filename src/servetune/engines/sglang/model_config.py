"""What rules and the memory model need out of a model's config.json. Pure: no file is read here.

Sources: SGLang's `configs/model_config.py` (`ModelConfig._derive_model_shapes`, `_derive_context_length`,
`_parse_quant_hf_config`) and `utils/hf_transformers_utils.py` (`get_context_length`, `get_hf_text_config`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from servetune.core.errors import SpecError
from servetune.engines.sglang._multimodal import MULTIMODAL_ARCHITECTURES, TEXT_BY_DEFAULT
from servetune.engines.sglang._recurrent_states import RecurrentStates, recurrent_states
from servetune.engines.sglang._sliding_pool import SlidingPool, sliding_pool

#: Architectures whose attention keeps one compressed latent per token (`AttentionArch.MLA`).
MLA_ARCHITECTURES = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmMoeDsaForCausalLM",
        "LongcatFlashForCausalLM",
        "DotsVLMForCausalLM",
        "MistralLarge3ForCausalLM",
        "PixtralForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
        "MiniCPM3ForCausalLM",
        "KimiVLForConditionalGeneration",
        "KimiLinearForCausalLM",
        "BailingMoeV2_5ForCausalLM",
        "GigaChat35ForCausalLM",
        "SarvamMLAForCausalLM",
    }
)
#: Architectures that may carry a sparse-attention indexer; they do when the config names `index_topk`.
DSA_ARCHITECTURES = frozenset({"DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"})
#: Key under which the size of the checkpoint's files is put beside what config.json says.
CHECKPOINT_BYTES = "servetune.checkpoint_bytes"
_CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
_BUNDLED_DRAFT_KEYS = ("dspark_block_size", "dspark_markov_rank", "dspark_noise_token_id", "dspark_target_layer_ids")
_EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_PER_LAYER_KEYS = (*_EXPERT_KEYS, "intermediate_size", "moe_intermediate_size", "num_key_value_heads")
_TOP_K_KEYS = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_top_k", "moe_k")
_DTYPE_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the checkpoint is quantized. `bits` of one weight; `group` weights share one scale of `scale_bytes`.

    `declared`: `quant_method` as it stands in the config; `method`: with ModelOpt's algorithm resolved.
    `skips`: parts kept in the model's dtype: attention, shared_experts, dense_mlp, lm_head.
    """

    method: str | None = None
    declared: str | None = None
    bits: float = 16.0
    group: int | None = None
    scale_bytes: float = 0.0
    block_n: int | None = None
    block_k: int | None = None
    int4_groups_of_32: bool = False
    skips: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Shapes of one model; all sizes in elements. `known` False: no config was given and every shape is 0."""

    known: bool = False
    architecture: str = ""
    model_type: str = ""
    hidden: int = 0
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    vocab: int = 0
    tied_embeddings: bool = False
    attention_bias: bool = False
    intermediate: int = 0
    dtype_bytes: int = 2
    context_tokens: int = 2048
    mla: bool = False
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_nope: int = 0
    qk_rope: int = 0
    dsa: bool = False
    index_topk: int = 0
    index_heads: int = 0
    index_head_dim: int = 0
    index_shared: bool = False
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    shared_intermediate: int = 0
    moe_intermediate: int = 0
    moe_layers: int = 0
    nextn_layers: int = 0
    sliding_pool: SlidingPool | None = None
    attention_sinks: bool = False
    bundles_draft: bool = False  # a DSpark draft lies in the checkpoint
    multimodal: bool = False
    vision_layers: int | None = None
    vision_layers_named: int | None = None  # under the name that the engine's automatic memory fraction looks for
    vision_hidden: int | None = None
    vision_intermediate: int = 0
    text_by_default: bool = False
    nested: bool = False  # the text model's config lies inside another one
    recurrent: RecurrentStates | None = None
    kda: bool = False
    sliding_pattern: bool = False
    checkpoint_bytes: int | None = None
    quantization: Quantization = field(default_factory=Quantization)

    @property
    def moe(self) -> bool:
        """Whether some layers route tokens to experts."""
        return self.experts > 0


UNKNOWN = ModelFacts()
_parsed: dict[int, tuple[Mapping[str, Any], ModelFacts]] = {}


def model_facts(config: Mapping[str, Any] | None) -> ModelFacts:
    """Parse a config.json mapping; None gives `UNKNOWN`. It is cached: the mapping must not be changed afterwards.

    Raises SpecError naming what in it is not understood.
    """
    if config is None:
        return UNKNOWN
    found = _parsed.get(id(config))
    if found is not None and found[0] is config:
        return found[1]
    try:
        facts = _parse(config)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise SpecError(f"the model's config.json is not understood: {error}") from error
    if len(_parsed) >= 32:
        _parsed.clear()
    _parsed[id(config)] = (config, facts)  # holding the mapping keeps its id from being reused
    return facts


def _whole(mapping: Mapping[str, Any], key: str, otherwise: int = 0) -> int:
    """A size; the mean where a config lists one for each layer (Gemma 3n's `intermediate_size`)."""
    value = mapping.get(key) or otherwise
    if key in _PER_LAYER_KEYS and isinstance(value, list) and value and all(type(one) is int for one in value):
        value = -(-sum(value) // len(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"{key} is {value!r}; allowed: a whole number from 0 on")
    return int(value)


def _parse(config: Mapping[str, Any]) -> ModelFacts:
    text: Mapping[str, Any] = next(
        (config[key] for key in ("text_config", "llm_config", "language_config") if config.get(key)), config
    )
    architectures = config.get("architectures") or text.get("architectures") or [""]
    if not isinstance(architectures, list | tuple) or not isinstance(architectures[0], str):
        raise ValueError(f"architectures is {architectures!r}; allowed: a list of names")
    architecture = architectures[0]
    heads = _whole(text, "num_attention_heads", 0)
    head_dim = int(text.get("head_dim") or (_whole(text, "hidden_size", 0) // heads if heads else 0))
    kv_heads = _whole(text, "num_key_value_heads", _whole(text, "num_attention_groups", heads))
    v_head_dim = _whole(text, "v_head_dim", head_dim)
    vision = config.get("vision_config")
    dtype = text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or config.get("dtype")
    return ModelFacts(
        known=True,
        architecture=architecture,
        model_type=str(config.get("model_type") or ""),
        hidden=_whole(text, "hidden_size", 0),
        layers=_whole(text, "num_hidden_layers", 0),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        vocab=_whole(text, "vocab_size", 0),
        tied_embeddings=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        attention_bias=bool(text.get("attention_bias", False)),
        intermediate=_whole(text, "intermediate_size", 0),
        dtype_bytes=_DTYPE_BYTES.get(str(dtype).removeprefix("torch."), 2),
        context_tokens=_context_tokens(text),
        quantization=_quantization(config.get("quantization_config") or text.get("quantization_config")),
        multimodal=architecture in MULTIMODAL_ARCHITECTURES - TEXT_BY_DEFAULT,
        nextn_layers=_whole(text, "num_nextn_predict_layers", 0),
        checkpoint_bytes=config.get(CHECKPOINT_BYTES),
        attention_sinks=_sinks(architecture, text),
        bundles_draft=any(config.get(key) is not None for key in _BUNDLED_DRAFT_KEYS),
        text_by_default=architecture in TEXT_BY_DEFAULT,
        nested=text is not config,
        recurrent=recurrent_states(architecture, text),
        kda=_kimi_delta(config, text),
        sliding_pattern=config.get("sliding_window_pattern") is not None,
        **_latent(architecture, text),
        **_experts(text),
        sliding_pool=sliding_pool(architecture, text, kv_heads, head_dim, v_head_dim),
        **_vision(vision),
    )


def _sinks(architecture: str, text: Mapping[str, Any]) -> bool:
    """Whether softmax has learned sinks (`_detect_attention_sinks`)."""
    biases = text.get("add_swa_attention_sink_bias") or text.get("add_full_attention_sink_bias")
    return architecture == "GptOssForCausalLM" or bool(architecture.startswith("MiMoV2") and biases)


def _kimi_delta(config: Mapping[str, Any], text: Mapping[str, Any]) -> bool:
    """Whether layers attend by Kimi's delta rule (`uses_kda_attention`)."""
    for mapping in (config, text):
        linear = mapping.get("linear_attn_config")
        if isinstance(linear, Mapping) and linear.get("kda_layers"):
            return True
        named = mapping.get("linear_num_heads") is not None and mapping.get("linear_head_dim") is not None
        if named and "linear_attention" in (mapping.get("layer_types") or ()):
            return True
    return False


def _latent(architecture: str, text: Mapping[str, Any]) -> dict[str, Any]:
    mla = architecture in MLA_ARCHITECTURES and bool(text.get("kv_lora_rank"))
    dsa = architecture in DSA_ARCHITECTURES and text.get("index_topk") is not None
    pattern = text.get("index_topk_pattern")
    shared = (text.get("index_topk_freq") or 1) > 1 or (pattern is not None and "S" in pattern)
    return {
        "mla": mla,
        "kv_lora_rank": _whole(text, "kv_lora_rank", 0) if mla else 0,
        "q_lora_rank": _whole(text, "q_lora_rank", 0) if mla else 0,
        "qk_nope": _whole(text, "qk_nope_head_dim", 0) if mla else 0,
        "qk_rope": _whole(text, "qk_rope_head_dim", 0) if mla else 0,
        "dsa": dsa,
        "index_topk": _whole(text, "index_topk", 0) if dsa else 0,
        "index_heads": _whole(text, "index_n_heads", 0) if dsa else 0,
        "index_head_dim": _whole(text, "index_head_dim", 0) if dsa else 0,
        "index_shared": dsa and (shared or "shared" in (text.get("indexer_types") or ())),
    }


def _experts(text: Mapping[str, Any]) -> dict[str, Any]:
    experts = next((_whole(text, key) for key in _EXPERT_KEYS if text.get(key)), 0)
    layers = _whole(text, "num_hidden_layers", 0)
    if not experts:
        return {}
    dense = len(text.get("mlp_only_layers") or ()) or _whole(text, "first_k_dense_replace", 0)
    sparse = _sparse_layers(text, layers - dense)
    inner = _whole(text, "moe_intermediate_size") or _whole(text, "intermediate_size")
    shared = _whole(text, "n_shared_experts", 0)
    shared_inner = _whole(text, "shared_expert_intermediate_size", 0) or shared * inner
    return {
        "experts": experts,
        "experts_per_token": next((_whole(text, key) for key in _TOP_K_KEYS if text.get(key)), 1),
        "shared_experts": shared or (1 if shared_inner else 0),
        "shared_intermediate": shared_inner,
        "moe_intermediate": inner,
        "moe_layers": sparse,
    }


def _sparse_layers(text: Mapping[str, Any], at_most: int) -> int:
    """Every so many layers have experts, or `moe_layer_freq` says for each layer whether it has."""
    every = text.get("decoder_sparse_step") or text.get("moe_layer_freq") or 1
    if isinstance(every, list):
        return sum(1 for has in every if has)
    return max(0, at_most // int(every))


def _vision(vision: Any) -> dict[str, Any]:
    if not isinstance(vision, Mapping):
        return {}
    return {
        "vision_layers": _either(vision, "num_hidden_layers") or vision.get("depth"),
        "vision_layers_named": _either(vision, "num_hidden_layers"),
        "vision_hidden": _either(vision, "hidden_size"),
        "vision_intermediate": int(_either(vision, "intermediate_size") or 0),
    }


def _either(vision: Mapping[str, Any], name: str) -> Any:
    """Checkpoints of Kimi-K2.5 prefix the sizes with `vt_`; the engine's own config class drops the prefix."""
    return vision.get(name) or vision.get(f"vt_{name}")


def _context_tokens(text: Mapping[str, Any]) -> int:
    scaling = text.get("rope_scaling") or {}
    factor = float(scaling.get("factor") or 1)
    if "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3":
        factor = 1.0
    for key in _CONTEXT_KEYS:
        if text.get(key) is not None:
            return int(factor * text[key])
    return 2048


def _quantization(config: Any) -> Quantization:
    if not isinstance(config, Mapping):
        return Quantization()
    method = str(config.get("quant_method") or "").lower() or None
    algorithm = str(config.get("quant_algo") or "").upper()
    if method in (None, "modelopt") and algorithm:
        method = _modelopt_method(algorithm, config)
    block = config.get("weight_block_size") or (None, None)
    bits, group, scale_bytes, int4 = _format(method, config)
    return Quantization(
        method=method,
        declared=str(config.get("quant_method") or "").lower() or None,
        bits=bits,
        group=group,
        scale_bytes=scale_bytes,
        block_n=block[0],
        block_k=block[1],
        int4_groups_of_32=int4,
        skips=_skips(config),
    )


def _modelopt_method(algorithm: str, config: Mapping[str, Any]) -> str | None:
    if algorithm == "MIXED_PRECISION":
        layers = (config.get("quantized_layers") or {}).values()
        return "modelopt_mixed" if any("NVFP4" in str(layer).upper() for layer in layers) else "w4afp8"
    if "FP4" in algorithm:
        return "modelopt_fp4"
    if algorithm == "MXFP8":
        return "mxfp8"
    return "modelopt_fp8" if "FP8" in algorithm else None


def _format(method: str | None, config: Mapping[str, Any]) -> tuple[float, int | None, float, bool]:
    """(bits per weight, weights per scale, bytes per scale, Kimi's int4 recipe) of one quantized weight."""
    if method in ("fp8", "modelopt_fp8", "w8a8_fp8", "w8a8_int8"):
        block = config.get("weight_block_size")
        return 8.0, (block[0] * block[1] if block else None), 4.0 if block else 0.0, False
    if method in ("modelopt_fp4", "petit_nvfp4", "modelopt_mixed"):
        return 4.0, 16, 1.0, False
    if method == "mxfp4":
        return 4.0, 32, 1.0, False
    if method == "mxfp8":
        return 8.0, 32, 1.0, False
    if method in ("awq", "gptq", "awq_marlin", "gptq_marlin", "w4afp8", "moe_wna16"):
        return float(config.get("bits") or 4), int(config.get("group_size") or 128), 2.0, False
    if method == "compressed-tensors":
        groups = config.get("config_groups") or {}
        first: Any = next(iter(groups.values()), {}) or {}
        weights = first.get("weights") or {}
        bits = float(weights.get("num_bits") or 8)
        group = weights.get("group_size")
        int4 = (bits, group, weights.get("strategy"), weights.get("type")) == (4.0, 32, "group", "int")
        return bits, group, 2.0 if group else 0.0, int4
    return 16.0, None, 0.0, False


def _skips(config: Mapping[str, Any]) -> frozenset[str]:
    """Parts that the checkpoint leaves in the model's dtype, out of its list of module names or patterns."""
    names: Any = config.get("ignore") or config.get("exclude_modules") or config.get("modules_to_not_convert") or ()
    found = {_part(str(name)) for name in names}
    return frozenset(part for part in found if part is not None)


def _part(name: str) -> str | None:
    if "shared_expert" in name:
        return "shared_experts"
    if "attn" in name:
        return "attention"
    if "lm_head" in name:
        return "lm_head"
    tail = name.rpartition("mlp")[2] if "mlp" in name else None
    if tail is None or "expert" in name:
        return None
    return "dense_mlp" if "proj" in tail or tail.strip(".*") == "" else None  # `mlp.gate` is the router
