"""Layer 3: what a configuration needs of a GPU's memory, before anything is launched.

The engine's arithmetic (`model_runner_kv_cache_mixin.py`, from 0.5.20 on `pool_configurator.py`):
`KV bytes = available after load - before load x (1 - fraction)`. So a fraction can work when it is above
`weights / before load` (something is left for the KV cache) and when `before load x (1 - fraction)` still holds the
graphs, activations and tables. Shapes give an estimate; one log of the class of configurations makes it tight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from servetune.core.engine import Violation
from servetune.core.node import NodeFacts
from servetune.core.space import Assignment, Frozen
from servetune.engines.sglang import _memory_cache, _memory_weights, _memory_workspaces
from servetune.engines.sglang._memory_calibration import Calibration, ClassMemory, calibrate, class_key
from servetune.engines.sglang._memory_pools import CachePools, cache_pools
from servetune.engines.sglang.model_config import ModelFacts, model_facts
from servetune.engines.sglang.rules._registry import parse_version
from servetune.engines.sglang.rules._run import run
from servetune.engines.sglang.rules._state import State
from servetune.engines.sglang.rules.memory_defaults import post_capture_sizing, prefill_graph_sizes
from servetune.engines.sglang.rules.sizes import below_one

__all__ = [
    "MEMORY_RULES",
    "Calibration",
    "ClassMemory",
    "MemoryForecast",
    "calibrate",
    "class_key",
    "forecast",
    "memory_violations",
]

_GIB = 2**30
#: Violations of layer `memory` and what they mean.
MEMORY_RULES: Mapping[str, str] = {
    "memory.weights_do_not_fit": "The weights alone take more than a GPU has: no fraction can work.",
    "memory.fraction_too_low": "The memory fraction holds back more than is free after loading: no KV cache.",
    "memory.fraction_too_high": "The memory fraction leaves no room for graphs, activations and tables.",
}
SOURCE = "model_executor/model_runner_kv_cache_mixin.py; 0.5.20+: model_executor/pool_configurator.py"
#: Relative error of weights, and of what must stay free, by what is known: nothing (of a model with recurrent states,
#: or another), another class, this class.
_WEIGHT_ERROR = {"hybrid": 0.1, "shapes": 0.03, "node": 0.01, "class": 0.002}
_HEADROOM_ERROR = {"hybrid": 0.5, "shapes": 0.5, "node": 0.5, "class": 0.25}
#: Allocator and kernels loaded with the weights: what H200 launches showed above the sum of the shapes.
_LOADED_KERNELS_BYTES = int(0.02 * _GIB)


class MemoryForecast(Frozen):
    """Memory of one GPU, in bytes unless said otherwise.

    `weights_bytes`: all that is taken when the KV cache is sized: also workspaces and, where the engine sizes it after
    their capture, graphs; `weights`: its larger parts. `fraction_low`, `fraction_high`: the interval that can work;
    outside of it the launch is known to die. `fraction_needed`: the best estimate of the smallest fraction with room
    for one token. `fraction`: the one that the launch would use, named or automatic. `known_from`: shapes, node
    (another class was launched) or class. `state_share`, `fixed_cache_bytes`: what recurrent states (of `state_bytes`
    each), or windows that follow the number of requests, take of the memory for caches.
    """

    before_load_bytes: int
    weights: Mapping[str, int] = Field(default_factory=dict)
    weights_bytes: int
    workspace_bytes: int
    kv_bytes_per_token: float
    state_share: float = 0.0
    fixed_cache_bytes: int = 0
    state_bytes: int = 1
    table_bytes: int
    graph_bytes: int
    activation_bytes: int
    fraction: float | None
    fraction_named: bool
    fraction_low: float
    fraction_needed: float
    fraction_high: float
    kv_tokens: int | None
    page_tokens: int
    max_total_tokens: int | None
    known_from: str

    def kv_tokens_at(self, fraction: float) -> int:
        """KV tokens that fit at a memory fraction; 0 when the weights leave nothing."""
        return _tokens(self.before_load_bytes, self.weights_bytes, self._pools, fraction, self.page_tokens)

    def fraction_for(self, tokens: int) -> float:
        """Smallest fraction at which `tokens` fit."""
        return (self.weights_bytes + self._pools.rest_bytes(tokens)) / self.before_load_bytes

    @property
    def _pools(self) -> CachePools:
        return CachePools(self.kv_bytes_per_token, self.state_share, self.fixed_cache_bytes, self.state_bytes)

    @property
    def fits(self) -> bool:
        """Whether the fraction in use lies in the interval that can work."""
        return self.fraction is None or self.fraction_low <= self.fraction <= self.fraction_high


def forecast(
    assignment: Assignment,
    facts: NodeFacts,
    engine_version: str,
    model_config: Mapping[str, Any] | None,
    calibration: Calibration | None = None,
) -> MemoryForecast | None:
    """Memory of one GPU under `assignment`; None when the GPU's memory or the model is not known.

    None also for models with layers that neither attend nor keep a state (Nemotron-H), and where a config does not say
    the shapes of its recurrent states.
    """
    if model_config is None or facts.gpu_memory_bytes is None:
        return None
    state = State(assignment, facts, parse_version(engine_version), model_facts(model_config))
    run(state)
    return forecast_of(state, assignment, facts, engine_version, model_config, calibration)


def forecast_of(
    state: State,
    assignment: Assignment,
    facts: NodeFacts,
    engine_version: str,
    model_config: Mapping[str, Any] | None,
    calibration: Calibration | None = None,
) -> MemoryForecast | None:
    """As `forecast`, from a state to which the rules have been applied already."""
    if state.gpu.memory_mib is None or not state.model.layers or _other_layers(state.model) or below_one(state):
        return None
    fraction = state.user.get("mem_fraction_static")
    named = fraction is not None
    if fraction is not None and not 0 <= fraction <= 1:  # a rule of its own says so
        return None
    return _forecast(state, named, _known(state, assignment, facts, engine_version, model_config, calibration))


def _other_layers(model: ModelFacts) -> bool:
    return model.recurrent is not None and model.recurrent.layers + model.recurrent.attention_layers < model.layers


def memory_violations(
    found: MemoryForecast | None, assignment: Assignment, named_only: bool = True
) -> tuple[Violation, ...]:
    """Layer `memory`: the fraction lies outside the interval. `named_only`: the automatic fraction is not judged."""
    if found is None or found.fraction is None or found.fits or (named_only and not found.fraction_named):
        return ()
    flags = tuple(flag for flag in assignment if flag in ("mem-fraction-static", "tp-size", "moe-a2a-backend"))
    if found.weights_bytes >= found.before_load_bytes:
        return (_too_large(found, flags, assignment),)
    too_low = found.fraction < found.fraction_low
    whose = "--mem-fraction-static" if found.fraction_named else "the automatic memory fraction"
    message = _too_low(found, whose) if too_low else _too_high(found, whose)
    bound = found.fraction_needed if too_low else found.fraction_high
    relation = "above" if too_low else "below"
    return (
        Violation(
            rule="memory.fraction_too_low" if too_low else "memory.fraction_too_high",
            layer="memory",
            flags=flags,
            message=message,
            alternatives=(f"--mem-fraction-static {relation} {bound:.3f}",),
            source=SOURCE,
        ),
    )


def _too_large(found: MemoryForecast, flags: tuple[str, ...], assignment: Assignment) -> Violation:
    ranks = assignment.get("tp-size", 1)
    more = (f"--tp-size {2 * ranks}",) if isinstance(ranks, int) else ()
    return Violation(
        rule="memory.weights_do_not_fit",
        layer="memory",
        flags=flags,
        message=(
            f"the weights take {found.weights_bytes / _GIB:.1f} GiB of each GPU, of which "
            f"{found.before_load_bytes / _GIB:.1f} GiB are free: no memory fraction can work"
        ),
        alternatives=(*more, "a quantized checkpoint"),
        source=SOURCE,
    )


def _too_low(found: MemoryForecast, whose: str) -> str:
    before, free = found.before_load_bytes, found.before_load_bytes - found.weights_bytes
    held = before * (1 - (found.fraction or 0))
    return (
        f"{whose} {found.fraction:.4g} leaves nothing for the KV cache: {free / _GIB:.1f} of {before / _GIB:.1f} GiB "
        f"are free after loading, {held / _GIB:.1f} are held back; the smallest fraction is "
        f"1 - {free / _GIB:.1f}/{before / _GIB:.1f} = {found.fraction_needed:.3f}"
    )


def _too_high(found: MemoryForecast, whose: str) -> str:
    needed = found.table_bytes + found.graph_bytes + found.activation_bytes
    held = found.before_load_bytes * (1 - (found.fraction or 0))
    return (
        f"{whose} {found.fraction:.4g} holds back {held / _GIB:.2f} GiB, and graphs, activations and tables "
        f"need about {needed / _GIB:.2f} GiB; the largest fraction is {found.fraction_high:.3f}"
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """What launches say about this configuration: numbers of its class, or a correction from other classes."""

    source: str = "shapes"
    memory: ClassMemory | None = None
    correction_bytes: int = 0
    before_load_bytes: int | None = None


def _known(
    state: State,
    assignment: Assignment,
    facts: NodeFacts,
    engine_version: str,
    model_config: Mapping[str, Any] | None,
    calibration: Calibration | None,
) -> _Known:
    if calibration is None or not calibration.classes:
        return _Known()
    own = calibration.classes.get(class_key(assignment))
    if own is not None and own.weights_bytes is not None:
        return _Known("class", own)
    errors, before = [], []
    for other in calibration.classes.values():
        several = _ranks(other.assignment) > 1
        if several == (state.tp_size * state.pp_size > 1):
            before.append(other.before_load_bytes)
        if other.weights_bytes is not None:
            shapes = State(other.assignment, facts, state.version, state.model)
            run(shapes)
            errors.append((other.weights_bytes - _static_bytes(shapes)[1]) / max(1, _static_bytes(shapes)[1]))
    if not errors:
        return _Known("shapes", own)
    mean = sum(errors) / len(errors)
    return _Known("node", own, int(mean * _static_bytes(state)[1]), min(before, default=None))


def _ranks(assignment: Assignment) -> int:
    sizes = [assignment.get(flag, 1) for flag in ("tp-size", "pp-size")]
    return int(sizes[0]) * int(sizes[1])


def _static_bytes(state: State) -> tuple[dict[str, int], int]:
    """(weights by part, weights and workspaces together), from shapes alone."""
    parts = _memory_weights.weight_bytes(state.model, _layout(state), state.quantization)
    workspaces = _memory_workspaces.a2a_bytes(state) if state.moe_a2a_backend == "flashinfer" else 0
    later = _memory_workspaces.communication_bytes(state)[1]
    return parts, sum(parts.values()) + workspaces + later + _LOADED_KERNELS_BYTES


def _layout(state: State) -> _memory_weights.Layout:
    attention = state.attention_tp
    data_parallel = state.attention_dp > 1
    dense = 1 if state.moe_dense_tp_size == 1 else state.tp_size
    fused = (
        state.model.architecture == "DeepseekV3ForCausalLM"
        and state.model.experts == 256
        and not state.disable_shared_experts_fusion
        and state.moe_a2a_backend == "none"
    )
    return _memory_weights.Layout(
        tensor=state.tp_size,
        pipeline=state.pp_size,
        attention=attention,
        dense=dense,
        head=attention if data_parallel and state.enable_dp_lm_head else state.tp_size,
        replicate_shared=state.moe_a2a_backend in _memory_weights.REPLICATING_A2A,
        fused_shared=fused,
        redundant_experts=int(state.ep_num_redundant_experts),
        draft_layers=_draft_layers(state),
    )


def _draft_layers(state: State) -> int:
    """From 0.5.14 on the draft is loaded before the pool is sized; a checkpoint's own draft is its next-token layer."""
    drafts = state.speculative_algorithm in ("EAGLE", "NEXTN") and state.version >= (0, 5, 14)
    return min(1, state.model.nextn_layers) if drafts else 0


def _before_load_bytes(state: State, known: _Known) -> int:
    if known.memory is not None:
        return known.memory.before_load_bytes
    if known.before_load_bytes is not None:
        return known.before_load_bytes
    taken = _memory_workspaces.CONTEXT_BYTES + _memory_workspaces.communication_bytes(state)[0]
    return int((state.gpu.memory_mib or 0) * 2**20) - taken


def _forecast(state: State, named: bool, known: _Known) -> MemoryForecast:
    before = _before_load_bytes(state, known)
    parts, static = _static_bytes(state)
    weights = static + known.correction_bytes
    if known.source == "class" and known.memory is not None and known.memory.weights_bytes is not None:
        weights = known.memory.weights_bytes
    pools = cache_pools(state)
    fraction, page = state.mem_fraction_static, int(state.page_size or 1)
    captured = _headroom(state, known, 0)[1] if post_capture_sizing(state) else 0
    weights += captured
    tokens = None if fraction is None else _tokens(before, weights, pools, fraction, page)
    if tokens is not None and state.max_total_tokens is not None:
        tokens = min(tokens, int(state.max_total_tokens))
    tables, graphs, activations = _headroom(state, known, tokens or 0)
    later = _memory_workspaces.symmetric_memory_bytes(state)
    source = known.source if state.model.recurrent is None or known.source != "shapes" else "hybrid"
    low, high = _interval(
        before, weights + int(pools.rest_bytes(0)), tables + (0 if captured else graphs) + activations + later, source
    )
    return MemoryForecast(
        before_load_bytes=before,
        weights=parts,
        weights_bytes=weights,
        workspace_bytes=_memory_workspaces.a2a_bytes(state) + later,
        kv_bytes_per_token=pools.bytes_per_token,
        state_share=pools.state_share,
        fixed_cache_bytes=pools.fixed_bytes,
        state_bytes=pools.state_bytes,
        table_bytes=tables,
        graph_bytes=graphs,
        activation_bytes=activations,
        fraction=fraction,
        fraction_named=named,
        fraction_low=low,
        fraction_needed=(weights + pools.rest_bytes(0)) / before,
        fraction_high=high,
        kv_tokens=tokens,
        page_tokens=page,
        max_total_tokens=state.max_total_tokens,
        known_from=known.source,
    )


def _interval(before: int, weights: int, headroom: int, source: str) -> tuple[float, float]:
    """Only what surely dies lies outside: errors widen the interval on both sides."""
    low = weights * (1 - _WEIGHT_ERROR[source]) / before
    high = 1 - headroom * (1 - _HEADROOM_ERROR[source]) / before
    return max(0.0, low), min(1.0, high)


def _tokens(before: int, weights: int, pools: CachePools, fraction: float, page: int) -> int:
    return pools.tokens((before - weights) - before * (1 - fraction)) // page * page


def _headroom(state: State, known: _Known, tokens: int) -> tuple[int, int, int]:
    """(tables, graphs, activations and the rest) that must fit beside weights and KV cache."""
    context = state.context_length or state.model.context_tokens
    requests = _memory_cache.running_requests(state.max_running_requests, state.attention_dp, tokens, context)
    tables = _memory_cache.table_bytes(requests, context)
    largest, sizes, prefill_sizes = _graphs(state, requests)
    decode = _memory_workspaces.decode_graph_bytes(state.model, sizes)
    prefill = _memory_workspaces.prefill_graph_bytes(state.model, prefill_sizes)
    chunk = state.chunked_prefill_size if (state.chunked_prefill_size or 0) > 0 else state.max_prefill_tokens
    activations = _memory_workspaces.activation_bytes(state.model, state.tp_size, max(chunk, largest))
    memory = known.memory
    if memory is not None and sizes and memory.decode_graph_bytes is not None and memory.decode_graph_sizes:
        decode = _plausible(int(memory.decode_graph_bytes * sizes / memory.decode_graph_sizes), decode)
    if memory is not None and prefill_sizes and memory.prefill_graph_bytes is not None:
        # the capture has run the largest prefill
        prefill, activations = _plausible(memory.prefill_graph_bytes, prefill + activations), 0
    return tables, decode + prefill, activations + _memory_workspaces.MISCELLANEOUS_BYTES


def _plausible(seen: int, estimate: int) -> int:
    """Free memory fell by `seen` during a capture; far more than the estimate is another process on the same GPU."""
    return min(seen, 4 * estimate + 2 * _GIB)


def _graphs(state: State, requests: int) -> tuple[int, int, int]:
    """(largest decode graph, number of decode graphs, number of prefill graphs)."""
    new = state.version >= (0, 5, 14)
    off = state.cuda_graph_backend_decode == "disabled" if new else state.disable_cuda_graph
    largest = (state.cuda_graph_max_bs_decode if new else state.cuda_graph_max_bs) or 0
    largest = 0 if off else min(largest, requests)
    drafts = state.speculative_algorithm is not None
    sizes = _memory_workspaces.decode_graph_sizes(largest, drafts, not state.disable_cuda_graph_padding)
    if new:
        prefill_on, tokens = state.cuda_graph_backend_prefill != "disabled", state.cuda_graph_max_bs_prefill
    else:
        default_on = state.version >= (0, 5, 10) and not state.disable_piecewise_cuda_graph
        prefill_on = not off and (default_on or (state.version < (0, 5, 10) and state.enable_piecewise_cuda_graph))
        tokens = state.piecewise_cuda_graph_max_tokens
    return largest, sizes, len(prefill_graph_sizes(tokens)) if prefill_on and tokens else 0
