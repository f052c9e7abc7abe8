"""What the simulated server says of itself: server information, models, metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from servetune.core.space import Value
from servetune.simulation.configuration import memory
from servetune.simulation.launch import Launch
from servetune.simulation.story import CONTEXT_TOKENS, kv_tokens, max_running_requests, server_arguments


class Load(NamedTuple):
    """The server at one moment. Rates in node time; `requests` and tokens are totals since the start."""

    running: int
    waiting: int
    held_tokens: int
    tokens_per_s: float
    requests: int
    prompt_tokens: int
    output_tokens: int


def server_info(launch: Launch, scenario_file: str, time_scale: float, load: Load) -> bytes:
    """`/server_info`: the arguments, flattened, with the state; and that all of it is simulated."""
    room = memory(launch.scenario, launch.configuration)
    capacity = kv_tokens(launch.scenario, room)
    running = max_running_requests(launch.configuration, capacity)
    used = {"weight": room.weights, "kvcache": room.kv_gib, "graph": room.graph, "token_capacity": capacity}
    state = {
        "last_gen_throughput": load.tokens_per_s,
        "memory_usage": used,
        "effective_max_running_requests_per_dp": running,
        "avg_spec_accept_length": None,
    }
    told: dict[str, Any] = {
        **server_arguments(launch),
        "status": "ready",
        "max_total_num_tokens": capacity,
        "max_req_input_len": CONTEXT_TOKENS - 6,
        "version": launch.scenario.engine_version,
        "internal_states": [state],
        "simulated": True,
        "simulation": {
            "scenario": scenario_file,
            "time_scale": time_scale,
            "seed": launch.seed,
            "assignment": assignment(launch),
        },
    }
    return json.dumps(told).encode()


def assignment(launch: Launch) -> Mapping[str, Value]:
    """What the launch sets, secrets aside."""
    return {flag: value for flag, value in launch.command.assignment.items() if flag != "api-key"}


def model_info(launch: Launch) -> bytes:
    """`/model_info` and `/get_model_info`."""
    path = launch.command.model_path
    told = {
        "model_path": path,
        "tokenizer_path": path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "simulated": True,
    }
    return json.dumps(told).encode()


def models(launch: Launch) -> bytes:
    """`/v1/models`."""
    name = launch.command.served_model_name
    model = {"id": name, "object": "model", "created": 0, "owned_by": "sglang", "root": name}
    return json.dumps({"object": "list", "data": [{**model, "max_model_len": CONTEXT_TOKENS}]}).encode()


def metrics(launch: Launch, load: Load) -> bytes:
    """`/metrics` in Prometheus' text form."""
    capacity = kv_tokens(launch.scenario, memory(launch.scenario, launch.configuration))
    label = f'{{model_name="{launch.command.served_model_name}",engine_type="unified",tp_rank="0"}}'
    gauges = {
        "num_running_reqs": load.running,
        "num_queue_reqs": load.waiting,
        "num_used_tokens": load.held_tokens,
        "token_usage": round(load.held_tokens / capacity, 4) if capacity else 0.0,
        "gen_throughput": round(load.tokens_per_s, 2),
        "max_total_num_tokens": capacity,
        "cache_hit_rate": 0.0,
    }
    counters = {
        "prompt_tokens_total": load.prompt_tokens,
        "generation_tokens_total": load.output_tokens,
        "num_requests_total": load.requests,
        "num_retracted_requests_total": 0,
    }
    lines = ["# Every number here is simulated."]
    for kind, values in (("gauge", gauges), ("counter", counters)):
        for name, value in values.items():
            lines += [f"# TYPE sglang:{name} {kind}", f"sglang:{name}{label} {value}"]
    return ("\n".join(lines) + "\n").encode()
