"""State of the engine's argument resolution: flags as the engine's own field names, the GPU, the model.

Flags of an assignment are read under the engine's field names (`moe-a2a-backend` → `moe_a2a_backend`); other spellings
of one flag are folded into the first. `None` stands for "not given".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from servetune.core.node import NodeFacts
from servetune.core.space import Assignment
from servetune.engines.sglang.model_config import ModelFacts
from servetune.engines.sglang.rules._registry import Version

#: Other spellings of a flag → the engine's field name.
ALIASES: Mapping[str, str] = {
    "tensor_parallel_size": "tp_size",
    "tp": "tp_size",
    "expert_parallel_size": "ep_size",
    "ep": "ep_size",
    "pipeline_parallel_size": "pp_size",
    "pp": "pp_size",
    "data_parallel_size": "dp_size",
    "dp": "dp_size",
    "attention_data_parallel_size": "attn_dp_size",
    "attention_context_parallel_size": "attn_cp_size",
    "moe_data_parallel_size": "moe_dp_size",
    "decode_context_parallel_size": "dcp_size",
    "fp8_gemm_backend": "fp8_gemm_runner_backend",
    "fp4_gemm_backend": "fp4_gemm_runner_backend",
    "nsa_prefill_backend": "dsa_prefill_backend",
    "nsa_decode_backend": "dsa_decode_backend",
    "mamba_scheduler_strategy": "mamba_radix_cache_strategy",
    "enable_deepep_waterfill": "enable_waterfill",
}
_ALIASES_OF_GRAPHS = {"cuda_graph_max_bs": "cuda_graph_max_bs_decode", "cuda_graph_bs": "cuda_graph_bs_decode"}

#: Defaults of the fields that rules read (argument classes of 0.5.9 … 0.5.23; the same in all unless set below).
DEFAULTS: Mapping[str, Any] = {
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "ep_size": 1,
    "attn_dp_size": 1,
    "attn_cp_size": 1,
    "moe_dp_size": 1,
    "dcp_size": 1,
    "dwdp_size": 1,
    "nnodes": 1,
    "base_gpu_id": 0,
    "gpu_id_step": 1,
    "enable_dp_attention": False,
    "enable_dp_lm_head": False,
    "moe_dense_tp_size": None,
    "moe_a2a_backend": "none",
    "moe_runner_backend": "auto",
    "deepep_mode": "auto",
    "deepep_v2_mode": "direct",
    "flashinfer_a2a_dispatch_type": None,
    "disable_shared_experts_fusion": False,
    "enforce_shared_experts_fusion": False,
    "enable_waterfill": False,
    "enable_eplb": False,
    "eplb_algorithm": "auto",
    "init_expert_location": "trivial",
    "ep_dispatch_algorithm": None,
    "ep_num_redundant_experts": 0,
    "elastic_ep_backend": None,
    "expert_distribution_recorder_mode": None,
    "enable_two_batch_overlap": False,
    "enable_single_batch_overlap": False,
    "disable_custom_all_reduce": False,
    "enable_mscclpp": False,
    "enable_torch_symm_mem": False,
    "enable_symm_mem": False,
    "enable_nccl_nvls": False,
    "enable_flashinfer_allreduce_fusion": False,
    "flashinfer_allreduce_fusion_backend": None,
    "enforce_disable_flashinfer_allreduce_fusion": False,
    "enable_aiter_allreduce_fusion": False,
    "enable_quant_communications": False,
    "mem_fraction_static": None,
    "max_running_requests": None,
    "max_total_tokens": None,
    "max_prefill_tokens": 16384,
    "chunked_prefill_size": None,
    "enable_dynamic_chunking": False,
    "schedule_policy": "fcfs",
    "schedule_conservativeness": 1.0,
    "page_size": None,
    "disable_radix_cache": False,
    "enable_mixed_chunk": False,
    "disable_overlap_schedule": False,
    "enable_priority_scheduling": False,
    "retraction_policy": None,
    "cuda_graph_max_bs": None,
    "cuda_graph_bs": None,
    "disable_cuda_graph": False,
    "disable_cuda_graph_padding": False,
    "cuda_graph_backend_decode": None,
    "cuda_graph_backend_prefill": None,
    "cuda_graph_max_bs_decode": None,
    "cuda_graph_max_bs_prefill": None,
    "cuda_graph_bs_decode": None,
    "cuda_graph_bs_prefill": None,
    "disable_prefill_cuda_graph": False,
    "disable_decode_cuda_graph": False,
    "enable_piecewise_cuda_graph": False,
    "disable_piecewise_cuda_graph": False,
    "enforce_piecewise_cuda_graph": False,
    "piecewise_cuda_graph_max_tokens": None,
    "piecewise_cuda_graph_tokens": None,
    "enable_torch_compile": False,
    "attention_backend": None,
    "prefill_attention_backend": None,
    "decode_attention_backend": None,
    "dsa_prefill_backend": None,
    "dsa_decode_backend": None,
    "kv_cache_dtype": "auto",
    "quantization": None,
    "dtype": "auto",
    "sampling_backend": None,
    "fp8_gemm_runner_backend": "auto",
    "linear_attn_backend": "triton",
    "linear_attn_decode_backend": None,
    "linear_attn_prefill_backend": None,
    "mamba_ssm_dtype": None,
    "mamba_radix_cache_strategy": "auto",
    "speculative_algorithm": None,
    "speculative_draft_model_path": None,
    "speculative_num_steps": None,
    "speculative_eagle_topk": None,
    "speculative_num_draft_tokens": None,
    "speculative_moe_runner_backend": None,
    "speculative_moe_a2a_backend": None,
    "speculative_draft_attention_backend": None,
    "speculative_ngram_max_bfs_breadth": 10,
    "speculative_ngram_max_match_window_size": 12,
    "speculative_ngram_max_trie_depth": 18,
    "speculative_adaptive": False,
    "enable_hierarchical_cache": False,
    "hicache_io_backend": "kernel",
    "hicache_mem_layout": "layer_first",
    "hicache_storage_backend": None,
    "cpu_offload_gb": 0,
    "enable_memory_saver": False,
    "enable_deterministic_inference": False,
    "rl_on_policy_target": None,
    "dllm_algorithm": None,
    "device": None,
    "enable_lora": False,
    "lora_paths": None,
    "enable_mis": False,
    "enable_pdmux": False,
    "debug_cuda_graph": False,
    "disaggregation_mode": "null",
    "language_only": False,
    "language_model_only": False,
    "enable_multimodal": None,
    "load_format": "auto",
    "context_length": None,
    "served_model_name": None,
    "skip_tokenizer_init": False,
    "tokenizer_worker_num": 1,
    "enable_tokenizer_batch_encode": False,
    "enable_dynamic_batch_tokenizer": False,
    "swa_full_tokens_ratio": 0.8,
    "watchdog_timeout": 300,
}
#: Defaults that a later version changed: from version on → field → value.
CHANGED_DEFAULTS: tuple[tuple[Version, Mapping[str, Any]], ...] = (((0, 5, 14), {"hicache_mem_layout": "page_first"}),)


class Gpu:
    """What the engine asks of the GPU. `known` False: the compute capability is not known and no predicate holds."""

    __slots__ = (
        "blackwell",
        "count",
        "hopper",
        "known",
        "major",
        "memory_mib",
        "name",
        "nvlink",
        "sm",
        "sm90",
        "sm100",
        "sm120",
    )

    def __init__(self, facts: NodeFacts) -> None:
        text = facts.compute_capability
        major, minor = (int(part) for part in f"{text}.0".split(".")[:2]) if text else (0, 0)
        cuda = _version_pair(facts.cuda_version)
        self.known = text is not None
        self.major, self.sm = major, 10 * major + minor
        self.sm90 = self.hopper = major == 9 and cuda >= (12, 3)
        self.sm100 = major == 10 and cuda >= (12, 8)
        self.sm120 = major == 12 and cuda >= (12, 8)
        self.blackwell = major in (10, 11, 12) and cuda >= (12, 8)
        self.name = facts.gpu_names[0] if facts.gpu_names else ""
        self.count = facts.gpu_count
        self.memory_mib = facts.gpu_memory_bytes / 2**20 if facts.gpu_memory_bytes else None
        self.nvlink = {"nvlink": True, "pcie": False}.get(facts.interconnect or "")


def _version_pair(text: str | None) -> tuple[int, int]:
    """Unknown counts as new: nobody installs these engines on an old CUDA."""
    if not text:
        return (99, 0)
    major, minor = (int(part) for part in f"{text}.0".split(".")[:2])
    return major, minor


class State:
    """All fields as attributes. Only the runner assigns; `user` keeps what the assignment named."""

    def __init__(self, assignment: Assignment, facts: NodeFacts, version: Version, model: ModelFacts) -> None:
        self.__dict__.update(DEFAULTS)
        for since, changed in CHANGED_DEFAULTS:
            if version >= since:
                self.__dict__.update(changed)
        self.version = version
        self.gpu = Gpu(facts)
        self.model = _loaded(model, version)
        self.user: dict[str, Any] = {}
        self.env: dict[str, Any] = {}
        self.spelling: dict[str, str] = {}  # field name → the flag as the assignment spells it
        for flag, value in assignment.items():
            self._take(flag, value)
        if version >= (0, 5, 14):
            self._take_graph_config(self.user.get("cuda_graph_config"))
        self.__dict__.update(self.user)
        self.model = _served(self.model, version, self.user)
        if self.device not in (None, "cuda"):
            self.gpu.memory_mib = None  # what the engine reckons with then is the host's memory

    def _take_graph_config(self, text: Any) -> None:
        """`--cuda-graph-config` wins over the flags per phase (`parse_cuda_graph_config`)."""
        for phase, settings in graph_config(text).items():
            for key in ("backend", "max_bs", "bs"):
                value = settings.get(key)
                if phase in ("decode", "prefill") and value is not None:
                    name = f"cuda_graph_{key}_{phase}"
                    self.spelling[name] = self.spelling["cuda_graph_config"]
                    self.user[name] = " ".join(map(str, value)) if isinstance(value, list) else value

    def _take(self, flag: str, value: Any) -> None:
        if flag.startswith("env."):
            self.env[flag[4:]] = value
            return
        name = field_name(flag)
        if self.version >= (0, 5, 14):
            name = _ALIASES_OF_GRAPHS.get(name, name)
        self.spelling[name] = flag
        self.user[name] = _number(name, value) if isinstance(value, str) else value

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def attention_dp(self) -> int:
        """Number of data-parallel attention groups; 1 without attention data parallelism."""
        if self.version >= (0, 5, 22):
            return int(self.attn_dp_size)
        return int(self.dp_size) if self.enable_dp_attention else 1

    @property
    def attention_tp(self) -> int:
        """Ranks that share one attention layer."""
        return max(1, int(self.tp_size) // (self.attention_dp * max(1, int(self.attn_cp_size))))

    @property
    def attention_backends(self) -> tuple[str | None, str | None]:
        """(prefill, decode) attention backend."""
        return (
            self.prefill_attention_backend or self.attention_backend,
            self.decode_attention_backend or self.attention_backend,
        )

    @property
    def attention_unset(self) -> bool:
        """Whether none of the three attention backend flags is given."""
        return not (self.attention_backend or self.prefill_attention_backend or self.decode_attention_backend)

    def env_int(self, name: str, default: int) -> int:
        """An environment variable that holds an integer."""
        value = self.env.get(name)
        return default if value is None else int(value)


def _loaded(model: ModelFacts, version: Version) -> ModelFacts:
    """Up to 0.5.9 DeepSeek-V3.2 is loaded as V3: its transformers does not know the newer type.

    Source: `utils/hf_transformers_utils.py:_load_deepseek_v32_model`.
    """
    if version < (0, 5, 10) and model.architecture == "DeepseekV32ForCausalLM":
        return replace(model, architecture="DeepseekV3ForCausalLM")
    return model


def _served(model: ModelFacts, version: Version, user: Mapping[str, Any]) -> ModelFacts:
    """With `multimodal` as this launch serves it.

    Some architectures are served as text unless asked otherwise; from 0.5.13 on a text model inside another one is
    enough. Source: `configs/model_config.py` (`enable_multimodal`, `has_multimodal_subconfig`, `is_lm_only`).
    """
    listed = model.multimodal or model.text_by_default or (model.nested and version >= (0, 5, 13))
    asked = bool(user.get("enable_multimodal")) or not model.text_by_default
    sees = listed and asked and not user.get("language_model_only")
    return model if sees == model.multimodal else replace(model, multimodal=sees)


#: Suggestions look no further: a number of twenty digits is a slip of the finger.
MOST_RANKS = 4096
#: No list of graph sizes goes further, whatever a flag says.
MOST_GRAPH_TOKENS = 1 << 20

#: What a flag holds that is not given, or is no JSON: the parser refuses the latter.
NO_JSON = object()


def json_of(text: Any) -> Any:
    """The value of a flag that takes JSON; NO_JSON for anything that is none."""
    try:
        return json.loads(text) if isinstance(text, str) else NO_JSON
    except (ValueError, RecursionError):
        return NO_JSON


def graph_config(text: Any) -> dict[str, dict[str, Any]]:
    """Phase → settings of `--cuda-graph-config`; empty for text that is none (the parser refuses it)."""
    given = json_of(text)
    if not isinstance(given, dict):
        return {}
    return {phase: settings for phase, settings in given.items() if _plain_settings(settings)}


def _plain_settings(settings: Any) -> bool:
    """Whether sizes are whole numbers and a backend is a word; anything else is no configuration to reckon with."""
    if not isinstance(settings, dict):
        return False
    backend, largest, sizes = (settings.get(key) for key in ("backend", "max_bs", "bs"))
    whole = isinstance(sizes, list) and bool(sizes) and all(type(size) is int for size in sizes)
    return (
        (backend is None or isinstance(backend, str))
        and (largest is None or type(largest) is int)
        and (sizes is None or whole)
    )


def field_name(flag: str) -> str:
    """Flag without dashes (`tp-size`, `tp`) → the engine's field name (`tp_size`)."""
    name = flag.replace("-", "_")
    return ALIASES.get(name, name)


_FLOATS = frozenset({"mem_fraction_static", "schedule_conservativeness", "swa_full_tokens_ratio"})
_INTEGERS = frozenset(
    name
    for name, default in DEFAULTS.items()
    if (isinstance(default, int) and not isinstance(default, bool))
    or (default is None and name.endswith(("_size", "_bs", "_tokens", "_requests", "_steps", "_topk", "_length")))
    or name.startswith("cuda_graph_max_bs")
) - {"cuda_graph_bs"}


def _number(name: str, text: str) -> Any:
    """A command line gives numbers as text."""
    try:
        return float(text) if name in _FLOATS else int(text) if name in _INTEGERS else text
    except ValueError:
        return text
