"""Which kernels exist for which GPU, where the engine's checks do not ask: rules of layer `runtime`, with evidence."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

_ATTENTION = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
REGISTRY = "layers/attention/attention_registry.py"
#: Attention backends of other hardware; their kernels cannot be imported on NVIDIA GPUs.
_FOREIGN_ATTENTION = frozenset({"aiter", "wave", "ascend", "intel_amx", "intel_xpu"})
_LATENT_ONLY = frozenset({"trtllm_mla", "cutedsl_mla", "tokenspeed_mla", "flashmla", "cutlass_mla"})
_SPARSE_ONLY = frozenset({"nsa", "dsa"})
_FOREIGN_A2A = frozenset({"ascend_fuseep", "mori"})


@rule("runtime.fa3_gpu", Stage.RUNTIME, layer="runtime", source=f"{REGISTRY}:create_flashattention_v3_backend")
def fa3_gpu(s: State) -> Effects:
    """fa3 has kernels for compute capability 9, and for 8 without latent attention."""
    if (
        "fa3" in s.attention_backends
        and s.gpu.known
        and s.gpu.major != 9
        and not (s.gpu.major == 8 and not s.model.mla)
    ):
        yield Refuse(
            f"attention backend fa3 does not run on compute capability {s.gpu.sm / 10:g}",
            _ATTENTION,
            ("flashinfer", "triton"),
        )


@rule(
    "runtime.fa4_gpu",
    Stage.RUNTIME,
    layer="runtime",
    until="0.5.12",
    source="sgl_kernel/_fa4_interface.py: compute capability 9 and 10 only",
)
def fa4_gpu(s: State) -> Effects:
    """fa4 has kernels for compute capability 9 and 10."""
    if "fa4" in s.attention_backends and s.gpu.known and s.gpu.major not in (9, 10):
        yield Refuse(
            f"attention backend fa4 does not run on compute capability {s.gpu.sm / 10:g}",
            _ATTENTION,
            ("flashinfer", "triton"),
        )


@rule("runtime.latent_backends", Stage.RUNTIME, layer="runtime", source=f"{REGISTRY}: can only be used with MLA models")
def latent_backends(s: State) -> Effects:
    """Backends for latent attention need a model that has it, and the other way round for trtllm_mha."""
    if not s.model.known:
        return
    for name in dict.fromkeys(s.attention_backends):
        if name in _LATENT_ONLY and not s.model.mla:
            yield Refuse(
                f"attention backend {name} needs a model with latent attention (MLA)",
                _ATTENTION,
                ("flashinfer", "triton"),
            )
        elif name == "trtllm_mha" and s.model.mla:
            yield Refuse(
                "attention backend trtllm_mha does not run latent attention (MLA)", _ATTENTION, ("trtllm_mla", "triton")
            )
        elif name in _SPARSE_ONLY and not s.model.dsa:
            yield Refuse(
                f"attention backend {name} needs a model with a sparse-attention indexer",
                _ATTENTION,
                ("flashinfer", "triton"),
            )


@rule(
    "runtime.foreign_attention", Stage.RUNTIME, layer="runtime", source=f"{REGISTRY}: imports kernels of other hardware"
)
def foreign_attention(s: State) -> Effects:
    """Attention backends for AMD, Intel and Ascend do not run on NVIDIA GPUs."""
    for name in dict.fromkeys(s.attention_backends):
        if s.gpu.known and name in _FOREIGN_ATTENTION:
            yield Refuse(f"attention backend {name} is for other hardware", _ATTENTION, ("flashinfer", "triton"))


@rule(
    "runtime.foreign_a2a",
    Stage.RUNTIME,
    layer="runtime",
    source="layers/moe/token_dispatcher/: mori needs ROCm, ascend_fuseep Ascend",
)
def foreign_a2a(s: State) -> Effects:
    """All-to-all backends for AMD and Ascend do not run on NVIDIA GPUs."""
    if s.gpu.known and s.moe_a2a_backend in _FOREIGN_A2A:
        yield Refuse(
            f"--moe-a2a-backend {s.moe_a2a_backend} is for other hardware", ("moe_a2a_backend",), ("none", "deepep")
        )


@rule(
    "runtime.nvfp4_gpu",
    Stage.RUNTIME,
    layer="runtime",
    until="0.5.12",
    source="modelopt_quant.py:ModelOptFp4Config.get_min_capability is 100; model_loader/loader.py refuses",
)
def nvfp4_gpu(s: State) -> Effects:
    """NVFP4 weights need compute capability 10 up to 0.5.12."""
    if s.gpu.known and s.gpu.sm < 100 and "modelopt_fp4" in (s.quantization, s.model.quantization.method):
        yield Refuse(f"NVFP4 weights need compute capability 10.0, the GPU has {s.gpu.sm / 10:g}", ("quantization",))


@rule(
    "runtime.allreduce_fusion_gpu",
    Stage.RUNTIME,
    layer="runtime",
    source="flashinfer JIT: No supported CUDA architectures found for major versions [9, 10]; "
    "https://github.com/sgl-project/sglang/issues/15650",
)
def allreduce_fusion_gpu(s: State) -> Effects:
    """FlashInfer's all-reduce fusion has kernels for compute capability 9 and 10; elsewhere capture dies."""
    on = s.enable_flashinfer_allreduce_fusion or s.flashinfer_allreduce_fusion_backend is not None
    if on and s.gpu.known and s.gpu.major not in (9, 10) and s.tp_size > 1 and s.attention_dp == 1:
        yield Refuse(
            f"FlashInfer's all-reduce fusion has no kernels for compute capability {s.gpu.sm / 10:g}",
            ("enable_flashinfer_allreduce_fusion", "flashinfer_allreduce_fusion_backend"),
            ("leave it out",),
        )


_TRTLLM = frozenset({"flashinfer_trtllm", "flashinfer_trtllm_routed", "experimental_sgl_trtllm"})


@rule(
    "runtime.trtllm_runner_gpu",
    Stage.RUNTIME,
    layer="runtime",
    source="overrides.py: trtllm-gen MoE kernels are SM100-only",
)
def trtllm_runner_gpu(s: State) -> Effects:
    """The trtllm MoE kernels exist for compute capability 10 only."""
    if s.model.moe and s.moe_runner_backend in _TRTLLM and s.gpu.known and s.gpu.major != 10:
        yield Refuse(
            f"--moe-runner-backend {s.moe_runner_backend} has kernels for compute capability 10 only",
            ("moe_runner_backend",),
            ("--moe-runner-backend triton", "--moe-runner-backend flashinfer_cutlass"),
        )


@rule(
    "runtime.hpc_ops",
    Stage.RUNTIME,
    layer="runtime",
    since="0.5.18",
    source="layers/moe/moe_runner/runner.py: hpc_ops is for SM90 and FP8",
)
def hpc_ops(s: State) -> Effects:
    """The hpc_ops runner is for compute capability 9 and FP8 weights."""
    fp8 = "fp8" in (s.quantization, s.model.quantization.method)
    if s.moe_runner_backend == "hpc_ops" and ((s.gpu.known and not s.gpu.sm90) or (s.model.known and not fp8)):
        yield Refuse(
            "--moe-runner-backend hpc_ops needs compute capability 9 and FP8 weights",
            ("moe_runner_backend",),
            ("auto",),
        )
