"""The error texts of SGLang's versions, shaped as a real server prints them, with a scenario's numbers in them."""

from __future__ import annotations

import re
from typing import NamedTuple

from servetune.core.failure import Phase
from servetune.simulation.configuration import Memory
from servetune.simulation.model import Fault

ROOT = "/sgl-workspace/sglang/python/sglang/srt"

_CAPTURE_HINTS = """Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)
2. set --cuda-graph-max-bs to a smaller value (e.g., 16)
3. disable torch compile by not using --enable-torch-compile
4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)
Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose
"""
_ASYNCHRONOUS = """CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below \
might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""

Frame = tuple[str, int, str, str]  # file below ROOT, line, function, source line

_TOP: tuple[Frame, ...] = (
    ("managers/scheduler.py", 2937, "run_scheduler_process", "scheduler = Scheduler("),
    ("managers/scheduler.py", 348, "__init__", "self.init_model_worker()"),
    ("managers/tp_worker.py", 247, "__init__", "self._init_model_runner()"),
    ("model_executor/model_runner.py", 379, "__init__", "self.initialize(min_per_gpu_memory)"),
)
_LOADING: Frame = ("model_executor/model_runner.py", 455, "initialize", "self.load_model()")
_FRAMES: dict[str, tuple[Frame, ...]] = {
    "load": (
        *(*_TOP, _LOADING),
        ("model_loader/loader.py", 659, "load_model", "self.load_weights_and_postprocess("),
        ("layers/quantization/base_config.py", 212, "process_weights_after_loading", "self._repack(layer)"),
    ),
    "comm_init": (
        *(*_TOP, _LOADING),
        ("model_loader/loader.py", 277, "_initialize_model", "return model_class(**kwargs)"),
        ("layers/moe/token_dispatcher/base.py", 148, "__init__", "self._connect(group)"),
    ),
    "kv_alloc": (
        *_TOP,
        ("model_executor/model_runner.py", 577, "initialize", "self.init_memory_pool(min_per_gpu_memory)"),
        ("model_executor/model_runner_kv_cache_mixin.py", 416, "init_memory_pool", "raise RuntimeError("),
    ),
    "capture": (
        ("model_executor/cuda_graph_runner.py", 369, "__init__", "self.capture()"),
        ("model_executor/cuda_graph_runner.py", 508, "capture", "self.capture_one_batch_size(bs, forward)"),
        ("model_executor/cuda_graph_runner.py", 724, "run_once", "logits_output = forward("),
    ),
    "graph_capture": (
        *_TOP,
        ("model_executor/model_runner.py", 618, "initialize", "self.init_device_graphs()"),
        ("model_executor/cuda_graph_runner.py", 372, "__init__", "raise Exception("),
    ),
    "forward": (
        ("managers/scheduler.py", 2971, "run_scheduler_process", "scheduler.event_loop_overlap()"),
        ("managers/scheduler.py", 1134, "event_loop_overlap", "batch_result = self.run_batch(batch)"),
        ("managers/tp_worker.py", 437, "forward_batch_generation", "out = self.model_runner.forward("),
        ("model_executor/model_runner.py", 2288, "forward", "output = self._forward_raw("),
        ("layers/moe/fused_moe_triton/layer.py", 906, "forward", "combine_input = self.run_moe_core("),
    ),
    "validate": (
        ("../launch_server.py", 26, "<module>", "server_args = prepare_server_args(sys.argv[1:])"),
        ("server_args.py", 5087, "prepare_server_args", "return ServerArgs.from_cli_args(raw_args)"),
        ("server_args.py", 674, "__post_init__", "self._handle_a2a_moe()"),
    ),
}


class Numbers(NamedTuple):
    """What the error texts quote. `fraction`: the memory fraction as launched."""

    version: tuple[int, ...]
    memory: Memory
    fraction: float
    gpu_memory_gib: float


def version_tuple(version: str) -> tuple[int, ...]:
    """`0.5.9.post1` → (0, 5, 9)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def traceback_of(fault: Fault, numbers: Numbers) -> str:
    """Everything after `Scheduler hit an exception: ` (or, of validation, on its own), without a final newline."""
    if fault.phase is Phase.VALIDATE:
        return _traceback(_FRAMES["validate"], _raised(fault.log))
    if fault.phase is Phase.KV_ALLOC:
        text = _raised(fault.log) if fault.slug != "kv_budget" or fault.log else _no_room(numbers)
        return _traceback(_FRAMES["kv_alloc"], text)
    if fault.phase is Phase.GRAPH_CAPTURE:
        return _capture_failed(fault, numbers)
    text = _raised(fault.log) if fault.log else _out_of_memory(numbers)
    if fault.phase is Phase.LOAD:
        return _traceback(_FRAMES["comm_init" if fault.slug == "comm_init" else "load"], text)
    return _traceback(_FRAMES["forward"], text)


def _traceback(frames: tuple[Frame, ...], text: str) -> str:
    lines = ["Traceback (most recent call last):"]
    for file, line, function, source in frames:
        lines += [f'  File "{ROOT}/{file}", line {line}, in {function}', f"    {source}"]
    return "\n".join([*lines, text])


def _raised(log: str) -> str:
    """The last line of a traceback: the scenario's text, under the exception that would carry it."""
    if re.match(r"[A-Za-z_.]*(Error|Exception)\b", log):
        return log
    if re.search(r"CUDA error|no kernel image", log):
        shown = log if log.startswith("CUDA error") else f"CUDA error: {log}"
        return f"torch.AcceleratorError: {shown}\n{_ASYNCHRONOUS}"
    return f"RuntimeError: {log}"


def _capture_failed(fault: Fault, numbers: Numbers) -> str:
    """The inner error, and the wrapper that hints at memory whatever the cause was."""
    wrapper = "Capture cuda graph failed"
    cause = fault.log or _out_of_memory(numbers)
    if cause.startswith("Piecewise CUDA Graph failed"):
        wrapper, _, cause = cause.partition(" with error")
        wrapper, cause = f"{wrapper} with error", cause.lstrip(": ") or "torch._dynamo.exc.Unsupported"
    cause = cause.removeprefix(f"{wrapper}: ")
    inner = _traceback(_FRAMES["capture"], _raised(cause))
    text = re.sub(r"^[A-Za-z_.]+(Error|Exception): ", "", cause)
    outer = _traceback(_FRAMES["graph_capture"], f"Exception: {wrapper}: {text}\n{_CAPTURE_HINTS}")
    return f"{inner}\n\nDuring handling of the above exception, another exception occurred:\n\n{outer}"


def _no_room(numbers: Numbers) -> str:
    """Up to 0.5.13 a hint, then the computed minimum. Up to 0.5.10 the attribute's name is printed as it stands."""
    room, version, fraction = numbers.memory, numbers.version, numbers.fraction
    if version >= (0, 5, 14):
        least = 1 - room.avail / room.pre
        return (
            "ValueError: Loaded weights leave no GPU memory for the KV cache under "
            f"--mem-fraction-static={fraction:g}. Raise --mem-fraction-static above {least + 0.01:.3f} "
            f"(minimum viable = 1 - available/pre = {least:.3f})"
        )
    text = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    if version >= (0, 5, 11):
        return f"{text} Current value: mem_fraction_static={fraction:g}"
    return f"{text} Current value: self.server_args.mem_fraction_static={fraction:g}" if version >= (0, 5, 6) else text


def _out_of_memory(numbers: Numbers) -> str:
    return (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has a total capacity of "
        f"{numbers.gpu_memory_gib:.2f} GiB of which 331.19 MiB is free. Including non-PyTorch memory, this process has "
        f"{numbers.gpu_memory_gib - 0.33:.2f} GiB memory in use."
    )
