"""What a simulated server prints, phase by phase, in SGLang's words, and when: for the server and for virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from servetune.core.failure import Phase
from servetune.core.space import Value
from servetune.simulation.configuration import Memory, largest_graph, memory, overlay
from servetune.simulation.launch import Launch
from servetune.simulation.model import Fault, PhaseEnd
from servetune.simulation.scenario import Scenario
from servetune.simulation.tracebacks import Numbers, traceback_of, version_tuple

READY = "The server is fired up and ready to roll!"
#: Of the weight load and of graph capture, progress is printed this many times, so that no launch looks stalled.
PROGRESS_STEPS = 4


class Line(NamedTuple):
    """One entry of the log, `at_s` seconds after the launch. `rank` -1: the parent's own; None: without prefix."""

    at_s: float
    rank: int | None
    text: str


def banner(scenario: Scenario, time_scale: float | None) -> str:
    """The first line of every log."""
    pace = "in virtual time" if time_scale is None else f"at {time_scale:g} times the speed of a real clock"
    return f"SIMULATED server of scenario {scenario.name}, {pace}: no GPU is used and every number is invented."


def render(line: Line, now: Callable[[float], str]) -> str:
    """The text of a line; `now` turns seconds since the launch into SGLang's time stamp."""
    if line.rank is None:
        return f"{line.text}\n"
    rank = "" if line.rank < 0 else f" TP{line.rank}"
    return f"[{now(line.at_s)}{rank}] {line.text}\n"


def start_story(launch: Launch) -> list[Line]:
    """Every line from launch to readiness or death, in order of time."""
    lines: list[Line] = []
    begin_s = 0.0
    for end in launch.startup.ends:
        fault = launch.startup.fault if end is launch.startup.ends[-1] else None
        lines += _TELL[end.phase](launch, begin_s, end.end_s, fault)
        if fault:
            lines += death(launch, fault, end.end_s)
        elif end.phase is _last_before_warmup(launch.startup.ends):
            lines += _numbers_line(launch, end.end_s)
        begin_s = end.end_s
    return lines


def death(launch: Launch, fault: Fault, at_s: float) -> list[Line]:
    """How the log ends when the launch fails."""
    if fault.phase is Phase.PARSE:
        return [Line(at_s, None, f"{USAGE}\nlaunch_server.py: error: {fault.log.removeprefix('error: ')}")]
    text = traceback_of(fault, _quoted(launch))
    if fault.phase is Phase.VALIDATE:
        return [Line(at_s, None, text)]
    told = "Received sigquit from a child process. It usually means the child failed."
    if fault.phase is Phase.SERVING:
        told = "SIGQUIT received. signum=None, frame=None. It usually means one child failed."
    return [Line(at_s, 0, f"Scheduler hit an exception: {text}\n"), Line(at_s, -1, told)]


USAGE = "usage: launch_server.py [-h] --model-path MODEL_PATH [--tokenizer-path TOKENIZER_PATH] …"


def _quoted(launch: Launch) -> Numbers:
    scenario = launch.scenario
    return Numbers(
        version=version_tuple(scenario.engine_version),
        memory=memory(scenario, launch.configuration),
        fraction=float(launch.configuration["mem-fraction-static"]),
        gpu_memory_gib=scenario.node.gpu_memory_mib / 1024,
    )


def _last_before_warmup(ends: Sequence[PhaseEnd]) -> Phase:
    return next((end.phase for end in reversed(ends) if end.phase is not Phase.WARMUP), Phase.PARSE)


def _parse(launch: Launch, begin_s: float, end_s: float, fault: Fault | None) -> Iterator[Line]:
    yield from ()


def _validate(launch: Launch, begin_s: float, end_s: float, fault: Fault | None) -> Iterator[Line]:
    """A command that passes goes on to the distributed set-up within the same seconds."""
    if fault:
        return
    middle_s = (begin_s + end_s) / 2
    yield Line(middle_s, -1, server_args_line(launch))
    for rank in _ranks(launch):
        yield Line(middle_s, rank, "Init torch distributed begin.")
    for warning in launch.warnings:
        yield Line(middle_s, 0, warning)
    for rank in _ranks(launch):
        yield Line(end_s, rank, f"Init torch distributed ends. elapsed={end_s - middle_s:.2f} s, mem usage=0.95 GB")


def _load(launch: Launch, begin_s: float, end_s: float, fault: Fault | None) -> Iterator[Line]:
    room = memory(launch.scenario, launch.configuration)
    for rank in _ranks(launch):
        yield Line(begin_s, rank, f"Load weight begin. avail mem={room.pre:.2f} GB")
    shards = "Loading safetensors checkpoint shards"
    for step in range(PROGRESS_STEPS):
        at_s = begin_s + (end_s - begin_s) * step / PROGRESS_STEPS
        share, done = 100 * step // PROGRESS_STEPS, 64 * step // PROGRESS_STEPS
        yield Line(at_s, None, f"{shards}: {share:3d}% Completed | {done}/64")
    if not fault:
        yield Line(end_s, None, f"{shards}: 100% Completed | 64/64")
        for rank in _ranks(launch):
            yield Line(end_s, rank, _weights_loaded(launch, room, end_s - begin_s))


def _weights_loaded(launch: Launch, room: Memory, elapsed_s: float) -> str:
    version = version_tuple(launch.scenario.engine_version)
    elapsed = f" elapsed={elapsed_s:.2f} s," if version >= (0, 5, 9) else ""
    kind = f"quant={launch.scenario.model.quantization}, bits=None" if version >= (0, 5, 12) else "dtype=torch.bfloat16"
    return (
        f"Load weight end.{elapsed} type={launch.scenario.model.architecture}, {kind}, "
        f"avail mem={room.avail:.2f} GB, mem usage={room.weights:.2f} GB."
    )


def _kv_alloc(launch: Launch, begin_s: float, end_s: float, fault: Fault | None) -> Iterator[Line]:
    yield Line(begin_s, 0, "Using KV cache dtype: torch.bfloat16")
    if fault and fault.slug == "kv_budget":
        return
    room = memory(launch.scenario, launch.configuration)
    dtype = " dtype: torch.bfloat16," if version_tuple(launch.scenario.engine_version) >= (0, 5, 15) else ""
    tokens = kv_tokens(launch.scenario, room)
    for rank in _ranks(launch):
        yield Line(end_s, rank, f"KV Cache is allocated.{dtype} #tokens: {tokens}, KV size: {room.kv_gib:.2f} GB")
    for rank in _ranks(launch):
        yield Line(end_s, rank, f"Memory pool end. avail mem={room.headroom:.2f} GB")


def kv_tokens(scenario: Scenario, room: Memory) -> int:
    """Tokens that the KV pool of the whole server holds."""
    return max(0, math.floor(room.kv_gib * scenario.kv_tokens_per_gib))


def _graph_capture(launch: Launch, begin_s: float, end_s: float, fault: Fault | None) -> Iterator[Line]:
    room = memory(launch.scenario, launch.configuration)
    late = version_tuple(launch.scenario.engine_version) >= (0, 5, 14)
    sizes = captured_sizes(int(largest_graph(launch.configuration)))
    shown = f"{room.headroom:.2f} GB"
    for rank in _ranks(launch):
        opening = (
            f"backend=full, num_tokens_per_bs=1, bs={sizes}, " if late else "This can take up to several minutes. "
        )
        what = "target decode CUDA graph" if late else "cuda graph"
        yield Line(begin_s, rank, f"Capture {what} begin. {opening}avail mem={shown}")
    if not late:
        yield Line(begin_s, 0, f"Capture cuda graph bs {sizes}")
    for step in range(PROGRESS_STEPS):
        at_s = begin_s + (end_s - begin_s) * step / PROGRESS_STEPS
        index = len(sizes) * step // PROGRESS_STEPS
        size = sizes[-1 - index] if sizes else 0
        free = max(0.0, room.headroom - room.graph * step / PROGRESS_STEPS)
        progress = f"{100 * step // PROGRESS_STEPS:3d}%| {index}/{len(sizes)}"
        yield Line(at_s, None, f"Capturing batches (bs={size} avail_mem={free:.2f} GB): {progress}")
    if not fault:
        elapsed, usage, avail = (
            f"{end_s - begin_s:.2f} s",
            f"{room.graph:.2f} GB",
            f"{room.headroom - room.graph:.2f} GB",
        )
        text = f"Capture cuda graph end. Time elapsed: {elapsed}. mem usage={usage}. avail mem={avail}."
        if late:
            text = f"Capture target decode CUDA graph end. elapsed={elapsed}, mem usage={usage}, avail mem={avail}."
        for rank in _ranks(launch):
            yield Line(end_s, rank, text)


def captured_sizes(largest: int) -> list[int]:
    """SGLang's list of captured batch sizes up to `largest`, which it always ends with here."""
    steps = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, 1 << 16, 32)]
    sizes = [size for size in steps if size < largest]
    return [*sizes, largest] if largest > 0 else []


def _numbers_line(launch: Launch, at_s: float) -> list[Line]:
    room = memory(launch.scenario, launch.configuration)
    tokens = kv_tokens(launch.scenario, room)
    chunk = launch.configuration["chunked-prefill-size"]
    text = (
        f"max_total_num_tokens={tokens}, chunked_prefill_size={chunk}, max_prefill_tokens=16384, "
        f"max_running_requests={max_running_requests(launch.configuration, tokens)}, context_len={CONTEXT_TOKENS}, "
        f"available_gpu_mem={room.headroom - room.graph:.2f} GB"
    )
    return [Line(at_s, 0, text)]


CONTEXT_TOKENS = 131072


def max_running_requests(configuration: Mapping[str, Value], tokens: int) -> int:
    """What is set, or SGLang's own bound."""
    asked = configuration.get("max-running-requests")
    return int(asked) if asked is not None else min(4096, max(1, tokens // 2))


def _warmup(launch: Launch, begin_s: float, end_s: float, fault: Fault | None) -> Iterator[Line]:
    """The port is bound only now. A warm-up that fails dies in the scheduler."""
    yield Line(begin_s, None, "INFO:     Started server process [1]")
    yield Line(begin_s, None, "INFO:     Waiting for application startup.")
    yield Line(begin_s, None, "INFO:     Application startup complete.")
    url = f"http://{launch.command.host}:{launch.command.port}"
    yield Line(begin_s, None, f"INFO:     Uvicorn running on {url} (Press CTRL+C to quit)")
    counts = "#new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 0,"
    yield Line((begin_s + end_s) / 2, 0, f"Prefill batch, {counts}")
    if not fault:
        yield Line(end_s, None, 'INFO:     127.0.0.1:0 - "POST /generate HTTP/1.1" 200 OK')
        yield Line(end_s, -1, READY)


def server_arguments(launch: Launch) -> dict[str, Value]:
    """The arguments as launched, not what came of them, by SGLang's field names. The API key is left out."""
    command, launched = launch.command, overlay(launch.scenario, launch.command.assignment)
    values: dict[str, Value] = {
        "model_path": command.model_path,
        "tokenizer_path": command.model_path,
        "dtype": "auto",
        "host": command.host,
        "port": command.port,
        "tp_size": command.tp_size,
    }
    for flag, value in launched.items():
        if not flag.startswith("env.") and flag != "api-key":
            values.setdefault(flag.replace("-", "_"), value)
    return {**values, "random_seed": 42, "watchdog_timeout": 300, "log_level": "info"}


def server_args_line(launch: Launch) -> str:
    """A constructor call up to 0.5.18, a dictionary from then on."""
    values = server_arguments(launch)
    if version_tuple(launch.scenario.engine_version) >= (0, 5, 19):
        return f"server_args={values!r}"
    return f"server_args=ServerArgs({', '.join(f'{name}={value!r}' for name, value in values.items())})"


def _ranks(launch: Launch) -> range:
    return range(launch.command.tp_size)


_Teller = Callable[[Launch, float, float, Fault | None], Iterator[Line]]
_TELL: dict[Phase, _Teller] = {
    Phase.PARSE: _parse,
    Phase.VALIDATE: _validate,
    Phase.LOAD: _load,
    Phase.KV_ALLOC: _kv_alloc,
    Phase.GRAPH_CAPTURE: _graph_capture,
    Phase.WARMUP: _warmup,
}
