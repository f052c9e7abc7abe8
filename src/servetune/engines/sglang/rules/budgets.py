"""Token budgets of all-to-all workspaces, checked once draft tokens and graph sizes are final."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State
from servetune.engines.sglang.rules.memory_defaults import prefill_buffer_tokens

FLASHINFER = "arg_groups/moe_hook.py:validate_flashinfer_a2a_token_budget"
DEEPEP_V2 = "arg_groups/moe_hook.py:validate_deepep_v2_dispatch_token_budget"
MEGAMOE = "arg_groups/mega_moe_hook.py:validate_mega_moe_token_budget"
_TOKENS = ("moe_a2a_backend", "chunked_prefill_size", "cuda_graph_max_bs_decode")
#: Architectures whose MoE blocks have no other path when a batch outgrows MegaMoE's buffer.
_MEGAMOE_ONLY = frozenset(
    {
        "DeepseekV4ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    }
)


def decode_graph_tokens(s: State) -> int:
    """Tokens of the largest decode or verify graph on one data-parallel rank; 0 without decode graphs."""
    if s.cuda_graph_backend_decode == "disabled" or s.disaggregation_mode == "prefill":
        return 0
    size = s.cuda_graph_max_bs_decode or 0
    if s.max_running_requests is not None:
        size = min(size, max(1, s.max_running_requests // s.attention_dp))
    return int(size) * _tokens_per_request(s)


def _tokens_per_request(s: State) -> int:
    return int(s.speculative_num_draft_tokens or 1) if s.speculative_algorithm else 1


@rule(
    "budget.cutedsl",
    Stage.BUDGET,
    since="0.5.13",
    until="0.5.19",
    source="server_args.py:_validate_cutedsl_a2a_token_budget",
)
def cutedsl(s: State) -> Effects:
    """flashinfer_cutedsl behind the flashinfer all-to-all: the workspace must hold the largest batch."""
    if s.moe_a2a_backend != "flashinfer" or s.moe_runner_backend != "flashinfer_cutedsl" or s.max_prefill_tokens <= 0:
        return
    new = s.version >= (0, 5, 14)
    graphs = s.cuda_graph_backend_prefill != "disabled" if new else not s.disable_piecewise_cuda_graph
    largest = (s.cuda_graph_max_bs_prefill if new else s.piecewise_cuda_graph_max_tokens) or 0
    decode = (s.cuda_graph_max_bs_decode if new else s.cuda_graph_max_bs) or 0
    needed = max(s.max_prefill_tokens, largest if graphs else 0, decode * _tokens_per_request(s))
    capacity = s.env_int("SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 1024) * s.ep_size
    if capacity < needed:
        yield Refuse(
            f"the flashinfer all-to-all holds {capacity} tokens, a batch may have {needed}",
            ("moe_a2a_backend", "max_prefill_tokens", "cuda_graph_max_bs"),
            (f"env.SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK {-(-needed // max(1, s.ep_size))}",),
        )


@rule("budget.flashinfer", Stage.BUDGET, since="0.5.20", source=FLASHINFER)
def flashinfer(s: State) -> Effects:
    """The flashinfer all-to-all needs chunked prefill, and its workspace must hold the largest batch of one rank."""
    if s.moe_a2a_backend != "flashinfer" or s.chunked_prefill_size is None:
        return
    if s.chunked_prefill_size <= 0 and s.disaggregation_mode != "decode":
        yield Refuse(
            "--moe-a2a-backend flashinfer needs chunked prefill", _TOKENS[:2], ("--chunked-prefill-size 8192",)
        )
    prefill = prefill_buffer_tokens(s)
    graph = (s.cuda_graph_max_bs_prefill or 0) if s.cuda_graph_backend_prefill != "disabled" else 0
    needed = max(prefill, graph, decode_graph_tokens(s))
    capacity = s.env_int("SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK", max(prefill, 4096))
    if needed > capacity:
        yield Refuse(
            f"the flashinfer all-to-all holds {capacity} tokens per rank, a batch may have {needed}",
            _TOKENS,
            (f"env.SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK {needed}", "smaller graphs or a smaller chunk"),
        )


@rule("budget.deepep_v2", Stage.CHECK, since="0.5.20", source=DEEPEP_V2)
def deepep_v2(s: State) -> Effects:
    """DeepEP v2 dispatches at most 128 tokens per rank unless told otherwise."""
    if s.moe_a2a_backend != "deepep_v2" or s.chunked_prefill_size is None:
        return
    capacity = s.env_int("SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 128)
    ceiling = prefill_buffer_tokens(s) or s.max_prefill_tokens or 0
    scatter = max(1, s.tp_size // max(1, s.attn_dp_size))
    for name, needed in (("prefill", -(-ceiling // scatter)), ("decode", decode_graph_tokens(s))):
        if needed > capacity and not (name == "prefill" and s.disaggregation_mode == "decode"):
            yield Refuse(
                f"--moe-a2a-backend deepep_v2 dispatches at most {capacity} tokens per rank, {name} may need {needed}",
                _TOKENS,
                (f"env.SGLANG_DEEPEP_V2_NUM_MAX_DISPATCH_TOKENS_PER_RANK {needed}",),
            )
    draft = s.speculative_moe_a2a_backend
    if draft is None and s.speculative_algorithm not in (None, "NGRAM"):
        draft = s.moe_a2a_backend
    if draft == "deepep_v2":
        yield Refuse(
            "deepep_v2 does not serve a draft model", ("speculative_moe_a2a_backend", "moe_a2a_backend"), ("none",)
        )


@rule(
    "budget.deepep_v2_draft",
    Stage.CHECK,
    since="0.5.20",
    source="arg_groups/moe_hook.py:validate_deepep_v2_speculative_draft",
)
def deepep_v2_draft(s: State) -> Effects:
    """DeepEP v2 cannot be named for the draft model."""
    if s.speculative_moe_a2a_backend == "deepep_v2" and s.moe_a2a_backend != "deepep_v2":
        yield Refuse("deepep_v2 does not serve a draft model", ("speculative_moe_a2a_backend",), ("none",))


@rule("budget.megamoe", Stage.BUDGET, since="0.5.18", source=MEGAMOE)
def megamoe(s: State) -> Effects:
    """MegaMoE's buffer must hold the largest forward where a model has no other path."""
    if s.moe_a2a_backend != "megamoe" or s.chunked_prefill_size is None or not _megamoe_only(s):
        return
    capacity = s.env_int("SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK", 8192)
    groups = s.attention_dp
    size = s.cuda_graph_max_bs_decode or 0
    if s.max_running_requests is not None:
        step = max(1, s.tp_size // groups)
        size = min(size, -(-(s.max_running_requests // groups) // step) * step)
    decode = size * _tokens_per_request(s)
    if decode > capacity:
        yield Refuse(f"MegaMoE holds {capacity} tokens per rank, a decode step may have {decode}", _TOKENS)
    if s.pp_size > 1 and s.enable_dynamic_chunking:
        return
    chunk = s.chunked_prefill_size
    if chunk <= 0:
        yield Refuse("MegaMoE needs chunked prefill for this model", _TOKENS[:2], ("--chunked-prefill-size 8192",))
        return
    align = max(1, s.tp_size // groups // max(1, s.attn_cp_size))
    local = chunk // groups if groups > 1 else chunk
    needed = -(-local // align) * align
    if local <= 0 or needed > capacity:
        yield Refuse(
            f"MegaMoE holds {capacity} tokens per rank, a prefill chunk may have {needed}",
            _TOKENS[:2],
            (
                f"--chunked-prefill-size {capacity}",
                f"env.SGLANG_OPT_DEEPGEMM_MEGA_MOE_NUM_MAX_TOKENS_PER_RANK {needed}",
            ),
        )


def _megamoe_only(s: State) -> bool:
    nvfp4 = s.quantization in ("modelopt_fp4", "minimax_m3_nvfp4") or s.model.quantization.method == "modelopt_fp4"
    return nvfp4 or s.model.architecture in _MEGAMOE_ONLY
