"""CUDA graphs: which phases capture graphs, and what turns a phase off."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Fill, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import NO_JSON, State, json_of

PIECEWISE = "server_args.py:_handle_piecewise_cuda_graph"
CONFIG = "server_args.py:_parse_cuda_graph_config; 0.5.20+: arg_groups/cuda_graph_hook.py:parse_cuda_graph_config"
COMPATIBLE = "cuda_graph_hook.py:disable_breakable_cudagraph_if_incompatible (0.5.14 to 0.5.19: server_args.py)"
#: Architectures on which prefill graphs by torch.compile are never captured (0.5.10 to 0.5.13).
_NO_PIECEWISE = frozenset(
    {"DeepseekV4ForCausalLM", "Qwen3NextForCausalLM", "BailingMoeV2_5ForCausalLM", "LLaDAModelLM"}
)
_NO_PIECEWISE_TO_0_5_12 = frozenset({"DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"})
#: Multimodal architectures whose language part may capture prefill graphs (0.5.18 and later).
_MULTIMODAL_BREAKABLE = frozenset(
    {
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
    }
)
_A2A_WITH_PREFILL_GRAPHS = ("none", "deepep", "megamoe", "flashinfer")


@rule("graphs.piecewise_off", Stage.GRAPHS, since="0.5.10", until="0.5.13", source=PIECEWISE)
def piecewise_off(s: State) -> Effects:
    """Piecewise prefill graphs (on by default) are switched off by many other features."""
    if s.enforce_piecewise_cuda_graph:
        yield Assign("disable_piecewise_cuda_graph", False, "--enforce-piecewise-cuda-graph skips every automatic rule")
        return
    reason = _piecewise_conflict(s)
    if reason:
        yield Assign("disable_piecewise_cuda_graph", True, f"piecewise CUDA graphs are switched off by {reason}")


def asks_dsa_context_parallel(s: State) -> bool:
    """Whether sparse attention's own context parallelism is asked for, under either of the switch's names."""
    return bool(s.user.get("enable_dsa_prefill_context_parallel") or s.user.get("enable_nsa_prefill_context_parallel"))


def _piecewise_conflict(s: State) -> str | None:
    conflicts = (
        (
            s.model.architecture in _NO_PIECEWISE
            or (s.version <= (0, 5, 12) and s.model.architecture in _NO_PIECEWISE_TO_0_5_12),
            "this model architecture",
        ),
        (s.version <= (0, 5, 11) and s.speculative_algorithm is not None, "speculative decoding"),
        (s.enable_dp_attention, "DP attention"),
        (s.enable_torch_compile, "--enable-torch-compile"),
        (s.pp_size > 1, "pipeline parallelism"),
        (s.moe_a2a_backend != "none", "an all-to-all backend"),
        (s.lora_paths or s.enable_lora, "LoRA"),
        (s.model.multimodal, "a multimodal model"),
        (s.load_format == "gguf" or s.quantization == "gguf", "GGUF"),
        (s.cpu_offload_gb > 0 or s.enable_hierarchical_cache, "offloading or the hierarchical cache"),
        (s.enable_deterministic_inference, "deterministic inference"),
        (s.disaggregation_mode != "null", "disaggregation"),
        (s.enable_symm_mem, "--enable-symm-mem"),
        (s.enable_eplb or s.expert_distribution_recorder_mode is not None, "the expert distribution recorder"),
        (s.attn_cp_size > 1 or (s.version >= (0, 5, 13) and asks_dsa_context_parallel(s)), "context parallelism"),
        (s.debug_cuda_graph, "--debug-cuda-graph"),
    )
    return next((reason for holds, reason in conflicts if holds), None)


@rule("graphs.per_phase", Stage.GRAPHS, since="0.5.14", source=CONFIG)
def per_phase(s: State) -> Effects:
    """The old switches become one backend per phase; a per-phase flag wins over a switch."""
    decode, prefill = s.cuda_graph_backend_decode, s.cuda_graph_backend_prefill
    old_off = s.version < (0, 5, 20) and s.disable_piecewise_cuda_graph
    if decode is None:
        yield Fill(
            "cuda_graph_backend_decode", "disabled" if s.disable_cuda_graph or s.disable_decode_cuda_graph else "full"
        )
    if prefill is None:
        off = s.disable_cuda_graph or s.disable_prefill_cuda_graph or old_off
        enforced = s.version < (0, 5, 20) and s.enforce_piecewise_cuda_graph  # another spelling of the backend
        yield Fill("cuda_graph_backend_prefill", "tc_piecewise" if enforced else "disabled" if off else "breakable")


def prefill_named(s: State) -> bool:
    """Whether the assignment itself says which prefill graphs to capture; then the engine does not interfere."""
    names = (
        "disable_cuda_graph",
        "disable_prefill_cuda_graph",
        "disable_piecewise_cuda_graph",
        "enforce_piecewise_cuda_graph",
    )
    return "cuda_graph_backend_prefill" in s.user or any(s.user.get(name) for name in names)


@rule("graphs.prefill_incompatible", Stage.GRAPHS, since="0.5.14", source=COMPATIBLE)
def prefill_incompatible(s: State) -> Effects:
    """Breakable prefill graphs, the default on CUDA, are switched off where they are not validated."""
    if prefill_named(s) or s.cuda_graph_backend_prefill != "breakable":
        return
    reason = _breakable_conflict(s)
    if reason:
        yield Assign("cuda_graph_backend_prefill", "disabled", f"prefill CUDA graphs are switched off by {reason}")


def _breakable_conflict(s: State) -> str | None:
    old = s.version <= (0, 5, 16)  # the shorter list came between 0.5.15 and 0.5.18
    wide_a2a = s.moe_a2a_backend != "none" if old else s.moe_a2a_backend not in _A2A_WITH_PREFILL_GRAPHS
    closed = s.model.multimodal and (old or s.model.architecture not in _MULTIMODAL_BREAKABLE)
    conflicts = (
        (s.version >= (0, 5, 20) and s.pp_size > 1, "pipeline parallelism"),
        (s.version >= (0, 5, 20) and s.model.kda, "Kimi's linear attention"),
        (old and s.model.mla, "latent attention"),
        (s.model.architecture == "DeepseekV4ForCausalLM", "DeepSeek-V4"),
        (s.attn_cp_size > 1, "context parallelism"),
        (old and (s.lora_paths or s.enable_lora), "LoRA"),
        (old and s.enable_dp_attention, "DP attention"),
        (not old and s.dcp_size > 1, "decode context parallelism"),
        (not old and s.enable_two_batch_overlap, "two-batch overlap"),
        (wide_a2a, "this all-to-all backend"),
        (closed, "a multimodal model"),
    )
    return next((reason for holds, reason in conflicts if holds), None)


@rule("graphs.deepep_buckets", Stage.GRAPHS, since="0.5.18", source="cuda_graph_hook.py:apply_deepep_adjustments")
def deepep_buckets(s: State) -> Effects:
    """With DeepEP prefill graph sizes are rounded up to multiples of 8, before the chunk is known."""
    from servetune.engines.sglang.rules.memory_defaults import batch_sizes, prefill_graph_sizes

    if s.moe_a2a_backend != "deepep" or s.cuda_graph_backend_prefill != "breakable":
        return
    listed = s.cuda_graph_bs_prefill
    sizes = batch_sizes(listed) if listed else prefill_graph_sizes(s.cuda_graph_max_bs_prefill or 2048)
    aligned = sorted({(size + 7) // 8 * 8 for size in sizes})
    if aligned != sorted(sizes):
        yield Fill("cuda_graph_bs_prefill", " ".join(map(str, aligned)))
        yield Fill("cuda_graph_max_bs_prefill", aligned[-1])


@rule(
    "graphs.backend_per_phase_choices",
    Stage.GRAPHS,
    since="0.5.14",
    source="cuda_graph_hook.py:validate_cuda_graph_config",
)
def backend_per_phase_choices(s: State) -> Effects:
    """A graph backend must be one of those that the version knows for the phase."""
    allowed = ("full", "breakable", "disabled") + (("tc_piecewise",) if s.version < (0, 5, 21) else ())
    for phase in ("decode", "prefill"):
        field = f"cuda_graph_backend_{phase}"
        value = getattr(s, field)
        if value is not None and value not in allowed:
            yield Refuse(f"--cuda-graph-backend-{phase} {value} is not known to this version", (field,), allowed)


@rule(
    "graphs.deepseek_trtllm_mla_prefill",
    Stage.GRAPHS_LATE,
    since="0.5.14",
    architectures=frozenset({"DeepseekV3ForCausalLM"}),
    source="cuda_graph_hook.py:disable_prefill_cuda_graph_for_deepseek_trtllm_mla",
)
def deepseek_trtllm_mla_prefill(s: State) -> Effects:
    """Prefill graphs are off for DeepSeek-V3 on trtllm_mla: a captured prefill falls back to another kernel."""
    if prefill_named(s) or s.cuda_graph_backend_prefill == "disabled" or s.attention_backends[0] != "trtllm_mla":
        return
    yield Assign("cuda_graph_backend_prefill", "disabled", "trtllm_mla prefill graphs fall back to a slower kernel")


@rule("graphs.padding_with_torch_compile", Stage.CHECK, since="0.5.12", source="server_args.py:check_server_args")
def padding_with_torch_compile(s: State) -> Effects:
    """Without padding torch.compile would compile every batch size."""
    if s.disable_cuda_graph_padding and s.enable_torch_compile:
        yield Refuse(
            "--disable-cuda-graph-padding and --enable-torch-compile exclude each other: every size would be compiled",
            ("disable_cuda_graph_padding", "enable_torch_compile"),
            ("drop --disable-cuda-graph-padding", "drop --enable-torch-compile"),
        )


@rule("graphs.config_shape", Stage.GRAPHS, since="0.5.14", source="cuda_graph_config.py:parse_cuda_graph_config_arg")
def config_shape(s: State) -> Effects:
    """--cuda-graph-config is an object of phases, each an object of settings."""
    text = s.user.get("cuda_graph_config")
    given = json_of(text)
    if given is NO_JSON:
        return
    phases = ("decode", "prefill")
    if not isinstance(given, dict) or any(
        phase not in phases or not isinstance(settings, dict) for phase, settings in given.items()
    ):
        yield Refuse(
            f"--cuda-graph-config is a JSON object with an object for decode, prefill or both, got {str(text)[:80]}",
            ("cuda_graph_config",),
            ('{"decode": {"max_bs": 128}}',),
        )


def graphs_off(s: State, reason: str) -> Effects:
    """Effects that switch off graphs of both phases, in the spelling of the version."""
    if s.version < (0, 5, 14):
        yield Assign("disable_cuda_graph", True, reason)
        return
    yield Assign("cuda_graph_backend_decode", "disabled", reason)
    yield Assign("cuda_graph_backend_prefill", "disabled", reason)


@rule(
    "graphs.msprobe",
    Stage.DIFFUSION,
    since="0.5.13",
    source="server_args.py:_handle_other_validations; 0.5.20+: arg_groups/serving_hook.py",
)
def msprobe(s: State) -> Effects:
    """MsProbe dumps what runs without graphs."""
    if s.user.get("msprobe_dump_config") is not None:
        yield from graphs_off(s, "--msprobe-dump-config")
