"""Accepted by the engine's checks, dead later: rules of layer `runtime`, each with its evidence in `source`.

Evidence is a source line of SGLang, an issue thread, or a log of a real launch.
"""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import MOST_RANKS, State


@rule(
    "runtime.more_ranks_than_gpus",
    Stage.RUNTIME,
    layer="runtime",
    source="launch log, tensor parallel 2 on one GPU: torch.AcceleratorError: CUDA error: invalid device ordinal",
)
def more_ranks_than_gpus(s: State) -> Effects:
    """Every rank needs a GPU of its own; replicas multiply them."""
    if s.gpu.count == 0:
        return
    replicas = s.dp_size if s.version >= (0, 5, 22) or not s.enable_dp_attention else 1
    ranks = -(-s.tp_size * s.pp_size // max(1, s.nnodes)) * replicas
    needed = s.base_gpu_id + (ranks - 1) * s.gpu_id_step + 1
    if needed > s.gpu.count:
        yield Refuse(
            f"{ranks} ranks (tp {s.tp_size} x pp {s.pp_size} x replicas {replicas}) need {needed} GPUs, "
            f"the node has {s.gpu.count}",
            ("tp_size", "pp_size", "dp_size"),
            (f"at most {s.gpu.count} ranks",),
        )


@rule(
    "runtime.memory_fraction_range",
    Stage.RUNTIME,
    layer="runtime",
    source="model_runner_kv_cache_mixin.py: the pool takes available - pre x (1 - fraction), all memory at 1",
)
def memory_fraction_range(s: State) -> Effects:
    """A memory fraction lies strictly between 0 and 1; the engine's parser takes any number."""
    fraction = s.user.get("mem_fraction_static")
    if fraction is not None and not 0 < fraction < 1:
        yield Refuse(
            f"--mem-fraction-static {fraction} does not lie between 0 and 1", ("mem_fraction_static",), ("0.85",)
        )


@rule(
    "runtime.expert_ranks",
    Stage.RUNTIME,
    layer="runtime",
    source="distributed/parallel_state.py:initialize_model_parallel; "
    "launch logs, ep 2 on tp 1 and ep 3 on tp 2: ZeroDivisionError",
)
def expert_ranks(s: State) -> Effects:
    """The expert-parallel size divides the tensor-parallel size."""
    if s.ep_size < 1 or s.tp_size % s.ep_size:
        allowed = tuple(f"--ep-size {n}" for n in range(1, min(s.tp_size, MOST_RANKS) + 1) if s.tp_size % n == 0)
        yield Refuse(f"--ep-size {s.ep_size} does not divide --tp-size {s.tp_size}", ("ep_size", "tp_size"), allowed)


@rule(
    "runtime.experts_per_rank",
    Stage.RUNTIME,
    layer="runtime",
    source="layers/moe/fused_moe_triton/layer.py: assert num_experts % moe_ep_size == 0; "
    "eplb/expert_location.py:_init_common; launch log, ep 2 with 3 redundant experts: "
    "assert num_physical_experts % ep_size == 0",
)
def experts_per_rank(s: State) -> Effects:
    """Every expert-parallel rank holds the same number of experts."""
    experts = s.model.experts + (s.ep_num_redundant_experts if s.model.moe else 0)
    if s.model.moe and s.ep_size > 0 and experts % s.ep_size:
        yield Refuse(
            f"{experts} experts (with redundant ones) do not spread over --ep-size {s.ep_size}",
            ("ep_size", "ep_num_redundant_experts"),
        )


@rule(
    "runtime.attention_heads",
    Stage.RUNTIME,
    layer="runtime",
    source="models/*.py: assert total_num_heads % attn_tp_size == 0; kv heads divide or are divided",
)
def attention_heads(s: State) -> Effects:
    """Attention heads spread evenly over the ranks that share a layer."""
    tp, model = s.attention_tp, s.model
    if not model.known or not model.heads:
        return
    fitting = tuple(
        f"{ranks} rank{'s' if ranks > 1 else ''}"
        for ranks in range(min(tp - 1, MOST_RANKS), 0, -1)
        if _heads_fit(s, ranks)
    )[:3]
    if model.heads % tp:
        yield Refuse(f"{model.heads} attention heads do not spread over {tp} ranks", ("tp_size", "dp_size"), fitting)
    elif not model.mla and model.kv_heads % tp and tp % model.kv_heads:
        yield Refuse(
            f"{model.kv_heads} key-value heads neither divide nor are divided by {tp} ranks",
            ("tp_size", "dp_size"),
            fitting,
        )


def _heads_fit(s: State, ranks: int) -> bool:
    grouped = s.model.mla or s.model.kv_heads % ranks == 0 or ranks % max(1, s.model.kv_heads) == 0
    return s.model.heads % ranks == 0 and grouped


@rule(
    "runtime.fp8_blocks",
    Stage.RUNTIME,
    layer="runtime",
    source="layers/quantization/fp8.py:Fp8MoEMethod.create_weights: output_size not divisible by block_n",
)
def fp8_blocks(s: State) -> Effects:
    """Block-quantized experts split into whole blocks."""
    block, model = s.model.quantization.block_n, s.model
    if not block or not model.moe or s.ep_size < 1 or s.tp_size % s.ep_size:
        return
    if s.version >= (0, 5, 15) and s.moe_runner_backend.startswith("flashinfer_trtllm"):
        return  # rounds the shard up to whole blocks
    shard = model.moe_intermediate * s.ep_size * max(1, s.moe_dp_size) / s.tp_size
    if shard % block:
        fits = [
            n
            for n in range(1, min(s.tp_size, MOST_RANKS) + 1)
            if s.tp_size % n == 0 and model.moe_intermediate * n / s.tp_size % block == 0
        ]
        yield Refuse(
            f"an expert's {model.moe_intermediate} columns over {s.tp_size // s.ep_size} ranks: shards of {shard:g}, "
            f"not a multiple of the FP8 block of {block}",
            ("tp_size", "ep_size"),
            tuple(f"--ep-size {n}" for n in fits),
        )


#: Methods that read their parameters from the checkpoint.
_NEED_CHECKPOINT = frozenset(
    {
        "awq",
        "awq_marlin",
        "gptq",
        "gptq_marlin",
        "marlin",
        "compressed-tensors",
        "w4afp8",
        "moe_wna16",
        "qoq",
        "auto-round",
    }
)


@rule(
    "runtime.quantized_checkpoint",
    Stage.RUNTIME,
    layer="runtime",
    source="model_loader/weight_utils.py:get_quant_config: Cannot find the config file for …",
)
def quantized_checkpoint(s: State) -> Effects:
    """Some quantizations cannot be made from an unquantized checkpoint."""
    if s.model.known and s.model.quantization.method is None and s.user.get("quantization") in _NEED_CHECKPOINT:
        yield Refuse(
            f"--quantization {s.quantization} needs a checkpoint quantized that way, this one is not quantized",
            ("quantization",),
            ("--quantization fp8", "leave it out"),
        )


@rule(
    "runtime.flashinfer_a2a_weights",
    Stage.RUNTIME,
    layer="runtime",
    since="0.5.7",
    source="compressed_tensors_wNa16_moe.py, awq.py, gptq.py run on Marlin or Triton only; "
    "a launch of an int4 model on 8 GPUs died with an assertion after the memory check",
)
def flashinfer_a2a_weights(s: State) -> Effects:
    """The flashinfer all-to-all dispatches to FlashInfer's kernels, which take no int4 weights."""
    method, bits = s.model.quantization.method, s.model.quantization.bits
    int4 = method in ("awq", "gptq", "awq_marlin", "gptq_marlin", "moe_wna16") or (
        method == "compressed-tensors" and bits == 4
    )
    if s.moe_a2a_backend == "flashinfer" and int4:
        yield Refuse(
            f"--moe-a2a-backend flashinfer has no kernels for {method} weights of {bits:g} bits",
            ("moe_a2a_backend", "moe_runner_backend"),
            ("--moe-a2a-backend none",),
        )


@rule(
    "runtime.flashinfer_a2a_workspace",
    Stage.RUNTIME,
    layer="runtime",
    since="0.5.7",
    until="0.5.19",
    source="token_dispatcher/flashinfer.py: num_tokens exceeds max_num_tokens; checked at start from 0.5.20 on",
)
def flashinfer_a2a_workspace(s: State) -> Effects:
    """The workspace of the flashinfer all-to-all holds 1,024 tokens per rank up to 0.5.12 and a prefill chunk since.

    Unless the variable says otherwise: of each rank, and up to 0.5.12 all ranks' together count.
    """
    if s.moe_a2a_backend != "flashinfer" or s.chunked_prefill_size is None:
        return
    chunk = s.chunked_prefill_size if s.chunked_prefill_size > 0 else s.max_prefill_tokens
    summed = s.version < (0, 5, 13)
    unset = 1024 if summed else max(chunk, 4096)
    ranks = s.ep_size if summed else 1
    capacity = s.env_int("SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK", unset) * ranks
    if chunk > capacity:
        yield Refuse(
            f"a prefill chunk of {chunk} tokens does not fit the all-to-all workspace of {capacity} tokens",
            ("moe_a2a_backend", "chunked_prefill_size", "tp_size"),
            (
                f"--chunked-prefill-size {capacity}",
                f"env.SGLANG_FLASHINFER_NUM_MAX_DISPATCH_TOKENS_PER_RANK {-(-chunk // ranks)}",
            ),
        )


@rule(
    "runtime.mxfp4_runner",
    Stage.RUNTIME,
    layer="runtime",
    source="launch log, flashinfer_mxfp4 with bf16 weights: ValueError: too many values to unpack (expected 3)",
)
def mxfp4_runner(s: State) -> Effects:
    """The flashinfer_mxfp4 runner takes MXFP4 weights."""
    mxfp4 = "mxfp4" in (s.quantization, s.model.quantization.method)
    if s.model.known and s.model.moe and s.moe_runner_backend == "flashinfer_mxfp4" and not mxfp4:
        yield Refuse(
            "--moe-runner-backend flashinfer_mxfp4 takes MXFP4 weights only", ("moe_runner_backend",), ("auto",)
        )


@rule(
    "runtime.explicit_runner_with_awq",
    Stage.RUNTIME,
    layer="runtime",
    since="0.5.7",
    source="layers/quantization/awq.py and gptq.py: assert get_moe_runner_backend().is_auto()",
)
def explicit_runner_with_awq(s: State) -> Effects:
    """AWQ and GPTQ experts choose their kernel themselves; a named runner trips an assertion without a message."""
    if s.model.moe and s.model.quantization.method in ("awq", "gptq") and s.moe_runner_backend != "auto":
        yield Refuse(
            f"--moe-runner-backend {s.moe_runner_backend} with {s.model.quantization.method} weights: only auto works",
            ("moe_runner_backend",),
            ("auto",),
        )


@rule(
    "runtime.cutlass_nvfp4",
    Stage.RUNTIME,
    layer="runtime",
    since="0.5.20",
    source="layers/quantization/modelopt_quant.py: moe_runner_backend=cutlass is not supported for NVFP4 MoE",
)
def cutlass_nvfp4(s: State) -> Effects:
    """The cutlass runner does not take NVFP4 experts."""
    if (
        s.model.moe
        and s.moe_runner_backend == "cutlass"
        and "modelopt_fp4" in (s.quantization, s.model.quantization.method)
    ):
        yield Refuse(
            "--moe-runner-backend cutlass does not take NVFP4 weights", ("moe_runner_backend",), ("flashinfer_cutlass",)
        )


@rule(
    "runtime.nccl_tree_in_graphs",
    Stage.RUNTIME,
    layer="runtime",
    majors=(12,),
    source="launch on 8 PCIe GPUs of compute capability 12.0: NCCL_ALGO=Tree is incompatible with CUDA graphs there",
)
def nccl_tree_in_graphs(s: State) -> Effects:
    """NCCL's tree algorithm cannot be captured on PCIe GPUs of compute capability 12."""
    graphs = not s.disable_cuda_graph and s.cuda_graph_backend_decode != "disabled"
    if s.env.get("NCCL_ALGO") == "Tree" and graphs and s.gpu.nvlink is False and s.tp_size > 1:
        yield Refuse(
            "NCCL_ALGO=Tree cannot be captured in CUDA graphs on this node",
            ("env.NCCL_ALGO", "disable_cuda_graph"),
            ("env.NCCL_ALGO Ring", "--disable-cuda-graph"),
        )
