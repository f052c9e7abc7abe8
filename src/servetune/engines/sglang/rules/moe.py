"""MoE runner backends: which quantization, expert-parallel size and GPU each one takes."""

from __future__ import annotations

from servetune.engines.sglang.rules._registry import Assign, Effects, Refuse, Stage, rule
from servetune.engines.sglang.rules._state import State

SOURCE = "server_args.py:_handle_moe_kernel_config; 0.5.20+: arg_groups/moe_hook.py:handle_moe_kernel_config"
CONSTRAINTS = "arg_groups/overrides.py:_moe_runner_backend_quant_constraints"
FUSION = "arg_groups/overrides.py:_moe_runner_fusion_disable"
_BOTH = ("moe_runner_backend", "quantization")


def _shown(methods: tuple[str | None, ...]) -> tuple[str, ...]:
    return tuple("no --quantization" if method is None else f"--quantization {method}" for method in methods)


def _not_taken(s: State) -> str:
    model = "a model without quantization" if s.quantization is None else f"quantization {s.quantization}"
    return f"--moe-runner-backend {s.moe_runner_backend} does not take {model}"


def _quantization(s: State, methods: tuple[str | None, ...]) -> Effects:
    if s.quantization not in methods:
        yield Refuse(
            _not_taken(s),
            _BOTH,
            _shown(methods),
        )


def _expert_parallel_one_or_tp(s: State) -> Effects:
    if s.ep_size not in (1, s.tp_size):
        yield Refuse(
            f"--moe-runner-backend {s.moe_runner_backend} takes --ep-size 1 or {s.tp_size} (tp), got {s.ep_size}",
            ("moe_runner_backend", "ep_size", "tp_size"),
            ("--ep-size 1", f"--ep-size {s.tp_size}"),
        )


@rule("moe.mxfp8_forces_cutlass", Stage.MOE_RUNNER, since="0.5.9", until="0.5.9", source=SOURCE)
def mxfp8_forces_cutlass(s: State) -> Effects:
    """mxfp8 runs on the cutlass runner whatever was asked for."""
    if s.quantization == "mxfp8":
        yield Assign("moe_runner_backend", "cutlass", "mxfp8 quantization forces the cutlass runner")


@rule("moe.mxfp8_runner", Stage.MOE_RUNNER, since="0.5.10", source=SOURCE)
def mxfp8_runner(s: State) -> Effects:
    """mxfp8 picks flashinfer_trtllm, and overrides every runner that cannot take it."""
    if s.quantization != "mxfp8":
        return
    allowed = ["cutlass", "flashinfer_trtllm", "flashinfer_trtllm_routed"]
    if s.version >= (0, 5, 15):
        allowed += ["deep_gemm", "flashinfer_megamoe"]
    default = "flashinfer_megamoe" if s.moe_a2a_backend == "flashinfer_megamoe" else "flashinfer_trtllm"
    if s.moe_runner_backend not in allowed:
        yield Assign("moe_runner_backend", default, "mxfp8 quantization supports few runners")


@rule("moe.nvfp4_online", Stage.MOE_RUNNER, since="0.5.14", source=CONSTRAINTS)
def nvfp4_online(s: State) -> Effects:
    """nvfp4_online needs compute capability 10 and a runner with NVFP4 kernels."""
    if s.quantization != "nvfp4_online":
        return
    if s.gpu.known and not s.gpu.sm100:
        yield Refuse("--quantization nvfp4_online needs compute capability 10.x", ("quantization",))
    allowed = ("flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutedsl")
    if s.moe_runner_backend == "auto":
        yield Assign("moe_runner_backend", "flashinfer_trtllm", "the runner of nvfp4_online")
    elif s.moe_runner_backend not in allowed:
        yield Refuse(f"--quantization nvfp4_online does not run on {s.moe_runner_backend}", _BOTH, allowed)


@rule("moe.nvfp4_on_sm120", Stage.MOE_RUNNER, since="0.5.13", source=SOURCE)
def nvfp4_on_sm120(s: State) -> Effects:
    """On compute capability 12 (and 11, newest) modelopt_fp4 runs on flashinfer_cutlass."""
    here = s.gpu.sm120 or (s.gpu.major == 11 and s.version >= (0, 5, 20))
    if s.moe_runner_backend == "auto" and s.quantization == "modelopt_fp4" and here:
        yield Assign(
            "moe_runner_backend", "flashinfer_cutlass", "trtllm-gen MoE kernels exist for compute capability 10 only"
        )


@rule("moe.flashinfer_cutlass", Stage.MOE_RUNNER, since="0.5.3", source=SOURCE)
def flashinfer_cutlass(s: State) -> Effects:
    """flashinfer_cutlass takes NVFP4, ModelOpt FP8 or bf16, and an expert-parallel size of 1 or tp."""
    if s.moe_runner_backend != "flashinfer_cutlass":
        return
    mixed: tuple[str | None, ...] = ("modelopt_mixed",) if s.version >= (0, 5, 12) else ()
    yield from _quantization(s, ("modelopt_fp4", "modelopt_fp8", *mixed, None))
    yield from _expert_parallel_one_or_tp(s)


@rule("moe.flashinfer_cutlass_0_5_2", Stage.MOE_RUNNER, until="0.5.2", source="server_args.py:__post_init__")
def flashinfer_cutlass_0_5_2(s: State) -> Effects:
    """In 0.5.2 flashinfer_cutlass takes modelopt_fp4 only, and says nothing of bf16."""
    if s.moe_runner_backend == "flashinfer_cutlass":
        yield from _quantization(s, ("modelopt_fp4",))
        yield from _expert_parallel_one_or_tp(s)


@rule("moe.flashinfer_cutedsl", Stage.MOE_RUNNER, since="0.5.10", source=SOURCE)
def flashinfer_cutedsl(s: State) -> Effects:
    """flashinfer_cutedsl takes NVFP4, few all-to-all backends, and an expert-parallel size of 1 or tp."""
    if s.moe_runner_backend != "flashinfer_cutedsl":
        return
    newer: tuple[str | None, ...] = ("modelopt_mixed", "nvfp4_online") if s.version >= (0, 5, 15) else ()
    yield from _quantization(s, ("modelopt_fp4", *newer))
    yield from _expert_parallel_one_or_tp(s)
    allowed = ("none", "deepep", "flashinfer")
    if s.moe_a2a_backend not in allowed:
        yield Refuse(
            f"--moe-runner-backend flashinfer_cutedsl does not run with --moe-a2a-backend {s.moe_a2a_backend}",
            ("moe_runner_backend", "moe_a2a_backend"),
            allowed,
        )
    if s.version >= (0, 5, 18) and s.moe_a2a_backend == "deepep" and s.quantization == "nvfp4_online":
        yield Refuse(
            "flashinfer_cutedsl with nvfp4_online takes --moe-a2a-backend none or flashinfer",
            ("moe_runner_backend", "quantization", "moe_a2a_backend"),
            ("none", "flashinfer"),
        )
    if s.version < (0, 5, 15):
        yield Assign("disable_shared_experts_fusion", True, "flashinfer_cutedsl runs without fused shared experts")


def _trtllm_methods(s: State) -> tuple[str | None, ...]:
    if s.version < (0, 5, 7):
        return ("modelopt_fp4", "fp8") if s.version < (0, 5, 5) else ("modelopt_fp4", "modelopt_fp8", "fp8")
    methods: tuple[str | None, ...] = ("modelopt_fp4", "fp8", "modelopt_fp8", "compressed-tensors", None)
    if s.version >= (0, 5, 10):
        methods += ("mxfp8",)
    if s.version >= (0, 5, 12):
        methods += ("modelopt_mixed",)
    return (*methods, "nvfp4_online") if s.version >= (0, 5, 14) else methods


@rule("moe.flashinfer_trtllm", Stage.MOE_RUNNER, source=SOURCE)
def flashinfer_trtllm(s: State) -> Effects:
    """flashinfer_trtllm takes few quantizations and runs without fused shared experts."""
    if s.moe_runner_backend not in ("flashinfer_trtllm", "experimental_sgl_trtllm"):
        return
    yield from _quantization(s, _trtllm_methods(s))
    yield Assign("disable_shared_experts_fusion", True, "the trtllm runner takes shared experts apart")


@rule("moe.flashinfer_trtllm_routed", Stage.MOE_RUNNER, since="0.5.10", source=SOURCE)
def flashinfer_trtllm_routed(s: State) -> Effects:
    """flashinfer_trtllm_routed takes few quantizations and runs without fused shared experts."""
    if s.moe_runner_backend != "flashinfer_trtllm_routed":
        return
    methods: tuple[str | None, ...] = ("fp8", "mxfp8", "modelopt_fp4", None)
    if s.version >= (0, 5, 14):
        methods += ("nvfp4_online",)
    if s.version >= (0, 5, 18):
        methods += ("modelopt_mixed", "minimax_m3_nvfp4")
    yield from _quantization(s, methods)
    yield Assign("disable_shared_experts_fusion", True, "the trtllm runner takes shared experts apart")


@rule("moe.fusion_off_by_runner", Stage.MOE_RUNNER, since="0.5.15", source=FUSION)
def fusion_off_by_runner(s: State) -> Effects:
    """CuteDSL and LoRA runners keep shared experts apart."""
    if s.moe_runner_backend in ("flashinfer_cutedsl", "lora_triton", "lora_cutedsl", "lora_marlin"):
        yield Assign("disable_shared_experts_fusion", True, f"{s.moe_runner_backend} runs without fused shared experts")


@rule("moe.cutlass_fp8_ep", Stage.MOE_RUNNER, source=SOURCE)
def cutlass_fp8_ep(s: State) -> Effects:
    """The cutlass runner with FP8 takes an expert-parallel size of 1."""
    if s.moe_runner_backend == "cutlass" and s.quantization in ("fp8", "mxfp8") and s.ep_size != 1:
        yield Refuse(
            f"--moe-runner-backend cutlass with {s.quantization} takes --ep-size 1, got {s.ep_size}",
            ("moe_runner_backend", "quantization", "ep_size"),
            ("--ep-size 1", "another runner"),
        )


@rule("moe.runner_switches_piecewise_off", Stage.MOE_RUNNER, since="0.5.10", until="0.5.12", source=SOURCE)
def runner_switches_piecewise_off(s: State) -> Effects:
    """Runners that bypass the top-k step cannot be traced: piecewise graphs go off, except for GPT-OSS."""
    here = (
        s.moe_runner_backend in ("flashinfer_trtllm", "flashinfer_mxfp4")
        and s.model.architecture != "GptOssForCausalLM"
    )
    if here and not s.enforce_piecewise_cuda_graph:
        yield Assign("disable_piecewise_cuda_graph", True, f"torch.compile cannot trace {s.moe_runner_backend}")


LORA = "arg_groups/lora_hook.py:check_lora_moe_runner_args"


@rule("moe.lora_runner", Stage.CHECK, since="0.5.20", source=LORA)
def lora_runner(s: State) -> Effects:
    """LoRA MoE runners need LoRA, no all-to-all, no expert balancing, and are not for a draft."""
    runner, draft = s.moe_runner_backend, s.speculative_moe_runner_backend
    if s.speculative_algorithm is not None and draft is not None and draft.startswith("lora"):
        yield Refuse(f"a draft model does not run on {draft}", ("speculative_moe_runner_backend",), ("auto",))
    if not runner.startswith("lora"):
        return
    if not (s.enable_lora or s.lora_paths):
        yield Refuse(
            f"--moe-runner-backend {runner} needs --enable-lora", ("moe_runner_backend", "enable_lora"), ("auto",)
        )
    if s.quantization not in (None, "fp8", "modelopt_fp4") or (
        s.quantization == "modelopt_fp4" and runner != "lora_marlin"
    ):
        yield Refuse(_not_taken(s), _BOTH)
    if s.moe_a2a_backend != "none":
        yield Refuse(
            f"--moe-runner-backend {runner} takes --moe-a2a-backend none",
            ("moe_runner_backend", "moe_a2a_backend"),
            ("none",),
        )
    if s.enable_eplb or s.init_expert_location != "trivial" or s.ep_num_redundant_experts > 0:
        yield Refuse(f"--moe-runner-backend {runner} takes no expert balancing", ("moe_runner_backend", "enable_eplb"))


@rule(
    "moe.experimental_marlin",
    Stage.EPLB,
    since="0.5.18",
    source="arg_groups/validation_hook.py:validate_experimental_sgl_marlin",
)
def experimental_marlin(s: State) -> Effects:
    """The experimental Marlin runner takes no all-to-all under expert parallelism."""
    if s.moe_runner_backend == "experimental_sgl_marlin" and s.ep_size > 1 and s.moe_a2a_backend != "none":
        yield Refuse(
            "--moe-runner-backend experimental_sgl_marlin takes --moe-a2a-backend none",
            ("moe_runner_backend", "moe_a2a_backend"),
            ("none",),
        )
