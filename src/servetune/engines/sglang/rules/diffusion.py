"""Diffusion language models (`--dllm-algorithm`): which models it is for, and what it settles."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

SOURCE = "server_args.py:_handle_dllm_inference; 0.5.20+: arg_groups/dllm_hook.py:handle_dllm_inference"
MODELS = "dllm/config.py:DllmConfig.from_server_args"
#: Architecture → tokens of one block.
_BLOCK_TOKENS = {
    "LLaDA2MoeModelLM": 32,
    "SDARForCausalLM": 4,
    "SDARMoeForCausalLM": 4,
    "DiffusionGemmaForBlockDiffusion": 256,
}


def _wrong_model(s: State) -> Effects:
    if s.dllm_algorithm is not None and s.model.known and s.model.architecture not in _BLOCK_TOKENS:
        yield Refuse(
            f"--dllm-algorithm is for diffusion language models, and {s.model.architecture} is none that SGLang knows",
            ("dllm_algorithm",),
            ("leave it out", f"a model of {', '.join(_BLOCK_TOKENS)}"),
        )


@rule("diffusion.model", Stage.DIFFUSION, since="0.5.12", source=MODELS)
def model(s: State) -> Effects:
    """A diffusion algorithm needs a diffusion model; up to 0.5.13 the checks ask only with a radix cache."""
    if s.version >= (0, 5, 14) or not s.disable_radix_cache:
        yield from _wrong_model(s)


@rule("diffusion.model_late", Stage.RUNTIME, until="0.5.13", layer="runtime", source=f"scheduler, {MODELS}")
def model_late(s: State) -> Effects:
    """Where the checks do not ask for the model, the scheduler does: `Unknown diffusion LLM`."""
    if s.version < (0, 5, 12) or s.disable_radix_cache:
        yield from _wrong_model(s)


@rule("diffusion.settles", Stage.DIFFUSION, source=SOURCE)
def settles(s: State) -> Effects:
    """Diffusion models run on flashinfer, without overlap, pipelines, LoRA, disaggregation and mixed chunks."""
    if s.dllm_algorithm is None:
        return
    reason = "--dllm-algorithm"
    new = s.version >= (0, 5, 14)
    graphs = s.cuda_graph_backend_decode != "disabled" if new else not s.disable_cuda_graph
    if graphs and s.attention_backend != "flashinfer" and s.version >= (0, 5, 9):
        yield Assign("attention_backend", "flashinfer", "diffusion models with CUDA graphs")
    if s.version < (0, 5, 12):
        yield Assign("disable_radix_cache", True, reason)
    else:
        yield from _pages(s)
    for field, value in (
        ("disable_overlap_schedule", True),
        ("enable_lora", False),
        ("disaggregation_mode", "null"),
        ("enable_mixed_chunk", False),
    ):
        yield Assign(field, value, reason)
    if new and s.pp_size > 1:
        yield Assign("pp_size", 1, reason)


def _pages(s: State) -> Effects:
    block = _BLOCK_TOKENS.get(s.model.architecture)
    if block is None or s.page_size is None:
        return
    uneven = not s.disable_radix_cache and s.page_size % block
    if uneven or (s.version >= (0, 5, 14) and s.page_size > block):
        yield Assign("page_size", block, "blocks of a diffusion model")
    if not s.disable_radix_cache and s.enable_hierarchical_cache:
        yield Assign("enable_hierarchical_cache", False, "--dllm-algorithm")
