"""The phase in which a traceback arose: its frames decide; where the log was only fills the gap."""

from __future__ import annotations

import re

from servetune.core.failure import Phase
from servetune.engines.sglang._log_tracebacks import Trace

_EVENT_LOOP = re.compile(
    r":(?:event_loop_\w+|(?:run|dispatch)_event_loop|run_batch|forward_batch_generation|forward_thread_func_?|forward_step|exposed_step)\b|process_batch_result"
)
_WARMUP_CHECK = re.compile(r"_execute_server_warmup|server_warmup")
#: Innermost frame that matches any of these decides.
_FRAMES: tuple[tuple[re.Pattern[str], Phase], ...] = (
    (re.compile(r"autotuner\.py|_flashinfer_autotune|flashinfer_autotune|:kernel_warmup|:_dummy_run"), Phase.WARMUP),
    (
        re.compile(
            r"graph_runner\w*\.py:(?!replay)|:init_device_graphs|:init_cuda_graphs|cuda_graph_setup|:capture\w*\b"
        ),
        Phase.GRAPH_CAPTURE,
    ),
    (
        re.compile(
            r"memory_pool|mem_cache/\w+_pool\w*\.py|kv_cache_configurator|pool_configurator|:init_memory_pools?\b|:alloc_memory_pool|kv_cache_mixin"
            r"|pool_host|hybrid_pool|:_?profile_(?:available|max)"
        ),
        Phase.KV_ALLOC,
    ),
    (
        re.compile(
            r":load_model\b|model_loader/|:init_torch_distributed|:initialize_model_parallel|:init_parallel_runtime"
            r"|:init_attention_backends?\b|attention_registry|attention_backend_setup|draft_worker|speculative/\S+:__init__"
            r"|model_executor/\S+:initialize\b|init_distributed|:init_tp_model_worker"
        ),
        Phase.LOAD,
    ),
)
#: The scheduler's process is started when the arguments have been accepted.
_IN_SCHEDULER = re.compile(r":run_scheduler_process\b")
_WORDS: tuple[tuple[re.Pattern[str], Phase], ...] = (
    (re.compile(r"[Cc]apture (?:cuda|CUDA|cpu) graph failed"), Phase.GRAPH_CAPTURE),
    (re.compile(r"alloc_req_slots|[Tt]ry to lower your batch size|memory leak detected"), Phase.SERVING),
    (re.compile(r"out of memory"), Phase.LOAD),
)
_VALIDATION = re.compile(
    r"server_args\.py|arg_groups/|:prepare_server_args|:check_server_args|configs/model_config|_set_envs_and_config"
    r"|:resolve_once|_compute_parallelism_ranks"
)


def phase_of(trace: Trace, fragment: bool = False, served: bool = False, worker: bool = False) -> Phase:
    """Phase of a traceback. `fragment`: the log has no start, so its place says nothing; `served`: it has batches;
    `worker`: it is that of a node that serves and never says that it is ready.
    """
    position = Phase(trace.phase)
    chain = trace.chain
    stacks = [one.stack for one in chain if one.stack]
    whole = "\n".join(reversed(stacks))  # wrapper's frames lead to the inner one's
    if _WARMUP_CHECK.search(whole):
        return Phase.WARMUP
    if _EVENT_LOOP.search(whole):
        return Phase.SERVING if trace.ready or fragment or worker else Phase.WARMUP
    if trace.ready:
        return Phase.SERVING
    found = _innermost(stacks[0] if stacks else "") or _innermost(whole)
    if found is not None:
        return found
    if _VALIDATION.search(whole):
        return Phase.VALIDATE
    if position not in (Phase.PARSE, Phase.VALIDATE):
        return position
    return _of_fragment(chain[-1].text if chain else "", whole, served) if fragment else Phase.VALIDATE


def _of_fragment(text: str, stack: str, served: bool) -> Phase:
    """The phase that an exception's own words name, or that the rest of a log without a start suggests."""
    told = next((phase for pattern, phase in _WORDS if pattern.search(text)), None)
    if told is not None or served:
        return told or Phase.SERVING
    return Phase.LOAD if _IN_SCHEDULER.search(stack) else Phase.VALIDATE


def _innermost(stack: str) -> Phase | None:
    for frame in reversed(stack.split("\n")):
        path = frame.split("> ")[0]
        for pattern, phase in _FRAMES:
            if pattern.search(path):
                return phase
    return None
